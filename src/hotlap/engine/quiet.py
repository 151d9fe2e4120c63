"""A look at the model that training does not notice."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hotlap.feed import fixed


@contextmanager
def quietly(model: Any) -> Iterator[None]:
    """Put the model into evaluation mode without gradients, and everything back afterwards.

    Every module has its own mode again, and Python's, numpy's and torch's random states are those
    from before.
    """
    modes = [(module, module.training) for module in model.modules()]
    states = fixed.global_random_states()
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, training in modes:
            module.training = training
        fixed.restore(states)
