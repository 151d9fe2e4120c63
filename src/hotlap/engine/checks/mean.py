"""Checks that a loss is a mean over the batch; only then may a step be split into micro-batches."""

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from hotlap.device.out_of_memory import is_out_of_memory
from hotlap.engine.evaluation_guard import evaluation_mode
from hotlap.errors import HotlapError, UsageError
from hotlap.nested import flatten_into, rebuild

log = logging.getLogger("hotlap")

_EXACT_FORMATS, _NARROW_FORMATS = 1e-3, 0.1
"""How far the two gradients may differ, as a share of their length."""
_DRAWN = 0.1
"""How much of that one batch's gradient may differ by when it is taken again: kernels of a device
may round in another order, which is less."""
_BACKOFF = 4
_NARROW = (torch.bfloat16, torch.float16)
_NOT_CHECKED = "whether the loss is a mean is not checked"

Gradient = Callable[[int, int], list[torch.Tensor] | None]
"""Of the samples from one place to another; None if the loss counts its items."""


class NotInEvaluation(Exception):
    """The loss cannot be taken in evaluation mode."""


def check_mean(
    model: Any,
    forward: Callable[[Any], tuple[Any, Any]],
    batch: Any,
    samples: int,
    *,
    parameters: Sequence[Any],
    is_narrow: bool,
    scale: float = 1.0,
) -> bool:
    """Refuse a loss that is neither (sum, count) nor a mean over the batch's items.

    What is compared is the gradient of the batch with that of its parts, weighted by their samples:
    halves, and the first sample with the others. A new model's loss itself shows nothing, it is
    about the same for any samples. Nor do these of a loss that draws, which is let pass, as is one
    that raises in evaluation mode, or gives no gradient: models may give something else there.

    Args:
        model: the model; nothing of it is changed.
        forward: gives (sum, count), or (mean, None), of a batch.
        batch: of some samples.
        samples: how many.
        parameters: whose gradients are compared.
        is_narrow: a technique uses formats of 16 bits; a model or loss that does is found out.
        scale: of the loss, for formats in which gradients would vanish; lowered where they
            overflow.

    Returns:
        False if the batch's gradient is not finite, so that another batch is to be looked at.

    Raises:
        UsageError: it is no mean.
    """
    leaves: list[torch.Tensor] = []
    seen_narrow = [is_narrow]
    spec = flatten_into(batch, leaves)

    def is_other(leaf: torch.Tensor) -> bool:
        return leaf.dim() == 0 or len(leaf) != samples

    if samples < 2 or spec is None or any(map(is_other, leaves)):
        return True

    def gradient(begin: int, end: int) -> list[torch.Tensor] | None:
        # The step takes the batch as it was: a loss may write into what it is given.
        part = rebuild(spec, iter([leaf[begin:end].clone() for leaf in leaves]))
        value, count = tried(forward, part)
        if count is not None:
            return None
        seen_narrow[0] = seen_narrow[0] or is_narrow_in(value)
        # Reentrant checkpoints give no gradients this way, and some models none in this mode.
        found = tried(torch.autograd.grad, value * scale, parameters, allow_unused=True)
        return [
            torch.zeros_like(p) if g is None else g.to_dense()
            for p, g in zip(parameters, found, strict=True)
        ]

    try:
        with evaluation_mode(model), _disable_compiled():
            size, off = _compare_gradients(gradient, samples)
            # The first scale of a scaler is meant to be too large.
            while scale > 1 and not all(map(math.isfinite, (size, *off.values()))):
                scale /= _BACKOFF
                size, off = _compare_gradients(gradient, samples)
            if not math.isfinite(size):
                return False
            allowed = (_NARROW_FORMATS if seen_narrow[0] else _EXACT_FORMATS) * size
            # Not the other way round: what is not a number is no mean either.
            too_far = [place for place, far in off.items() if size > 0 and not far <= allowed]
            if too_far and not _taken_again(gradient, samples) <= _DRAWN * allowed:
                log.info("%s: its gradient is not repeatable", _NOT_CHECKED)
                return True
    except NotInEvaluation as error:
        say_not_checked(error)
        return True
    if too_far:
        raise UsageError(_describe(samples, too_far[0], off[too_far[0]] / size))
    return True


def say_not_checked(error: NotInEvaluation) -> None:
    """Log why a loss was not looked at."""
    cause = error.__cause__
    log.info("%s: in evaluation mode it raised %s: %s", _NOT_CHECKED, type(cause).__name__, cause)


def tried(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return what a function gives in evaluation mode.

    Raises:
        NotInEvaluation: it raised something else than that memory ran out, or what users are told.
    """
    try:
        return function(*arguments, **options)
    except Exception as error:
        if isinstance(error, HotlapError) or is_out_of_memory(error):
            raise
        # If it is not for the mode, the step that follows raises it as well.
        raise NotInEvaluation from error


def _describe(samples: int, place: int, share: float) -> str:
    is_finite = math.isfinite(share)
    differs = f"differs by {100 * share:.3g} % from" if is_finite else "is finite, unlike"
    return (
        f"the loss is not a mean over the batch's samples: the gradient of {samples} samples "
        f"{differs} the combined gradient of {place} and "
        f"{samples - place} of them. Such a loss cannot be computed in micro-batches or on several "
        "devices. If it is a sum divided by a count (of tokens, or of class weights), return (sum, "
        "count) from loss(). If not, set accumulate=1 in the task, remove --micro-batch and the "
        "plan's `micro_batch`, and use one device."
    )


def is_narrow_in(value: torch.Tensor) -> bool:
    """Return whether anything that a value was computed from is in a format of 16 bits."""
    seen: set[Any] = set()
    todo: list[Any] = [value.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if any(given.dtype in _NARROW for given in node._input_metadata):
            return True
        todo.extend(before for before, _ in node.next_functions)
    return False


def _compare_gradients(gradient: Gradient, samples: int) -> tuple[float, dict[int, float]]:
    """Return the length of the batch's gradient, and by how much that of its parts is off.

    By the place where it was parted; nothing where a loss gives no mean.
    """
    whole = gradient(0, samples)
    size, off = 0.0 if whole is None else _length(whole), {}
    if whole is None or not math.isfinite(size):
        return size, off
    for place in dict.fromkeys((samples // 2, 1)):
        first, other = gradient(0, place), gradient(place, samples)
        if first is None or other is None:
            # The step says what is wrong with a loss that changes its form.
            return size, {}
        # One parameter at a time, for a model may fill the memory; not in place, for two
        # parameters may have one gradient.
        off[place] = _length(
            torch.lerp(more, each, place / samples).sub_(all_of_it)
            for each, more, all_of_it in zip(first, other, whole, strict=True)
        )
        del first, other
    return size, off


def _taken_again(gradient: Gradient, samples: int) -> float:
    """Return by how much the batch's gradient differs when it is taken twice."""
    one, other = gradient(0, samples), gradient(0, samples)
    if one is None or other is None:
        return math.inf
    return _length(left - right for left, right in zip(one, other, strict=True))


def _length(gradients: Iterable[torch.Tensor]) -> float:
    return float(torch.stack([each.float().norm() for each in gradients]).norm())


@contextlib.contextmanager
def _disable_compiled() -> Iterator[None]:
    """Run what is compiled as it was written: parts have shapes that training never has."""
    with torch.compiler.set_stance("force_eager"):
        yield
