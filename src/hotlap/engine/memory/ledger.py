"""`Ledger`: storages alive at once in a rehearsal on fake tensors, by kind, and their peak."""

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotlap.nested import tensors

KINDS: tuple[str, ...] = (
    "parameters",
    "masters",
    "gradients",
    "optimizer",
    "activations",
    "temporaries",
    "batches",
)
"""What memory is for. Activations are all that forward and backward make; temporaries what is made
before and in the update."""


_REORDERED = ("convolution", "convolution_backward")


@dataclass(frozen=True)
class Peak:
    """The moment at which most was alive."""

    bytes: int
    phase: str
    """`build`, `forward`, `backward` or `update`."""
    kinds: Mapping[str, int]
    """Kind -> bytes; they add up to `bytes`."""
    most: Mapping[str, int]
    """Kind -> its most bytes at any moment."""


@dataclass(slots=True)
class _Entry:
    size: int
    kind: str
    phase: str


class Ledger(TorchDispatchMode):
    """Writes down every storage that is made and freed while it is entered.

    Values of fake tensors are asked for, by optimizers and checks for finite numbers: it answers
    one, and zero where a gradient scaler asks whether something was not finite.

    Args:
        block: storages take a multiple of so many bytes, as a device's allocator gives them.
        reorders: convolutions hold copies of their two largest images for a moment, in a layout of
            their own, as oneDNN does on a CPU.
    """

    def __init__(self, block: int = 1, *, reorders: bool = False) -> None:
        super().__init__()
        self.block, self.reorders = block, reorders
        self.phase = "build"
        self._entries: list[_Entry] = []
        self._alive: dict[int, tuple[int, Any]] = {}
        self._events: list[tuple[int, int]] = []
        self._found_inf: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense":
            return self._value(args[0])
        if name == "_amp_foreach_non_finite_check_and_unscale_":
            self._found_inf.add(_key(args[1]))
        result = func(*args, **kwargs)
        made = list(tensors(result))
        for leaf in made:
            self._enter(leaf)
        if self.reorders and name in _REORDERED:
            self._record_temporary(_channels_last_bytes([*tensors(args), *made]))
        return result

    def _record_temporary(self, size: int) -> None:
        number = len(self._entries)
        self._entries.append(_Entry(size, "temporaries", self.phase))
        self._events += [(number, size), (number, -size)]

    def _value(self, asked: torch.Tensor) -> Any:
        value = 0 if _key(asked) in self._found_inf else 1
        return float(value) if asked.is_floating_point() else value

    def _enter(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return self._alive[key][0]
        number, size = len(self._entries), -(-storage.nbytes() // self.block) * self.block
        kind = "temporaries" if self.phase in ("build", "update") else "activations"
        self._entries.append(_Entry(size, kind, self.phase))
        self._events.append((number, size))

        def note_freed(_: Any) -> None:
            self._alive.pop(key, None)
            self._events.append((number, -size))

        self._alive[key] = (number, weakref.ref(storage, note_freed))
        return number

    def mark(self, values: Iterable[Any], kind: str) -> None:
        """Say what tensors are for."""
        for value in values:
            if isinstance(value, torch.Tensor):
                self._entries[self._enter(value)].kind = kind

    def peak(self) -> Peak:
        """Return the moment at which most was alive."""
        alive, top = 0, Peak(0, "build", {}, {})
        kinds: dict[str, int] = dict.fromkeys(KINDS, 0)
        most = dict(kinds)
        for number, change in self._events:
            entry = self._entries[number]
            alive += change
            kinds[entry.kind] += change
            most[entry.kind] = max(most[entry.kind], kinds[entry.kind])
            if alive > top.bytes:
                top = Peak(alive, entry.phase, dict(kinds), most)
        return top


def _channels_last_bytes(tensors: list[torch.Tensor]) -> int:
    """Return the bytes of the two largest images that do not lie channels last."""
    plain = [t for t in tensors if t.dim() > 2 and t.is_contiguous()]
    return sum(sorted((t.numel() * t.element_size() for t in plain), reverse=True)[:2])


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
