"""`Carried`: knows inputs that the model has returned before, such as a hidden state."""

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from hotlap import nested


class Carried:
    """The memory of what the last forward returned, which is not kept alive for that."""

    def __init__(self) -> None:
        self._returned: list[StorageWeakRef] = []

    def note(self, output: Any) -> None:
        """A forward returns this."""
        self._returned = [
            StorageWeakRef(tensor.untyped_storage())
            for tensor in nested.tensors(output)
            if tensor.layout is torch.strided and tensor.is_floating_point()
        ]

    def holds(self, given: torch.Tensor) -> bool:
        """Return whether a tensor, or what it was detached from, was returned by that forward."""
        if given.layout is not torch.strided:
            return False
        own = StorageWeakRef(given.untyped_storage()).cdata
        return any(each.cdata == own and not each.expired() for each in self._returned)
