"""The ladder leads from as_found through competent to full, one lever a rung."""

import pytest

from lfhelpers.levers.table import BESIDE, BEYOND, COMPETENT, FAST_LINK, LEVERS, Machine, ladder
from lfhelpers.recipe import diff, recipe


def test_the_named_recipes_are_rungs_of_the_ladder():
    rungs = ladder()
    assert diff(rungs[0][1], recipe("as_found")) == {}
    assert diff(rungs[len(COMPETENT)][1], recipe("competent")) == {}
    assert diff(rungs[-1][1], recipe("full")) == {}
    assert len(rungs) == 1 + len(LEVERS)


@pytest.mark.parametrize("lever", LEVERS + BESIDE, ids=lambda lever: lever.name)
def test_each_lever_changes_exactly_its_fields(lever):
    base = recipe("as_found") if lever in COMPETENT else recipe("competent")
    assert set(diff(base, lever.pull(base))) == set(lever.fields)


def test_obstacles_depend_on_the_machine():
    laptop, node = Machine("cpu", ranks=1, compiler=False, bf16=False), Machine("cuda", ranks=8)
    assert [lever.name for lever in LEVERS if lever.obstacle(laptop)] == [
        "asynchronous copy", "lean DDP", "compiled blocks", "CUDA graph", "bf16 weights", "frozen part ahead",
        "large buckets", "gradients in place", "sharded optimizer"]
    assert [lever.name for lever in LEVERS if lever.obstacle(node)] == []
    assert {lever.equivalence for lever in COMPETENT + BEYOND} == {"exact", "reordered"}


def test_compression_is_refused_on_a_fast_link_with_the_reason():
    refused = {link: [lever.name for lever in BESIDE if lever.obstacle(Machine("cuda", ranks=2, link_gb_s=link))]
               for link in (360.0, FAST_LINK / 2, None)}
    assert refused == {360.0: ["bf16 gradients on the wire", "PowerSGD", "1-bit Adam"], FAST_LINK / 2: [], None: []}
    reason = BESIDE[0].obstacle(Machine("cuda", ranks=2, link_gb_s=360.0))
    assert reason and reason.startswith("the link carries 360 GB/s")
    assert all(lever.obstacle(Machine("cuda", ranks=1)) == "one rank exchanges no gradients" for lever in BESIDE
               if any(field.startswith("ddp.") for field in lever.fields))
