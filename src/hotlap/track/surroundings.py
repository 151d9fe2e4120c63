"""Versions, host and code of a run, for its `run.json`: what could make another run differ."""

import contextlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotlap.host import probes
from hotlap.host.memory import memory

_DRIVER = Path("/proc/driver/nvidia/version")
_GIT_S = 10.0


def versions_here() -> dict[str, str | None]:
    """Return the versions of what computes in this process; nothing is imported for it."""
    return {
        "hotlap": probes.version("hotlap"),
        "python": platform.python_version(),
        "torch": probes.torch_version(),
        "cuda": probes.torch_cuda(),
        "driver": driver_version(),
    }


def driver_version(path: Path = _DRIVER) -> str | None:
    """Return the version of NVIDIA's kernel module, None without one.

    Args:
        path: where the module says it.
    """
    found = re.search(r"^NVRM version:.*?\b(\d+\.\d+(?:\.\d+)?)\b", probes.read(path), re.MULTILINE)
    return found[1] if found else None


def host_here() -> dict[str, Any]:
    """Return what computes here. Fast: it starts no process, and samples no load."""
    return {
        "name": platform.node(),
        "system": platform.platform(),
        "cpu": probes.cpu_name(),
        "cores": probes.affinity(),
        "memory_bytes": memory()[0],
        "gpus": _gpu_names(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def _gpu_names() -> list[str]:
    """Return the names of the GPUs that torch has begun to use in this process."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def code_in(folder: Path) -> dict[str, Any]:
    """Return `folder`, `commit` and `dirty` of the git repository that a folder lies in.

    Empty where there is none, or git cannot say. Files that git does not track do not count.
    """
    top = next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)
    said = None if top is None else _git_status(folder)
    if said is None:
        return {}
    found = re.search(r"^# branch\.oid ([0-9a-f]{40,})$", said, re.MULTILINE)
    is_dirty = any(line and not line.startswith("#") for line in said.splitlines())
    return {"folder": str(top), "commit": found[1] if found else None, "dirty": is_dirty}


def _git_status(folder: Path) -> str | None:
    """Return what git says of commit and changes, in one call; None if it cannot."""
    # Else `status` would take the repository's lock, and a commit meanwhile fail.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    options = ["--porcelain=v2", "--branch", "--untracked-files=no"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["git", "-C", str(folder), "status", *options],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIT_S,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
        return done.stdout if done.returncode == 0 else None
    return None


def source_folder(about: Mapping[str, Any]) -> Path:
    """Return the folder of a run's code: of its recipe or script, else the current one.

    Args:
        about: what `run.json` says of the task.
    """
    for name in ("recipe", "script"):
        path = about.get(name)
        if isinstance(path, str) and Path(path).is_file():
            return Path(path).resolve().parent
    return Path.cwd()


def command_line() -> tuple[str, ...]:
    """Return the words that started this process, as somebody would type them."""
    words = sys.orig_argv
    for begin, is_ours in ((2, words[1:2]), (3, words[2:3] if words[1:2] == ["-m"] else [])):
        if is_ours and Path(is_ours[0]).name == "hotlap":
            return ("hotlap", *words[begin:])
    return tuple(words)
