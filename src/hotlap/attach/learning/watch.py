"""`WatchLearning`: the part of a session that feeds the watchers of this folder."""

from typing import Any

import torch

from hotlap import compat
from hotlap.attach.learning.batch_sizes import BatchSizes
from hotlap.attach.learning.changed_gradients import ChangedGradients
from hotlap.attach.learning.evaluations import Evaluations
from hotlap.attach.learning.graphs import autocast_kind
from hotlap.attach.learning.inputs import INPUTS, Inputs
from hotlap.attach.learning.losses import Losses, Modes
from hotlap.attach.learning.missing_gradients import MissingGradients, has_gradients
from hotlap.attach.learning.naps import Naps
from hotlap.attach.learning.saved_objects import look_at_saved
from hotlap.attach.learning.scalers import Scalers
from hotlap.attach.learning.schedules import Schedules
from hotlap.attach.learning.workers import Workers
from hotlap.attach.roles.session import Part, Session
from hotlap.trace import event_kinds, frames
from hotlap.trace.events import Events
from hotlap.trace.identity import IdentityTable
from hotlap.trace.learning import (
    Learning,
    SavedFacts,
    WorkerFacts,
)
from hotlap.trace.safe_calls import SafeCalls

_CHECKS = 8
"""First backward passes that are looked at for gradients of the step before."""
_FORWARDS = 64
"""First forwards that are listened to, in any case."""
_HALF = torch.float16
_Tensor = torch.Tensor
# Names of watchers, see `SafeCalls`.
_BATCH_SIZES = "batch sizes"
_CHANGED = "changed gradients"
_EVALUATIONS = "evaluations"
_FORMATS = "formats of numbers"
_GRADIENTS = "missing gradients"
_KEPT = "kept gradients"
_LOSSES = "losses"
_NAPS = "naps"
_SAVED = "saved files"
_SCALERS = "scalers"
_SCHEDULES = "schedules"
_WORKERS = "workers"
_IN_EVERY_STEP = frozenset(
    ("backward_begins", "forward_begins", "forward_ends", "step_begins", "zeroing_begins")
)
_is_autocast_enabled = torch.is_autocast_enabled
_is_any_autocast_enabled = compat.find_optional("_is_any_autocast_enabled") or (lambda: True)


