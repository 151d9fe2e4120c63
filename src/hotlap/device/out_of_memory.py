"""Whether an error says that an allocator of torch had no memory left."""

import dis
import os
from types import TracebackType

import torch

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocator of torch could not give what was asked for.

    An accelerator's has an exception of its own. The CPU's raises RuntimeError, which counts unless
    a `raise` statement outside torch made it: what other code says of memory is not torch's word.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    if type(error) is not RuntimeError or "DefaultCPUAllocator" not in str(error):
        return False
    last = error.__traceback__
    if last is None:
        return False
    while last.tb_next is not None:
        last = last.tb_next
    return last.tb_frame.f_code.co_filename.startswith(_TORCH) or not _is_at_raise(last)


def _is_at_raise(place: TracebackType) -> bool:
    instructions = dis.get_instructions(place.tb_frame.f_code)
    return any(
        each.offset == place.tb_lasti and each.opname in ("RAISE_VARARGS", "RERAISE")
        for each in instructions
    )
