"""Watches a run: where the milliseconds of each step go, and which lines they are spent below."""

import collections
import sys
import threading
import time
from typing import Any

import torch
from torch.utils.data import IterableDataset, default_collate

from hotlap.attach import frames
from hotlap.attach.phases import PhaseClock, phase_clock
from hotlap.attach.session import RunRole
from hotlap.task import LoaderFacts, OptimizerFacts, TaskFacts
from hotlap.trace.paging import Paging
from hotlap.trace.schema import PHASES, Anchor, HotLine, Trace

DATA, H2D, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(PHASES))
_SAMPLE_S = 0.002
_LOOPS_AT_STEP = 3


class _Loader:
    """What is known of one DataLoader while the run is watched."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.where = ""
        self.function: frames.Function | None = None
        self.training = False
        self.starts: list[int] = []
        self.batches = 0


class ObserveRole(RunRole):
    """Records a `Trace` without a profiler, then samples lines in a window of its own."""

    wants_phases = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.clock: PhaseClock = phase_clock()
        self.rows: list[Any] = []
        self.losses: list[torch.Tensor] = []
        self.lines: tuple[HotLine, ...] = ()
        self.setup_s = 0.0
        self._loaders: dict[int, _Loader] = {}
        self._last_loader: _Loader | None = None
        self._roots: list[Any] = []
        self._optimizers: dict[int, OptimizerFacts] = {}
        self._primary: int | None = None
        self._open = False
        self._began = 0.0
        self._backwards = 0
        self._paging = Paging()
        self._loops: list[frames.Loop] = []
        self._stack: list[frames.Function] = []
        self._naming: _LineSampler | None = None
        self._naming_until = 0.0

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        super().iterator_made(loader, iterator)
        known = self._loaders.setdefault(id(loader.dataset), _Loader(loader))
        known.starts.append(self.steps)
        iterator._hotlap_loader = known

    def batch_begins(self, iterator: Any) -> None:
        self._training_begins()
        self.clock.enter(DATA)
        known = getattr(iterator, "_hotlap_loader", None)
        if known is not None and not known.where:
            known.where = frames.where(frames.caller(3))
            known.function = next(iter(frames.stack(frames.caller(3))), None)

    def batch_ends(self, iterator: Any, batch: Any) -> Any:
        known = getattr(iterator, "_hotlap_loader", None)
        if known is not None and batch is not None:
            known.batches += 1
            self._last_loader = known
        self.clock.enter(OTHER)
        return batch

    def _training_begins(self) -> None:
        """Everything before the first batch, or the first forward, is set-up."""
        if self.setup_s == 0.0:
            self.setup_s = time.monotonic() - self.config.options["started"]
            self.clock.reset()

    def root_found(self, module: Any) -> None:
        self._roots.append(module)

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        del root
        self._training_begins()
        self.clock.enter(FORWARD)
        return inputs

    def backward_begins(self, loss: Any) -> None:
        self.clock.enter(BACKWARD)
        self._backwards += 1
        if self._last_loader is not None:
            self._last_loader.training = True
        if loss.numel() == 1:
            self.losses.append(loss.detach())

    def backward_ends(self) -> None:
        self.clock.enter(OTHER)

    def zeroing_begins(self) -> None:
        self.clock.enter_nested(OPTIMIZER)

    def zeroing_ends(self) -> None:
        self.clock.leave_nested()

    def step_begins(self, optimizer: Any) -> None:
        super().step_begins(optimizer)
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = optimizer_facts(
                optimizer, frames.where(frames.caller(2))
            )
            if self._primary is None:
                self._primary = id(optimizer)
        # With several optimizers an iteration ends at the last step before the first one's next.
        if self._open and id(optimizer) == self._primary:
            self._commit()
        self.clock.enter(OPTIMIZER)

    def step_ends(self, optimizer: Any) -> None:
        self.clock.enter(OTHER)
        if id(optimizer) == self._primary:
            super().step_ends(optimizer)
            self._paging.step_ends()
        else:
            self.plan.step_ends()
        self.clock.mark_boundary()
        self._open = True
        if self.steps == _LOOPS_AT_STEP and not self._loops:
            self._loops = frames.counted_loops(frames.caller(2))
            self._stack = frames.stack(frames.caller(2))
        if self.steps == 1:
            self._began = time.monotonic()
        if len(self._optimizers) == 1:
            self._commit()
        self._check_limits()

    def _commit(self) -> None:
        self.rows.append(self.clock.take())
        self._open = False

    def _check_limits(self) -> None:
        limits = self.config.options
        now = time.monotonic()
        if self._naming is not None:
            if now >= self._naming_until:
                self.lines = self._naming.stop()
                self.stop()
            return
        training = [known for known in self._loaders.values() if known.training]
        whole = max((len(known.starts) for known in training), default=0) - 1
        settled = whole >= limits["epochs"] and self.steps > max(
            known.starts[-1] for known in training
        )
        if settled or now - self._began >= limits["seconds"] or self.steps >= limits["steps"]:
            self.clock.flush(self.rows)
            self._naming = _LineSampler(self.clock)
            self._naming_until = now + limits["naming_s"]

    def report(self) -> dict[str, Any]:
        self.clock.flush(self.rows)
        return {"trace": self._trace().to_json()}

    def _trace(self) -> Trace:
        rows = [tuple(ns / 1e6 for ns in row) for row in self.rows]
        starts = [
            start
            for known in self._loaders.values()
            if known.training
            for start in known.starts
            if start < len(rows)
        ]
        votes = {
            "optimizer_steps": self.steps,
            "backwards": self._backwards,
            "training_batches": sum(k.batches for k in self._loaders.values() if k.training),
        }
        return Trace(
            steps=rows,
            epoch_starts=sorted(starts),
            facts=self._facts(),
            anchor=_anchor(votes, len(self._optimizers)),
            setup_s=self.setup_s,
            lines=self.lines,
            losses=[float(loss) for loss in self.losses],
            clock=self.clock.name,
        )

    def _facts(self) -> TaskFacts:
        layers = collections.Counter(
            type(module).__name__ for root in self._roots for module in root.modules()
        )
        training = [known for known in self._loaders.values() if known.training]
        per_epoch = _steps_per_epoch(training, self.steps)
        planned, why = _planned(self._loops, self._stack, training, per_epoch)
        page_faults, system_ms = self._paging.each()
        return TaskFacts(
            device=_device(self._roots),
            threads=torch.get_num_threads(),
            layers=dict(layers),
            loaders=tuple(_loader_facts(known) for known in self._loaders.values()),
            optimizers=tuple(self._optimizers.values()),
            steps_per_epoch=per_epoch,
            planned_steps=planned,
            planned_why=why,
            page_faults=page_faults,
            system_ms=system_ms,
        )


def _anchor(votes: dict[str, int], optimizers: int) -> Anchor:
    steps, backwards, batches = votes.values()
    if optimizers == 1 and abs(backwards - steps) <= 1 and abs(batches - steps) <= 3:
        confidence = "high"
    elif steps and backwards >= steps:
        confidence = "medium"
    else:
        confidence = "low"
    return Anchor("optimizer.step", confidence, votes)


def _device(roots: list[Any]) -> str:
    for root in roots:
        for parameter in root.parameters():
            return parameter.device.type
    return "cpu"


def _steps_per_epoch(training: list[_Loader], steps: int) -> int | None:
    if not training:
        return None
    known = training[0]
    if len(known.starts) > 1:
        return known.starts[-1] - known.starts[-2]
    length = _length(known.loader)
    if length is None or known.batches == 0 or steps == 0:
        return None
    # Gradient accumulation takes several batches a step.
    batches_per_step = max(1, round(known.batches / steps))
    return -(-length // batches_per_step)


def _planned(
    loops: list[frames.Loop],
    stack: list[frames.Function],
    training: list[_Loader],
    per_epoch: int | None,
) -> tuple[int | None, str]:
    if not loops:
        return None, "no counted loop (`for ... in range(...)`) goes around the step"
    if not training:
        total = 1
        for loop in loops:
            total *= loop.total
        return total, " x ".join(f"{loop.where} goes round {loop.total} times" for loop in loops)
    if per_epoch is None:
        return None, "the number of batches in an epoch is not known"
    known = training[0]
    line = int(known.where.rpartition(":")[2] or 0)
    depth = stack.index(known.function) if known.function in stack else -1
    outer = [loop for loop in loops if (loop.depth, -loop.line) > (depth, -line)]
    if not outer:
        return per_epoch, "one pass over the loader: no counted loop goes around it"
    total = per_epoch
    for loop in outer:
        total *= loop.total
    rounds = " x ".join(f"{loop.where} goes round {loop.total} times" for loop in outer)
    return total, f"{rounds}, {per_epoch} steps each"


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _loader_facts(known: _Loader) -> LoaderFacts:
    loader = known.loader
    dataset = loader.dataset
    inner = dataset
    while not frames.is_users(_code_file(inner)) and hasattr(inner, "dataset"):
        inner = inner.dataset
    return LoaderFacts(
        dataset=f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        length=len(dataset) if hasattr(dataset, "__len__") else None,
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        map_style=not isinstance(dataset, IterableDataset),
        plain_collate=loader.collate_fn is default_collate,
        training=known.training,
        where=known.where,
        getitem=getitem_of(type(inner)),
        batches=_length(loader),
    )


def getitem_of(kind: type) -> str:
    """Return `file:line` of a data set's `__getitem__`, empty if it is no Python function."""
    code = getattr(getattr(kind, "__getitem__", None), "__code__", None)
    return f"{frames.short(code.co_filename)}:{code.co_firstlineno}" if code else ""


