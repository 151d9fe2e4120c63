"""The exact task as a recipe; each step takes a moment, so that a run can be met in the middle."""

import time
from typing import Any

import torch

import hotlap
from tests.distributed.cases import exact
from tests.engine import lattice


def task(epochs: int = 3, pause_ms: float = 0.0) -> hotlap.Task:
    def loss(model: Any, batch: Any) -> Any:
        if torch.is_grad_enabled():
            time.sleep(pause_ms / 1000)
        return lattice.tokens(model, batch)

    return exact(epochs=epochs, loss=loss)
