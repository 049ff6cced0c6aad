"""The CUDA C++ version: it compiles where a compiler is, a build is kept, and why there is none fits into a line."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lfhelpers.errors import LfError
from lfhelpers.levers import gated_ffn_cuda as cuda

NVCC = shutil.which("nvcc")
GPU = torch.cuda.is_available()
INCLUDE = Path(torch.__file__).parent / "include"


@pytest.mark.skipif(NVCC is None, reason="no nvcc here")
def test_the_source_compiles_for_hopper_and_moves_16_bytes_at_a_time(tmp_path):
    missing = tmp_path / "c10/cuda/impl/cuda_cmake_macros.h"  # a torch built for CPUs lacks this one header
    missing.parent.mkdir(parents=True)
    missing.write_text("#define C10_CUDA_BUILD_SHARED_LIBS\n")
    done = subprocess.run([NVCC, "-ptx", "-arch=sm_90", "-O3", "-std=c++20", "--expt-relaxed-constexpr", f"-I{INCLUDE}",
                           f"-I{INCLUDE}/torch/csrc/api/include", f"-I{tmp_path}", "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
                           "-D__CUDA_NO_HALF_CONVERSIONS__", cuda.SOURCE, "-o", tmp_path / "kernels.ptx"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    kernels = re.findall(r"\.entry \S*?(product|grad)_kernelI(\S+?)Li(\d)E.*?(?=\.entry|\Z)",
                         (ptx := (tmp_path / "kernels.ptx").read_text()), re.DOTALL)
    assert len(kernels) == 2 * 4 * 2 and {int(numbers) for *_, numbers in kernels} == {1, 2, 4, 8}
    assert ptx.count("ld.global.nc.v4") == 3 * (2 + 3), "two loads forward, three backward, of fp32, bf16 and fp16"
    assert ptx.count("st.global.wb.v4") == 4 * (1 + 3), "one store forward, three backward, of these and of fp64"


@pytest.mark.skipif(GPU, reason="this machine could build it")
def test_a_build_that_fails_leaves_a_line_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("LFHELPERS_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(LfError, match=r"^their build fails: [^\n]+$"):
        cuda.build()
    assert not cuda.library().exists() and list(cuda.library().parent.glob("tmp*")) == []


def test_a_toolkit_is_a_folder_with_compiler_and_headers(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "0.0")
    bare, whole = tmp_path / "bare", tmp_path / "whole"
    for file in (bare / "bin/nvcc", whole / "bin/nvcc", whole / "include/cuda_runtime.h"):
        file.parent.mkdir(parents=True)
        file.touch()
    assert cuda.toolkit((bare, whole)) == {"CUDA_HOME": str(whole)} and cuda.toolkit((bare,)) == {}


def test_a_library_that_is_there_is_not_built_again(tmp_path, monkeypatch):
    monkeypatch.setenv("LFHELPERS_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/no/such/python")  # nothing may be started
    cuda.library().parent.mkdir(parents=True)
    cuda.library().write_bytes(b"built")
    assert cuda.build() == cuda.library()


def test_a_library_that_cannot_be_loaded_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda, "build", lambda: tmp_path / "broken.so")
    (tmp_path / "broken.so").write_text("no library")
    assert "broken.so" in cuda._loaded()


def test_another_source_torch_or_flag_is_another_library(monkeypatch):
    before = cuda.library()
    monkeypatch.setattr(cuda, "FLAGS", ("-O0",))
    assert cuda.library() != before


@pytest.mark.parametrize(("output", "line"), [
    ("[1/2] nvcc\nx.cu(3): error: identifier \"y\" is undefined\nninja: build stopped\nRuntimeError: Error building",
     "x.cu(3): error: identifier \"y\" is undefined"),
    ("Traceback\nRuntimeError: \nThe detected CUDA version (12.1) mismatches the version that was used to compile\nPy",
     "The detected CUDA version (12.1) mismatches the version that was used to compile"),
    ("OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
     "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root."),
    ("Traceback\n  File\nKilled", "Killed"), ("", "no words")])
def test_the_line_that_says_why_a_build_failed(output, line):
    assert cuda.reason(output) == line


@pytest.mark.parametrize(("version", "there", "capability", "reason"), [
    (None, False, None, "of torch has no CUDA"), ("13.0", False, None, "there is no GPU"),
    ("13.0", True, (8, 0), "they are built for sm_90, and this GPU is sm_80")])
def test_what_stands_in_the_way(monkeypatch, version, there, capability, reason):
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert cuda.obstacle.__wrapped__(0).endswith(reason)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="no GPU")
def test_a_second_process_loads_what_the_first_one_built():
    assert cuda.obstacle(0) is None
    before = cuda.library().stat()
    program = ("from lfhelpers.levers import gated_ffn_cuda as cuda\n"
               "assert cuda.obstacle(0) is None\nprint(cuda.library())")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          env=os.environ | {"PATH": ""})  # no compiler is found there
    assert done.stdout.strip() == str(cuda.library()), done.stderr[-2000:]
    after = cuda.library().stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
