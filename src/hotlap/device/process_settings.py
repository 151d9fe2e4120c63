"""Process-wide settings, read, set and probed: matmul precision, GPU allocator, glibc's `malloc`.

Everything here acts on the running process and its device. Techniques call it, and tests put
another one in its place, so that all else is tested where there is no GPU.
"""

import contextlib
import ctypes
import itertools
import logging
import os
import platform
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from hotlap import compat

log = logging.getLogger("hotlap")

_PROBE = 512
"""Rows and columns of a product that is large enough for any reduced format to be taken."""
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_MMAP_MAX_DEFAULT = 65536
_TRIM_GROWN = 64 * 2**20
"""What glibc's own threshold has become in a process that once freed a block of 32 MiB."""
TRIM_NEVER = 2**31 - 1
_PROBE_BYTES = 40 * 2**20
"""More than glibc ever asks of the heap by itself: from 32 MiB on it maps a block separately."""
_widths = itertools.count()


_BY_MANAGEMENT = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""Set, torch asks the management library for devices. The runtime, which it asks else, reads
`CUDA_VISIBLE_DEVICES` for good then, and a forked process cannot use CUDA any more."""


def has_cuda() -> bool:
    """True if there is a CUDA device that torch can use; nothing of CUDA is begun by asking."""
    import torch

    before = os.environ.get(_BY_MANAGEMENT)
    os.environ[_BY_MANAGEMENT] = "1"
    try:
        return torch.cuda.is_available()
    finally:
        if before is None:
            del os.environ[_BY_MANAGEMENT]
        else:
            os.environ[_BY_MANAGEMENT] = before


def cuda_has_begun() -> bool:
    """True if this process has used its CUDA devices, which fixes some settings."""
    import torch

    return torch.cuda.is_initialized()


def is_capturing() -> bool:
    """True if what is queued now goes into a CUDA graph; nothing of CUDA is begun by asking."""
    import torch

    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def devices_in_use() -> list[int]:
    """Return the numbers of the CUDA devices that this process computes on.

    Nothing of CUDA is begun by asking, and no device is opened that nobody has used.
    """
    import torch

    if not torch.cuda.is_initialized():
        return []
    is_open = compat.find_optional("_cuda_hasPrimaryContext")
    if is_open is None:
        return [torch.cuda.current_device()]
    return [number for number in range(torch.cuda.device_count()) if is_open(number)]


_CONTEXT_BYTES = 2**30
"""What a process takes of a device beside torch's allocator, at most: its context, modules, and
workspaces of libraries."""
_USABLE = 0.95


def memory_of_process() -> tuple[int, int]:
    """Return the bytes that this process takes of its device, and those that there are for it and
    others like it; (0, 0) if it uses none.

    Of several devices the one where fewest such processes fit.
    """
    import torch

    found = []
    for number in devices_in_use():
        free, total = torch.cuda.mem_get_info(number)
        held = torch.cuda.memory_reserved(number)
        # Other processes may be there, too.
        beside = min(_CONTEXT_BYTES, max(0, total - free - held))
        needed = int(torch.cuda.max_memory_reserved(number)) + beside
        found.append((needed, int(_USABLE * (free + held + beside))))
    return min(found, key=lambda row: row[1] / max(1, row[0]), default=(0, 0))


def product_error(device: str) -> float:
    """Return the largest relative error of a float32 product of 512 x 512 normal numbers.

    About 1e-6 in float32, 1e-4 or more in TF32, 1e-3 or more in bfloat16. No random state moves.
    """
    import torch

    own = torch.Generator().manual_seed(0)
    left, right = (torch.randn(_PROBE, _PROBE, generator=own, device="cpu") for _ in range(2))
    exact = left.double() @ right.double()
    given = (left.to(device) @ right.to(device)).cpu().double()
    return float((given - exact).abs().max() / exact.abs().max())


def refused_product(device: str) -> str | None:
    """Return why torch, in deterministic mode, multiplies no matrices there; None if it does."""
    import torch

    small = torch.ones(2, 2, device=device)
    try:
        torch.mm(small, small)
    except RuntimeError as error:
        return str(error)
    return None


def matmul_precision() -> str:
    """Return torch's precision of float32 products: `highest`, `high` or `medium`."""
    import torch

    with _no_word_of_tf32():
        return torch.get_float32_matmul_precision()


