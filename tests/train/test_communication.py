"""What a run says of its exchange: from timers or a profiled replay, and out of which part of the step it is taken."""

import pytest
import torch
from torch import nn

from lfhelpers.measure.clock import PHASES
from lfhelpers.measure.exposed import Exposure
from lfhelpers.recipe import recipe
from lfhelpers.train.communication import ExposedCommunication, of_profiles
from lfhelpers.train.ranks import Ranks
from lfhelpers.train.summary import rank_means, summarise
from tests.train.toy import ALONE


def exposure(exposed, *durations):
    return Exposure(50.0, 40.0, sum(durations), exposed, tuple((10.0, 10.0 + duration) for duration in durations))


def row(**ms):
    spent = {phase: float(ms.get(phase, 0)) for phase in PHASES}
    return {"ms": spent, "step_ms": sum(spent.values()), "host_ms": 1.0, "samples": 4, "skipped": False, "graphs": 0}


class Two(Ranks):
    """This rank beside one whose exposed time is 2 ms more, without a second process."""

    def gather(self, value):
        iterations, profiled = value
        other = profiled and exposure(profiled.exposed_ms + 2.0, *[each + 1.0 for each in profiled.durations])
        return [value, ({iteration: ms + 2.0 for iteration, ms in iterations.items()}, other)]


TWO = Two(0, 2, torch.device("cpu"))


def test_the_late_rank_shows_the_transfer_collective_by_collective():
    found = of_profiles([exposure(3.0, 1.0, 4.0), exposure(5.0, 2.0, 5.0)])
    assert (found["exposed_ms"], found["transfer_ms"], found["waiting_ms"], found["share"]) == (4.0, 3.0, 1.0, 0.08)
    assert found["collectives"] == [[1.0, 0.5], [4.0, 0.5]]


def test_a_replayed_graph_is_told_by_the_profiled_step_without_its_waiting():
    communication = ExposedCommunication(nn.Linear(2, 2), captured=True)
    communication.profiled = exposure(3.0, 4.0)
    found = communication.result(TWO)
    assert (found["exposed_ms"], found["transfer_ms"], found["waiting_ms"]) == (3.0, 3.0, 0.0)
    assert found["source"].startswith("the profiled step") and found["profiled"]["waiting_ms"] == 1.0
    communication.profiled = None
    assert communication.result(TWO)["source"] == "none: without DDP's timers it needs log.probe=true"


def test_one_rank_exchanges_nothing_and_says_nothing():
    communication = ExposedCommunication(nn.Linear(2, 2))
    communication.after_step(5)
    assert communication.result(ALONE) == {} and communication.live is None


@pytest.mark.parametrize(("ms", "holder"), [({"forward": 20, "backward": 30}, "backward"),
                                            ({"captured": 50}, "captured")])
def test_exposed_exchange_is_taken_out_of_what_holds_it(ms, holder):
    rows = [row(**ms), row(**ms)]
    parts = summarise(recipe("competent"), ALONE, rows, [rank_means(rows)], 4.0, 1e9)["report"]["ms"]
    assert parts["communication"] == 4.0 and parts[holder] == ms[holder] - 4.0
    assert sum(parts.values()) == 50.0
