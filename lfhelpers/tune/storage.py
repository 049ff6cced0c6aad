"""Where a study is kept, and how it is taken up again: Optuna's SQLite file in a folder beside the runs.

What Optuna leaves open is closed here. It would load a study of another direction or space without a word, and figures
of two machines would be ranked against each other: the study remembers what it was begun with, and anything else is
refused. A killed study leaves trials that run for ever: they are asked again, then marked failed, in this order, so
that another kill in between costs a proposal that the record answers, and never a trial. One process at a time may
work on a study, by a lock that the system takes from the dead.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
import orjson
from optuna.trial import FrozenTrial, TrialState

from lfhelpers import runs
from lfhelpers.data.locks import Locked
from lfhelpers.errors import LfError
from lfhelpers.recipe import Recipe

STATED = "fingerprint"
KILLED = "killed"


def folder(name: str) -> Path:
    """The folder of a study."""
    return runs.root() / "studies" / name


@contextlib.contextmanager
def alone(place: Path) -> Iterator[None]:
    """Be the only process that works on the study in this folder. Raises LfError where another one does."""
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LfError(f"no study can be kept in {place}: {error.strerror}; give another place with LFHELPERS_RUNS."
                      ) from error
    with Locked(place / "lock", os.O_RDWR | os.O_CREAT) as lock:
        if not lock.exclusive():
            raise LfError(f"another process works on the study '{place.name}'; wait for it, or give another name.")
        yield


def open_study(place: Path, stated: Mapping[str, Any]) -> optuna.Study:
    """The study in this folder, begun if there is none; it is maximised.

    stated: all that its figures depend on, plain data. Raises LfError where it was begun with anything else.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna.storages.RDBStorage(f"sqlite:///{place / 'study.db'}",
                                         engine_kwargs={"pool_events": [(_quick, "connect")]})
    now = orjson.loads(orjson.dumps(stated))
    if place.name not in optuna.get_all_study_names(storage):
        optuna.create_study(storage=storage, study_name=place.name, direction="maximize")
    study = optuna.load_study(storage=storage, study_name=place.name)
    if study.direction != optuna.study.StudyDirection.MAXIMIZE:
        raise LfError(f"the study '{place.name}' minimises, and this one is to be maximised; give another name.")
    before = study.user_attrs.get(STATED)
    if before is None and not study.get_trials(deepcopy=False):  # a kill may have come between
        study.set_user_attr(STATED, now)
    elif before != now:
        raise LfError(f"the study '{place.name}' was begun with {_apart(before or {}, now)}; go on with that, or give "
                      "another name.")
    return study


def retry(study: optuna.Study) -> int:
    """Ask trials again whose process is gone, and mark them failed; how many there were."""
    stale = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    for trial in stale:
        asked = trial.system_attrs.get("fixed_params", {}) | trial.params
        if asked and not _waits(study, asked):
            study.enqueue_trial(asked, user_attrs={"again": trial.number})
        optuna.Trial(study, trial._trial_id).set_user_attr("ended", KILLED)
        study.tell(trial.number, state=TrialState.FAIL)
    return len(stale)


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """Trials that had a job and know how it ended, oldest first: what a budget counts."""
    return [trial for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
            if "seconds" in trial.user_attrs]


def key(job: Recipe) -> str:
    """Equal for recipes that make the same job, whatever they are called."""
    fields = {name: value for name, value in job.flat().items() if name != "name"}
    return hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def _quick(connection: Any, _: object) -> None:
    """No wait for the disk at each of a trial's many small entries; only a power cut may lose the last ones."""
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}").close()


def _waits(study: optuna.Study, asked: Mapping[str, Any]) -> bool:
    return any(trial.system_attrs.get("fixed_params") == asked
               for trial in study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))


def _apart(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first thing that differs, as `workers of 1, 2, not 1, 2, 4`."""
    for name in before.keys() | now.keys():
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            inner = next(each for each in [*old, *new] if old.get(each) != new.get(each))
            return f"{name}: {inner} = {_short(old.get(inner))} there, {_short(new.get(inner))} here"
        return f"{name} = {_short(old)} there, {_short(new)} here"
    return "the same in another order"


def _short(value: Any) -> str:
    text = "nothing" if value is None else ", ".join(value) if isinstance(value, dict) else str(value)
    return text if len(text) <= 120 else f"{text[:119]}…"
