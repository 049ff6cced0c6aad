"""The command line: what it prints, and that each mistake is one sentence on stderr and an exit code that isn't 0."""

import json
import os
import shutil
import socket

import numpy as np
import pytest

from lfhelpers import runs
from lfhelpers.recipe import recipe


def test_recipes_are_shown_and_compared(command):
    code, out, _ = command("recipe", "diff", "as_found", "full")
    assert code == 0
    assert all(name in out for name in ("workload.compute_logits", "optimizer.fused", "compile.scope", "ddp.bucket_mb"))
    assert "optimizer.lr" not in out
    assert command("recipe", "show", "recipe=full", "steps=9")[1] == recipe("full", steps=9).to_toml() + "\n"


def test_runs_are_listed_with_their_state(command, runs_root):
    run = runs.create(recipe("competent"))
    run.set_status("failed", "rank 1: ValueError: no such camera\nmore")
    code, out, _ = command("runs")
    assert code == 0 and run.id in out
    assert "failed" in out and "rank 1: ValueError: no such camera" in out and "more" not in out.replace("no more", "")


@pytest.mark.parametrize(("words", "sentence"), [
    (["launch", "workload.siez=tiny"], "recipe field 'workload.siez' does not exist; did you mean 'size'?"),
    (["launch", "workload.size=huge"], "'huge'"),
    (["launch", "recipe=competant"], "no recipe is named 'competant'; did you mean 'competent'?"),
    (["launch", "--nproc", "0"], "nproc"),
    (["launch", "data.path=absent"], "absent"),
    (["launch", "--steps", "0"], "recipe field 'steps' = 0"),
    (["launch", "workload.use=absent.py:Mine"], "absent.py"),
    (["report", "nothing"], "no run 'nothing'"),
    (["data", "check", "absent"], "absent"),
    (["playbook", "77"], "77"),
    (["bench", "data", "--only", "threds"], "no engine 'threds'"),
])
def test_a_mistake_is_one_sentence(command, runs_root, monkeypatch, tmp_path, tabletop_shards, words, sentence):
    monkeypatch.chdir(tmp_path)
    if not any(word.startswith("data.path") for word in words) and words[0] == "launch":
        words = [*words, f"data.path={tabletop_shards}"]
    code, _, err = command(*words)
    assert code == 2
    assert sentence in err and len(err.strip().splitlines()) == 1, err
    assert "Traceback" not in err
    assert runs.find() == [], "nothing was started, so no run folder is left"


def test_a_port_in_use_is_refused_before_anything_starts(command, runs_root, tabletop_shards):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = command("launch", "--port", port, f"data.path={tabletop_shards}")
    assert code == 2 and str(port) in err and len(err.strip().splitlines()) == 1
    assert runs.find() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_root_without_rights_is_one_sentence(command, runs_root, tabletop_shards):
    runs_root.mkdir()
    runs_root.chmod(0o500)
    code, _, err = command("launch", f"data.path={tabletop_shards}")
    assert code == 2 and "LFHELPERS_RUNS" in err


def test_a_root_below_a_file_is_one_sentence(command, monkeypatch, tmp_path, tabletop_shards):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path / "file" / "runs"))
    code, _, err = command("launch", f"data.path={tabletop_shards}")
    assert code == 2 and "LFHELPERS_RUNS" in err and len(err.strip().splitlines()) == 1


@pytest.fixture
def damaged(tabletop_shards, tmp_path):
    folder = tmp_path / "shards"
    shutil.copytree(tabletop_shards, folder)
    return folder


def test_a_shard_of_another_size_is_named(command, damaged):
    shard = sorted(damaged.glob("*.tar"))[1]
    with shard.open("ab") as file:
        file.write(b"\0" * 512)
    code, _, err = command("data", "check", damaged)
    assert code == 2 and shard.name in err and str(shard.stat().st_size) in err.replace(",", "")


def test_a_wrong_byte_is_found_when_checksums_are_asked_for(command, damaged):
    shard = sorted(damaged.glob("*.tar"))[0]
    data = bytearray(shard.read_bytes())
    data[5000] ^= 1
    shard.write_bytes(data)
    assert command("data", "check", damaged)[0] == 0
    code, _, err = command("data", "check", damaged, "--sha256")
    assert code == 2 and shard.name in err and "sha256" in err


def test_a_count_that_differs_is_found(command, damaged):
    path = next(path for path in damaged.glob("*.npz"))
    rows = dict(np.load(path))
    np.savez(path, **{name: value[:-1] if value.ndim and len(value) == 256 else value for name, value in rows.items()})
    code, _, err = command("data", "check", damaged)
    assert code == 2 and "256" in err and "255" in err


def test_a_manifest_that_is_cut_short_is_one_sentence(command, damaged):
    path = damaged / "manifest.json"
    path.write_text(path.read_text()[:100])
    code, _, err = command("data", "check", damaged)
    assert code == 2 and "manifest.json" in err and len(err.strip().splitlines()) == 1


def test_data_make_writes_what_data_check_accepts(command, tmp_path):
    out = tmp_path / "made"
    code, said, _ = command("data", "make", "--out", out, "--samples", 6, "--shard-mb", 1, "--jobs", 1)
    assert code == 0 and said.startswith("6 samples in ")
    assert json.loads((out / "manifest.json").read_text())["samples"] == 6
    assert command("data", "check", out, "--sha256")[0] == 0


def test_lint_finds_what_is_broken_and_repack_mends_it(command, tmp_path):
    """Three samples, one of which has lost its text: exit code 1, and a clean copy of the other two."""
    import io
    import tarfile

    with tarfile.open(tmp_path / "set.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        for name in ("a.txt", "a.bin", "b.bin", "c.txt", "c.bin"):
            entry = tarfile.TarInfo(name)
            entry.size = 4
            tar.addfile(entry, io.BytesIO(b"data"))
    code, out, _ = command("data", "lint", tmp_path / "set.tar", "--jobs", 1)
    assert code == 1 and "missing_members" in out.replace(" ", "_") and "b" in out
    code, out, _ = command("data", "lint", tmp_path / "set.tar", "--repack", tmp_path / "clean", "--jobs", 1)
    assert code == 0 and "2 samples in " in out
    assert command("data", "lint", tmp_path / "clean", "--jobs", 1)[0] == 0
