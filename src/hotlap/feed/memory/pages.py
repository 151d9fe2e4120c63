"""Allocates rows of samples in huge pages, which need fewer TLB entries."""

import logging
import math
import mmap

import torch

log = logging.getLogger("hotlap")

_HUGE_PAGE = 2**21
_WORTH_HUGE_PAGES = 16 * _HUGE_PAGE
"""Bytes; smaller tables stay in reach of the processor's own table of pages."""


def empty_rows(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor that is not yet written, in huge pages if it is large and Linux grants them.

    Rows at random places are a page or two each; with pages of 4 KiB most of them must first be
    looked up. Source: madvise(2), MADV_HUGEPAGE.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < _WORTH_HUGE_PAGES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype, device="cpu")
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        log.debug("no huge pages here", exc_info=True)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
