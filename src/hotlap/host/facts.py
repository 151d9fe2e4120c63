"""`Host`: facts of a machine as data: CPU, cores, memory, GPUs, torch, compiler, load."""

import os
import platform
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hotlap.host import control_groups, probes
from hotlap.host.memory import memory
from hotlap.host.swap import swap

FEATURES = (
    "avx2",
    "fma",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
    "asimd",
    "sve",
    "bf16",
)
"""Flags of `/proc/cpuinfo` that decide which kernels torch takes."""
_BUSY_CORES = 0.5
"""More than that, kept busy by other processes, hides small gains."""


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU that this process may use."""

    index: int
    """Position in nvidia-smi's list, not in CUDA's."""
    uuid: str
    name: str
    memory_bytes: int
    memory_free_bytes: int
    compute_capability: str
    """As `9.0`."""
    driver: str


@dataclass(frozen=True)
class Host:
    """Facts about one machine, as one process sees it."""

    cpu: str = "unknown"
    features: tuple[str, ...] = ()
    """Those of `FEATURES` that the CPU has."""
    cores: int = 1
    """Cores that this process can keep busy: its affinity, and its control group's quota rounded
    down."""
    cores_total: int = 1
    """Logical cores of the machine."""
    cpu_quota: float | None = None
    """Cores' worth of time that the control group allows, None without a limit."""
    memory_bytes: int = 0
    """Memory of the machine, or the control group's limit where that is smaller."""
    memory_available_bytes: int = 0
    shm_bytes: int | None = None
    """Size of /dev/shm, None where there is none."""
    torch: str | None = None
    """Version of the installed torch, None if there is none."""
    torch_cuda: str | None = None
    """CUDA version that torch was built for, None for a build without CUDA."""
    python: str = ""
    compiler: str | None = None
    """Path of the C++ compiler that torch.compile would call, None if there is none."""
    compiler_version: str = ""
    python_headers: bool = False
    """True if Python.h is there, without which compiled CPU kernels cannot be built."""
    gpus: tuple[Gpu, ...] = ()
    load_1min: float | None = None
    busy_cores: float = 0.0
    """Cores that other processes kept busy while this was asked."""
    stolen_cores: float = 0.0
    """Cores' worth of time that the hypervisor gave to other machines meanwhile."""
    omp_num_threads: str | None = None
    """OMP_NUM_THREADS, as it is set."""
    cores_allowed: int = 0
    """Logical cores of its affinity, whatever the quota; 0 if not known."""
    swap_used_bytes: int = 0
    swap_bytes_per_s: float = 0.0
    """Read from swap and written to it, by the whole machine."""
    memlock_bytes: int | None = None
    """Memory that this process may lock, None without a limit, or where there is no such thing."""
    has_rdma: bool = False
    """True if there is a network adapter that reads and writes memory by itself."""
    cuda_visible_devices: str | None = None
    """CUDA_VISIBLE_DEVICES, as it is set."""
    gpus_hidden: int = 0
    """GPUs of the machine that it leaves out."""
    platform: str = ""
    """`linux` or `darwin`."""
    system: str = ""
    """Name and version of the system, for people."""

    @property
    def load(self) -> str:
        """Who else is busy here, in words, where it disturbs measurements; else empty."""
        if self.busy_cores <= _BUSY_CORES:
            return ""
        return f"other processes keep {self.busy_cores:.1f} of {self.cores} cores busy"

    @classmethod
    def detect(cls) -> "Host":
        """Ask the system. Takes a tenth of a second, more where there is a GPU."""
        busy, stolen = probes.other_load()
        quota = control_groups.cpu_quota()
        allowed = probes.affinity()
        compiler = probes.compiler()
        total, available = memory()
        torch_version = probes.torch_version()
        swapped = swap()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        everything = probes.gpus(None)
        gpus = everything if visible is None else probes.select_visible(everything, visible)
        return cls(
            cpu=probes.cpu_name(),
            features=probes.features(FEATURES),
            cores=probes.usable_cores(),
            cores_total=probes.core_count(),
            cpu_quota=quota,
            memory_bytes=total,
            memory_available_bytes=available,
            shm_bytes=probes.shm_bytes(),
            torch=torch_version,
            torch_cuda=probes.torch_cuda() if torch_version else None,
            python=platform.python_version(),
            compiler=compiler,
            compiler_version=probes.first_line([compiler, "--version"]) if compiler else "",
            python_headers=Path(sysconfig.get_path("include"), "Python.h").is_file(),
            gpus=tuple(Gpu(**row) for row in gpus),
            load_1min=probes.load_average(),
            busy_cores=busy,
            stolen_cores=stolen,
            omp_num_threads=os.environ.get("OMP_NUM_THREADS"),
            cores_allowed=allowed,
            swap_used_bytes=swapped.used_bytes,
            swap_bytes_per_s=swapped.bytes_per_s,
            memlock_bytes=probes.memlock_bytes(),
            has_rdma=probes.has_rdma(),
            cuda_visible_devices=visible,
            gpus_hidden=len(everything) - len(gpus),
            platform=sys.platform,
            system=platform.platform(),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        data = asdict(self)
        return {**data, "features": list(self.features), "gpus": list(data["gpus"])}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Host":
        """Read back what `to_json` wrote. Keys of a newer hotlap are left out."""
        known = {item.name for item in fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        values["features"] = tuple(values.get("features", ()))
        values["gpus"] = tuple(Gpu(**gpu) for gpu in values.get("gpus", ()))
        return cls(**values)
