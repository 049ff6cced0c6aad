"""The tuner finds with three runs the plan that is fastest in a world of its own simulator; projections add up."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lfhelpers.errors import LfError
from lfhelpers.levers.buckets_sim import MB, Gradient
from lfhelpers.levers.project import Network, late_ms, project, transfer_ms
from lfhelpers.levers.tuner import DEFAULT, ONE, OPTIMUM, Model, Verified, candidates, rows, tapered, tune
from lfhelpers.measure.link import Link
from lfhelpers.measure.statistics import Effect

GRADIENTS = tuple(Gradient(f"layer{place}", 8 * MB, 30.0 + 0.5 * place) for place in range(60))
LINK = Link.of((4096, MB, 16 * MB, 128 * MB, 512 * MB), (0.03, 0.05, 0.2, 0.9, 3.2), 2, "nccl")
MODEL = Model(GRADIENTS, LINK)
ALONE = 80.0


def world(truth, ran):
    """`verify` of a machine that behaves as `truth` does."""
    def verify(name, limits):
        ran.append(name)
        added = truth.simulate(limits).added_ms
        ratio = 1 + added / ALONE
        return Verified(ALONE + added, added, Effect(ratio, ratio - 0.001, ratio + 0.001, 0.001, 6))
    return verify


def test_three_runs_after_two_find_the_best_of_all_plans():
    truth, ran = replace(MODEL, slowing=0.4, stretch=1.2), []
    choice = tune(MODEL, world(truth, ran))
    assert ran[:2] == [DEFAULT, ONE] and len(set(ran)) == len(ran) <= 5
    assert choice.model.stretch == pytest.approx(1.2), "nothing hides one bucket, so it tells what transfers take"
    assert choice.model.slowing == pytest.approx(0.4, rel=1e-3), "the default's cost tells by how much kernels slow"
    best = min(truth.simulate(limits).added_ms for limits in candidates(MODEL).values())
    assert choice.best.measured.added_ms == pytest.approx(best, rel=0.03)
    assert choice.exposed_error < 0.01
    predicted = [plan.predicted.end_ms for plan in choice.plans]
    assert predicted == sorted(predicted)


def test_noise_is_not_taken_for_slowed_kernels_where_hardly_anything_is_hidden():
    slow = replace(MODEL, link=Link.of((4096, 512 * MB), (0.03, 4000.0), 2, "gloo"))
    default, one = (slow.simulate(limits).added_ms for limits in ((), slow.one_bucket))
    fitted = slow.calibrated(one, 1.01 * default)
    assert (fitted.slowing, fitted.stretch) == (0.0, pytest.approx(1.0))


def test_the_table_says_what_was_only_predicted():
    found = rows(tune(MODEL, world(MODEL, [])).plans)
    assert sum(row["measured [ms]"] is not None for row in found) in (3, 4, 5)
    assert {"buckets", "count", "largest [MiB]", "predicted [ms]"} < set(found[0])


def test_candidates_differ_in_their_buckets_and_hold_the_optimum():
    found = candidates(MODEL)
    assert DEFAULT in found and OPTIMUM in found and found["100 MiB"] == (4.0, 100.0)
    small = candidates(Model(GRADIENTS[:1], LINK))
    assert list(small) == [DEFAULT], "one tensor is one bucket, whatever the limits"


@given(st.floats(20, 8000), st.sampled_from([10.0, 25.0, 100.0, 400.0]))
def test_a_tail_of_halves_ends_small(total, size):
    limits = tapered(total, size)
    assert limits[0] == limits[-1] == min(4.0, size / 4) and max(limits) <= size
    assert all(after <= before for before, after in itertools.pairwise(limits[1:]))
    assert sum(limits) <= max(total, 8 + 2 * size)


def test_nothing_to_exchange_is_said():
    with pytest.raises(LfError, match="no gradients to plan buckets for"):
        tune(Model((), LINK), world(MODEL, []))


def test_a_projection_passes_through_the_measured_point_and_says_what_it_assumes():
    measured = ALONE + MODEL.simulate((4.0, 100.0)).added_ms
    found = project(MODEL, (4.0, 100.0), ALONE, 16, jitter_ms=0.0, measured_ms=measured)
    assert [row.gpus for row in found.rows] == [2, 8, 64, 1024] and found.check == pytest.approx(1.0)
    assert [row.hosts for row in found.rows] == [1, 1, 8, 128]
    efficiencies = [row.efficiency for row in found.rows]
    assert efficiencies == sorted(efficiencies, reverse=True) and 0 < efficiencies[-1] < 1
    assert found.rows[1].samples_per_s == pytest.approx(8 * 16 * 1e3 / found.rows[1].step_ms)
    assert any("400 GB/s between hosts" in text for text in found.assumptions)
    assert any("slowed on purpose" in text for text in project(
        replace(MODEL, link=replace(LINK, slow="nccl:socket")), (), ALONE, 16).assumptions)


def test_a_ring_inside_a_host_and_a_slow_network_between_hosts():
    network = Network(gpus_a_host=8, host_gb_s=10.0, hop_us=20.0)
    inside = [transfer_ms(LINK, count, network, 512 * MB) for count in (2, 8)]
    assert inside[0] == pytest.approx(3.2) and inside[1] == pytest.approx(7 * 0.03 + 3.17 * 1.75)
    across = transfer_ms(LINK, 64, network, 512 * MB)
    assert across == pytest.approx(7 * 0.03 + 6 * 0.02 + 512 * MB * 1.75 / 1e7)
    with pytest.raises(LfError, match="12 GPUs can't be projected: it takes two or more, and whole hosts of 8"):
        transfer_ms(LINK, 12, network, MB)


@settings(deadline=None)
@given(st.integers(2, 2048), st.floats(0, 5))
def test_more_ranks_wait_longer_for_the_slowest(ranks, jitter):
    assert 0 <= late_ms(ranks, jitter) <= late_ms(2 * ranks, jitter) <= 5 * jitter
