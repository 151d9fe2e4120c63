"""`MemoryRecorder`: observes the memory of a run's first steps; fed by seams or by the engine."""

import gc
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import torch

from hotlap.errors import RunError
from hotlap.nested import tensors
from hotlap.trace import frames
from hotlap.trace.device_memory import DeviceMemory
from hotlap.trace.holders import Held, find_held, graph_of, last_of, sizes_of, users_files
from hotlap.trace.liveness import find_reader
from hotlap.trace.memory import MemoryLedger
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
from hotlap.trace.statements import line_that_assigns, line_that_grows, line_that_removes

STEPS = 10
"""Steps that are observed."""
LEAST_STEPS = 6
"""Of them, where they take long."""
_ANY = -1
"""Stands for the identity of whatever a name leads to."""
_LEAST_GROWN = 3
"""Steps in each of which something must have grown."""


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
        self._sizes: deque[dict[tuple[str, int], int]] = deque(maxlen=STEPS)
        self._growths: tuple[Growth, ...] = ()
        self._spans: list[GradientSpan] = []
        self._gradients: list[int] = []
        self._in_forward: set[int] = set()
        self._zeroing = ""
        self._keeps = False
        self._resident: list[int] = []
        self._cache_calls: list[CacheCall] = []
        self._batches: list[SequenceBatch] = []
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
        self._pending = self._measure(batch, "batch", frame)

    def _measure(self, batch: Any, name: str, frame: FrameType | None) -> list[SequenceBatch]:
        with self.ledger.pause():
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
            self._pending = self._measure(inputs, "inputs", frame)
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
            for name, value in list(each.f_locals.items()):
                held = self._numbers(list(tensors(value)))
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

    def _numbers(self, held: list[torch.Tensor]) -> list[int]:
        """Return the numbers of the storages that tensors hold, in their graphs too."""
        with_graph = [tensor for tensor in held if tensor.grad_fn is not None]
        everything = [*held, *(graph_of(with_graph).tensors if with_graph else ())]
        found = {number for each in everything if (number := self.ledger.find(each)) is not None}
        return sorted(found)

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
            self._follow_growth(frame)

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

    def _follow_growth(self, frame: FrameType | None) -> None:
        """Compare the sizes of the user's containers and graphs with those of earlier steps."""
        held = find_held(frame, self._others())
        self._sizes.append(sizes_of_held(held))
        if len(self._sizes) <= _LEAST_GROWN:
            return
        found = []
        for each in held:
            known = [row.get((each.name, id_of(each))) for row in self._sizes]
            if count_grown(known) < _LEAST_GROWN:
                # As in `kept = kept[-n:]`: another container under the same name, in every step.
                known = [row.get((each.name, _ANY)) for row in self._sizes]
                if count_grown(known) < count_observed(known):
                    continue
            # A container that shrinks now and then is bounded; a sum of losses may begin again.
            if not isinstance(each.value, torch.Tensor) and has_shrunk(known):
                continue
            steps = count_grown(known)
            if steps >= _LEAST_GROWN:
                begin, end = known[-1 - _LEAST_GROWN] or 0, known[-1] or 0
                growth = self._growth(each, (end - begin) / _LEAST_GROWN, frame)
                found.append(replace(growth, steps=steps, observed=count_observed(known)))
        self._growths = tuple(found)

    def _growth(self, held: Held, rate: float, frame: FrameType | None) -> Growth:
        value = held.value
        seen: list[torch.Tensor] = []
        host = 0
        if isinstance(value, torch.Tensor):
            seen.append(value)
        elif isinstance(value, bytearray):
            host = 1
        else:
            count = min(len(value), max(1, round(rate) * _LEAST_GROWN))
            newest = last_of(value, count)
            host = sizes_of(newest, seen.append) / max(1, len(newest)) + 8
            if not isinstance(value, torch.Tensor):
                sizes_of(value, seen.append)
        with_graph = [tensor for tensor in seen if tensor.grad_fn is not None]
        nodes = graph_of(with_graph).nodes if with_graph else 0
        old = self.ledger.step - 2
        blocks = [n for n in self._numbers(seen) if 0 < self.ledger.entries[n].step <= old]
        line = line_that_grows(held.file, held.name)
        file = frames.shorten_path(held.file)
        where = f"{file}:{line}" if line else frames.location_of(frame) or file
        kind = "graph" if isinstance(value, torch.Tensor) else type(value).__name__
        removed = None
        if kind != "graph":
            removed = line_that_removes([held.file, *users_files(frame)], held.name, kind)
        return Growth(
            name=held.name,
            where=where,
            kind=kind,
            items=rate,
            host_bytes=host * rate,
            nodes=nodes / max(1, self.steps),
            blocks=tuple(blocks),
            has_graph=bool(with_graph),
            scalars=bool(seen) and all(tensor.numel() == 1 for tensor in seen),
            maxlen=getattr(value, "maxlen", None),
            removed=f"{frames.shorten_path(removed[0])}:{removed[1]}" if removed else "",
        )

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
            notes=tuple(self.notes),
            batches=tuple(self._batches),
            allocator=tuple(self.device.steps),
            cache_calls=tuple(self._cache_calls),
            device_peak=self.device.peak(),
            has_snapshot=self.device.has_snapshot,
            formats=tuple(sorted(self.ledger.formats)),
        )


def arrays_of(batch: Any, name: str) -> list[tuple[str, Any]]:
    """Return the dense tensors of a batch as numpy arrays, each with the way to it.

    What is on a device that captures a graph cannot be read, and is left out.
    """
    found = []
    for path, value in names_of(batch, name):
        if type(value) is not torch.Tensor or value.layout is not torch.strided:
            continue
        if value.is_meta or (value.is_cuda and torch.cuda.is_current_stream_capturing()):
            continue
        held = value.detach().cpu().resolve_conj().resolve_neg()
        # numpy has no bfloat16.
        found.append((path, (held.float() if held.is_floating_point() else held).numpy()))
    return found


def has_shrunk(sizes: Sequence[int | None]) -> bool:
    """True if something was ever smaller than one step before; None where it was not there."""
    pairs = itertools.pairwise(sizes)
    return any(a is not None and b is not None and b < a for a, b in pairs)


def count_grown(sizes: Sequence[int | None]) -> int:
    """Return in how many steps in a row, up to the last, something grew."""
    count = 0
    for before, after in reversed(list(itertools.pairwise(sizes))):
        if before is None or after is None or after <= before:
            break
        count += 1
    return count


def count_observed(sizes: Sequence[int | None]) -> int:
    """Return the steps of which it is known whether something grew in them."""
    return max(0, sum(size is not None for size in sizes) - 1)


def sizes_of_held(held: Sequence[Held]) -> dict[tuple[str, int], int]:
    """Return the sizes of containers and graphs by name and identity, and by name if it is unique.

    Graphs are known by their names.
    """
    sizes = {(each.name, id_of(each)): size_of(each) for each in held}
    names = Counter(name for name, _ in sizes)
    alone = {(name, _ANY): size for (name, _), size in sizes.items() if names[name] == 1}
    return {**sizes, **alone}


def id_of(held: Held) -> int:
    """Return what tells a container from another of its name; a graph's tensor may be replaced."""
    return 0 if isinstance(held.value, torch.Tensor) else id(held.value)


def size_of(held: Held) -> int:
    """Return the elements of a container, or the nodes of a graph."""
    if isinstance(held.value, torch.Tensor):
        return graph_of([held.value]).nodes
    return len(held.value)
