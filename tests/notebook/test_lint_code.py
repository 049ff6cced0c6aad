"""The rules that read code refuse what breaks a lesson elsewhere, and let the good neighbour pass."""

import pytest

from lfhelpers.notebook import lint_code

PROMISE = 'expect("speed")'


def found(*sources):
    """Messages for cells 1, 2, ... below a first cell that keeps the rule of the promise."""
    cells = [(0, "from lfhelpers.notebook import expect\nexpect('speed')"), *enumerate(sources, start=1)]
    return [f"{number}: {message}" for number, message in lint_code.check(cells)]


@pytest.mark.parametrize(("bad", "part"), [
    ("import sys\nsys.path.append('x')", "sys.path.append: install the package"),
    ("import sys\nsys.exit(0)", "sys.exit: skip a result"),
    ("from sys import exit", "sys.exit: skip a result"),
    ("quit()", "quit: skip a result"),
    ("import os\nos._exit(1)", "os._exit: skip a result"),
    ("import os\nos.chdir('x')", "os.chdir: work with full paths"),
    ("import os\nos.system('torchrun x')", "os.system: start work with lf.launch"),
    ("import os\nos.popen('torchrun x')", "os.popen: start work with lf.launch"),
    ("from subprocess import Popen\nPopen(['torchrun', 'x'])", "subprocess.Popen: start work beside the notebook"),
    ("name = input('your name')", "input: take a parameter"),
    ("import urllib.request", "urllib.request: work offline"),
    ("from requests import get", "requests.get: work offline"),
    ("import torch\ntorch.hub.load('a/b', 'c')", "torch.hub.load: work offline"),
    ("import matplotlib.pyplot as plt", "matplotlib.pyplot: draw with a function"),
    ("from IPython.display import Image", "IPython.display.Image: show figures with show"),
    ("get_ipython().run_line_magic('cd', 'x')", "get_ipython: cells are plain Python"),
    ("from tqdm.auto import tqdm", "tqdm.auto.tqdm: take plain tqdm"),
    ("from lfhelpers.notebook import *", "import *: name what is used"),
    ("!pip install torch", "'!pip install torch' is no Python: no magics"),
    ("%cd runs", "'%cd runs' is no Python: no magics"),
    ("x = !ls", "does not parse"),
    ("def f(:", "does not parse"),
    ("open('/home/me/data.txt')", "absolute path '/home/me/data.txt'"),
    ("open('~/data.txt')", "absolute path '~/data.txt'"),
    ("open('C:\\\\data.txt')", "absolute path 'C:"),
    ("import subprocess\nsubprocess.run('pip install torch', shell=True)", "packages are installed before"),
    ("from lfhelpers.notebook import record\nrecord('speed', 2)", "its value is shown twice: write record(...);"),
])
def test_what_breaks_elsewhere_is_refused(bad, part):
    assert any(part in message for message in found(bad)), found(bad)


@pytest.mark.parametrize("good", [
    "import sys\nprint(sys.executable)  # never sys.path",
    "import os\nprint(os.cpu_count(), os.environ.get('HOME'))",
    "from tqdm import tqdm\nfor step in tqdm(range(3)):\n    print(step)",
    "text = 'a/b and /dev/shm, or 12/3'\nshm = '/dev/shm'",
    "ratio = 7 % 3\nnot_a_magic = (ratio\n    % 2)" if False else "ratio = 7 % 3",
    "print('the sign ! and %')",
    "from lfhelpers.notebook import record\nrecord('speed', 2);  # samples/s",
    "from lfhelpers.notebook import record\nspeed = record('speed', 2)",
])
def test_plain_python_passes(good):
    assert found(good) == []


@pytest.mark.parametrize(("cells", "messages"), [
    (["x = 1", "print(x)"], []),
    (["print(x)", "x = 1"], ["1: 'x' is not bound in any cell above"]),
    (["x = x + 1"], ["1: 'x' is not bound in any cell above"]),
    (["x += 1"], ["1: 'x' is not bound in any cell above"]),
    (["print(y); y = 1"], ["1: 'y' is not bound in any cell above"]),
    (["if False:\n    x = 1", "print(x)"], ["2: 'x' is not bound in any cell above"]),
    (["if len('a'):\n    x = 1\nelse:\n    x = 2", "print(x)"], []),
    (["for i, (a, b) in enumerate([]):\n    print(i, a, b)", "print(i)"], []),
    (["with open('f') as file:\n    print(file)"], []),
    (["try:\n    import torch\nexcept ImportError as error:\n    print(error)\n    torch = None", "print(torch)"], []),
    (["import a.b as c, d.e", "print(c, d)"], []),
    (["import a.b as c", "print(a)"], ["2: 'a' is not bound in any cell above"]),
    (["def f():\n    return later", "later = 1\nf()"], ["1: 'later' is not bound in any cell above"]),
    (["def f():\n    return g()\n\ndef g():\n    return f"], []),
    (["def f(a, *b, c=1, **d):\n    e = a\n    return [x for x in b if x], c, d, e"], []),
    (["def f(a=missing):\n    return a"], ["1: 'missing' is not bound in any cell above"]),
    (["values = [n * scale for n in range(3)]"], ["1: 'scale' is not bound in any cell above"]),
    (["print([n for n in range(3)])", "print(n)"], ["2: 'n' is not bound in any cell above"]),
    (["class A:\n    size = 3\n    def f(self):\n        return self.size", "A()"], []),
    (["square = lambda v: v * v\nprint(square(2))"], []),
    (["if (n := 3) > 2:\n    print(n)"], []),
    (["match [1, 2]:\n    case [first, *rest]:\n        print(first, rest)"], []),
    (["x: int = 1", "print(f'{x} {unknown!r}')"], ["2: 'unknown' is not bound in any cell above"]),
    (["print(missing)", "print(missing)"], ["1: 'missing' is not bound in any cell above"]),
    (["print(__name__, len, ValueError)"], []),
])
def test_every_name_is_bound_above_in_code_that_runs(cells, messages):
    assert found(*cells) == messages


def test_a_lesson_must_promise_results():
    assert list(lint_code.check([(1, "x = 1")])) == [
        (0, "nothing is promised: call expect('name', ...) in one of the first cells")]
    assert list(lint_code.check([(1, "from lfhelpers.notebook import results\nresults.expect('speed')")])) == []
