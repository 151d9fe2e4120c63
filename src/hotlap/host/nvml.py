"""What NVIDIA's management library says of GPUs: utilization, memory, power, clocks, throttling."""

import contextlib
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

PACKAGE = "nvidia-ml-py"
"""On PyPI; its module is `pynvml`."""

SLOWED = {
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "temperature (driver)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}
"""Bits of NVML's reasons for lower clocks which mean that the GPU could do more; idleness, and
clocks that were set by hand, do not."""


class Nvml:
    """The GPUs that this process may use.

    Args:
        visible: CUDA_VISIBLE_DEVICES, None if it is not set.
        library: stands in for the module `pynvml`.

    Raises:
        ImportError: the package is not installed.
        OSError: there is no driver, or it does not answer.
    """

    def __init__(self, visible: str | None = None, library: Any = None) -> None:
        self._nvml = importlib.import_module("pynvml") if library is None else library
        try:
            self._nvml.nvmlInit()
            self._handles = dict(self._select(visible))
        except self._nvml.NVMLError as error:
            raise OSError(f"NVML does not answer: {error}") from error

    @property
    def count(self) -> int:
        """Number of GPUs."""
        return len(self._handles)

    def names(self) -> list[str]:
        """Return the names of the GPUs."""
        found = [self._ask("nvmlDeviceGetName", handle) for handle in self._handles.values()]
        return [_as_text(name) for name in found]

    def sample(self, pids: Collection[int] = ()) -> dict[str, float]:
        """Return figures of every GPU; what a GPU does not tell is absent.

        Args:
            pids: processes whose share of the memory is told apart.
        """
        found: dict[str, float] = {}
        for number, handle in self._handles.items():
            for name, value in self._sample_one(handle, pids).items():
                found[f"gpu{number}_{name}"] = value
        return found

    def _sample_one(self, handle: Any, pids: Collection[int]) -> dict[str, float]:
        nvml = self._nvml
        asked: Mapping[str, Callable[[], float]] = {
            "utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "memory_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "own_memory_bytes": lambda: self._memory_of(handle, pids),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(
                handle, nvml.NVML_TEMPERATURE_GPU
            ),
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "throttle_reasons": lambda: self._reasons(handle),
        }
        found = {}
        for name, ask in asked.items():
            # What one kind of GPU does not know is no reason to say nothing of the others.
            with contextlib.suppress(nvml.NVMLError):
                found[name] = float(ask())
        return found

    def _memory_of(self, handle: Any, pids: Collection[int]) -> int:
        processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        # None where the driver does not tell it, as in some containers.
        return sum(each.usedGpuMemory or 0 for each in processes if each.pid in pids)

    def _reasons(self, handle: Any) -> int:
        # The name that it had before driver 535 is still there.
        return int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))

    def _select(self, visible: str | None) -> Iterator[tuple[int, Any]]:
        """Give those GPUs that CUDA_VISIBLE_DEVICES names, by nvidia-smi's number; else all."""
        nvml = self._nvml
        wanted = None if visible is None else [each.strip() for each in visible.split(",")]
        named_by_slice = any(each.startswith("MIG-") for each in wanted or ())
        for number in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            if wanted is None or named_by_slice or str(number) in wanted:
                yield number, handle
                continue
            uuid = _as_text(self._ask("nvmlDeviceGetUUID", handle))
            if any(each.startswith("GPU-") and uuid.startswith(each) for each in wanted):
                yield number, handle

    def _ask(self, name: str, handle: Any) -> Any:
        try:
            return getattr(self._nvml, name)(handle)
        except self._nvml.NVMLError:
            return ""


def _as_text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def slowed_by(reasons: float) -> list[str]:
    """Return in words why a GPU runs slower than it could, empty if it does not.

    >>> slowed_by(0x4 | 0x1)
    ['power limit']
    """
    return [words for bit, words in SLOWED.items() if int(reasons) & bit]