class WatchLearning(Part):
    """Looks on; nothing that it does changes a number, or waits for a device.

    A watcher that fails is called no more: the script goes on as if nobody had looked. Once the
    first steps have shown nothing that must be counted exactly, most of the others are slept
    through: what listens is paid for in every step.

    Args:
        session: what it is a part of; counts the steps.
        events: have noted a backward when this is told of it.
    """

    wants_phases = True
    wants_events = True
    wants_evaluation = True

    def __init__(self, session: Session, events: Events) -> None:
        self._session, self._events = session, events
        self._safely = SafeCalls()
        self._losses, self._modes = Losses(), Modes()
        self._inputs, self._schedules = Inputs(self._safely), Schedules()
        self._scalers, self._batch_sizes = Scalers(), BatchSizes()
        self._workers: dict[str, Workers] = {}
        self._evaluations = Evaluations(self._modes)
        self._changed = ChangedGradients()
        self._saved: list[SavedFacts] = []
        self._unsafe: list[str] = []
        self._missing = MissingGradients()
        self._roots: list[Any] = []
        self._kinds: dict[int, str | None] = {}
        """Identity of each root -> the kind of its device, None if autocast does not know it."""
        self._is_narrow = False
        """The newest training forward computed in float16."""
        self._is_on_mps = False
        self._has_half = False
        """A forward has returned float16."""
        self._scaled: IdentityTable[bool] = IdentityTable()
        """Losses that a scaler has multiplied."""
        self._has_scaled = False
        self._kept_in_evaluation: Any = None
        """The root of the newest training forward, if it was in evaluation mode."""
        self._forwards = 0
        self._looked_at = 0
        """Steps before the newest backward, while gradients are looked at."""
        self._kept = self._looked = self._backwards = 0
        self._scales = False
        self._naps = Naps()

    def facts(self) -> Learning:
        """Return everything that was seen."""
        seen_by, steps = self._safely.facts, self._session.steps
        kept, looked = seen_by(_KEPT, lambda: (self._kept, self._looked)) or (0, 0)
        compared, changed = seen_by(_CHANGED, self._changed.counts) or (0, 0)
        return Learning(
            losses=seen_by(_LOSSES, lambda: self._losses.facts(self._estimate)),
            evaluations=seen_by(_EVALUATIONS, lambda: self._evaluations.facts(steps)),
            schedules=seen_by(_SCHEDULES, self._schedules.facts),
            saved=seen_by(_SAVED, lambda: tuple(dict.fromkeys(self._saved))),
            unsafe_loads=tuple(dict.fromkeys(self._unsafe)),
            inputs=seen_by(INPUTS, self._inputs.facts),
            without_gradient=seen_by(_GRADIENTS, lambda: self._missing.facts(self._roots)),
            workers=seen_by(_WORKERS, self._worker_facts),
            forwards=self._estimate(self._forwards),
            kept_gradients=kept,
            first_backwards=looked,
            empty_steps=self._missing.empty,
            looked_at_steps=self._missing.looked,
            compared_gradients=compared,
            changed_gradients=changed,
            scales=self._scales,
            scalers=seen_by(_SCALERS, self._scalers.facts),
            optimizers_made=tuple(self._scalers.optimizers_made),
            batch_sizes=seen_by(_BATCH_SIZES, self._batch_sizes.facts),
            problems=self._safely.problems(),
        )

    def _estimate(self, count: int) -> int:
        return self._naps.estimate(count, self._session.steps)

    def look(self) -> None:
        """Fall asleep, or wake: called now and then between two steps."""
        self._safely.call(_NAPS, self._look)

    def _look(self) -> None:
        self._turn_over(self._naps.look(self._session.steps, may_sleep=self._may_sleep()))

    def _may_sleep(self) -> bool:
        """True if the first steps were looked at, and later ones are only counted."""
        is_odd = self._has_half or self._is_narrow or self._scales or self._losses.has_odd
        is_looking = self._changed.is_open or self._inputs.is_open or self._looked < _CHECKS
        has_one = self._missing.only_optimizer is not None and len(self._missing.seen) == 1
        return self._forwards >= _FORWARDS and has_one and not is_odd and not is_looking

    def _wake(self) -> None:
        self._turn_over(self._naps.wake(self._session.steps))

    def _turn_over(self, slept: int | None) -> None:
        """Listen, or not, from now on; `slept` is what `Naps.look` returns."""
        if slept is None:
            return
        self._batch_sizes.skip(slept)
        # What accumulation leaves at the end of an epoch shows in each backward only.
        is_single = self._backwards <= self._naps.awake(self._session.steps) + 1
        self._events.is_asleep = self._naps.is_asleep and is_single
        self._events.step = self._session.steps
        self._session.bind_steps()

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        # A new epoch may be of other batches.
        self._wake()
        if loader.num_workers:
            self._safely.call(_WORKERS, self._look_at_workers, loader, iterator)

    def pass_begun(self, loader: Any, iterator: Any) -> None:
        del loader
        self._wake()
        # Another pass may send each batch once more.
        iterator._hotlap_workers = None

    def _look_at_workers(self, loader: Any, iterator: Any) -> None:
        where = frames.location_of(frames.caller())
        if where and where not in self._workers:
            self._workers[where] = iterator._hotlap_workers = Workers(loader, where)

    def hears(self, name: str) -> bool:
        if self._naps.is_asleep and name in _IN_EVERY_STEP:
            return False
        wanted = {
            "batch_ends": bool(self._workers),
            "backward_ends": self._changed.is_open,
            "zeroing_begins": self._evaluations.has_modules,
        }
        return super().hears(name) and wanted.get(name, True)

    def batch_ends(self, iterator: Any, batch: Any) -> Any:
        workers = getattr(iterator, "_hotlap_workers", None)
        if workers is not None and batch is not None:
            self._safely.call(_WORKERS, workers.add, batch)
        return batch

    def root_found(self, module: Any) -> None:
        # One that is in evaluation mode is found when its first step begins.
        is_first = not self._roots and not getattr(module, "training", True)
        if is_first and self._safely.call(_LOSSES, self._modes.forget_training, module):
            self._losses.first_step_begins()
        self._roots.append(module)
        kind = self._kinds[id(module)] = self._safely.call(_FORMATS, autocast_kind, module)
        self._is_on_mps = self._is_on_mps or kind == "mps"
        self._safely.call(INPUTS, self._inputs.follow, module)

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._evaluations.is_undecided:
            self._safely.call(_EVALUATIONS, self._evaluations.decide)
        self._forwards += 1
        self._kept_in_evaluation = None if root.training else root
        # What every step pays for is done here, where it is simple.
        if _BATCH_SIZES not in self._safely.failed:
            try:
                sizes, first = self._batch_sizes, inputs[0] if inputs else None
                if root is sizes.root and type(first) is _Tensor and first.ndim:
                    sizes.waiting += first.shape[0]
                else:
                    sizes.forward_begins(root, inputs)
            except Exception as error:
                self._safely.note_failure(_BATCH_SIZES, error)
        # torch does not count autocast on MPS among any.
        may_be = self._is_on_mps or _is_any_autocast_enabled()
        self._is_narrow = may_be and self._computes_in_half(root)
        return inputs

    def _computes_in_half(self, root: Any) -> bool:
        """Return whether autocast is on, and makes a model compute in float16."""
        kind = self._kinds[id(root)]
        return (
            kind is not None
            and _is_autocast_enabled(kind)
            and torch.get_autocast_dtype(kind) == _HALF
        )

    def forward_ends(self, root: Any, output: Any) -> None:
        # In a forward that is decorated, autocast is on inside only.
        if not self._is_narrow and getattr(output, "dtype", None) is _HALF:
            self._is_narrow = self._has_half = True
        if _EVALUATIONS not in self._safely.failed:
            try:
                steps = self._session.steps
                self._evaluations.add_training(root, output, frames.caller(), steps)
            except Exception as error:
                self._safely.note_failure(_EVALUATIONS, error)

    def evaluation_forward_ends(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        self._safely.call(_EVALUATIONS, self._look_at_evaluation, module, (args, kwargs), output)

    def _look_at_evaluation(self, module: Any, inputs: Any, output: Any) -> None:
        had_modules = self._evaluations.has_modules
        where = frames.location_of(frames.caller())
        self._evaluations.add(module, inputs, output, where, self._session.steps)
        if self._evaluations.has_modules != had_modules:
            self._session.bind()
        if self._evaluations.is_undecided:
            # A backward decides.
            self._wake()

    def backward_begins(self, loss: Any) -> None:
        self._backwards += 1
        is_evaluating = False
        if self._evaluations.is_undecided:
            undecided = self._evaluations.take_undecided()
            self._forwards += 1
            is_evaluating = self._safely.call(_LOSSES, self._modes.forget_training, undecided)
        elif self._kept_in_evaluation is not None:
            root = self._kept_in_evaluation
            is_evaluating = self._safely.call(_LOSSES, self._modes.forget_training, root)
        code, instruction = place = self._events.newest
        settled = self._losses.settled.get((id(code), instruction))
        if settled is not None and not self._is_narrow and not is_evaluating:
            settled.backwards += 1
        elif _LOSSES not in self._safely.failed:
            try:
                self._losses.add(
                    place,
                    loss,
                    is_narrow=self._is_narrow,
                    is_scaled=self._has_scaled and loss in self._scaled,
                    is_evaluating=is_evaluating,
                )
            except Exception as error:
                self._safely.note_failure(_LOSSES, error)
        if self._looked < _CHECKS:
            self._safely.call(_KEPT, self._look_for_gradients)

    def backward_ends(self) -> None:
        # Of several optimizers nothing is said; before the first step none is known.
        optimizer = self._missing.only_optimizer
        if self._changed.is_open and optimizer is not None:
            self._safely.call(_CHANGED, self._changed.backward_ends, optimizer)

    def _look_for_gradients(self) -> None:
        """Look in the first backward after a step for the gradients of that step."""
        before, self._looked_at = self._looked_at, self._session.steps
        optimizer = self._missing.only_optimizer
        if before != self._looked_at and optimizer is not None:
            self._looked += 1
            self._kept += has_gradients(optimizer, unread=False)

    def loss_scaled(self, scaled: Any, given: Any) -> None:
        del given
        if isinstance(scaled, torch.Tensor):
            self._scaled.put(scaled, True)
            self._has_scaled = True

    def zeroing_begins(self) -> None:
        if self._losses.has_waiting:
            self._losses.gradients_zeroed()

    def event_happens(self, kind: str) -> None:
        if self._changed.is_open and kind in (event_kinds.CLIP, event_kinds.UNSCALE):
            self._safely.call(_CHANGED, self._changed.gradients_used)
        elif kind == event_kinds.SCALER_UPDATE and not self._scales:
            self._scales = True
            self._safely.call(_SCALERS, self._scalers.updated, frames.caller())
        elif kind == event_kinds.SCALER_MADE:
            self._safely.call(_SCALERS, self._scalers.made, frames.caller())
        elif kind == event_kinds.ZERO_GRAD:
            self.zeroing_begins()

    def optimizer_made(self, optimizer: Any) -> None:
        del optimizer
        self._safely.call(
            _SCALERS, self._scalers.optimizer_made, frames.caller(), self._session.steps
        )

    def schedule_steps(self, schedule: Any) -> None:
        where = frames.location_of(frames.caller())
        self._safely.call(_SCHEDULES, self._schedules.add, schedule, where)

    def object_saved(self, value: Any) -> None:
        where = frames.location_of(frames.caller())
        self._safely.call(_SAVED, lambda: self._saved.append(look_at_saved(value, where)))

    def file_loaded_unsafely(self) -> None:
        self._unsafe.append(frames.location_of(frames.caller()))

    def step_begins(self, optimizer: Any) -> None:
        if self._losses.has_waiting:
            self._losses.step_begins()
        if _BATCH_SIZES not in self._safely.failed:
            try:
                self._batch_sizes.step_begins(optimizer)
            except Exception as error:
                self._safely.note_failure(_BATCH_SIZES, error)
        if id(optimizer) not in self._missing.seen:
            self._look_at_early_step(optimizer)

    def _look_at_early_step(self, optimizer: Any) -> None:
        """Look at one of the first steps of an optimizer."""
        if self._changed.is_open:
            self._safely.call(_CHANGED, self._changed.step_begins)
        if self._inputs.is_open:
            self._safely.call(INPUTS, self._inputs.step_begins, optimizer)
        self._safely.call(_GRADIENTS, self._missing.step_begins, optimizer)

    def _worker_facts(self) -> tuple[WorkerFacts, ...]:
        return tuple(each.facts() for each in self._workers.values())
