"""Every command's help has an example, every option a word, and every command shown anywhere can be called."""

import re
import shlex
import textwrap

import pytest
import typer

from lfhelpers import cli, runs
from lfhelpers.notebook import catalogue, guide

ROOT = typer.main.get_command(cli.app)
UsageError = typer.BadParameter.__base__


def commands(command=ROOT, words=("lfhelpers",)):
    """(words, command) of the program, its groups and its commands."""
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*words, name))


def parse(line):
    """Take a command line as the program would, and run nothing. UsageError where it is wrong."""
    words, command = shlex.split(line.replace(" N", " 7"), comments=True)[1:], ROOT  # N stands for any number
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    if hasattr(command, "commands"):
        raise UsageError(f"'{line}' names no command")
    command.make_context(line, words)


def shown():
    """(place, command line) of every `lfhelpers ...` in documents, lessons, examples and the map."""
    project = runs.project()
    texts = {name: (project / name).read_text() for name in ("README.md", "CONTRIBUTING.md", "notebooks/GUIDE.md",
                                                             "examples/playbook.cron", "examples/playbook.sbatch")}
    texts |= {path.stem: "\n".join(cell.source for cell in catalogue.read(path).cells if cell.cell_type == "markdown")
              for path in catalogue.select()}
    for place, text in texts.items():
        text = text.replace("\\\n", " ")
        for block in re.findall(r"```(?:bash)?\n(.*?)```", text, flags=re.DOTALL):
            yield from ((place, line) for line in block.splitlines() if line.startswith("lfhelpers "))
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        yield from ((place, " ".join(line.split())) for line in re.findall(r"`(lfhelpers [^`]+)`", prose))
        yield from ((place, line.partition(">>")[0]) for line in re.findall(r"\.venv/bin/(lfhelpers .*)", text))
    yield from (("map", command) for _, _, command in guide.MAP)


@pytest.mark.parametrize(("words", "command"), list(commands()), ids=lambda value: " ".join(value)
                         if isinstance(value, tuple) else "")
def test_help_has_an_example_that_can_be_called_and_a_word_on_every_option(words, command):
    example = re.search(r"Example: (lfhelpers .+)", textwrap.dedent(command.help or ""))
    assert example, "give an example: a line that begins with Example: lfhelpers ..."
    parse(example[1])
    if not hasattr(command, "commands"):
        assert example[1].startswith(" ".join(words))
    assert len(command.help.splitlines()[0]) > 10 and len(example[0]) < 80
    assert [param.name for param in command.params if not getattr(param, "help", "")] == []


def test_every_command_that_is_shown_can_be_called():
    lines = list(shown())
    assert len(lines) > 60
    wrong = []
    for place, line in lines:
        try:
            parse(line)
        except UsageError as error:
            if not re.fullmatch(r"lfhelpers( [a-z-]+){0,2}( --help)?", line):  # a command's name alone, in a sentence
                wrong.append(f"{place}: {line}: {error.format_message()}")
        except typer.Exit:
            pass  # --help
    assert wrong == []


def test_the_help_of_the_program_names_every_command_in_a_panel(command):
    code, said, _ = command("--help")
    assert code == 0
    for title, names in cli.PANELS.items():
        assert title in said and all(re.search(rf"│ {name} ", said) for name in names)
    places = [said.index(f"│ {name} ") for names in cli.PANELS.values() for name in names]
    assert places == sorted(places)
