"""Ends OpenMP's waiting threads: new ones take over the floating-point mode (denormal numbers).

A thread takes over the floating-point mode of the thread that starts it, and keeps it.
"""

import ctypes
from pathlib import Path

_LIBRARIES = ("libgomp", "libiomp5", "libomp")
_PAUSE_HARD = 2
_MAPS = Path("/proc/self/maps")


def renew_threads() -> bool:
    """End the threads that wait for work; the next parallel region starts new ones.

    Returns:
        False where the library cannot be found, or cannot do it: OpenMP below 5.0, or a call from
        inside a parallel region. Source: OpenMP 5.0, omp_pause_resource_all.
    """
    libraries = _loaded()
    # Another library's threads keep what they have: all of them, or it is not done.
    return bool(libraries) and all(_pause(library) for library in libraries)


def _loaded() -> list[ctypes.CDLL]:
    """Return the OpenMP libraries that this process has loaded."""
    if not _MAPS.exists():
        return []
    paths = {line.split(maxsplit=5)[5] for line in _MAPS.read_text().splitlines() if "/" in line}
    return [ctypes.CDLL(path) for path in sorted(paths) if Path(path).name.startswith(_LIBRARIES)]


def _pause(library: ctypes.CDLL) -> bool:
    pause = getattr(library, "omp_pause_resource_all", None)
    return pause is not None and pause(_PAUSE_HARD) == 0
