"""What decides how fast ranks talk, beyond their code: NCCL's variables by transport, and cores near the GPU.

NCCL chooses transports, channels and algorithms by what it finds, and mostly well: a variable is for what it can't see
(which of several networks is meant, what a switch expects) or for finding a fault. So nothing is set here, but what
the environment has set is shown (`lfhelpers doctor`), because a line copied from another cluster is a usual cause of a
slow link. Names, defaults and effects are those of NVIDIA's NCCL user guide, 'Environment Variables'.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lfhelpers.errors import LfError, nearest
from lfhelpers.levers.slow_link import SLOWING
from lfhelpers.measure import hardware

TRANSPORTS = {
    "all": "whatever carries the data",
    "nvlink": "between GPUs of one host over NVLink or NVSwitch",
    "pcie": "between GPUs of one host without NVLink",
    "infiniband": "between hosts over InfiniBand",
    "roce": "between hosts over RDMA on Ethernet",
    "tcp": "between hosts over plain Ethernet, and of any link the meeting of the ranks",
}


@dataclass(frozen=True)
class Variable:
    """One of NCCL's variables: where it matters, what NCCL does without it, and what it does."""

    name: str
    transports: tuple[str, ...]
    default: str
    does: str


_RDMA = ("infiniband", "roce")
VARIABLES = (
    Variable("NCCL_DEBUG", ("all",), "off", "INFO prints what was chosen: look for 'via P2P', 'via SHM' and 'via NET'"),
    Variable("NCCL_DEBUG_SUBSYS", ("all",), "INIT,BOOTSTRAP,ENV", "which parts INFO tells of; GRAPH and NET show "
             "topology and network"),
    Variable("NCCL_ALGO", ("all",), "chosen by size", "Ring, Tree, NVLS and others; one alone makes sums reproducible "
             "and mostly costs speed"),
    Variable("NCCL_PROTO", ("all",), "chosen by size", "LL, LL128, Simple; to be left alone: LL128 corrupts data "
             "where it is not supported"),
    Variable("NCCL_MAX_CTAS", ("all",), "chosen", "most thread blocks, each an SM taken from computation; fewer are "
             "slower alone and may be faster beside backward"),
    Variable("NCCL_MAX_NCHANNELS", ("all",), "chosen", "the old name of NCCL_MAX_CTAS; the lower of both counts"),
    Variable("NCCL_BUFFSIZE", ("all",), "4 MiB", "buffer of each pair and channel; smaller saves GPU memory"),
    Variable("NCCL_NVLS_ENABLE", ("nvlink",), "2: where it can", "sums in the NVSwitch (Hopper and newer); 0 turns it "
             "off, which costs nothing among 2 to 4 GPUs"),
    Variable("NCCL_P2P_DISABLE", ("nvlink", "pcie"), "0", "1: never directly between GPUs, but through host memory"),
    Variable("NCCL_P2P_LEVEL", ("nvlink", "pcie"), "chosen", "the longest path for direct access: NVL, PIX, PXB, PHB "
             "or SYS; NVL where direct access over PCIe is slow or broken"),
    Variable("NCCL_SHM_DISABLE", ("pcie",), "0", "1: not through host memory either, but through the network"),
    Variable("NCCL_IGNORE_CPU_AFFINITY", ("pcie",), "0", "1: NCCL's threads follow the GPU, not the cores that the "
             "job was bound to"),
    Variable("NCCL_IB_HCA", _RDMA, "all adapters", "which adapters and ports; '=mlx5_0:1', where mlx5_1 alone also "
             "means mlx5_10"),
    Variable("NCCL_NET_GDR_LEVEL", _RDMA, "chosen", "the longest path on which the adapter reads GPU memory itself; "
             "SYS always, LOC never"),
    Variable("NCCL_CROSS_NIC", _RDMA, "2: if faster", "0 keeps a ring on one rail, for fabrics with a switch a rail"),
    Variable("NCCL_IB_QPS_PER_CONNECTION", _RDMA, "1", "queue pairs a connection; more spread traffic better over a "
             "fabric of several levels"),
    Variable("NCCL_IB_ADAPTIVE_ROUTING", _RDMA, "1 on InfiniBand, 0 on RoCE", "lets switches choose paths"),
    Variable("NCCL_IB_TIMEOUT", _RDMA, "20 (4.3 s a try)", "4.096 us x 2^value for an answer; 22 on large fabrics "
             "that fail with error 12"),
    Variable("NCCL_IB_RETRY_CNT", _RDMA, "7", "tries before a peer counts as lost: with the timeout's default 30 s"),
    Variable("NCCL_IB_PCI_RELAXED_ORDERING", _RDMA, "2: where it can", "much faster in virtual machines"),
    Variable("NCCL_IB_SL", ("infiniband",), "0", "service level, which chooses a lane of the fabric"),
    Variable("NCCL_IB_DISABLE", _RDMA, "0", "1: no RDMA; data go over TCP instead"),
    Variable("NCCL_IB_GID_INDEX", ("roce",), "-1: found by the next two", "the address to use; a fixed one copied "
             "from another cluster is a usual fault"),
    Variable("NCCL_IB_ROCE_VERSION_NUM", ("roce",), "2", "RoCE version of the address that is looked for"),
    Variable("NCCL_IB_ADDR_FAMILY", ("roce",), "AF_INET", "AF_INET6 for fabrics with IPv6 addresses alone"),
    Variable("NCCL_IB_TC", ("roce",), "0", "traffic class: the one that the switches were told to keep lossless"),
    Variable("NCCL_SOCKET_IFNAME", ("tcp", *_RDMA), "any but lo and docker", "which interfaces; with RDMA they carry "
             "the meeting of the ranks alone; '=eth0' is exact, 'eth' a beginning"),
    Variable("NCCL_SOCKET_FAMILY", ("tcp",), "any", "AF_INET or AF_INET6"),
    Variable("NCCL_SOCKET_NTHREADS", ("tcp",), "1 (AWS 2, gVNIC 4)", "helper threads a connection; does nothing over "
             "InfiniBand or RoCE"),
    Variable("NCCL_NSOCKS_PERTHREAD", ("tcp",), "1 (AWS 8)", "sockets a thread; threads x sockets at most 64; 4 x 4 "
             "for 100 Gbit/s"),
    Variable("NCCL_NET", ("tcp", *_RDMA), "chosen", "IB, Socket or a plugin's name, and an error where it is missing"),
)


