"""PYTHONHASHSEED set in a running process: it is read at start, so sets of strings keep their random order."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

from lfhelpers.pitfalls.base import About

ABOUT = About(
    "a list of files or classes made from a set has another order in each run, though set_seed was called first",
    "os.environ['PYTHONHASHSEED'] = '0' inside the program comes too late: the interpreter reads it when it starts",
    "sort what a set gives; or set the variable before Python starts",
    "different orders of one set of names in four runs")
RUNS = 4
PROGRAM = """
import os, sys
os.environ["PYTHONHASHSEED"] = "0"
print(sys.flags.hash_randomization, *{"cube", "ball", "cone", "disc", "ring", "star", "bowl", "cup", "lid", "box"})
"""


def break_it() -> float:
    """Orders in four runs of a program that sets the variable itself."""
    return float(len(set(_runs(early=False))))


def detect(broken: bool = True) -> str:
    """What the interpreter's own flag says; empty where hashes are fixed."""
    random = _runs(early=not broken)[0].split()[0] != "0"
    return "hashes of strings are random in this process, whatever PYTHONHASHSEED says now" if random else ""


def fix_it() -> float:
    """Orders in four runs that are started with the variable."""
    return float(len(set(_runs(early=True))))


@functools.cache
def _runs(early: bool) -> list[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONHASHSEED"}
    environment |= {"PYTHONHASHSEED": "0"} if early else {}
    return [subprocess.run([sys.executable, "-I" if not early else "-s", "-c", PROGRAM], env=environment, check=True,
                           capture_output=True, text=True).stdout.strip() for _ in range(RUNS)]
