"""`StepCounter`: counts the floating-point operations of whole steps, run uncompiled, and bytes."""

import collections
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

from hotlap.host.cpu_caches import cache_bytes
from hotlap.trace.costs import StepCosts

_STEPS = 3
"""Steps that are counted: an evaluation may lie between two of them."""

_HEAVY = re.compile(
    r"rnn|lstm|attention|linear(_backward)?$|conv(?!ert)|mm(_|$)|matmul|cdist|fft|linalg"
)
"""Names of operators that compute enough to be missed where no formula is known."""
_OUR_OWN = ("aten", "prim", "c10d", "_c10d_functional", "profiler")


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return flop_counter.sdpa_flop_count(query.shape, key.shape, value.shape)


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return flop_counter.sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape)


_CPU: Mapping[str, Callable[..., int]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
"""What torch's own table of formulas lacks."""


class OperationCounter(TorchDispatchMode):
    """Looks at each operator of this thread, and of its backward, while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.flops: collections.Counter[str] = collections.Counter()
        """Format -> operations."""
        self.uncounted: set[str] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        given = dict(kwargs or {})
        out = func(*args, **given)
        packet = func._overloadpacket
        name = packet.__name__
        formula = flop_counter.flop_registry.get(packet)
        count: int | None = None
        if formula is not None:
            count = formula(*args, **given, out_val=out)
        elif func.namespace == "aten" and name in _CPU:
            count = _CPU[name](*args, **given)
        elif func.namespace not in _OUR_OWN or _HEAVY.search(name):
            self.uncounted.add(f"{func.namespace}.{name}")
        if count is not None:
            halved = 2 if _is_causal(func, args, given) else 1
            self.flops[_format_of(args)] += count // halved
        return out


def _is_causal(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return bool(given.get("is_causal", False))


def _format_of(args: Sequence[Any]) -> str:
    tensor = next((each for each in args if isinstance(each, torch.Tensor)), None)
    return "" if tensor is None else str(tensor.dtype).removeprefix("torch.")


class StepCounter:
    """Counts from the end of a step to the end of the next one.

    Args:
        seconds: after which one step is enough.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._began = seconds, 0.0
        self._counter: OperationCounter | None = None
        self._counted: list[OperationCounter] = []
        self._trained: dict[torch.Tensor, int] = {}
        """Parameters with a gradient, each with the bytes of both; of the newest step."""
        self._optimizers: list[Any] = []
        # Kernels that were compiled hide what they compute.
        torch.compiler.set_stance("force_eager")

    def note_gradients(self, optimizer: Any, *, is_first: bool = True) -> None:
        """Note the gradients that an optimizer takes.

        Args:
            optimizer: whose step begins, or has ended and left them there.
            is_first: True if it is the first optimizer of the step.
        """
        if is_first:
            self._trained, self._optimizers = {}, []
        self._optimizers.append(optimizer)
        for parameter in _parameters(optimizer):
            gradient = parameter.grad
            if gradient is not None and not gradient.is_sparse:
                self._trained[parameter] = parameter.nbytes + gradient.nbytes

    def step_ends(self) -> bool:
        """Say that a step has ended; True once enough were counted."""
        if self._counter is None:
            self._began = time.monotonic()
        else:
            self._counted.append(self._counter)
            self._end_counter()
            is_late = time.monotonic() - self._began > self._seconds
            if len(self._counted) >= _STEPS or is_late:
                return True
        self._counter = OperationCounter()
        self._counter.__enter__()
        return False

    def _end_counter(self) -> None:
        if self._counter is not None:
            self._counter.__exit__(None, None, None)
            self._counter = None

    def costs(self, device: str) -> StepCosts | None:
        """Return those of the step in the middle: one may have an evaluation with it, or be short.

        What is open is counted no further.

        Args:
            device: its kind, as `cpu`.

        Returns:
            None if no step was counted.
        """
        self._end_counter()
        if not self._counted:
            return None
        ranked = sorted(self._counted, key=lambda each: each.flops.total())
        middle = ranked[(len(ranked) - 1) // 2]
        return StepCosts(
            flops=dict(middle.flops),
            state_bytes=2 * (sum(self._trained.values()) + self._state_bytes()),
            cache_bytes=cache_bytes() if device == "cpu" else _cache_of(device),
            uncounted=tuple(sorted(middle.uncounted)),
            is_reduced=torch.get_float32_matmul_precision() != "highest" or device != "cpu",
            device=device,
        )

    def _state_bytes(self) -> int:
        return sum(
            tensor.nbytes
            for optimizer in self._optimizers
            for parameter, state in optimizer.state.items()
            if parameter in self._trained
            for tensor in _tensors(state)
        )


def _parameters(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    values = state.values() if isinstance(state, dict) else ()
    return (each for each in values if isinstance(each, torch.Tensor))


def _cache_of(device: str) -> int | None:
    if device != "cuda":
        return None
    return getattr(torch.cuda.get_device_properties(device), "L2_cache_size", None)
