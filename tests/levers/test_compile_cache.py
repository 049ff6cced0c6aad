"""What a run compiles is found by the next one, in another process or container; what doesn't fit is left alone."""

import os
import time
from pathlib import Path

import pytest
import torch

from lfhelpers.levers import compile as lever
from lfhelpers.levers import compile_cache as cache
from lfhelpers.recipe import recipe
from tests.train.toy import Toy, batches

CPU = torch.device("cpu")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A cache folder of the test's own."""
    monkeypatch.setenv("LFHELPERS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "compile"


@pytest.fixture
def another_container(tmp_path, monkeypatch):
    """Forget all that was compiled, in this process and in Inductor's own folder."""
    from torch._inductor.utils import clear_caches

    def forget(name):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / name))
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / name / "triton"))
        torch._dynamo.reset()
        torch.compiler._cache.CacheArtifactManager.clear()
        clear_caches()
    yield forget
    torch._dynamo.reset()


def compiled(job):
    torch.manual_seed(0)
    model = Toy(job).model()
    with lever.session(job, CPU) as compilation:
        compilation.apply(model, [model[0]])
        loss, _ = Toy.loss(None, model, *batches(1, 8)[0])
        loss.backward()
        return loss.item(), compilation.report()


def test_artifacts_of_one_run_spare_the_next_one_its_compilation(place, another_container, capsys):
    job = recipe("competent", "compile.scope=blocks")
    another_container("first")
    first = compiled(job)
    kept, = place.glob("*.bin")
    another_container("second")
    second = compiled(job)
    assert (first[1]["cache"], second[1]["cache"]) == ("miss", "hit")
    assert second[0] == first[0]
    assert (first[1]["graphs"], second[1]["graphs"]) == (1, 1)
    made_for = cache.key(job, CPU)
    assert kept == cache.file_of(made_for) and cache.load(made_for) == (True, None)
    content = kept.read_bytes()
    kept.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    loaded, complaint = cache.load(made_for)
    assert not loaded and str(kept) in complaint and "is damaged and is not used" in complaint
    kept.write_bytes(content.replace(torch.__version__.encode(), b"9" * len(torch.__version__), 1))
    loaded, complaint = cache.load(made_for)
    assert not loaded and "was made for other code, versions or hardware" in complaint
    assert capsys.readouterr().out == "", "no complaint without a reason"


def test_a_run_goes_on_without_a_place_for_the_cache_and_says_so_once(place, capsys):
    place.parent.write_text("a file where the folder should be")
    assert compiled(recipe("competent", "compile.scope=blocks"))[1]["state"] == "on"
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and "can't be read (Not a directory)" in said[0] and "give another place with" in said[1]


def test_without_a_cache_nothing_is_kept_and_nothing_found(place, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "mine"))
    with lever.session(recipe("competent", "compile.scope=blocks", "compile.cache=false"), CPU):
        inside = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        assert inside != tmp_path / "mine" and list(inside.iterdir()) == []
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "mine")
    assert not inside.exists() and not place.exists()


def test_the_key_changes_with_what_decides_compiled_code(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("# a workload")
    job = recipe("competent", "compile.scope=blocks", f"workload.use={mine}:Mine")
    before = cache.file_of(cache.key(job, CPU))
    assert cache.file_of(cache.key(job.with_("seed=5", "steps=9"), CPU)) == before
    for change in ("batch.micro=3", "precision.mode=fp32", "compile.mode=max-autotune-no-cudagraphs"):
        assert cache.file_of(cache.key(job.with_(change), CPU)) != before
    mine.write_text("# another workload")
    assert cache.file_of(cache.key(job, CPU)) != before


def test_the_longest_unused_files_go(place, monkeypatch):
    monkeypatch.setattr(cache, "KEPT", 2)
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"content", None))
    for number, age in enumerate((5, 90, 20, 60)):  # seconds since each was used
        assert cache.save({"number": number}) is None
        used = time.time() + 3600 - age  # by another host's clock, an hour ahead: what was just written stays
        os.utime(cache.file_of({"number": number}), (used, used))
    assert {number for number in range(4) if cache.file_of({"number": number}).exists()} == {0, 3}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_too_a_warm_run_compiles_nothing(place, another_container):
    job = recipe("competent", "compile.scope=blocks")
    reports = []
    for name in ("first", "second"):
        another_container(name)
        device = torch.device("cuda", 0)
        pair = [{key: value.to(device) for key, value in part.items()} for part in batches(1, 8)[0]]
        with device:
            model = Toy(job).model()
        with lever.session(job, device) as compilation:
            compilation.apply(model, [model[0]])
            Toy.loss(None, model, *pair)[0].backward()
            reports.append(compilation.report())
    assert [report["cache"] for report in reports] == ["miss", "hit"]
