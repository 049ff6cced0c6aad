"""What the machine is: peaks that are known or refused, cores that are really usable, GPUs as NVML names them."""

import os
import subprocess
import sys
from types import SimpleNamespace

import orjson
import psutil
import pynvml
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lfhelpers.errors import LfError
from lfhelpers.measure import hardware


@pytest.mark.parametrize(("name", "dtype", "tflops"), [
    ("NVIDIA H200", "bf16", 989), ("NVIDIA H100 80GB HBM3", "bf16", 989), ("NVIDIA H100 PCIe", "bf16", 756),
    ("NVIDIA A100-SXM4-80GB", "fp16", 312), ("NVIDIA A100 80GB PCIe", "bf16", 312), ("NVIDIA L4", "bf16", 121),
    ("NVIDIA A800-SXM4-80GB", "bf16", 312), ("NVIDIA L40S", "bf16", 362), ("NVIDIA GeForce RTX 4090", "bf16", 165),
    ("NVIDIA H200", "fp32", 67), ("Tesla V100-SXM2-32GB", "fp16", 125),
])
def test_known_peaks(name, dtype, tflops):
    peak, source = hardware.peak_tflops(name, dtype)
    assert peak == tflops
    assert "dense" in source


@pytest.mark.parametrize(("name", "dtype"), [
    ("NVIDIA H300", "bf16"), ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16"), ("NVIDIA H200 MIG 1g.18gb", "bf16"),
    ("NVIDIA GeForce RTX 4090 D", "bf16"), ("Tesla V100-SXM2-32GB", "bf16"), ("NVIDIA H200", "fp8"), ("", "bf16"),
])
def test_what_is_not_on_record_has_no_peak(name, dtype):
    peak, reason = hardware.peak_tflops(name, dtype)
    assert peak is None
    assert name in reason


@settings(max_examples=50)
@given(st.text(max_size=20), st.sampled_from(["bf16", "fp16", "tf32", "fp32"]))
def test_a_made_up_gpu_never_gets_a_number(name, dtype):
    assert hardware.peak_tflops(f"{name} of my own", dtype)[0] is None


def test_device_says_why(monkeypatch):
    assert hardware.device("cpu") == ("cpu", "the recipe asks for device='cpu'")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    name, reason = hardware.device("auto")
    assert name == "cpu" and reason.startswith("torch sees no CUDA device")
    with pytest.raises(LfError, match=r"device = 'cuda' can't be had.*no CUDA device.*device='auto'"):
        hardware.device("cuda")
    with pytest.raises(LfError, match="device = 'gpu' does not exist"):
        hardware.device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert hardware.device("auto") == hardware.device("cuda") == ("cuda", "torch sees 2 CUDA device(s)")


