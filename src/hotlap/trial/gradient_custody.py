"""`GradientCustody`: by hooks, follows sampled elements of gradients from backward to update."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy
import torch
from torch.nn.utils import get_total_norm

from hotlap.trial.elements import Vector

ELEMENTS = 1024
"""Drawn of all parameters of an optimizer together."""
_LEAST = 16
"""Drawn of each parameter, if it has that many."""
_EPSILONS = 8.0
"""By how many epsilons of its format a value may be off that was scaled."""
_FAULTS = ("unseen", "lost", "old", "carried")
"""What may be wrong with gradients beside their numbers, see `GradientCustody.rows`."""


class GradientCustody:
    """Follows gradients, on drawn elements, from autograd to the update that gets them.

    What autograd hands to a parameter is seen before any hook that is registered later. What is
    added up over several backwards is followed sum by sum.

    Args:
        seed: which elements are drawn. A plan that knew them could change the others.
        is_capturing: tells whether the device records a graph: nothing can be read then.
    """

    def __init__(
        self,
        seed: int,
        *,
        is_capturing: Callable[[], bool] | None = None,
    ) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._is_capturing = is_capturing or _is_cuda_capturing
        self._watched: dict[int, _Watched] = {}
        self._is_updating = False
        self.rows: list[dict[str, Any]] = []
        """Of each update: `optimizer`, a number; how many gradients were `followed`; how many were
        `unseen`, as no backward was seen to compute them, `lost`, as the update does not get them,
        `old`, as no backward has computed them since the last update, and `carried`, as they were
        added to those of an earlier update; the `norm` of all gradients, and the `largest` one;
        `inside`, True if backwards ran while it updated.
        Where they are not what backward has computed, what `_find_change` gives. Of an update that
        could not be looked at: `optimizer`, and `missed`, why."""
        self.problem = ""
        """Why gradients could not be followed, if so."""

    def watch(self, parameters: Iterable[Any]) -> None:
        """Follow these from now on, where they take a gradient and are not followed yet."""
        new = [p for p in parameters if p.requires_grad and self._find(p) is None]
        for parameter in new:
            count = max(_LEAST, ELEMENTS // len(new))
            watched = _Watched(parameter, _draw_places(parameter, count, self._generator))
            self._watched[id(parameter)] = watched
            # Not the parameter itself: what it refers to would refer to it.
            parameter.register_hook(lambda gradient, it=watched: self._note(it, gradient))

    def _find(self, parameter: Any) -> "_Watched | None":
        watched = self._watched.get(id(parameter))
        return watched if watched is not None and watched.held() is parameter else None

    def _note(self, watched: "_Watched", gradient: torch.Tensor) -> None:
        parameter = watched.held()
        if parameter is None or self._is_capturing():
            return
        if self._is_updating:
            # In a closure: what this update gets has not been looked at.
            self.rows[-1]["inside"] = True
        try:
            watched.add(parameter, gradient)
        except Exception as error:
            # Sparse, or of a class of its own: it counts as unseen, and the script goes on.
            watched.expected = None
            self.problem = _line(error)

    def update_begins(self, number: int, parameters: Sequence[Any], divisor: float = 1.0) -> None:
        """An update begins: compare the gradients that it gets with those of its backwards.

        Args:
            number: which optimizer it belongs to.
            parameters: what that optimizer updates.
            divisor: what the gradients have been divided by since.
        """
        row: dict[str, Any] = {"optimizer": number, "followed": 0, **dict.fromkeys(_FAULTS, 0)}
        try:
            row |= self._look(parameters, divisor)
        except Exception as error:
            # Changed into something that cannot be read: nothing is known of these.
            self.problem = _line(error)
            row["unseen"] = sum(parameter.grad is not None for parameter in parameters)
        self.rows.append(row)
        self._is_updating = True
        self.watch(parameters)

    def update_ends(self) -> None:
        """The update has ended: what backward computes from here on is for the next one."""
        self._is_updating = False

    def _look(self, parameters: Sequence[Any], divisor: float) -> dict[str, Any]:
        counts: dict[str, Any] = dict.fromkeys(_FAULTS, 0)
        sent: list[torch.Tensor] = []
        got: list[torch.Tensor] = []
        for parameter in parameters:
            watched = self._find(parameter)
            if watched is None or watched.expected is None:
                counts["unseen"] += parameter.grad is not None
            elif watched.is_idle:
                is_there = parameter.grad is not None and bool(watched.take(parameter.grad).any())
                counts["old"] += is_there
            elif parameter.grad is None:
                counts["lost"] += 1
            else:
                counts["carried"] += watched.is_carried
                sent.append(watched.expected)
                got.append(watched.take(parameter.grad))
            if watched is not None:
                watched.end()
        if not got:
            return counts
        found = _compare(sent, got, divisor)
        return {**counts, **found, "followed": len(got), "norm": _norm_of(parameters)}

    def miss_update(self, number: int, reason: str) -> None:
        """An update was taken that could not be looked at."""
        self.rows.append({"optimizer": number, "missed": reason})

    def report(self) -> dict[str, Any]:
        """Return what was found, as `lab.delivery` reads it."""
        return {"updates": self.rows, "problem": self.problem}


class _Watched:
    """One parameter, and what its gradient should be at drawn places."""

    def __init__(self, parameter: Any, places: torch.Tensor) -> None:
        self.held = weakref.ref(parameter)
        self._places = places
        self.expected: torch.Tensor | None = None
        """None before the first backward."""
        self.is_idle = True
        """True if there was no backward since the last update."""
        self._found: torch.Tensor | None = None
        """What was there before the first backward since the last update."""

    @property
    def is_carried(self) -> bool:
        """True if gradients of an earlier update were not zeroed."""
        return self._found is not None and bool(self._found.any())

    def add(self, parameter: Any, gradient: torch.Tensor) -> None:
        """Autograd is about to add this to the parameter's gradient."""
        computed = self.take(gradient)
        there = None if parameter.grad is None else self.take(parameter.grad)
        expected = self.expected
        if self.is_idle:
            self._found, self.is_idle = there, False
        elif there is not None and expected is not None and _has_changed(expected, there):
            # What has changed between two backwards is not what they have computed.
            computed = computed * float("nan")
        self.expected = computed if there is None else there + computed

    def take(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return a copy of the drawn elements, whatever the layout in memory."""
        if self._places.device != gradient.device:
            # The model was moved.
            self._places = self._places.to(gradient.device)
        taken = gradient.detach().take(self._places)
        return torch.view_as_real(taken).flatten() if taken.is_complex() else taken

    def end(self) -> None:
        """An update gets the gradient."""
        self.is_idle, self._found = True, None


def _has_changed(left: torch.Tensor, found: torch.Tensor) -> bool:
    """True if gradients were changed other than zeroed."""
    return bool(found.any()) and not torch.equal(left, found)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _draw_places(parameter: Any, count: int, generator: torch.Generator) -> torch.Tensor:
    if parameter.numel() <= count:
        return torch.arange(parameter.numel(), device="cpu")
    return torch.randint(parameter.numel(), (count,), generator=generator, device="cpu").unique()


def _compare(sent: list[torch.Tensor], got: list[torch.Tensor], divisor: float) -> dict[str, Any]:
    """Return `largest`, and what `_find_change` gives if gradients differ from those sent."""
    # Of different formats the widest one holds all.
    before, after = torch.cat(sent), torch.cat(got)
    eps = torch.finfo(after.dtype).eps
    values = _values(after)
    change = _find_change(_values(before) / divisor, values, eps, is_divided=divisor != 1.0)
    return {"largest": float(numpy.abs(values).max()), **(change or {})}


def _find_change(
    before: Vector, after: Vector, eps: float, *, is_divided: bool
) -> dict[str, Any] | None:
    """Return how gradients differ from what backward has computed, None if they do not.

    Args:
        before: what backward has computed, divided as it has been since.
        after: what the update gets.
        eps: of its format.
        is_divided: False to compare bit by bit.

    Returns:
        `scale`, the factor between them by least squares; `rest`, what is left beside it as a
        share of the gradients, without what rounding may do to a value that is scaled; and
        `ceiling`, the size that every larger value was clamped to, None if they were not.
    """
    if numpy.array_equal(before, after, equal_nan=True):
        return None
    with numpy.errstate(all="ignore"):
        length, size = float(before @ before), float(numpy.linalg.norm(after))
        scale = float(after @ before) / length if length else 0.0
        off = numpy.abs(after - scale * before) - _EPSILONS * eps * numpy.abs(after)
        rest = float(numpy.linalg.norm(numpy.maximum(off, 0.0))) / size if size else 0.0
    if is_divided and rest <= eps and abs(scale - 1) <= _EPSILONS * eps:
        return None
    if not numpy.isfinite([scale, rest]).all():
        return {"scale": None, "rest": None, "ceiling": None}
    ceiling = float(numpy.abs(after).max())
    is_clamped = numpy.array_equal(after, numpy.clip(before, -ceiling, ceiling))
    return {"scale": scale, "rest": rest, "ceiling": ceiling if is_clamped else None}


def _values(taken: torch.Tensor) -> Vector:
    return taken.to("cpu", torch.float64).numpy()


def _norm_of(parameters: Iterable[Any]) -> float | None:
    gradients = [p.grad.detach() for p in parameters if p.grad is not None]
    if not gradients or any(gradient.is_sparse for gradient in gradients):
        return None
    return float(get_total_norm(gradients))


def _is_cuda_capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
