"""Problems in a machine's set-up: missing compilers, small shared memory, CPU limits."""

import re
from dataclasses import dataclass

from hotlap.host.facts import Gpu, Host

_MIB = 1024**2
_GIB = 1024**3
_SWAPPING = 1.0 * _MIB
"""Bytes a second from which on swap is in use, and not only filled."""
_LITTLE_LOCKED = 64 * _MIB


@dataclass(frozen=True)
class Problem:
    """Something about a machine that makes training slow, or measurements worthless."""

    name: str
    text: str
    """What was seen."""
    remedy: str
    why: str = ""
    """Why it matters."""


def problems(host: Host) -> list[Problem]:
    """Return what is wrong with a host's set-up, what weighs most first."""
    found = [
        *_torch_problems(host),
        *_gpu_problems(host),
        *_core_problems(host),
        *_memory_problems(host),
        *_compiler_problems(host),
    ]
    return [problem for problem in found if problem is not None]


def _torch_problems(host: Host) -> list[Problem | None]:
    if host.torch is None:
        return [
            Problem(
                "no_torch",
                "torch is not installed.",
                "Install it into the Python that runs hotlap: pip install 'torch>=2.11'.",
                "Nothing can be trained or measured.",
            )
        ]
    old = _release(host.torch) < (2, 11)
    blind = bool(host.gpus) and host.torch_cuda is None
    return [
        Problem(
            "old_torch",
            f"torch is {host.torch}; hotlap needs 2.11 or newer.",
            "pip install --upgrade 'torch>=2.11'",
            "hotlap attaches to names within torch that older versions do not have.",
        )
        if old
        else None,
        Problem(
            "torch_without_cuda",
            f"there is a GPU ({host.gpus[0].name}), but torch {host.torch} was built without CUDA.",
            "Install a CUDA build: https://pytorch.org/get-started/locally/",
            "Scripts train on the CPU, and `torch.cuda.is_available()` is False.",
        )
        if blind
        else None,
    ]


def _gpu_problems(host: Host) -> list[Problem | None]:
    return [_hidden_gpus(host), *map(_gpu_in_use, host.gpus)]


def _hidden_gpus(host: Host) -> Problem | None:
    given = host.cuda_visible_devices
    if given is None or host.gpus:
        # Whoever leaves some of them out has chosen the others.
        return None
    if not host.gpus_hidden and (host.torch_cuda is None or _names_a_device(given)):
        return None
    seen = f"{host.gpus_hidden} GPUs" if host.gpus_hidden else "any GPU"
    if host.gpus_hidden == 1:
        seen = "the only GPU"
    return Problem(
        "hidden_gpus",
        f"CUDA_VISIBLE_DEVICES is '{given}', which hides {seen}.",
        "Unset CUDA_VISIBLE_DEVICES, or name devices that exist, as in CUDA_VISIBLE_DEVICES=0.",
        "Scripts train on the CPU, and `torch.cuda.is_available()` is False.",
    )


def _names_a_device(given: str) -> bool:
    """Return whether a value of `CUDA_VISIBLE_DEVICES` leaves at least one device to be seen."""
    first = given.split(",")[0].strip()
    return first.isdecimal() or first.startswith(("GPU-", "MIG-"))


def _gpu_in_use(gpu: Gpu) -> Problem | None:
    used = gpu.memory_bytes - gpu.memory_free_bytes
    if used < max(_GIB, 0.1 * gpu.memory_bytes):
        return None
    return Problem(
        "gpu_in_use",
        f"{used / _GIB:.1f} of {gpu.memory_bytes / _GIB:.1f} GiB of GPU {gpu.index} ({gpu.name}) "
        "are in use.",
        "Look for them with nvidia-smi; stop them, or choose another GPU with "
        "CUDA_VISIBLE_DEVICES.",
        "Other processes are on it: training gets less memory and less time, and measurements are "
        "noisier.",
    )


def _core_problems(host: Host) -> list[Problem | None]:
    return [
        Problem(
            "few_cores",
            f"only {host.cores} of {host.cores_total} cores are available"
            + (f" (quota: {host.cpu_quota:g})." if host.cpu_quota is not None else "."),
            "Raise the quota or affinity of this container or job, if the other cores are yours.",
            "Reading data and computing share them.",
        )
        if host.cores < host.cores_total and host.cores <= 2
        else None,
        Problem(
            "busy",
            f"other processes keep {host.busy_cores:.1f} cores busy.",
            "Stop them, or wait.",
            f"Training shares {host.cores} with them, and measurements are noisier.",
        )
        if host.busy_cores > max(0.25, 0.1 * host.cores_total)
        else None,
        Problem(
            "stolen",
            f"the hypervisor takes {host.stolen_cores:.1f} cores away for other machines.",
            "Measure at another time, or on a dedicated machine.",
            "Every step waits now and then, and measurements are noisier.",
        )
        if host.stolen_cores > max(0.1, 0.05 * host.cores_total)
        else None,
        _thread_problem(host),
    ]


