"""The samples and the learning rate of each step of a watched run."""

from typing import Any

from hotlap.nested import tensors
from hotlap.trace import frames
from hotlap.trace.learning import BatchSizeFacts

_MOST = 32
"""Different sizes that are kept: a run with more has batches by their number of tokens."""


class BatchSizes:
    """Counts the steps of each batch size, where one optimizer trains one model."""

    def __init__(self) -> None:
        self._root: Any = None
        self._optimizer: Any = None
        self._waiting = self._steps = 0
        self._found: dict[int, BatchSizeFacts] = {}
        self._is_known = True

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> None:
        """Note the samples of a training forward."""
        self._root = self._root or root
        if not self._is_known or root is not self._root:
            return
        first = next(tensors(inputs), None)
        if first is None or not first.dim():
            self._is_known = False
            return
        self._waiting += first.shape[0]

    def step_begins(self, optimizer: Any) -> None:
        """Note that all samples since the step before are those of this step."""
        self._optimizer = self._optimizer or optimizer
        rate = optimizer.param_groups[0]["lr"]
        # A tensor on a device would have to be waited for.
        if optimizer is not self._optimizer or not isinstance(rate, float | int):
            self._is_known = False
        if not self._is_known or not self._waiting:
            return
        size, self._waiting = self._waiting, 0
        before = self._found.get(size)
        if before is None and len(self._found) == _MOST:
            self._is_known = False
            return
        self._found[size] = BatchSizeFacts(
            where=before.where if before else frames.location_of(frames.caller()),
            samples=size,
            steps=before.steps + 1 if before else 1,
            first_step=before.first_step if before else self._steps,
            last_step=self._steps,
            first_rate=before.first_rate if before else float(rate),
            last_rate=float(rate),
        )
        self._steps += 1

    def facts(self) -> tuple[BatchSizeFacts, ...]:
        """Return what was seen, nothing of a run whose batches are of another kind."""
        return tuple(self._found.values()) if self._is_known else ()
