"""Counts the steps of each batch size in a watched run, with their learning rates."""

from dataclasses import dataclass
from typing import Any

import torch

from hotlap.nested import tensors
from hotlap.trace import frames
from hotlap.trace.learning import BatchSizeFacts

_NUMBERS = (float, int)
_MOST = 32
"""Different sizes that are kept: a run with more has batches by their number of tokens."""


@dataclass
class _Seen:
    """Steps of one size; the fields are those of a `BatchSizeFacts`."""

    where: str
    samples: int
    first_step: int
    first_rate: float
    steps: int = 0
    last_step: int = 0
    last_rate: float = 0.0


class BatchSizes:
    """Counts the steps of each batch size, where one optimizer trains one model."""

    def __init__(self) -> None:
        self.root: Any = None
        """The model whose forwards are counted."""
        self.waiting = 0
        """Samples of its forwards since the newest step."""
        self._optimizer: Any = None
        self._steps = 0
        self._found: dict[int, _Seen] = {}
        self._is_known = True

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> None:
        """Note the samples of a training forward."""
        if self.root is None:
            self.root = root
        if root is not self.root or not self._is_known:
            return
        first = inputs[0] if inputs else None
        if type(first) is not torch.Tensor:
            first = next(tensors(inputs), None)
        shape = first.shape if first is not None else ()
        if shape:
            self.waiting += shape[0]
        else:
            self._is_known = False

    def step_begins(self, optimizer: Any) -> None:
        """Note that all samples since the step before are those of this step."""
        if self._optimizer is None:
            self._optimizer = optimizer
        # Some optimizers have none; a tensor on a device would have to be waited for.
        rate = optimizer.param_groups[0].get("lr")
        if optimizer is not self._optimizer or not isinstance(rate, _NUMBERS):
            self._is_known = False
        if not self._is_known or not self.waiting:
            return
        size, self.waiting = self.waiting, 0
        seen = self._found.get(size)
        if seen is None:
            if len(self._found) == _MOST:
                self._is_known = False
                return
            where = frames.location_of(frames.caller())
            seen = self._found[size] = _Seen(where, size, self._steps, float(rate))
        seen.steps += 1
        seen.last_step = self._steps
        seen.last_rate = float(rate)
        self._steps += 1

    def skip(self, steps: int) -> None:
        """Count steps that were not listened to, and of which nothing is known."""
        self._steps += steps
        self.waiting = 0

    def facts(self) -> tuple[BatchSizeFacts, ...]:
        """Return what was seen, nothing of a run whose batches are of another kind."""
        if not self._is_known:
            return ()
        return tuple(BatchSizeFacts(**vars(seen)) for seen in self._found.values())