def test_usable_cores_follow_the_affinity():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); " \
           "from lfhelpers.measure.hardware import usable_cores; print(usable_cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"
    assert 1 <= hardware.usable_cores() <= os.cpu_count()


def put(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_the_tightest_quota_of_nested_groups_counts(tmp_path):
    put(tmp_path, {"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "max 100000\n", "cpu.max": "800000 100000\n"})
    assert hardware.cpu_quota(tmp_path, "0::/a/b\n") == 1.5
    assert hardware.cpu_quota(tmp_path, "0::/elsewhere\n") == 8
    assert hardware.cpu_quota(tmp_path, "0::/../..\n") == 8, "a container sees its own part of the tree as the root"


def test_quotas_of_the_older_hierarchy(tmp_path):
    put(tmp_path, {"cpu/docker/cpu.cfs_quota_us": "250000\n", "cpu/docker/cpu.cfs_period_us": "100000\n"})
    assert hardware.cpu_quota(tmp_path, "4:memory:/x\n1:cpu:/docker\n0::/\n") == 2.5
    put(tmp_path / "free", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"})
    assert hardware.cpu_quota(tmp_path / "free", "1:cpu:/\n") is None
    assert hardware.cpu_quota(tmp_path / "none", "") is None


def test_memory_is_what_the_group_allows(tmp_path):
    put(tmp_path, {"job/memory.max": "1073741824\n"})
    assert hardware.memory_bytes(tmp_path, "0::/job\n") == 2**30
    put(tmp_path, {"open/memory.max": "max\n"})
    assert hardware.memory_bytes(tmp_path, "0::/open\n") == psutil.virtual_memory().total


class FakeNvml:
    """Two GPUs, in the terms of pynvml."""

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return ["GPU-aa", "GPU-bb"][index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return {"GPU-aa": "GPU-aa", "GPU-bb": "GPU-bb"}[uuid]

    def nvmlDeviceGetName(self, handle):
        return {"GPU-aa": b"NVIDIA H200", "GPU-bb": "NVIDIA L4"}[handle]

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=24 * 2**30)

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return [9, 0] if handle == "GPU-aa" else [8, 9]

    def nvmlSystemGetCudaDriverVersion(self):
        return 13000

    def nvmlSystemGetDriverVersion(self):
        return "580.159.04"


def test_gpus_and_driver_come_from_nvml(monkeypatch):
    monkeypatch.setattr(hardware, "nvml", FakeNvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert hardware.gpus() == [hardware.Gpu("NVIDIA H200", 24.0, (9, 0)), hardware.Gpu("NVIDIA L4", 24.0, (8, 9))]
    assert hardware.driver() == ("580.159.04", (13, 0))
    assert hardware.title("cuda") == "NVIDIA H200"
    second = hardware.describe()["hardware"]["gpus"][1]
    assert second == {"name": "NVIDIA L4", "memory_gib": 24.0, "capability": [8, 9]}, "as it comes back from a file"


def test_a_record_names_the_gpus_that_its_process_may_use(monkeypatch):
    monkeypatch.setattr(hardware, "nvml", FakeNvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    facts = hardware.describe()["hardware"]
    assert ([gpu["name"] for gpu in facts["gpus"]], facts["gpus_host"]) == (["NVIDIA L4"], 2)


@pytest.mark.parametrize(("visible", "index", "handle"), [
    (None, 1, "GPU-bb"), ("1,0", 0, "GPU-bb"), ("GPU-bb", 0, "GPU-bb"), ("1", 1, None), ("", 0, None), (None, 7, None)])
def test_handles_follow_cuda_visible_devices(monkeypatch, visible, index, handle):
    monkeypatch.setattr(hardware, "nvml", FakeNvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert hardware.nvml_handle(index) == handle


def test_a_broken_driver_is_no_gpu(monkeypatch):
    def broken():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", broken)
    hardware.nvml.cache_clear()
    try:
        assert (hardware.nvml(), hardware.nvml_handle(), hardware.gpus(), hardware.driver()) == \
            (None, None, [], (None, None))
    finally:
        hardware.nvml.cache_clear()


def test_describe_goes_into_json_and_names_no_host():
    facts = hardware.describe()
    assert os.uname().nodename not in orjson.dumps(facts).decode()
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["hardware"]["cores_usable"] == hardware.usable_cores()
    assert set(facts) == {"hardware", "versions", "system", "commit", "time"}
    assert hardware.title("cpu").startswith(facts["hardware"]["cpu"])


def test_commit_of_a_checkout(tmp_path):
    assert hardware.commit(tmp_path) is None

    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True,
                       capture_output=True)

    git("init")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "first")
    clean = hardware.commit(tmp_path)
    assert clean is not None and len(clean["hash"]) == 40 and not clean["dirty"]
    (tmp_path / "file").write_text("2")
    assert hardware.commit(tmp_path) == clean | {"dirty": True}


def test_importing_it_leaves_torch_alone():
    code = "import sys, lfhelpers.measure.hardware, lfhelpers.measure.system; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
