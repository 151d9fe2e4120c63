"""`SplitUpdates`: a fused update of few weights, in pieces that keep the whole device busy.

torch's fused kernels give 65,536 elements to each of their thread blocks, and so leave most of a
device idle where a model is small: the update of 670,000 weights takes 48 us on 13 of an H200's 132
multiprocessors (benchmarks/results/2026-11-27_gpu_h200.md). Every element is computed by itself:
the bits are the same.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotlap.device.accelerator import Cuda

_CHUNK = 65_536
"""Elements of a thread block (`kChunkSize` in ATen's MultiTensorApply.cuh)."""
_MOST = 36
"""Tensors of a launch, at the most (`depth_to_max_tensors`); each takes a block, or more."""
_LEAST = 1024
"""Elements of a piece: less is no work."""
FORKS = 5
"""Launches beside the first one, at the most."""
_FUSED = frozenset(
    getattr(torch.ops.aten, name)
    for name in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
)

Lists = Sequence[Sequence[torch.Tensor]]
"""Parameters, then lists of as many tensors (or of none), each of its parameter's shape, or a
scalar that belongs to it."""


class SplitUpdates(TorchDispatchMode):
    """Splits the tensors of fused updates inside the block, where that keeps the device busier.

    Args:
        device: a CUDA device.
        streams: that nothing else is queued on, see `FORKS`.
    """

    def __init__(self, device: Cuda, streams: Sequence[Any]) -> None:
        super().__init__()
        self._device, self._streams = device, streams

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket not in _FUSED:
            return func(*args, **(kwargs or {}))
        first, *others = split(args)
        device = self._device
        begin, ends = device.mark(), []
        for lists, stream in zip(others, self._streams, strict=False):
            with device.use_stream(stream):
                device.wait(begin)
                func(*lists, **(kwargs or {}))
                ends.append(device.mark())
        result = func(*first, **(kwargs or {}))
        for end in ends:
            device.wait(end)
        return result


def split(lists: Lists) -> list[Lists]:
    """Return launches of all that is in the lists, with large tensors cut into pieces.

    One launch of the lists as they are, if more would gain nothing.
    """
    parameters = lists[0]
    total = sum(each.numel() for each in parameters)
    # Each tensor may end with a smaller piece.
    room = _MOST * (1 + FORKS) - len(parameters)
    piece = max(_LEAST, -(-total // max(1, room) // 4) * 4)
    largest = max((each.numel() for each in parameters), default=0)
    if room <= 0 or piece >= _CHUNK or largest <= piece:
        return [lists]
    for tensors in zip(*(each for each in lists if each), strict=True):
        given = tensors[0]
        if not all(each.numel() == 1 or _is_alike(each, given) for each in tensors):
            return [lists]
    cut = [_pieces(each, parameters, piece) for each in lists]
    begins = range(0, len(cut[0]), _MOST)
    return [[each[begin : begin + _MOST] for each in cut] for begin in begins]


def _is_alike(tensor: torch.Tensor, parameter: torch.Tensor) -> bool:
    return tensor.shape == parameter.shape and tensor.is_contiguous()


def _pieces(
    tensors: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor], piece: int
) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for tensor, parameter in zip(tensors, parameters if tensors else (), strict=True):
        count = parameter.numel()
        if count <= piece:
            found.append(tensor)
        elif tensor.numel() == 1:
            found += [tensor] * -(-count // piece)
        else:
            found += tensor.view(-1).split(piece)
    return found
