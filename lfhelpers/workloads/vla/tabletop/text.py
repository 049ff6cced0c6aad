"""What is said about a scene: an instruction, a caption, questions with answers, and the words that they are made of.

A closed vocabulary of whole words keeps the language model small and makes each answer one to four words that are
right or wrong. Places are said twice, coarsely ("far left") and on a grid ("column five row three"): the grid is the
dense teacher of where things are, without which a policy does not learn to look in minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from lfhelpers.workloads.vla.tabletop.scene import AREA, COLOURS, SHAPES, Scene, Thing, generator
from lfhelpers.workloads.vla.tabletop.sprites import wooden

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")
GRID = (8, 6)
"""Columns from the left and rows from the near side, of the area where objects stand."""
_ORDERS = ("pick up the {}", "grasp the {}", "take the {}", "lift the {}", "get the {}", "please pick up the {}")
_PUTS = ("pick up the {} and put it on the {}", "put the {} on the {}", "please put the {} on the {}")
_ROWS, _COLUMNS = ("near", "middle", "far"), ("left", "centre", "right")
_SHAPE, _COLOUR = "what shape is the {} object", "what colour is the {}"
_WHERE, _CELL = "where is the {}", "locate the {}"
_COUNT, _COUNT_OF, _IS_THERE = "how many objects are there", "how many {} objects are there", "is there a {}"
_TABLES = ("on a cloth table", "on a wooden table")
_FRAMES = (*_ORDERS, _SHAPE, _COLOUR, _WHERE, _CELL, _COUNT, _COUNT_OF, _IS_THERE, *_TABLES,
           "a {} and yes no column row")
_WORDS = {word for frame in _FRAMES for word in frame.replace("{}", "").split()}

VOCABULARY: tuple[str, ...] = (
    "<pad>", "<unk>", "<eos>", *sorted({*_WORDS, *_ROWS, *_COLUMNS, *NUMBERS, *COLOURS, *SHAPES}), "it", "put")
"""Every word that can be said here; a word's number is its place, so new words come last."""
_NUMBER = {word: number for number, word in enumerate(VOCABULARY)}


def encode(text: str, length: int) -> NDArray[np.int64]:
    """int64 [length]: the words' numbers, cut or padded on the right; other words are <unk>, punctuation is dropped.

    <eos> is a word like any other: it stands where the text has it, and is not added.
    """
    words = re.findall(r"<\w+>|\w+", text.lower())[:length]
    return np.array([_NUMBER.get(word, 1) for word in words] + [0] * (length - len(words)), dtype=np.int64)


def decode(ids: Iterable[int]) -> str:
    """The words up to the first <eos>, without padding."""
    words = [VOCABULARY[int(i)] for i in ids]
    end = words.index("<eos>") if "<eos>" in words else len(words)
    return " ".join(word for word in words[:end] if word != "<pad>")


def instruction(scene: Scene) -> str:
    """An order that names the target, such as 'pick up the red block'; one of several phrasings, fixed by the scene.

    With a goal it names that too: 'put the red block on the blue ball'.
    """
    if scene.goal is not None:
        return _PUTS[scene.noise % len(_PUTS)].format(scene.named.name, scene.things[scene.goal].name)
    return _ORDERS[scene.noise % len(_ORDERS)].format(scene.named.name)


def caption(scene: Scene) -> str:
    """All objects from left to right and where they stand: 'a red block far left and ... on a wooden table'."""
    parts = [f"a {thing.name} {place(thing)}" for thing in sorted(scene.things, key=lambda thing: thing.x)]
    return " and ".join(parts) + " " + _TABLES[wooden(scene.look)]


def questions(scene: Scene) -> list[tuple[str, str]]:
    """Questions and answers on colours, shapes, counts and places, each with one right answer.

    They are shuffled by the scene, so that a reader that takes only the first few meets every kind.
    """
    colours, shapes = [thing.colour for thing in scene.things], [thing.shape for thing in scene.things]
    names = [thing.name for thing in scene.things]
    asked: list[tuple[str, str]] = [(_COUNT, NUMBERS[len(names)])]
    for thing in scene.things:
        if colours.count(thing.colour) == 1:
            asked.append((_SHAPE.format(thing.colour), thing.shape))
        if shapes.count(thing.shape) == 1:
            asked.append((_COLOUR.format(thing.shape), thing.colour))
        if names.count(thing.name) == 1:
            asked += [(_WHERE.format(thing.name), place(thing)), (_CELL.format(thing.name), cell(thing))]
    draw = generator(scene.noise, scene.look, stream=1)
    asked += [(_COUNT_OF.format(colour), NUMBERS[colours.count(colour)])
              for colour in (str(draw.choice(colours)), str(draw.choice(list(COLOURS))))]
    other = f"{draw.choice(list(COLOURS))} {draw.choice(SHAPES)}"
    asked += [(_IS_THERE.format(name), "yes" if name in names else "no") for name in (str(draw.choice(names)), other)]
    return [asked[i] for i in draw.permutation(len(asked))]


def place(thing: Thing) -> str:
    """Where a thing stands, in thirds: 'near left' to 'far right'."""
    return f"{_ROWS[_part(thing.y, AREA[1], 3)]} {_COLUMNS[_part(thing.x, AREA[0], 3)]}"


def cell(thing: Thing) -> str:
    """Where a thing stands on the grid of 8 columns and 6 rows: 'column five row three'."""
    column, row = (_part(value, half, parts) for value, half, parts in zip((thing.x, thing.y), AREA, GRID, strict=True))
    return f"column {NUMBERS[column + 1]} row {NUMBERS[row + 1]}"


def _part(value: float, half: float, parts: int) -> int:
    """Which of `parts` equal parts of -half..half holds `value`."""
    return min(parts - 1, max(0, int((value + half) / (2 * half) * parts)))
