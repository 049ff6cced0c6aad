"""The one-page map from a symptom to the lesson that treats it, and the playbook's words.

Shown in lesson 00, written to notebooks/GUIDE.md (by `lfhelpers readme`; a test fails when it is out of date), and
beside the playbook's index. A cause in quotation marks is one that step reports name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lfhelpers.notebook.tables import Table

MAP: tuple[tuple[str, str, str], ...] = (
    ("Nothing is set up yet, or something doesn't fit together", "00", "lfhelpers doctor"),
    ("A job must be stopped, or left processes behind", "00", "lfhelpers runs"),
    ("Nobody knows where the time goes", "01", "lfhelpers report RUN"),
    ("The GPU is said to be fully used, and yet it is slow", "01", "lfhelpers launch recipe=competent --profile"),
    ("A profiler trace is at hand, and hard to read", "01", "lfhelpers diagnose trace.json.gz --html page.html"),
    ("What would a remedy win, before anyone builds it?", "01", "lfhelpers ablate recipe=competent"),
    ("The report says 'data wait' or 'data copy'", "02", "lfhelpers bench data --quick"),
    ("Samples are missing, doubled, merged or unreadable", "02", "lfhelpers data lint shards --level decode"),
    ("The report says 'tiny operators' or 'host-bound'", "03", "lfhelpers bench step"),
    ("The report says 'optimizer'", "03", "lfhelpers recipe diff as_found competent"),
    ("Compilation takes minutes, or happens again and again", "03", "lfhelpers check RUN"),
    ("Is anything lost with fewer bits to a number?", "03", "lfhelpers bench step"),
    ("The report says 'communication'; more GPUs bring little", "04", "lfhelpers bench ddp --ranks 2"),
    ("Out of memory, or the batch can't grow", "05", "lfhelpers bench memory"),
    ("The report says 'steady', and it must still be faster", "06", "lfhelpers tune mine recipe=full"),
    ("What is each lever worth, and is quality the same?", "06", "lfhelpers ladder --size small"),
    ("The loss is nan, or steps are skipped", "07", "lfhelpers replay RUN --step 7"),
    ("The run is healthy, and the model is worse", "07", "lfhelpers check RUN"),
    ("Memory grows from step to step", "07", "lfhelpers check RUN"),
    ("The report says 'slow rank' or 'host reads'", "07", "lfhelpers check RUN"),
    ("It should train my model on my data", "08", "lfhelpers data pack photos shards"),
)
"""(symptom, number of the lesson, what to call first)"""

WORDS: Mapping[str, str] = {
    "workload": "what is trained: model, samples, loss, evaluation; `vla` is built in, `file.py:Mine` is your own",
    "recipe": "everything that decides how a model is trained, in one validated object and one TOML file",
    "lever": "one optimisation: the recipe fields it sets, and what it does to results",
    "run": "one training job, and the folder with all that it left",
    "step report": "where a step's time went: parts that sum to 100 %, and the likely causes",
    "ceiling": "what a lever can win at most, told before it is pulled and scored afterwards",
    "effect": "a measured ratio of two recipes, in interleaved blocks, with its 95 % interval",
    "gate": "the check on the result that a lever must pass before its speed counts",
    "ladder": "levers added one by one, and then each left out of the full stack",
    "as_found": "the recipe of what published training loops do",
    "competent": "the recipe of a careful engineer after an afternoon; all fields' defaults",
    "full": "the recipe with every lever that is built so far",
    "exact": "a lever that changes no bit of the result",
    "reordered": "a lever that adds the same numbers in another order, and so rounds differently",
    "changed": "a lever that computes something else, so its gate asks what the model learnt",
    "shard": "a tar file of whole samples, read in one long stretch",
    "manifest": "the list of a dataset's shards and samples, with sizes and checksums",
    "rank": "one process of a training job, with a GPU of its own",
    "micro-batch": "the samples of one forward and backward pass on one rank; several may make a step",
    "data wait": "the part of a step in which it stands still because its batch isn't there",
    "captured": "the part of a step that is replayed as one recorded CUDA graph: forward, backward, perhaps the update",
    "exposed": "said of communication that no computation hides, so that it costs time",
    "MFU": "the share of the hardware's published peak that the model's own arithmetic reaches",
    "record": "a result that was measured once and is kept, with hardware, versions and commit",
    "profile": "how large the lessons run here: `smoke` on a small CPU, `gpu` at full size",
    "pitfall": "a fault that raises no error, and makes a run slow or wrong",
}


def symptoms() -> list[dict[str, Any]]:
    """A row a symptom: what is seen, the lesson that treats it, and the command that looks first."""
    return [{"what you see": symptom, "lesson": lesson, "look first": command} for symptom, lesson, command in MAP]


def words() -> list[dict[str, str]]:
    """A row a word, with its meaning."""
    return [{"word": word, "meaning": meaning.replace("`", "")} for word, meaning in WORDS.items()]


def tables() -> tuple[Table, Table]:
    """The map and the words."""
    return Table.of("Which lesson for which symptom", symptoms()), Table.of("The playbook's words", words())


def markdown(lessons: Mapping[str, str]) -> str:
    """The page as Markdown, with links to the lessons' files: {"00": "00_start_here.ipynb"}."""
    rows = [f"| {symptom} | {_linked(lesson, lessons)} | `{command}` |" for symptom, lesson, command in MAP]
    meanings = [f"| {word} | {meaning} |" for word, meaning in WORDS.items()]
    return "\n".join([
        "# Which lesson for which symptom", "", "| what you see | lesson | look first |", "|---|---|---|", *rows, "",
        "`RUN` is a run's name or part of it; `lfhelpers runs` lists them.", "",
        "# Words", "", "| word | meaning |", "|---|---|", *meanings, ""])


def _linked(lesson: str, lessons: Mapping[str, str]) -> str:
    return f"[{lesson}]({lessons[lesson]})" if lesson in lessons else lesson
