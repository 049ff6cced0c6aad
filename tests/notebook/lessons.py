"""Small notebooks for the tests, made as a lesson is: title and question, parameters, promise, then the cells given."""

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PARAMETERS = 'profile: str = "auto"  # auto, smoke or gpu\nsteps: int = 5  # optimizer steps'


def text(source):
    return new_markdown_cell(source)


def code(source, tag=None, folded=False):
    metadata = {"tags": [tag]} if tag else {}
    return new_code_cell(source, metadata=metadata | ({"jupyter": {"source_hidden": True}} if folded else {}))


def notebook(*cells):
    """Copies of exactly these cells, with ids of their place, so that equal notebooks are equal bytes."""
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
                "language_info": {"name": "python"}}
    placed = [nbformat.from_dict(cell | {"id": f"cell-{number}"}) for number, cell in enumerate(cells)]
    return new_notebook(metadata=metadata, cells=placed)


PROMISES = """- **You will be able to** say where
  the time goes.
- **It takes** about 12 minutes.
- **It needs** two cores."""


def lesson(*sources, expect="speed"):
    """A notebook that promises the result `expect`; its own code cells begin with cell 4."""
    head = [text(f"# A lesson\n\n**Question.** Where does the time go?\n\n{PROMISES}"), code(PARAMETERS, "parameters"),
            code(f'from lfhelpers.notebook import expect, record, skip\n\nexpect("{expect}")')]
    return notebook(*head, *(source if hasattr(source, "cell_type") else code(source) for source in sources))


def save(folder, name, made):
    """Write a notebook and return its path."""
    path = folder / f"{name}.ipynb"
    nbformat.write(made, path)
    return path
