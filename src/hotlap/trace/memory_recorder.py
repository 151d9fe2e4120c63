"""`MemoryRecorder`: observes the memory of a run's first steps; fed by seams or by the engine."""

import gc
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import torch

from hotlap.errors import RunError
from hotlap.nested import tensors
from hotlap.trace import frames
from hotlap.trace.device_memory import DeviceMemory
from hotlap.trace.growing import GrowthFinder, numbers_of
from hotlap.trace.holders import find_held
from hotlap.trace.memory_ledger import MemoryLedger
from hotlap.trace.memory_schema import (
    WARM_UP,
    CacheCall,
    GradientSpan,
    Growth,
    Holding,
    MemoryTrace,
    SequenceBatch,
)
from hotlap.trace.padding import measure_padding, names_of
from hotlap.trace.safe_calls import SafeCalls
from hotlap.trace.source.liveness import find_reader
from hotlap.trace.source.statements import line_that_assigns

STEPS = 10
"""Steps that are observed."""
LEAST_STEPS = 6
"""Of them, where they take long."""
_PADDING = "padding"
"""Name of a watcher, see `SafeCalls`."""


class MemoryRecorder:
    """Follows storages, the user's containers, gradients and loop variables through some steps.

    Whoever feeds it calls `begin` once, then for each step `forward_begins`, `backward_begins`,
    `backward_ends` and `step_ends`, and `batch_ends` with each batch.

    Args:
        optimizers: gives the optimizers of the run.
        models: gives the models that are trained.
        others: gives (name, file, object) of what grows although no variable of the user's code
            leads to it; see `hotlap.trace.holders.find_held`.
        keeps_history: let the device's allocator record a history, for a snapshot.
    """

    def __init__(
        self,
        optimizers: Callable[[], Iterable[Any]],
        models: Callable[[], Iterable[Any]],
        others: Callable[[], Iterable[tuple[str, str, Any]]] = tuple,
        *,
        keeps_history: bool = False,
    ) -> None:
        self.ledger = MemoryLedger()
        self.device = DeviceMemory(keeps_history=keeps_history)
        self.steps = 0
        """Whole steps so far."""
        self.notes: list[str] = []
        self._optimizers, self._models, self._others = optimizers, models, others
        self._begun = False
        self._first_forward = True
        self._iteration = 0
        """Event with which the pass of the loop began: its batch was asked for."""
        self._holdings: list[Holding] = []
        self._finder = GrowthFinder(self.ledger, STEPS)
        self._growths: tuple[Growth, ...] = ()
        self._spans: list[GradientSpan] = []
        self._gradients: list[int] = []
        self._in_forward: set[int] = set()
        self._zeroing = ""
        self._keeps = False
        self._resident: list[int] = []
        self._cache_calls: list[CacheCall] = []
        self._batches: list[SequenceBatch] = []
        self._safely = SafeCalls()
        self._pending: list[SequenceBatch] = []
        """Of the newest batch: whether it is trained on is not known yet."""

    def begin(self) -> None:
        """Note what is alive, and follow what is made from now on. Further calls do nothing."""
        if self._begun:
            return
        self._begun = True
        self.device.begin(self._models())
        gc.collect()
        # `isinstance` would ask proxies for their class, which may run code or warn.
        older = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
        self.ledger.mark(older, "other")
        del older
        self._mark_known()
        if not self.ledger.begin():
            self.notes.append(
                "no allocation was observed: another TorchDispatchMode is active in the script"
            )

    def _mark_known(self) -> None:
        for model in self._models():
            self.ledger.mark([*model.parameters(), *model.buffers()], "parameters")
        for optimizer in self._optimizers():
            trained = [tensor for group in optimizer.param_groups for tensor in group["params"]]
            self.ledger.mark(trained, "parameters")
            self.ledger.mark((tensor.grad for tensor in trained), "gradients")
            for state in list(optimizer.state.values()):
                self.ledger.mark(tensors(state), "optimizer")

    def _all_gradients(self) -> list[torch.Tensor]:
        return [
            tensor.grad
            for optimizer in self._optimizers()
            for group in optimizer.param_groups
            for tensor in group["params"]
            if tensor.grad is not None
        ]

    def enter_phase(self, phase: str) -> None:
        """Say what the run does now, see `hotlap.trace.schema.PHASES`."""
        self.ledger.enter_phase(phase)
        if phase == "data":
            self._iteration = self.ledger.now

    def batch_ends(self, batch: Any, frame: FrameType | None = None) -> None:
        """A batch was made; `frame` is what asked for it."""
        self.ledger.mark(tensors(batch), "batches")
        self._pending = self._look_for_padding(batch, "batch", frame)

    def _look_for_padding(
        self, batch: Any, name: str, frame: FrameType | None
    ) -> list[SequenceBatch]:
        with self.ledger.pause():
            return self._safely.call(_PADDING, self._measure, batch, name, frame) or []

    def _measure(self, batch: Any, name: str, frame: FrameType | None) -> list[SequenceBatch]:
        arrays = arrays_of(batch, name)
        return measure_padding(arrays, self.ledger.step, frames.location_of(frame))

    def cache_emptied(self, frame: FrameType | None) -> None:
        """The script empties the cache of the device's memory."""
        if self._begun:
            self._cache_calls.append(CacheCall(self.ledger.step, frames.location_of(frame)))

    def forward_begins(self, frame: FrameType | None, inputs: tuple[Any, ...] = ()) -> None:
        """A training forward begins; a script without a loader shows its batch only here."""
        self.device.begin(self._models())
        if self._first_forward and not self._pending:
            self._pending = self._look_for_padding(inputs, "inputs", frame)
        self.ledger.enter_phase("forward")
        # One pass earlier than the settled window: what it holds reaches into that.
        if self._first_forward and self.steps >= WARM_UP - 1:
            self._in_forward = {n for n in map(self.ledger.find, self._all_gradients()) if n}
            self._holdings = [*self._holdings, *self._held_by_locals(frame)]
        self._first_forward = False

    def _held_by_locals(self, frame: FrameType | None) -> list[Holding]:
        """Return the local variables that hold tensors of the step before."""
        found, ledger = [], self.ledger
        for each in frames.user_frames(frame):
            file, line = each.f_code.co_filename, each.f_lineno
            for name, value in frames.variables_of(each):
                held = numbers_of(ledger, list(tensors(value)))
                blocks = [
                    n
                    for n in held
                    if ledger.entries[n].step >= ledger.step - 1
                    and ledger.entries[n].made < self._iteration
                ]
                if not blocks or name.startswith("__"):
                    continue
                assigned = line_that_assigns(file, name, line)
                where = f"{frames.shorten_path(file)}:{assigned or line}"
                reader = find_reader(file, name, [line, assigned or line])
                row = (ledger.step, self._iteration, tuple(blocks), reader)
                found.append(Holding(name, where, *row))
        return found

    def backward_begins(self) -> None:
        """A backward begins."""
        self._batches += self._pending
        self._pending = []
        alive = self._all_gradients()
        if not self._gradients and self.steps >= WARM_UP:
            self._gradients = self.ledger.watch_gradients(alive)
        self._keeps = bool(alive)
        self.ledger.settle_activations()
        self.ledger.enter_phase("backward")

    def backward_ends(self) -> None:
        """A backward has ended."""
        self.ledger.mark(self._all_gradients(), "gradients")
        self.ledger.enter_phase("other")

    def zeroing_begins(self, frame: FrameType | None) -> None:
        """Gradients are about to be cleared."""
        self._zeroing = frames.location_of(frame)

    def step_ends(self, frame: FrameType | None) -> None:
        """An optimizer step has ended."""
        ledger = self.ledger
        self._mark_known()
        self._note_gradients()
        self.steps += 1
        self.device.step_ends(self.steps)
        ledger.end_step()
        self._iteration = ledger.now
        self._first_forward = True
        self._resident.append(psutil.Process().memory_info().rss)
        if self.steps >= WARM_UP:
            held = find_held(frame, self._others())
            self._growths = self._finder.find(held, frame)

    def _note_gradients(self) -> None:
        begin = self.ledger.step_ends[-1] if self.ledger.step_ends else 0
        watched = {*self._gradients, *self._in_forward}
        for number in sorted(watched):
            freed = self.ledger.entries[number].freed
            ends = [each for each in (freed, self.ledger.touched.get(number)) if each is not None]
            if self.ledger.entries[number].made < begin and ends:
                span = GradientSpan(number, begin, min(ends), number in self._in_forward)
                self._spans.append(span)
        self._gradients, self._in_forward = [], set()

    def write_snapshot(self, path: Path) -> None:
        """Write the allocator's history for PyTorch's viewer; a note says why if it cannot be."""
        try:
            self.device.write_snapshot(path)
        except (RunError, OSError) as error:
            self.notes.append(f"no snapshot was written: {error}")

    def trace(self, device: str, planned_steps: int | None) -> MemoryTrace:
        """Return what was observed, and observe no more."""
        self.ledger.end()
        return MemoryTrace(
            device=device,
            steps=self.steps,
            blocks=self.ledger.blocks(),
            marks=tuple(self.ledger.marks),
            step_ends=tuple(self.ledger.step_ends),
            holdings=tuple(self._holdings),
            growths=self._growths,
            gradients=tuple(self._spans),
            zeroing=self._zeroing,
            keeps_gradients=self._keeps,
            resident=tuple(self._resident),
            planned_steps=planned_steps,
            notes=(*self.notes, *self._safely.problems()),
            batches=() if self._safely.failed else tuple(self._batches),
            allocator=tuple(self.device.steps),
            cache_calls=tuple(self._cache_calls),
            device_peak=self.device.peak(),
            has_snapshot=self.device.has_snapshot,
            formats=tuple(sorted(self.ledger.formats)),
        )


def arrays_of(batch: Any, name: str) -> list[tuple[str, Any]]:
    """Return the dense tensors of a batch as numpy arrays, each with the way to it.

    Without those that numpy does not have, and what is on a device that captures a graph, which
    cannot be read.
    """
    found = []
    for path, value in names_of(batch, name):
        if type(value) is not torch.Tensor or value.layout is not torch.strided:
            continue
        if (
            value.is_meta
            or value.is_nested
            or value.is_quantized
            or value.dtype is torch.complex32
            or (value.is_cuda and torch.cuda.is_current_stream_capturing())
        ):
            continue
        held = value.detach().cpu().resolve_conj().resolve_neg()
        # numpy has no bfloat16.
        found.append((path, (held.float() if held.is_floating_point() else held).numpy()))
    return found
