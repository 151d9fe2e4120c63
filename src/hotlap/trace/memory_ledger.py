"""`MemoryLedger`: every storage of a real run, with the user's line that made it."""

import contextlib
import os
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotlap import compat
from hotlap.nested import tensors
from hotlap.trace import frames
from hotlap.trace.memory_schema import Block, Mark

_SETTLED = 2
"""Steps after which a storage that still lives was retained."""
_OWN = ("parameters", "optimizer", "gradients")


@dataclass(slots=True)
class _Entry:
    size: int
    kind: str
    file: str
    line: int
    operator: str
    phase: str
    step: int
    made: int
    device: str
    freed: int | None = None


class MemoryLedger(TorchDispatchMode):
    """Writes down every storage that is made and freed while it is begun.

    Each operator costs some microseconds: the times of such steps say nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.phase = "other"
        self.step = 0
        """Number of the step that is being taken, from 1; 0 before the window."""
        self.is_on = False
        self.entries: list[_Entry] = []
        self.marks: list[Mark] = [Mark(0, 0, "other")]
        self.step_ends: list[int] = []
        self.touched: dict[int, int] = {}
        """Entry of a watched gradient -> event at which an operator first used it."""
        self.formats: set[str] = set()
        """Of the tensors that operators gave, as in `bfloat16`."""
        self._alive: dict[int, tuple[int, Any]] = {}
        self._events = 0
        self._watched: set[int] = set()

    def begin(self) -> bool:
        """See every operator of this thread from now on; False if another mode already does."""
        if compat.records_operators():
            return False
        self.is_on = True
        self.__enter__()
        os.register_at_fork(after_in_child=self._stop)
        self.enter_phase(self.phase, step=1)
        return True

    def end(self) -> None:
        """See no more operators."""
        if self.is_on:
            self.is_on = False
            self.__exit__(None, None, None)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """See no operators meanwhile: they are hotlap's own."""
        was_on, self.is_on = self.is_on, False
        try:
            yield
        finally:
            self.is_on = was_on

    def _stop(self) -> None:
        """In a forked child: the mode stays where it is, and does nothing."""
        self.is_on = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if not self.is_on:
            return func(*args, **kwargs)
        for leaf in tensors(args):
            number = self.enter(leaf, "")
            if number in self._watched:
                self._watched.discard(number)
                self.touched[number] = self._events
        result = func(*args, **kwargs)
        for leaf in tensors(result):
            self.enter(leaf, func.overloadpacket.__name__)
            self.formats.add(str(leaf.dtype).removeprefix("torch."))
        return result

    def enter(self, tensor: torch.Tensor, operator: str, kind: str = "temporaries") -> int:
        """Return the number of the tensor's storage, which is written down if it is new.

        Returns:
            -1 where there is no storage of real memory.
        """
        storage = _storage(tensor)
        if storage is None:
            return -1
        key, size = storage._cdata, storage.nbytes()
        known = self._alive.get(key)
        if known is not None and self.entries[known[0]].size == size:
            return known[0]
        if known is not None:
            # Its memory was replaced by another, as `out=` does.
            self._note_freed(known[0])
        number = len(self.entries)
        # What is older than the window was made elsewhere.
        file, line = (frames.line(frames.caller()) if self.step else None) or ("", 0)
        self.entries.append(
            _Entry(
                size,
                kind,
                file,
                line,
                operator,
                self.phase,
                self.step,
                self._events,
                storage.device.type,
            )
        )
        self._events += 1

        def note_freed(_: Any) -> None:
            self._alive.pop(key, None)
            self._note_freed(number)

        self._alive[key] = (number, weakref.ref(storage, note_freed))
        return number

    def _note_freed(self, number: int) -> None:
        self.entries[number].freed = self._events
        self._events += 1

    def find(self, tensor: torch.Tensor) -> int | None:
        """Return the number of the tensor's storage, None if it is not known."""
        storage = _storage(tensor)
        known = None if storage is None else self._alive.get(storage._cdata)
        return None if known is None else known[0]

    def mark(self, values: Iterable[Any], kind: str) -> None:
        """Say what tensors are for."""
        for value in values:
            if isinstance(value, torch.Tensor):
                number = self.enter(value, "", kind)
                if number >= 0:
                    self.entries[number].kind = kind

    def enter_phase(self, phase: str, *, step: int | None = None) -> None:
        """Say what the run does now."""
        if step is not None:
            self.step = step
        self.phase = phase
        self.marks.append(Mark(self._events, self.step, phase))

    def settle_activations(self) -> None:
        """The backward begins: what the forward has made and still lives is activations."""
        for number, _ in list(self._alive.values()):
            entry = self.entries[number]
            if entry.step == self.step and entry.kind == "temporaries":
                entry.kind = "activations"

    def end_step(self) -> None:
        """A step has ended: what lives for long is retained."""
        self.step_ends.append(self._events)
        for number, _ in list(self._alive.values()):
            entry = self.entries[number]
            is_old = 0 < entry.step <= self.step - _SETTLED
            if is_old and entry.kind not in (*_OWN, "other"):
                entry.kind = "retained"
        self.enter_phase("other", step=self.step + 1)

    def watch_gradients(self, gradients: Iterable[torch.Tensor]) -> list[int]:
        """Note when an operator next uses each of these; return their numbers."""
        found = [number for each in gradients if (number := self.find(each)) is not None]
        self._watched = set(found)
        self.touched = {}
        return found

    @property
    def now(self) -> int:
        """Number of the next event."""
        return self._events

    def blocks(self) -> tuple[Block, ...]:
        """Return what was written down."""
        names = {file: frames.shorten_path(file) for file in {e.file for e in self.entries} if file}
        return tuple(
            Block(
                entry.size,
                entry.kind,
                f"{names[entry.file]}:{entry.line}" if entry.file else "",
                entry.operator,
                entry.phase,
                entry.step,
                entry.made,
                entry.freed,
                entry.device,
            )
            for entry in self.entries
        )


def _storage(tensor: torch.Tensor) -> Any:
    """Return the tensor's storage, None if it has none of its own or no memory."""
    if tensor.device.type == "meta":
        return None
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        # Subclasses that wrap others, sparse tensors.
        return None
