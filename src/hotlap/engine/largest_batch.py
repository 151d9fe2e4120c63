"""Runs forward and backward on the largest batch before the first step; state is restored.

Where samples differ in length the largest batch may come late. Tried first, it runs out of memory
at once, and the allocator and a compiler meet it before all others.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from hotlap.device.accelerator import Device
from hotlap.device.out_of_memory import is_out_of_memory
from hotlap.engine.checks.mean import NotInEvaluation, say_not_checked, tried
from hotlap.engine.evaluation_guard import (
    evaluation_guard,
    evaluation_mode,
    kept_buffers,
    kept_random_states,
)
from hotlap.engine.step.step import Step
from hotlap.errors import RunError, UsageError
from hotlap.feed.sources.lengths import LengthSource
from hotlap.feed.transfer.plain import to_device
from hotlap.nested import copy_of
from hotlap.sequences.lengths import bucket

_PAIRS = 4
_LEANS = 0.05
_NOISE, _NARROW_NOISE = 1e-4, 0.2
"""By how much two losses must differ, as a share, for their mixture to show: rounding in float32,
and in 16-bit formats, is a twentieth of it."""


@dataclass(frozen=True)
class WarmUpBatch:
    """One batch that was tried."""

    samples: int
    length: int
    """What its samples are padded to, in tokens."""
    seconds: float
    peak_memory_bytes: int
    """Most that the process, or the device, had held once it was through."""


def warm_up(step: Step, source: LengthSource, hardware: Device) -> tuple[WarmUpBatch, ...]:
    """Try the largest batches of the first epoch: that of most tokens, and that of the longest.

    Weights, gradients, the optimizer, buffers, plain attributes of the modules and all random
    states are afterwards what they were. What the loss, or an object inside an attribute, counts
    for itself is not seen.

    Raises:
        RunError: a batch does not fit into memory.
        UsageError: the model's forward writes to a parameter, or the loss is a mean over tokens
            where a step is split.
    """
    device = hardware.name
    with _no_trace(step.model):
        _check_mean(step, source, device)
    done = []
    for positions in source.largest():
        longest = int(source.lengths[positions.numpy()].max())
        length, begin = bucket(longest, source.to), time.perf_counter()
        with _no_trace(step.model):
            batch = source.batch_of(positions)
            try:
                step.try_out(to_device(batch, device))
                hardware.synchronize()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise RunError(_too_large(len(positions), length, device)) from error
        seconds = time.perf_counter() - begin
        done.append(WarmUpBatch(len(positions), length, seconds, hardware.peak_bytes()))
    return tuple(done)


def _check_mean(step: Step, source: LengthSource, device: str) -> None:
    """Refuse a mean over tokens where a step is split: its parts hold different numbers of them.

    Batches hold samples of like length, so that one batch alone does not show what a mean is over.
    Looked at is a short sample with a long one: their loss is half of each sample's, or it leans
    towards the longer.
    """
    if source.micro >= source.batch:
        return
    order = source.lengths.argsort(kind="stable")
    for short, long in zip(
        order[:_PAIRS].tolist(), order[: -_PAIRS - 1 : -1].tolist(), strict=True
    ):
        try:
            share = _share(step, source, device, short, long)
        except NotInEvaluation as error:
            say_not_checked(error)
            return
        if share is None:
            continue
        if abs(share - 0.5) > _LEANS:
            raise UsageError(
                "the loss is not a mean over samples: in a batch of two, a sample of "
                f"{source.lengths[short]} tokens makes up {100 * share:.1f} % of the loss (not "
                f"50 %), and one of {source.lengths[long]} tokens the rest. Such a loss cannot be "
                "computed in micro-batches or on several devices. Return (sum, count) from loss(), "
                "with the number of tokens as count; or set accumulate=1 in the task, remove "
                "--micro-batch and the plan's `micro_batch`, and use one device."
            )
        return


def _share(step: Step, source: LengthSource, device: str, short: int, long: int) -> float | None:
    """Return the weight of the short sample in a batch of both, None if it does not show.

    Nor does it in a loss that draws, which gives one batch two losses.

    Raises:
        NotInEvaluation: the loss cannot be taken in evaluation mode, or without gradients.
    """
    if source.lengths[short] == source.lengths[long]:
        return None
    losses = []
    for wanted in ([short], [long], [short, long]):
        batch = to_device(source.batch_of(torch.tensor(wanted)), device)
        with evaluation_guard(step.model, makes_ordinary=True):
            value, again = (tried(step.passes.measure, copy_of(batch)) for _ in range(2))
        if value is None or value != again:
            return None
        losses.append(value)
    one, other, both = losses
    with evaluation_mode(step.model):
        is_narrow = tried(step.passes.is_narrow, batch)
    noise = max(abs(both), 1.0) * (_NARROW_NOISE if is_narrow else _NOISE)
    return (both - other) / (one - other) if abs(one - other) > noise else None


@contextmanager
def _no_trace(model: Any) -> Iterator[None]:
    modules = [(module, dict(vars(module))) for module in model.modules()]
    versions = {name: parameter._version for name, parameter in model.named_parameters()}
    try:
        with kept_random_states(), kept_buffers(model):
            yield
    finally:
        for module, attributes in modules:
            vars(module).clear()
            vars(module).update(attributes)
        for parameter in model.parameters():
            parameter.grad = None
    for name, parameter in model.named_parameters():
        if parameter._version != versions.get(name):
            raise UsageError(
                f"the model's forward writes to its parameter '{name}'. With `lengths`, the "
                "largest batch is run once before training, to check that it fits into memory, "
                "and that would change the parameter. Make it a buffer (`register_buffer`), or "
                "remove `lengths` from the task."
            )


def _too_large(samples: int, length: int, device: str) -> str:
    remedy = f"Use samples of fewer than {length} tokens, or a smaller model."
    if samples > 1:
        remedy = (
            f"Pass a smaller --micro-batch, as in --micro-batch {samples // 2}; or lower "
            "tokens_per_batch (or batch_size) in the task and increase accumulate by the same "
            f"factor; or use samples of fewer than {length} tokens."
        )
    return (
        f"the largest batch, {samples} samples padded to {length} tokens, does not fit into the "
        f"memory of {device}. {remedy}"
    )