def _code_file(dataset: Any) -> str:
    getitem = getattr(type(dataset), "__getitem__", None)
    code = getattr(getitem, "__code__", None)
    return code.co_filename if code else "<none>"


def optimizer_facts(optimizer: Any, where: str) -> OptimizerFacts:
    """Return what is known of an optimizer that is stepped at `where`."""
    groups = optimizer.param_groups
    kind = type(optimizer)
    if any(group.get("fused") for group in groups):
        implementation = "fused"
    elif any(group.get("foreach") for group in groups):
        implementation = "foreach"
    else:
        implementation = "default" if kind.__module__.startswith("torch.optim") else "custom"
    parameters = [p for group in groups for p in group["params"]]
    return OptimizerFacts(
        name=f"{kind.__module__}.{kind.__qualname__}",
        implementation=implementation,
        parameters=len(parameters),
        elements=sum(p.numel() for p in parameters),
        where=where,
    )


class _LineSampler(threading.Thread):
    """Looks, some hundred times a second, which of the user's lines the main thread is below."""

    def __init__(self, clock: PhaseClock) -> None:
        super().__init__(name="hotlap-lines", daemon=True)
        self.clock = clock
        self.counts: collections.Counter[tuple[int, str]] = collections.Counter()
        self._target = threading.get_ident()
        self._ended = threading.Event()
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(_SAMPLE_S / 4)
        self.start()

    def run(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            frame = sys._current_frames().get(self._target)
            line = frames.where(frame)
            if line:
                self.counts[(self.clock.current, line)] += 1

    def stop(self) -> tuple[HotLine, ...]:
        self._ended.set()
        self.join()
        sys.setswitchinterval(self._interval)
        totals: collections.Counter[int] = collections.Counter()
        for (phase, _), count in self.counts.items():
            totals[phase] += count
        return tuple(
            HotLine(PHASES[phase], line, count / totals[phase])
            for (phase, line), count in self.counts.most_common(40)
        )
