"""The doctor on this machine, and on machines that it isn't: faked driver, GPUs, packages and limits."""

import importlib.metadata
import io
import os
import resource
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch
from rich.console import Console

from lfhelpers.diagnose import doctor_software
from lfhelpers.diagnose.doctor import Line, examine, render
from lfhelpers.errors import LfError
from lfhelpers.measure import disk, hardware

H200, L4 = hardware.Gpu("NVIDIA H200", 140.4, (9, 0)), hardware.Gpu("NVIDIA L4", 22.5, (8, 9))


def lines(**options):
    return {line.topic: line for line in examine(quick=True, **options)}


@pytest.fixture
def gpu_machine(monkeypatch):
    """A machine with the given GPUs, driver and build of torch; healthy unless told otherwise."""

    def build(gpus=(H200,), driver=("580.159.04", (13, 0)), cuda="13.0", built=("sm_80", "sm_90"), usable=True):
        monkeypatch.setattr(hardware, "gpus", lambda: list(gpus))
        monkeypatch.setattr(hardware, "driver", lambda: driver)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(
            __version__="2.11.0+cu130" if cuda else "2.11.0+cpu", version=SimpleNamespace(cuda=cuda),
            cuda=SimpleNamespace(is_available=lambda: usable, get_arch_list=lambda: list(built),
                                 nccl=SimpleNamespace(version=lambda: (2, 28, 9))),
            distributed=SimpleNamespace(is_nccl_available=lambda: True)))

    return build


@pytest.fixture
def packages(monkeypatch):
    """Change which distributions are installed: a version, or None for not at all."""
    real = importlib.metadata.version

    def change(**versions):
        def version(name):
            key = name.replace("-", "_")
            if key not in versions:
                return real(name)
            if versions[key] is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return versions[key]

        monkeypatch.setattr(importlib.metadata, "version", version)

    return change


def test_this_machine_is_examined_topic_by_topic(tmp_path):
    found = examine(tmp_path)
    assert [line.topic for line in found] == [
        "python", "torch", "driver", "GPUs", "GPU architecture", "NCCL", "NCCL settings", "DALI", "JupyterLab",
        "ipykernel", "ipywidgets", "papermill", "cores", "memory", "/dev/shm", "open files", "compiler",
        "decoding", "torchrun", "disk"]
    assert all(line.value for line in found)
    assert all(line.fix for line in found if line.ok is False), "a fault without a fix helps nobody"
    by_topic = {line.topic: line for line in found}
    assert torch.__version__ in by_topic["torch"].value
    assert "MB/s sequential" in by_topic["disk"].value
    assert by_topic["torchrun"].ok and by_topic["python"].ok


def test_a_machine_without_gpu_is_fine(monkeypatch):
    monkeypatch.setattr(hardware, "nvml", lambda: None)
    found = lines()
    assert found["GPUs"].ok and "recorded GPU results" in found["GPUs"].value
    assert (found["driver"].ok, found["driver"].value) == (None, "no NVIDIA driver")
    assert found["GPU architecture"].ok is None


def test_a_healthy_gpu_machine(gpu_machine):
    gpu_machine(gpus=(H200, L4))
    found = lines()
    assert found["driver"] == Line("driver", "580.159.04, runs CUDA up to 13.0", True)
    assert found["GPUs"].value == "NVIDIA H200 (140 GiB), NVIDIA L4 (22 GiB)"
    assert found["GPU architecture"].ok and found["torch"].ok
    assert found["NCCL"] == Line("NCCL", "2.28.9", True)


@pytest.mark.parametrize(("machine", "topic", "fix"), [
    ({"driver": ("570.86", (12, 8))}, "driver", "CUDA 13 needs a newer driver: update it to 580 or later"),
    ({"cuda": None}, "torch", "install a CUDA build of torch"),
    ({"usable": False}, "GPUs", "see driver and torch"),
    ({"built": ("sm_80", "sm_86")}, "GPU architecture", "it lacks sm_90"),
    ({"driver": ("515.43", (11, 7))}, "DALI", "CUDA 12 needs a newer driver: update it to 525 or later"),
])
def test_mismatches_around_the_gpu(gpu_machine, packages, machine, topic, fix):
    packages(nvidia_dali_cuda120="2.4.0", nvidia_dali_cuda130=None)
    gpu_machine(**machine)
    line = lines()[topic]
    assert line.ok is False
    assert fix in line.fix


