"""System metrics: what they count, what a GPU tells, and what it costs to ask for them."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from hotlap.errors import UsageError
from hotlap.host import monitor
from hotlap.host.monitor import MEANINGS, Monitor, meaning_of, open_gpus
from hotlap.host.nvml import Nvml, slowed_by
from hotlap.report.watching import Means, in_words, table
from hotlap.track.metrics_file import MetricsFile, read_records
from hotlap.track.sampler import Sampler
from hotlap.track.writer import Writer


class NVMLError(Exception):
    """What `pynvml` raises."""


class Library:
    """Stands in for `pynvml`, with the answers of one GPU after the other, in NVML's own units.

    Args:
        answers: of each GPU, by the end of the function's name; what is absent is not supported.
    """

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2

    def __init__(self, *answers: dict[str, Any], problem: str = "") -> None:
        self._answers, self._problem = answers, problem

    def nvmlInit(self) -> None:
        if self._problem:
            raise NVMLError(self._problem)

    def nvmlDeviceGetCount(self) -> int:
        return len(self._answers)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def __getattr__(self, name: str) -> Any:
        key = name.removeprefix("nvmlDeviceGet")

        def ask(handle: int, *kind: int) -> Any:
            answer = self._answers[handle].get(key)
            if answer is None:
                raise NVMLError("Not Supported")
            return answer[kind[0]] if isinstance(answer, dict) else answer

        return ask


BUSY = {
    "UUID": "GPU-aaa",
    "Name": b"NVIDIA H100 80GB HBM3",
    "UtilizationRates": SimpleNamespace(gpu=100, memory=3),
    "MemoryInfo": SimpleNamespace(total=85520809984, free=62277025792, used=23243784192),
    "ComputeRunningProcesses": [
        SimpleNamespace(pid=17, usedGpuMemory=20 * 2**30),
        SimpleNamespace(pid=99, usedGpuMemory=2**30),
        SimpleNamespace(pid=18, usedGpuMemory=None),
    ],
    "PowerUsage": 118450,
    "Temperature": {0: 41},
    "ClockInfo": {1: 1980, 2: 2619},
    "CurrentClocksThrottleReasons": 0x1 | 0x4 | 0x40,
}
OLD = {"UUID": "GPU-bbb", "Temperature": {0: 55}, "MemoryInfo": SimpleNamespace(used=2**20)}


def test_what_a_gpu_answers_is_given_in_plain_units() -> None:
    found = Nvml(None, Library(BUSY, OLD)).sample({17, 18})
    assert found == {
        "gpu0_utilization_percent": 100,
        "gpu0_memory_bytes": 23243784192,
        "gpu0_own_memory_bytes": 20 * 2**30,
        "gpu0_power_w": 118.45,
        "gpu0_temperature_c": 41,
        "gpu0_sm_clock_mhz": 1980,
        "gpu0_memory_clock_mhz": 2619,
        "gpu0_throttle_reasons": 0x45,
        # The rest this one does not support.
        "gpu1_memory_bytes": 2**20,
        "gpu1_temperature_c": 55,
    }
    assert slowed_by(0x45) == ["power limit", "temperature (hardware)"] and slowed_by(1) == []
    assert all(meaning_of(name) for name in found)
    assert Nvml(None, Library(BUSY, OLD)).names() == ["NVIDIA H100 80GB HBM3", ""]


@pytest.mark.parametrize(
    ("visible", "numbers"),
    [(None, [0, 1]), ("1", [1]), ("GPU-aaa", [0]), ("", []), ("MIG-3", [0, 1]), ("1,0", [0, 1])],
)
def test_only_gpus_that_the_process_may_use_are_asked(
    visible: str | None, numbers: list[int]
) -> None:
    found = Nvml(visible, Library(BUSY, OLD)).sample()
    assert sorted({int(name[3]) for name in found}) == numbers


def test_without_a_driver_there_are_no_figures_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="NVML does not answer: Driver Not Loaded"):
        Nvml(None, Library(problem="Driver Not Loaded"))
    monkeypatch.setattr(monitor, "Nvml", lambda visible: Nvml(visible, Library(problem="gone")))
    assert open_gpus()[0] is None
    monkeypatch.setattr(monitor, "Nvml", lambda visible: Nvml(visible, Library(BUSY)))
    gpus, why = open_gpus()
    assert gpus is not None and gpus.count == 1 and why == ""


def test_a_missing_package_is_named_only_where_there_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(visible: str | None) -> Any:
        raise ImportError("pynvml")

    monkeypatch.setattr(monitor, "Nvml", absent)
    monkeypatch.setattr(monitor.os.path, "exists", lambda path: False)
    assert open_gpus() == (None, "")
    monkeypatch.setattr(monitor.os.path, "exists", lambda path: True)
    assert "pip install nvidia-ml-py" in open_gpus()[1]


def test_work_of_the_process_and_its_children_is_counted() -> None:
    code = "import time\nend = time.time() + 20\nwhile time.time() < end: pass"
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        # It takes a moment until a process counts as a child that has worked.
        time.sleep(0.1)
        watched = Monitor()
        before = psutil.Process(child.pid).cpu_times()
        begun = time.monotonic()
        time.sleep(0.5)
        found = watched.sample()
        seconds = time.monotonic() - begun
        after = psutil.Process(child.pid).cpu_times()
        alone = Monitor(child.pid).sample()
    finally:
        child.kill()
        child.wait()
    worked = after.user + after.system - before.user - before.system
    assert found["cpu_percent"] >= 100 * worked / (seconds + 0.1) * 0.8
    assert 0 < found["host_cpu_percent"] <= 100
    assert found["memory_bytes"] > alone["memory_bytes"] > 2**20
    assert found.keys() <= MEANINGS.keys() and "network_sent_bytes_per_s" in found
    # The child has ended: its figures are gone, and nothing is raised.
    assert watched.sample()["memory_bytes"] < found["memory_bytes"]


def test_what_the_host_sends_to_itself_is_no_traffic_of_its_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = {
        name: SimpleNamespace(bytes_recv=0, bytes_sent=0) for name in ("lo", "lo0", "eth0", "wlo1")
    }
    monkeypatch.setattr(psutil, "net_io_counters", lambda pernic: counts)
    watched = Monitor(watches_process=False)
    for name, each in counts.items():
        each.bytes_recv, each.bytes_sent = (3, 5) if name in ("eth0", "wlo1") else (2**30, 2**30)
    grown = watched._count_network()
    assert grown == {"network_received": 6, "network_sent": 10}
    # Where there is no interface, nothing is known.
    counts.clear()
    assert watched._count_network() == {}


def test_a_process_that_has_ended_is_known_to_have() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    watched = Monitor(child.pid)
    assert not watched.has_ended and not Monitor().has_ended
    child.kill()
    end = time.monotonic() + 20
    # Its parent, this process, has not waited for it.
    while not watched.has_ended and time.monotonic() < end:
        time.sleep(0.01)
    assert watched.has_ended and watched._root.status() == psutil.STATUS_ZOMBIE
    child.communicate()
    assert watched.has_ended


def test_what_is_written_to_the_disk_is_counted(tmp_path: Path) -> None:
    if not hasattr(psutil.Process(), "io_counters"):
        pytest.skip("the system counts no reads and writes of a process")
    begun = time.monotonic()
    watched = Monitor()
    (tmp_path / "file").write_bytes(bytes(2**22))
    found = watched.sample()
    written = found["disk_write_bytes_per_s"] * (time.monotonic() - begun)
    # A file system in memory writes nothing to storage.
    assert written >= 2**22 or written == 0


def test_a_process_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match=f"--pid {2**22 + 1}: there is no such process"):
        Monitor(2**22 + 1)


def test_samples_are_recorded_and_a_failure_is_said_once(tmp_path: Path) -> None:
    def fail() -> dict[str, float]:
        raise ValueError("no such figure")

    writer = Writer(MetricsFile(tmp_path))
    writer.add("step", 7, 1, {"loss": 0.5})
    good = Sampler(lambda: {"cpu_percent": 12.0}, writer, 0.01)
    bad = Sampler(fail, writer, 0.01)
    time.sleep(0.2)
    good.close()
    bad.close()
    writer.close()
    records, _, _ = read_records(tmp_path / "metrics.jsonl")
    system = [record for record in records if record.kind == "system"]
    assert len(system) > 2 and {record.step for record in system} == {7}
    assert system[0].values == {"cpu_percent": 12.0}
    assert list(writer.problems) == [
        "system metrics are not recorded any more: ValueError: no such figure"
    ]


@pytest.mark.slow
def test_the_samplers_thread_takes_two_milliseconds_of_cpu_a_second_at_most(
    tmp_path: Path,
) -> None:
    watched, used = Monitor(None, Nvml(None, Library(BUSY))), [0.0]

    def sample() -> dict[str, float]:
        figures = watched.sample()
        assert threading.current_thread().name == "hotlap-system"
        # Of this thread since it began: its waits are in it.
        used[0] = time.thread_time()
        return figures

    writer = Writer(MetricsFile(tmp_path))
    begun = time.monotonic()
    sampler = Sampler(sample, writer)
    time.sleep(20.5)
    sampler.close()
    writer.close()
    seconds = time.monotonic() - begun
    assert 0 < used[0] / seconds <= 0.002, f"{used[0]:.4f} s in {seconds:.1f} s"


def test_figures_are_shown_with_units_and_meanings() -> None:
    means = Means()
    means.add({"gpu0_power_w": 100.0})
    assert means.add({"gpu0_power_w": 200.0}) == {"gpu0_power_w": 150.0}
    assert in_words("disk_read_bytes_per_s", 3.5 * 2**20) == ("disk read", "3.5 MiB/s")
    assert in_words("gpu1_throttle_reasons", 0x24) == (
        "gpu1 slowed by",
        "power limit, temperature (driver)",
    )
    figures = Nvml(None, Library(BUSY)).sample()
    shown = table(figures, means.add(figures))
    words = " ".join(str(cell) for column in shown.columns for cell in column.cells)
    assert "100 % is no proof of work" in words and "power limit" in words
