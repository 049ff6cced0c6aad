"""A Slurm of one node with ports and folders of its own, for as long as a block lasts."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from lfhelpers.launch.checks import free_port
from tests.launch.jobs import until

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
CONFIG = """
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=10
CompleteWait=0
NodeName=localhost CPUs=8 State=UNKNOWN
PartitionName=test Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


def obstacle() -> str | None:
    """Why no Slurm can be started here; None if it can."""
    missing = [name for name in NEEDED if not shutil.which(name, path=PATH)]
    if missing:
        return f"no {', '.join(missing)}: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "slurmd needs root"


@contextlib.contextmanager
def cluster():
    """Start munged, slurmctld and slurmd; yields the environment in which Slurm's commands find them."""
    with tempfile.TemporaryDirectory(prefix="lf-slurm-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        config = folder / "slurm.conf"
        config.write_text(CONFIG.format(folder=folder, ctld=free_port(), slurmd=free_port()))
        environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(config)}
        files = {"key-file": key, "socket": folder / "munge.socket", "pid-file": folder / "munged.pid",
                 "log-file": folder / "munged.log", "seed-file": folder / "munged.seed"}
        daemons = []
        for command in (["munged", "--foreground", "--force", *(f"--{key}={path}" for key, path in files.items())],
                        ["slurmctld", "-D", "-f", str(config)], ["slurmd", "-D", "-f", str(config), "-N", "localhost"]):
            program = shutil.which(command[0], path=PATH)
            daemon = subprocess.Popen([program, *command[1:]], env=environment, stdin=subprocess.DEVNULL,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(_end, daemon)
            daemons.append(daemon)
            if command[0] == "munged":
                until((folder / "munge.socket").exists, daemon)
        until(lambda: "idle" in subprocess.run(["sinfo", "-h", "-o", "%t"], env=environment, capture_output=True,
                                               text=True).stdout, *daemons)
        yield {key: environment[key] for key in ("PATH", "SLURM_CONF")}
        subprocess.run(["scancel", "--user=root", "--signal=KILL", "--full"], env=environment, check=False,
                       capture_output=True)


def _end(daemon: subprocess.Popen) -> None:
    daemon.terminate()
    try:
        daemon.wait(10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
