"""The monitor watches real processes; NVML is played by a fake, since its failures must cost nothing."""

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from lfhelpers.measure import hardware, system
from lfhelpers.measure.system import Monitor

HOLD = "import sys, time; block = b'x' * (150 * 2**20); print('ready', flush=True); sys.stdin.read()"
WITH_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLD!r}])"


class FakeNvml:
    """A GPU whose readings are given in advance, 0.1 s apart by its clock; an exception among them is raised."""

    def __init__(self, percent, used):
        self.percent, self.used, self.now, self.over = iter(percent), iter(used), 0.0, threading.Event()

    def monotonic(self):
        return self.now

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        return 1e6 + 1e3 * 500 * self.now  # millijoules of 500 W

    def nvmlDeviceGetUtilizationRates(self, handle):
        self.now += 0.1
        value = next(self.percent, None)
        if value is None:
            self.over.set()
            raise RuntimeError("no reading is left")
        if isinstance(value, Exception):
            raise value
        return SimpleNamespace(gpu=value)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=next(self.used))

    NVML_CLOCK_SM = 1

    def nvmlDeviceGetClockInfo(self, handle, clock):
        return {self.NVML_CLOCK_SM: 1980}[clock]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return 0x20 | 0x04  # heat, and the power limit


def watch(monitor, seconds_of_work=0.3):
    """Sample while another process keeps a core busy."""
    monitor.start()
    busy = f"import time; end = time.time() + {seconds_of_work}\nwhile time.time() < end: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    return monitor.stop()


def watch_gpu(fake, monkeypatch):
    """Sample until every reading of the fake GPU was taken, by its clock."""
    monkeypatch.setattr(hardware, "nvml", lambda: fake)
    monkeypatch.setattr(hardware, "nvml_handle", lambda index: f"GPU {index}")
    monkeypatch.setattr(system, "time", fake)
    monitor = Monitor(gpu=0, interval=0.01).start()
    assert fake.over.wait(60)
    return monitor.stop()


def test_a_busy_core_shows_and_no_gpu_is_none():
    usage = watch(Monitor(interval=0.05))
    assert 40 / os.cpu_count() < usage["cpu_percent"] <= 100
    assert usage["cpu_count"] == os.cpu_count()
    assert usage["gpu_percent"] is None and usage["gpu_memory_gib"] is None and usage["gpu_watts"] is None
    assert usage["gpu_clock_mhz"] is None and usage["gpu_slowed"] == {}
    assert 0.01 < usage["host_rss_gib"] < 100


def test_segments_that_are_sent_again_are_counted_from_start_to_stop(monkeypatch, tmp_path):
    heads = "Tcp: RtoAlgorithm OutSegs RetransSegs\n"
    monkeypatch.setattr(system, "SNMP", tmp_path / "snmp")
    assert watch(Monitor(interval=0.05), 0)["tcp_resent_percent"] is None, "only Linux tells"
    (tmp_path / "snmp").write_text(f"Ip: X\nIp: 1\n{heads}Tcp: 1 1000 50\n")
    monitor = Monitor(interval=0.05).start()
    while not monitor._segments:
        time.sleep(0.01)
    (tmp_path / "snmp").write_text(f"{heads}Tcp: 1 3000 90\n")
    assert monitor.stop()["tcp_resent_percent"] == 2.0


@pytest.mark.parametrize("code", [HOLD, WITH_CHILD], ids=["the process itself", "its child"])
def test_memory_of_the_whole_tree_is_counted(code):
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        usage = Monitor(pid=process.pid, interval=0.05).start().stop()
        process.communicate()
    assert 150 / 1024 < usage["host_rss_gib"] < 0.4


def test_a_tree_that_has_ended_is_nothing():
    process = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    assert Monitor(pid=int(process.stdout)).start().stop()["host_rss_gib"] == 0


def test_gpu_figures_are_mean_use_and_peak_memory(monkeypatch):
    monkeypatch.setattr(system, "LOOKS_BACK", 0)
    usage = watch_gpu(FakeNvml([100, 50, 0], [2**30, 3 * 2**30, 2**30]), monkeypatch)
    assert usage["gpu_percent"] == 50
    assert usage["gpu_watts"] == 500
    assert usage["gpu_memory_gib"] == 3
    assert usage["gpu_clock_mhz"] == 1980 and usage["gpu_slowed"] == {"heat": 100.0}, "at its limit of power it may be"


def test_what_nvml_still_tells_of_the_time_before_does_not_count(monkeypatch):
    """A run's timed steps follow its compilation, during which the GPU had nothing to do."""
    for looks_back, why in ((0.25, "later than the three that say 0"), (60, "of a short look the last reading")):
        monkeypatch.setattr(system, "LOOKS_BACK", looks_back)
        usage = watch_gpu(FakeNvml([0, 0, 0, 96, 96], [2**30] * 5), monkeypatch)
        assert usage["gpu_percent"] == 96, why


def test_failing_readings_are_left_out(monkeypatch):
    lost = RuntimeError("lost")
    assert watch_gpu(FakeNvml([lost, 80, lost], [2**30]), monkeypatch)["gpu_percent"] == 80
    assert watch_gpu(FakeNvml([lost, lost], []), monkeypatch)["gpu_percent"] is None


def test_a_gpu_that_nvml_does_not_know_is_none(monkeypatch):
    monkeypatch.setattr(hardware, "nvml_handle", lambda index: None)
    assert Monitor(gpu=3).start().stop()["gpu_percent"] is None


def test_stopping_twice_gives_the_same_answer():
    monitor = Monitor(interval=0.05).start()
    assert monitor.stop() == monitor.stop()


def test_the_load_now_is_of_the_cores_and_of_each_gpu_that_answers(monkeypatch):
    system.load()
    assert 0 <= system.load()[0] <= 100
    fake = FakeNvml([73, RuntimeError("fell off the bus"), 20], [])
    monkeypatch.setattr(hardware, "nvml", lambda: fake)
    monkeypatch.setattr(hardware, "nvml_handle", lambda index: f"GPU {index}")
    monkeypatch.setattr(hardware, "visible_gpus", lambda: [hardware.Gpu("H200", 139.8, (9, 0))] * 3)
    assert system.load()[1] == [73.0, 20.0]
