"""The planner's arithmetic: candidates, predicted peaks, and the choice among points."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers.errors import LfError
from lfhelpers.levers import activations_choice as choice
from lfhelpers.levers import activations_plan as plans
from lfhelpers.levers.activations_choice import GIB, Point, Survey
from lfhelpers.levers.activations_plan import Block, Candidate, Effort, Profile
from lfhelpers.recipe import recipe

BLOCKS = (Block("0 frozen", 0, 0, 5.0, 0), Block("1 big", 100, 10, 3.0, 7), Block("2 cheap", 50, 10, 1.0, 7),
          Block("3 dear", 60, 20, 4.0, 7))
PROFILE = Profile(BLOCKS, outside=20, step_ms=30.0, peak=1000, standing=700)


def point(name, family="blocks", ratio=1.0, saved=100, peak=1000, **more):
    return Point(name, family, {"plan": "none"}, ms=10 * ratio, low=ratio, high=ratio, ratio=ratio, saved=saved,
                 peak=peak, **more)


POINTS = (point("none", "none", 1.0, 200, 1000), point("rule: half", "rule", 1.10, 120, 950),
          point("bargain", ratio=1.05, saved=110, peak=940), point("all", ratio=1.18, saved=40, peak=880),
          Point("budget", "budget", {}, trouble="does not fit: needs about 3 GiB"))


def test_blocks_are_taken_by_bytes_for_each_millisecond():
    assert PROFILE.saved == 230 and PROFILE.saving() == [1, 2, 3]
    assert plans.by_bargain(PROFILE, share=0.2) == [2]  # 40 bytes a ms, before 30 and 10
    assert plans.by_bargain(PROFILE, share=0.5) == [1, 2]
    assert plans.by_bargain(PROFILE) == [1, 2, 3]
    assert plans.by_bargain(PROFILE, ms=5.0) == [1, 2]
    assert plans.by_bargain(PROFILE, ms=3.5) == [2], "1 ms is spent; the big one no longer fits, nor does the dear one"


def test_rules_of_thumb_are_taken_at_their_word():
    assert plans.rules_of_thumb(range(10, 18)) == {
        "every second block": [10, 12, 14, 16],
        "save the ends, recompute the middle": [12, 13, 14, 15],
        "all but the last of 4 segments": [10, 11, 12, 13, 14, 15]}


def test_each_rule_has_a_rival_of_its_price_and_budgets_need_a_compiler():
    twice = Profile(BLOCKS + BLOCKS, outside=20, step_ms=60.0, peak=2000)
    eager = plans.candidates(twice, compiled=False)
    names = [candidate.name for candidate in eager]
    assert names[0] == "none" and len(set(names)) == len(names)
    assert sum(candidate.family == "rule" for candidate in eager) == 3
    for candidate in eager:
        if candidate.family == "rule":
            price = plans.recomputed_ms(twice, candidate.blocks)
            assert any(0 < plans.recomputed_ms(twice, other.blocks) <= price for other in eager
                       if other.family == "blocks")
    compiled = plans.candidates(PROFILE, compiled=True, effort=Effort(budgets=(0.5,)))
    assert [candidate.name for candidate in compiled if candidate.family == "budget"] == ["compiler's budget 0.5"]


def test_a_candidate_replaces_the_recipes_plan_and_is_a_valid_recipe():
    job = recipe("competent", "activations.plan=ops", "activations.recompute_every=2")
    for candidate in plans.candidates(PROFILE, compiled=False, effort=Effort(loss_rows=4)):
        made = candidate.recipe(job).activations
        assert (made.plan, made.loss_rows) == (candidate.fields["plan"], 4 if candidate.name != "none" else 0)


def test_the_peak_falls_by_what_is_freed_until_a_block_or_the_gradients_are_the_worst_moment():
    assert plans.predicted_peak(PROFILE, [0, 100, 50, 60]) == 1000
    # forward keeps 20+100+10+60 = 190, and in its own backward block 2 needs 50 again: 20+100+50 is less
    assert plans.predicted_peak(PROFILE, [0, 100, 10, 60]) == 1000 - 230 + 190
    # all recomputed: the worst is block 1 of 100 beside 20, and not forward's end of 20+10+10+20
    assert plans.predicted_peak(PROFILE, [0, 10, 10, 20]) == 1000 - 230 + 120
    growing = Profile(BLOCKS, 20, 30.0, 1000, all_gradients=200)
    assert plans.predicted_peak(growing, [0, 10, 10, 20]) == 1000 - 230 + 200


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000), st.floats(0.01, 10)), min_size=1, max_size=12),
       st.data())
def test_recomputing_more_never_raises_the_predicted_peak(rows, data):
    profile = Profile(tuple(Block(str(i), max(a, b), min(a, b), ms, 3) for i, (a, b, ms) in enumerate(rows)), 5, 1.0,
                      10_000, all_gradients=3 * len(rows))
    some = data.draw(st.sets(st.sampled_from(range(len(rows)))))
    more = some | data.draw(st.sets(st.sampled_from(range(len(rows)))))
    peaks = [plans.predicted_peak(profile, plans.kept_bytes(profile, chosen)) for chosen in (set(), some, more)]
    assert peaks[0] == 10_000 >= peaks[1] >= peaks[2] > 0


def test_the_front_holds_what_no_other_point_beats():
    assert [each.name for each in choice.pareto(POINTS)] == ["none", "bargain", "all"]


def test_the_fastest_plan_within_a_limit_is_chosen_and_what_failed_never():
    assert choice.choose(POINTS).name == "none"
    assert choice.choose(POINTS, limit=960).name == "bargain"
    assert choice.choose(POINTS, limit=900).name == "all"
    with pytest.raises(LfError, match=r"no plan stays within .* the smallest, 'all'"):
        choice.choose(POINTS, limit=800)
    with pytest.raises(LfError, match=r"no plan fits: does not fit: needs about 3 GiB"):
        choice.choose(POINTS[-1:])


def test_the_largest_batch_counts_only_what_grows_with_it():
    assert choice.largest_micro(POINTS[0], standing=700, micro=8, limit=1300) == 16
    assert choice.for_largest_batch(POINTS, 700, 8, 1300).name == "all"
    assert choice.fastest_with_room(Survey(PROFILE, POINTS), 8, 1300, times=1.2).name == "bargain"
    assert choice.fastest_with_room(Survey(PROFILE, POINTS), 8, 1300, times=9).name == "all"


def test_scores():
    assert choice.saved_within(POINTS, 0.08) == pytest.approx(0.45)
    assert choice.saved_within(POINTS, 0.20) == pytest.approx(0.8)
    assert choice.above_rules(POINTS) is True
    assert choice.above_rules([each for each in POINTS if each.name != "bargain"]) is False
    assert choice.above_rules([each for each in POINTS if each.family != "rule"]) is None, "there is none to compare"
    scored = [point("none", "none", predicted=1000), point("a", peak=1000, predicted=1030),
              point("b", peak=500, predicted=480)]
    assert choice.peak_error(scored) == pytest.approx(0.04)
    known = point("products kept", "ops", peak=500, predicted=900)
    assert choice.peak_error([*scored, known]) == pytest.approx(0.04), "what ran before it was predicted isn't scored"
    assert math.isnan(POINTS[-1].ratio) and not POINTS[-1].fits and GIB == 2**30


def test_a_candidate_says_which_blocks_it_recomputes():
    whole = Candidate("two", "blocks", {"plan": "blocks", "blocks": (1, 3)}, (1, 3))
    assert plans.kept_bytes(PROFILE, whole.blocks) == [0, 10, 50, 20]


def test_a_rules_rival_costs_no_more_by_the_profile():
    def blocks(name, numbers, saved, family="blocks"):
        return Point(name, family, {"plan": "blocks", "blocks": numbers}, 1.0, 1.0, 1.0, 1.0, saved)
    rule = blocks("rule: half", (1, 3), 120, "rule")  # 7 ms
    survey = Survey(PROFILE, (rule, blocks("cheap", (1, 2), 100), blocks("all", (1, 2, 3), 40)))
    assert choice.rival(survey, rule).name == "cheap"
    assert choice.rival(survey, blocks("rule: none", (), 230, "rule")) is None
