"""NCCL's variables as a table, and when ranks are bound to the cores near their GPU."""

import os

import pytest

from lfhelpers.diagnose.doctor import examine
from lfhelpers.errors import LfError
from lfhelpers.launch import network
from lfhelpers.launch.network import (
    TRANSPORTS,
    VARIABLES,
    _binding,
    now_set,
    numa_options,
    of_transport,
    table,
    verdict,
)
from lfhelpers.levers.slow_link import NCCL, SLOWING

FOUR = {0: {0, 1}, 1: {2, 3}}


def test_every_variable_stands_once_under_known_transports_and_says_what_it_does():
    names = [variable.name for variable in VARIABLES]
    assert len(names) == len(set(names)) and all(name.startswith("NCCL_") for name in names)
    assert {transport for variable in VARIABLES for transport in variable.transports} == set(TRANSPORTS)
    assert all(variable.does and variable.default for variable in VARIABLES)


def test_what_an_emulated_link_sets_is_explained():
    assert {name for how in NCCL.values() for name in how} | set(SLOWING) <= {v.name for v in VARIABLES} | {
        "NCCL_MIN_CTAS"}


def test_socket_threads_are_tcps_alone():
    """The article tunes RDMA with them, where they do nothing."""
    assert "NCCL_SOCKET_NTHREADS" in [variable.name for variable in of_transport("tcp")]
    for transport in ("infiniband", "roce"):
        names = [variable.name for variable in of_transport(transport)]
        assert "NCCL_IB_HCA" in names and "NCCL_DEBUG" in names and "NCCL_SOCKET_NTHREADS" not in names
    assert "NCCL_IB_GID_INDEX" not in [variable.name for variable in of_transport("infiniband")]


def test_rows_are_those_of_a_transport_or_all():
    assert len(table()) == len(VARIABLES)
    assert [row["variable"] for row in table("nvlink")] == [variable.name for variable in of_transport("nvlink")]
    with pytest.raises(LfError, match="did you mean 'nvlink'"):
        table("nvlnk")


def test_what_is_set_is_shown_and_what_slows_the_link_is_a_fault():
    assert verdict({"PATH": "x"}) == ("none set: NCCL chooses by itself", None, "")
    rows = now_set({"NCCL_IB_HCA": "=mlx5_0", "NCCL_NEWER": "1", "OTHER": "2"})
    assert [(row["variable"], row["value"], bool(row["what it does"])) for row in rows] == [
        ("NCCL_IB_HCA", "=mlx5_0", True), ("NCCL_NEWER", "1", False)]
    assert verdict({"NCCL_DEBUG": "INFO"}) == ("NCCL_DEBUG=INFO", None, "")
    value, ok, fix = verdict({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "0"})
    assert (value, ok) == ("NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=0", False)
    assert fix.startswith("unset NCCL_P2P_DISABLE, which slows the link")


def test_the_doctor_names_them(monkeypatch):
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    (line,) = [line for line in examine(quick=True) if line.topic == "NCCL settings"]
    assert line.ok is False and "NCCL_P2P_DISABLE=1" in line.value


@pytest.mark.parametrize(("near", "numactl", "options", "why"), [
    ([0, 1], True, ["--numa-binding=node"], "each rank is bound to its GPU's NUMA node"),
    ([0, 0, 1, 1], True, ["--numa-binding=node"], "one of 2"),
    ([0, 1], False, [], "apt-get install numactl"),
    ([0, 0], True, [], "node 1, whose cores would idle"),
    ([0], True, [], "node 1, whose cores would idle"),
    ([0, None], True, [], "it isn't told"),
    ([0, 7], True, [], "no core of it is ours"),
    ([], True, [], "there is no GPU to be near to"),
])
def test_ranks_are_bound_where_no_cores_would_idle(near, numactl, options, why):
    given, reason = _binding(FOUR, near, numactl)
    assert given == options and why in reason


def nodes_folder(root, lists):
    for node, cores in lists.items():
        (root / f"node{node}").mkdir(parents=True)
        (root / f"node{node}" / "cpulist").write_text(cores + "\n")
    return root


def test_cores_of_nodes_as_the_kernel_lists_them(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 8, 9, 40})
    folder = nodes_folder(tmp_path, {0: "0-3,8", 1: "4-7,9", 2: "20-30", 3: ""})
    assert network.usable_cores(folder) == {0: {0, 1, 2, 8}, 1: {9}}
    assert numa_options(1, "cpu", folder) == ([], "not bound to the 2 NUMA nodes: there is no GPU to be near to")


def test_one_node_is_left_alone_with_a_line(tmp_path):
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    assert numa_options(2, "auto", nodes_folder(tmp_path, {0: cores})) == (
        [], "one NUMA node with usable cores: every core is as near")
    assert numa_options(2, "auto", tmp_path / "absent")[0] == []


def test_torchrun_knows_the_option():
    from torch.distributed.run import get_args_parser

    assert get_args_parser().parse_args(["--numa-binding=node", "train.py"]).numa_binding == "node"
