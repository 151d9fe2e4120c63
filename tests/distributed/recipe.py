"""The exact task as a recipe; each step takes a moment, so that a run can be met in the middle."""

import itertools
import os
import time
from typing import Any

import torch

import hotlap
from tests.distributed.cases import BATCH, exact
from tests.engine import lattice


def task(
    epochs: int = 3, pause_ms: float = 0.0, fault: str = "", batch_size: int = BATCH
) -> hotlap.Task:
    """Return the task.

    Args:
        epochs: as in a task.
        pause_ms: that each micro-batch takes.
        fault: of the last rank in its third step: `hang` or `raise`; `at once`: in its first.
        batch_size: as in a task.
    """
    number = itertools.count(1)
    is_last = os.environ.get("RANK", "0") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1)

    def loss(model: Any, batch: Any) -> Any:
        if torch.is_grad_enabled():
            time.sleep(pause_ms / 1000)
            if is_last:
                fail(next(number))
        return lattice.tokens(model, batch)

    def fail(step: int) -> None:
        if fault == "hang" and step == 3:
            time.sleep(60)
        if (fault == "raise" and step == 3) or fault == "at once":
            raise ValueError("a wrong sample")

    return exact(epochs=epochs, loss=loss, batch_size=batch_size)