def _thread_problem(host: Host) -> Problem | None:
    given = host.omp_num_threads
    if given is None:
        if host.cpu_quota is None or host.cores_allowed <= host.cores:
            return None
        return Problem(
            "threads",
            f"OMP_NUM_THREADS is not set; {host.cores_allowed} cores can be used, but the quota "
            f"allows the time of {host.cpu_quota:g}.",
            f"Set OMP_NUM_THREADS to {host.cores}.",
            "torch takes its number of threads from the cores, not from the quota: all of them are "
            "stopped each time that the quota is used up.",
        )
    # OpenMP takes a list, one number per level of nesting; only the first one matters to torch.
    first = given.split(",")[0].strip()
    remedy = f"Unset OMP_NUM_THREADS, or set it to at most {host.cores}."
    if not first.isdecimal() or int(first) == 0:
        text = f"OMP_NUM_THREADS is '{given}', which is not a number of threads."
        why = "It is ignored, and torch chooses the number itself."
    elif int(first) > host.cores:
        text = f"OMP_NUM_THREADS is {first}, but only {host.cores} cores are available."
        why = "Threads wait for one another's core within every operation."
    elif int(first) == 1 and host.cores > 2:
        text = f"OMP_NUM_THREADS is 1, so torch computes on one of {host.cores} cores."
        why = "The others are idle while it computes."
    else:
        return None
    return Problem("threads", text, remedy, why)


def _memory_problems(host: Host) -> list[Problem | None]:
    little_shm = host.shm_bytes is not None and host.shm_bytes < 1024 * _MIB
    little_memory = 0 < host.memory_available_bytes < 1024 * _MIB
    return [
        Problem(
            "swapping",
            f"the system swaps {host.swap_bytes_per_s / _MIB:.0f} MiB a second; "
            f"{host.swap_used_bytes / _GIB:.1f} GiB are swapped.",
            "Stop other processes, use fewer workers or smaller batches, or add memory.",
            "Memory that is needed is read from a disk, a thousand times slower than memory is.",
        )
        if host.swap_bytes_per_s > _SWAPPING
        else None,
        Problem(
            "little_shm",
            f"/dev/shm has {(host.shm_bytes or 0) // _MIB} MiB.",
            "Enlarge it (docker run --shm-size=8g), or use num_workers=0.",
            "Worker processes of a DataLoader pass batches through it, and die when it is full.",
        )
        if little_shm
        else None,
        Problem(
            "little_memory",
            f"only {host.memory_available_bytes // _MIB} MiB of memory are free.",
            "Stop other processes, or raise the limit of this container.",
            "The system swaps, or ends the process that takes more.",
        )
        if little_memory
        else None,
        _locked_memory(host),
    ]


def _locked_memory(host: Host) -> Problem | None:
    limit = host.memlock_bytes
    # Otherwise nothing needs to be locked: most systems allow 8 MiB, and that is enough there.
    if limit is None or limit >= _LITTLE_LOCKED or not (len(host.gpus) > 1 or host.has_rdma):
        return None
    return Problem(
        "little_memlock",
        f"this process may lock {limit / _MIB:.3g} MiB of memory (ulimit -l).",
        "Raise it: `ulimit -l unlimited`, docker run --ulimit memlock=-1, or memlock in "
        "/etc/security/limits.conf.",
        "Memory that network adapters read and write by themselves is locked: NCCL over InfiniBand "
        "fails, or copies everything once more.",
    )


def _compiler_problems(host: Host) -> list[Problem | None]:
    return [
        Problem(
            "no_compiler",
            "there is no C++ compiler.",
            "Install g++ (Debian: apt install g++), or set CXX.",
            "torch.compile cannot work on the CPU without one.",
        )
        if host.compiler is None
        else None,
        Problem(
            "no_python_headers",
            f"Python.h of Python {host.python} was not found.",
            "Install the headers (Debian: apt install python3-dev).",
            "torch.compile cannot work on the CPU without them.",
        )
        if host.compiler is not None and not host.python_headers
        else None,
    ]


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)
