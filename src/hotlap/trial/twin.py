"""Repeats updates in float64 on sampled elements, with a second optimizer of the same class."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from hotlap import rng
from hotlap.trial.elements import Elements, Vector
from hotlap.trial.hyperparameters import IMPLEMENTATION

ELEMENTS = 2048
"""Drawn of all tensors of an optimizer together."""
_LEAST = 16
"""Drawn of each tensor, if it has that many."""

Read = Callable[[torch.Tensor], torch.Tensor | None]


class Chain:
    """The updates of one optimizer, on drawn elements of its parameters.

    Args:
        optimizer: as it is at its first update.
        seed: which elements are drawn.
    """

    def __init__(self, optimizer: Any, seed: int) -> None:
        self._layout = _layout(optimizer)
        generator = torch.Generator().manual_seed(seed)
        each = max(_LEAST, ELEMENTS // max(1, len(self._layout)))
        self._elements = [
            [Elements(parameter, each, generator) for parameter in group["params"]]
            for group in optimizer.param_groups
        ]
        self._twin: _Twin | None = None
        self.letters = ""
        """For each parameter `n` for no gradient, `z` for one that is zero as far as it was drawn,
        else `g`."""
        self.gradients: list[Vector] = []
        self.edges: list[int] = [0]

    def fits(self, optimizer: Any) -> bool:
        """True if the optimizer still holds the parameters that it held."""
        return self._layout == _layout(optimizer)

    def begin(self, optimizer: Any) -> None:
        """Note hyperparameters and weights before an update."""
        self._numbers = [_numbers(group) for group in optimizer.param_groups]
        self._before = self._read(optimizer, lambda parameter: parameter)

    def take_state(self, optimizer: Any) -> None:
        """Note the optimizer's state before an update.

        Raises:
            TypeError: it holds what does not belong to single elements.
        """
        self._state = self._states(optimizer)

    def take_gradients(self, optimizer: Any) -> None:
        """Note the gradients that the update gets."""
        found = self._read(optimizer, lambda parameter: parameter.grad)
        self._found = found
        flat = [each for group in found for each in group]
        sizes = [each for group in self._before for each in group]
        self.letters = "".join(map(_letter, flat))
        self.gradients = [
            numpy.zeros(len(like)) if each is None else each
            for each, like in zip(flat, sizes, strict=True)
        ]
        self.edges = [0, *numpy.cumsum([len(each) for each in self.gradients]).tolist()]

    def divide(self, scale: float) -> None:
        """Divide the gradients by a scale that the optimizer divides by itself."""
        for group in self._found:
            for gradient in group:
                if gradient is not None:
                    gradient /= scale

    def compare(self, optimizer: Any) -> tuple[Any, Any]:
        """Repeat an update, and compare.

        Returns:
            For each group, sums over its elements: error times update, update squared, error times
            weight, weight squared, update times weight, error squared, and the square of what
            rounding may be. And for each entry of the state: length of the error, length, and the
            epsilon of the weights' format.
        """
        after = self._read(optimizer, lambda parameter: parameter)
        parts = [
            _Part(g, i, self._before[g][i], gradient, self._state[g][i])
            for g, group in enumerate(self._found)
            for i, gradient in enumerate(group)
        ]
        states = self._states(optimizer)
        if self._twin is None:
            self._twin = _Twin(type(optimizer))
        widths = [
            [torch.finfo(parameter.dtype).eps for parameter in group["params"]]
            for group in optimizer.param_groups
        ]
        return self._twin.compare(self._numbers, parts, after, states, widths)

    def _read(self, optimizer: Any, read: Read) -> list[list[Any]]:
        return [
            [
                None if (value := read(parameter)) is None else elements.of(value)
                for elements, parameter in zip(of_group, group["params"], strict=True)
            ]
            for of_group, group in zip(self._elements, optimizer.param_groups, strict=True)
        ]

    def _states(self, optimizer: Any) -> list[list[dict[str, Any]]]:
        return [
            [
                {
                    name: _of_state(name, value, elements)
                    for name, value in optimizer.state.get(parameter, {}).items()
                }
                for elements, parameter in zip(of_group, group["params"], strict=True)
            ]
            for of_group, group in zip(self._elements, optimizer.param_groups, strict=True)
        ]


def _layout(optimizer: Any) -> list[tuple[int, torch.Size]]:
    return [(id(p), p.shape) for group in optimizer.param_groups for p in group["params"]]


def _letter(gradient: Vector | None) -> str:
    """Return `n` for no gradient, `z` for one that is zero as far as it was drawn, else `g`."""
    if gradient is None:
        return "n"
    return "g" if gradient.any() else "z"


def _of_state(name: str, value: Any, elements: Elements) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    # Of a parameter without dimensions, all that its state holds has the same shape.
    if value.shape == elements.shape and (value.dim() or name != "step"):
        return elements.of(value)
    if value.numel() == 1:
        return float(value)
    raise TypeError(f"its state holds a tensor of shape {tuple(value.shape)}")


def _numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    left_out = {"params", "initial_lr", *IMPLEMENTATION}
    found = {key: value for key, value in group.items() if key not in left_out}
    return {
        k: float(v) if isinstance(v, torch.Tensor) and v.numel() == 1 else v
        for k, v in found.items()
    }


@contextlib.contextmanager
def _isolate_run_state() -> Iterator[None]:
    """Draw no numbers of the run's, and call no hooks that are meant for its own optimizers."""
    hooks = [_global_optimizer_pre_hooks, _global_optimizer_post_hooks]
    kept, states = [dict(each) for each in hooks], rng.global_random_states()
    for each in hooks:
        each.clear()
    try:
        yield
    finally:
        # To put back what nobody has drawn from would cost more than to look.
        if rng.generator_that_advanced(states) is not None:
            rng.restore(states)
        for each, before in zip(hooks, kept, strict=True):
            each.update(before)