def set_matmul_precision(precision: str) -> None:
    """Set torch's precision of float32 products."""
    import torch

    with _no_word_of_tf32():
        torch.set_float32_matmul_precision(precision)


@contextlib.contextmanager
def _no_word_of_tf32() -> Iterator[None]:
    """Leave out what torch 2.9 to 2.11 say of the older of two ways to ask for TF32.

    Only the older one sets all back ends at once, and is known to every torch.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Please use the new API settings to control TF32")
        yield


def kernels_of_convolutions(device: str) -> tuple[int, int]:
    """Return the kernels that the first convolution of a new shape runs, and a later one.

    Both are 0 where they cannot be counted.

    Args:
        device: a CUDA device.
    """
    import torch

    # A shape that no model has, and another one each time: what was searched once is remembered.
    images = torch.ones(3, 17, 61, 67 + next(_widths), device=device)
    weight = torch.ones(13, 17, 5, 5, device=device)

    def kernels() -> int:
        torch.cuda.synchronize(device)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            torch.nn.functional.conv2d(images, weight)
            torch.cuda.synchronize(device)
        return sum(each.device_type.name == "CUDA" for each in seen.events() or ())

    try:
        # The first profile of a process also shows what the profiler itself does.
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
            images.add(1)
        return kernels(), kernels()
    except RuntimeError:
        log.debug("kernels could not be counted", exc_info=True)
        return 0, 0


def allocator_settings() -> str | None:
    """Return what torch's device allocator was told, as `key:value,key:value`.

    None if this torch does not say.
    """
    read = compat.find_optional("_accelerator_getAllocatorSettings")
    return None if read is None else str(read())


def set_allocator(settings: str) -> bool:
    """Change the settings of torch's device allocator while the process runs.

    Returns whether this torch can do that.

    Raises:
        RuntimeError: torch knows no such setting, or has no device.
    """
    change = compat.find_optional("_accelerator_setAllocatorSettings")
    change = change or compat.find_optional("_set_allocator_settings")
    if change is not None:
        change(settings)
    return change is not None


def allocator_backend() -> str:
    """Return `native` or `cudaMallocAsync`."""
    import torch

    return str(torch.cuda.get_allocator_backend())


def expandable_segments() -> tuple[int, int]:
    """Return how many segments of device memory can grow, and how many there are."""
    import torch

    segments = torch.cuda.memory_snapshot()
    return sum(bool(segment.get("is_expandable")) for segment in segments), len(segments)


def is_glibc() -> bool:
    """True if memory of this process is handed out by the GNU C library."""
    return platform.libc_ver()[0] == "glibc" and "LD_PRELOAD" not in os.environ


def keep_freed_memory() -> Callable[[], None]:
    """Let the C library hold on to memory that was freed; return what ends that.

    Raises:
        OSError: the C library does not take the settings.
    """
    library: Any = ctypes.CDLL(None)
    taken = [library.mallopt(_M_MMAP_MAX, 0), library.mallopt(_M_TRIM_THRESHOLD, TRIM_NEVER)]
    if not all(taken):
        raise OSError("mallopt rejected the settings")

    def undo() -> None:
        library.mallopt(_M_MMAP_MAX, _MMAP_MAX_DEFAULT)
        library.mallopt(_M_TRIM_THRESHOLD, _TRIM_GROWN)
        # What was kept goes back to the system.
        library.malloc_trim(0)

    return undo


def keeps_freed_memory() -> bool | None:
    """True if the heap grows for a large block, and does not shrink when the block is freed.

    None if the C library cannot say (`mallinfo2` came with glibc 2.33).
    """
    import torch

    library: Any = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = _MallInfo
    before = held = library.mallinfo2()
    blocks = []
    # A block that fits into memory freed before says nothing: such memory is used either way.
    while held.hblks == before.hblks and held.arena <= before.arena:
        blocks.append(torch.empty(_PROBE_BYTES, dtype=torch.uint8))
        held = library.mallinfo2()
    blocks.clear()
    after = library.mallinfo2()
    return held.hblks == before.hblks and after.arena == held.arena


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2`: `arena` is the heap in bytes, `hblks` the blocks that are mapped."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]
