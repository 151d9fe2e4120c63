"""A look at the model that training does not notice."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hotlap.feed import fixed


@contextmanager
def quietly(model: Any) -> Iterator[None]:
    """Put the model into evaluation mode without gradients, and everything back afterwards."""
    with in_evaluation(model), torch.inference_mode():
        yield


@contextmanager
def in_evaluation(model: Any) -> Iterator[None]:
    """Put the model into evaluation mode, and everything back afterwards.

    Every module has its own mode and its buffers again, and all random states are those from
    before.
    """
    modes = [(module, module.training) for module in model.modules()]
    with kept_random_states():
        model.eval()
        try:
            with kept_buffers(model):
                yield
        finally:
            for module, training in modes:
                module.training = training


@contextmanager
def kept_random_states() -> Iterator[None]:
    """Put Python's, numpy's and torch's random states back, those of CUDA devices too."""
    states = fixed.global_random_states()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        fixed.restore(states)
        if devices:
            torch.cuda.set_rng_state_all(devices)


@contextmanager
def kept_buffers(model: Any) -> Iterator[None]:
    """Put every buffer back, its contents too, and forget those that came new."""
    held = [
        (module._buffers, dict(module._buffers), [_copied(b) for b in module._buffers.values()])
        for module in model.modules()
        if module._buffers
    ]
    without = [module._buffers for module in model.modules() if not module._buffers]
    try:
        yield
    finally:
        for holder in without:
            holder.clear()
        for holder, buffers, contents in held:
            holder.clear()
            holder.update(buffers)
            with torch.no_grad():
                for buffer, content in zip(buffers.values(), contents, strict=True):
                    if buffer is not None and content is not None:
                        buffer.copy_(content)


def _copied(buffer: torch.Tensor | None) -> torch.Tensor | None:
    return None if buffer is None else buffer.detach().clone()