class _Part:
    """What of one parameter goes into an update."""

    def __init__(
        self, group: int, place: int, before: Vector, gradient: Any, state: dict[str, Any]
    ) -> None:
        self.group, self.place = group, place
        self.before, self.gradient, self.state = before, gradient, state

    @property
    def group_key(self) -> tuple[Any, ...]:
        """Parameters of which this is equal can be updated as one."""
        numbers = ((k, v) for k, v in self.state.items() if not isinstance(v, numpy.ndarray))
        return self.group, tuple(sorted(self.state)), tuple(sorted(numbers, key=repr))


class _Twin:
    """An optimizer of the same class, on the drawn elements, in float64."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._made: tuple[list[int], Any] | None = None

    def compare(
        self,
        numbers: Sequence[Mapping[str, Any]],
        parts: Sequence[_Part],
        after: Sequence[Sequence[Vector]],
        states: Sequence[Sequence[Mapping[str, Any]]],
        eps: Sequence[Sequence[float]],
    ) -> tuple[Any, Any]:
        together: dict[tuple[Any, ...], list[_Part]] = {}
        sums = [[0.0] * 7 for _ in numbers]
        for part in parts:
            if part.gradient is None:
                # An update leaves alone what has no gradient.
                moved = after[part.group][part.place] - part.before
                sums[part.group][5] += float(moved @ moved)
            else:
                together.setdefault(part.group_key, []).append(part)
        rows = list(together.values())
        if not rows:
            return sums, {}
        with _isolate_run_state():
            twin, vectors = self._prepare_update(numbers, rows)
            twin.step()
        found: dict[str, list[float]] = {}
        for row, vector in zip(rows, vectors, strict=True):
            places = [(part.group, part.place) for part in row]
            is_now = numpy.concatenate([after[g][i] for g, i in places])
            before = numpy.concatenate([part.before for part in row])
            width = numpy.concatenate([numpy.full(len(after[g][i]), eps[g][i]) for g, i in places])
            expected = vector.detach().numpy()
            _add(sums[row[0].group], is_now, before, expected, width)
            for name, value in twin.state[vector].items():
                values = [states[g][i].get(name) for g, i in places]
                _add_state(found, name, value, values, float(width.max()))
        return sums, {k: [off**0.5, size**0.5, e] for k, (off, size, e) in found.items()}

    def _prepare_update(
        self, numbers: Sequence[Mapping[str, Any]], rows: Sequence[Sequence[_Part]]
    ) -> tuple[Any, list[Any]]:
        """Return the twin as the optimizer was before the update, and what it will update."""
        shape = [row[0].group for row in rows]
        if self._made is None or self._made[0] != shape:
            # On the CPU, as what is read there, whatever the script's default device is.
            made = (torch.zeros(1, dtype=torch.float64, device="cpu") for _ in rows)
            empty = [torch.nn.Parameter(each) for each in made]
            groups = [
                {"params": [vector], **numbers[row[0].group]}
                for row, vector in zip(rows, empty, strict=True)
            ]
            twin = self._kind(groups, lr=numbers[0]["lr"])
            for group in twin.param_groups:
                group.update({k: False for k in IMPLEMENTATION if k in group})
            self._made = shape, twin
        twin = self._made[1]
        vectors = [group["params"][0] for group in twin.param_groups]
        for row, group, vector in zip(rows, twin.param_groups, vectors, strict=True):
            group.update(numbers[row[0].group])
            vector.data = torch.from_numpy(numpy.concatenate([part.before for part in row]))
            vector.grad = torch.from_numpy(numpy.concatenate([part.gradient for part in row]))
            twin.state[vector] = {
                name: torch.from_numpy(numpy.concatenate([part.state[name] for part in row]))
                if isinstance(value, numpy.ndarray)
                else (torch.tensor(value, device="cpu") if isinstance(value, float) else value)
                for name, value in row[0].state.items()
            }
        return twin, vectors


def _add(
    sums: list[float], is_now: Vector, before: Vector, expected: Vector, width: Vector
) -> None:
    error, update = is_now - expected, expected - before
    # The new weight is rounded once; what leads to it, decay and step, some times more.
    rounding = width * (numpy.abs(expected) + numpy.abs(before) + 8 * numpy.abs(update))
    products = (
        error @ update,
        update @ update,
        error @ before,
        before @ before,
        update @ before,
        error @ error,
        rounding @ rounding,
    )
    for place, product in enumerate(products):
        sums[place] += float(product)


def _add_state(
    found: dict[str, list[float]], name: str, expected: Any, values: Sequence[Any], eps: float
) -> None:
    if isinstance(expected, torch.Tensor) and expected.dim():
        theirs = expected.detach().double().numpy()
        ours = numpy.concatenate(values) if all(v is not None for v in values) else 0 * theirs
    elif isinstance(expected, int | float | torch.Tensor):
        theirs = numpy.full(len(values), float(expected))
        first = [numpy.nan if value is None else numpy.ravel(value)[0] for value in values]
        ours = numpy.array(first, dtype=numpy.float64)
    else:
        return
    entry = found.setdefault(name, [0.0, 0.0, eps])
    entry[2] = max(entry[2], eps)
    error = ours - theirs
    entry[0] += float(error @ error)
    entry[1] += float(theirs @ theirs)