def test_hidden_gpus_are_told_from_broken_ones(gpu_machine, monkeypatch):
    gpu_machine(usable=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert lines()["GPUs"].fix == "unset CUDA_VISIBLE_DEVICES='7', which hides them"


@pytest.mark.parametrize(("built", "capability", "runs"), [
    (["sm_80"], (8, 0), True), (["sm_80"], (8, 9), True), (["sm_86"], (8, 0), False), (["sm_80"], (9, 0), False),
    (["sm_80", "compute_80"], (9, 0), True), (["sm_90a"], (9, 0), True), (["sm_120"], (12, 0), True),
    (["sm_100a"], (10, 3), False), ([], (9, 0), False)])
def test_which_builds_run_on_which_gpu(built, capability, runs):
    assert doctor_software._runs(built, capability) is runs


@pytest.mark.parametrize(("package", "topic"), [
    ("jupyterlab", "JupyterLab"), ("ipykernel", "ipykernel"), ("ipywidgets", "ipywidgets"), ("papermill", "papermill"),
    ("jupyterlab_widgets", "ipywidgets"), ("nvidia_dali_cuda120", "DALI")])
def test_a_missing_part_costs_its_own_line_alone(packages, package, topic):
    packages(nvidia_dali_cuda120="2.4.0", nvidia_dali_cuda130=None)
    before = lines()
    packages(**{"nvidia_dali_cuda120": "2.4.0", "nvidia_dali_cuda130": None, package: None})
    after = lines()
    assert after[topic].ok is False
    assert "pip install" in after[topic].fix
    changing = (topic, "memory", "/dev/shm")  # free memory moves between two looks
    assert [line for line in after.values() if line.topic not in changing] == \
        [line for line in before.values() if line.topic not in changing]


def test_a_widget_server_of_another_generation(packages):
    packages(ipywidgets="8.1.9", jupyterlab_widgets="1.1.11")
    line = lines()["ipywidgets"]
    assert (line.ok, line.value) == (False, "kernel: ipywidgets 8.1.9, server: jupyterlab_widgets 1.1.11")


def test_two_builds_of_dali_overwrite_each_other(packages):
    packages(nvidia_dali_cuda120="2.4.0", nvidia_dali_cuda130="2.4.0")
    assert "pip uninstall nvidia-dali-cuda120 nvidia-dali-cuda130" in lines()["DALI"].fix


def test_dali_that_cannot_be_imported(packages, monkeypatch):
    packages(nvidia_dali_cuda120="2.4.0", nvidia_dali_cuda130=None)
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    assert "--force-reinstall nvidia-dali-cuda120" in lines()["DALI"].fix


def test_without_torch_the_rest_is_still_examined(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    found = lines()
    assert (found["torch"].ok, found["torch"].value) == (False, "not installed")
    assert found["torchrun"].ok is False
    assert found["python"].ok


def test_jupyterlab_of_another_environment_is_only_noted(tmp_path, monkeypatch):
    (tmp_path / "jupyter-lab").write_text("#!/bin/sh\n")
    (tmp_path / "jupyter-lab").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    line = lines()["JupyterLab"]
    assert line.ok is None and "python -m jupyterlab" in line.fix


def test_small_shared_memory_names_the_container_option(monkeypatch):
    monkeypatch.setattr(psutil, "disk_usage", lambda path: SimpleNamespace(free=64 * 2**20, total=64 * 2**20))
    line = lines()["/dev/shm"]
    assert line.ok is False and "--shm-size=8g" in line.fix and line.value == "0.06 GiB free of 0.06"


def test_one_core_and_little_memory(monkeypatch):
    monkeypatch.setattr(hardware, "usable_cores", lambda: 1)
    monkeypatch.setattr(hardware, "memory_bytes", lambda: 4 * 2**30)
    found = lines()
    assert found["cores"].ok is False and found["cores"].value.startswith(f"1 usable of {os.cpu_count()}")
    assert found["memory"].ok is False and "data.workers" in found["memory"].fix


def test_a_low_limit_of_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        assert lines()["open files"] == Line("open files", "256 a process", False,
                                             f"ulimit -n 1024 (the hard limit is {hard})")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_missing_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    line = lines()["compiler"]
    assert (line.ok, line.value) == (False, "no g++")


def test_a_slow_disk_and_an_unreadable_one(tmp_path, monkeypatch):
    assert "No such file" in next(line for line in examine(tmp_path / "none") if line.topic == "disk").fix
    monkeypatch.setattr(disk, "read_speed", lambda folder: disk.DiskSpeed(40.0, 1.0, 15.3, "dropped", 64, "nfs4"))
    line = examine(tmp_path)[-1]
    assert line.ok is False and "data.path" in line.fix
    assert line.value == "40 MB/s sequential; 1 MB/s in 15 random reads/s of 64 KiB (nfs4, page cache dropped)"


def test_a_check_that_breaks_hides_no_other(monkeypatch):
    def broken():
        raise ValueError("strange")

    monkeypatch.setattr(hardware, "usable_cores", broken)
    found = lines()
    assert found["cores"].value == "could not be read: ValueError: strange"
    assert found["memory"].ok is not None


def test_the_table_and_its_exit_code():
    out = io.StringIO()
    fine, fault = Line("python", "3.11", True), Line("cores", "[1] of 2", False, "give it [2]")
    assert render([fine, Line("driver", "none", None)], Console(file=out, width=120)) == 0
    assert "Everything fits together." in out.getvalue()
    assert render([fine, fault], Console(file=out, width=120)) == 1
    assert "[1] of 2" in out.getvalue() and "give it [2]" in out.getvalue() and "1 to fix." in out.getvalue()


def test_the_default_folder_is_where_runs_lie(monkeypatch, tmp_path):
    seen = []

    def speed(folder):
        seen.append(folder)
        raise LfError("no.")

    monkeypatch.setattr(disk, "read_speed", speed)
    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path / "not" / "yet"))
    assert examine()[-1] == Line("disk", "could not be measured", False, "no.")
    assert seen == [tmp_path]


def test_how_images_are_decoded_is_told(monkeypatch):
    from lfhelpers.data import resize

    monkeypatch.setattr(resize, "compiled", lambda: None)
    assert lines()["decoding"].value == "libjpeg-turbo, resized by Pillow" and lines()["decoding"].ok is None
    monkeypatch.setattr(resize, "compiled", lambda: print)
    assert lines()["decoding"].ok is True
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    assert (lines()["decoding"].ok, lines()["decoding"].fix[:24]) == (False, "pip install simplejpeg: ")
