"""Problems in a machine's set-up: missing compilers, small shared memory, CPU limits."""

import re
from dataclasses import dataclass

from hotlap.host.facts import Host

_MIB = 1024**2


@dataclass(frozen=True)
class Problem:
    """Something about a machine that makes training slow, or measurements worthless."""

    name: str
    text: str
    remedy: str


def problems(host: Host) -> list[Problem]:
    """Return what is wrong with a host's set-up, what weighs most first."""
    found = [*_torch_problems(host), *_core_problems(host), *_system_problems(host)]
    return [problem for problem in found if problem is not None]


def _torch_problems(host: Host) -> list[Problem | None]:
    if host.torch is None:
        remedy = "Install it into the Python that runs hotlap: pip install 'torch>=2.11'."
        return [Problem("no_torch", "torch is not installed.", remedy)]
    old = _release(host.torch) < (2, 11)
    blind = bool(host.gpus) and host.torch_cuda is None
    return [
        Problem(
            "old_torch",
            f"torch is {host.torch}; hotlap needs 2.11 or newer.",
            "pip install --upgrade 'torch>=2.11'",
        )
        if old
        else None,
        Problem(
            "torch_without_cuda",
            f"there is a GPU ({host.gpus[0].name}), but torch {host.torch} was built without CUDA.",
            "Install a CUDA build: https://pytorch.org/get-started/locally/",
        )
        if blind
        else None,
    ]


def _core_problems(host: Host) -> list[Problem | None]:
    return [
        Problem(
            "few_cores",
            f"only {host.cores} of {host.cores_total} cores are available"
            + (f" (quota: {host.cpu_quota:g})." if host.cpu_quota is not None else "."),
            "Raise the quota or affinity of this container or job, if the other cores are yours.",
        )
        if host.cores < host.cores_total and host.cores <= 2
        else None,
        Problem(
            "busy",
            f"other processes keep {host.busy_cores:.1f} cores busy; training shares "
            f"{host.cores} with them, and measurements are noisier.",
            "Stop them, or wait.",
        )
        if host.busy_cores > max(0.25, 0.1 * host.cores_total)
        else None,
        Problem(
            "stolen",
            f"the hypervisor takes {host.stolen_cores:.1f} cores away for other machines.",
            "Measure at another time, or on a dedicated machine.",
        )
        if host.stolen_cores > max(0.1, 0.05 * host.cores_total)
        else None,
        _thread_problem(host),
    ]


def _thread_problem(host: Host) -> Problem | None:
    given = host.omp_num_threads
    if given is None:
        return None
    # OpenMP takes a list, one number per level of nesting; only the first one matters to torch.
    first = given.split(",")[0].strip()
    remedy = f"Unset OMP_NUM_THREADS, or set it to at most {host.cores}."
    if not first.isdecimal() or int(first) == 0:
        text = f"OMP_NUM_THREADS is '{given}', which is not a number of threads."
    elif int(first) > host.cores:
        text = f"OMP_NUM_THREADS is {first}, but only {host.cores} cores are available."
    elif int(first) == 1 and host.cores > 2:
        text = f"OMP_NUM_THREADS is 1, so torch computes on one of {host.cores} cores."
    else:
        return None
    return Problem("threads", text, remedy)


def _system_problems(host: Host) -> list[Problem | None]:
    little_shm = host.shm_bytes is not None and host.shm_bytes < 1024 * _MIB
    little_memory = 0 < host.memory_available_bytes < 1024 * _MIB
    return [
        Problem(
            "no_compiler",
            "there is no C++ compiler, so torch.compile cannot work on the CPU.",
            "Install g++ (Debian: apt install g++), or set CXX.",
        )
        if host.compiler is None
        else None,
        Problem(
            "no_python_headers",
            f"Python.h of Python {host.python} was not found, so torch.compile cannot work on the "
            "CPU.",
            "Install the headers (Debian: apt install python3-dev).",
        )
        if host.compiler is not None and not host.python_headers
        else None,
        Problem(
            "little_shm",
            f"/dev/shm has {(host.shm_bytes or 0) // _MIB} MiB; worker processes of a DataLoader "
            "pass batches through it, and die when it is full.",
            "Enlarge it (docker run --shm-size=8g), or use num_workers=0.",
        )
        if little_shm
        else None,
        Problem(
            "little_memory",
            f"only {host.memory_available_bytes // _MIB} MiB of memory are free.",
            "Stop other processes, or raise the limit of this container.",
        )
        if little_memory
        else None,
    ]


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)