def of_transport(transport: str) -> list[Variable]:
    """The variables that matter to one of TRANSPORTS, those of `all` first. Raises LfError for an unknown one."""
    if transport not in TRANSPORTS:
        raise LfError(f"no transport is named '{transport}'; {nearest(transport, TRANSPORTS)}")
    return [variable for variable in VARIABLES if {"all", transport} & set(variable.transports)]


def table(transport: str | None = None) -> list[dict[str, str]]:
    """Rows of variable, transports, default, what it does: of one of TRANSPORTS, or of all of them."""
    chosen = VARIABLES if transport is None else of_transport(transport)
    return [{"variable": variable.name, "matters for": ", ".join(variable.transports), "default": variable.default,
             "what it does": variable.does} for variable in chosen]


def now_set(environment: Mapping[str, str] = os.environ) -> list[dict[str, str]]:
    """NCCL's variables that are set: rows of variable, value, what it does (empty where this table does not know)."""
    known = {variable.name: variable.does for variable in VARIABLES}
    return [{"variable": name, "value": value, "what it does": known.get(name, "")}
            for name, value in sorted(environment.items()) if name.startswith("NCCL_")]


def verdict(environment: Mapping[str, str] = os.environ) -> tuple[str, bool | None, str]:
    """(what is set, whether that is well: None where nothing is to be said, what to do)."""
    rows = now_set(environment)
    if not rows:
        return "none set: NCCL chooses by itself", None, ""
    value = ", ".join(f"{row['variable']}={row['value']}" for row in rows)
    slow = [name for name, slowing in SLOWING.items() if environment.get(name) == slowing]
    fix = f"unset {', '.join(slow)}, which slows the link; to slow it on purpose there is ddp.slow_link"
    return value, False if slow else None, fix if slow else ""


def numa_options(ranks: int, device: str, nodes: Path = Path("/sys/devices/system/node")) -> tuple[list[str], str]:
    """(torchrun's options that bind each rank to the cores near its GPU, why they are given or left out).

    torchrun binds through numactl (torch.numa.binding). Bound ranks and their data workers share the cores of their
    GPU's node alone, so this is left out where whole nodes would idle.
    """
    cores = usable_cores(nodes)
    if len(cores) < 2:
        return [], "one NUMA node with usable cores: every core is as near"
    near = [] if device == "cpu" else [_node_of_gpu(index) for index in range(ranks)]
    return _binding(cores, near, shutil.which("numactl") is not None)


def _binding(cores: Mapping[int, set[int]], near: Sequence[int | None], numactl: bool) -> tuple[list[str], str]:
    """The same from usable cores by node, each rank's GPU's node, and whether numactl is there."""
    if not near:
        return [], f"not bound to the {len(cores)} NUMA nodes: there is no GPU to be near to"
    if any(node not in cores for node in near):
        return [], "not bound to NUMA nodes: it isn't told which one each rank's GPU hangs on, or no core of it is ours"
    if idle := sorted(set(cores) - set(near)):
        return [], (f"not bound to NUMA nodes: no rank's GPU hangs on node {', '.join(map(str, idle))}, whose "
                    "cores would idle")
    if not numactl:
        return [], f"not bound to the {len(cores)} NUMA nodes: torchrun needs numactl for it; apt-get install numactl"
    return ["--numa-binding=node"], f"each rank is bound to its GPU's NUMA node, one of {len(cores)}"


def _node_of_gpu(index: int) -> int | None:
    """The NUMA node that torch's device `index` hangs on, or None where it isn't told; makes no CUDA context."""
    module, handle = hardware.nvml(), hardware.nvml_handle(index)
    if module is None or handle is None:
        return None
    bus = module.nvmlDeviceGetPciInfo(handle).busId
    domain, rest = (bus.decode() if isinstance(bus, bytes) else bus).lower().split(":", 1)
    file = Path(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node")  # NVML writes the domain with eight digits
    node = int(file.read_text()) if file.exists() else -1
    return node if node >= 0 else None


def usable_cores(nodes: Path = Path("/sys/devices/system/node")) -> dict[int, set[int]]:
    """The cores of each NUMA node that this process may use; nodes without any are left out, {} where it isn't told."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    found = {int(path.parent.name.removeprefix("node")): _numbers(path.read_text()) & allowed
             for path in nodes.glob("node[0-9]*/cpulist")}
    return {node: cores for node, cores in found.items() if cores}


def _numbers(listed: str) -> set[int]:
    """The kernel's list format: '0-3,8' is {0, 1, 2, 3, 8}."""
    ends = [part.split("-") for part in listed.strip().split(",") if part]
    return {number for each in ends for number in range(int(each[0]), int(each[-1]) + 1)}
