"""Role `observe`: `Watch` times phases; facts of a script's loaders, models and optimizers."""

import collections
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hotlap.attach.data_parallel import Wrappers
from hotlap.attach.on_ranks import time_sums
from hotlap.attach.outside_parameters import Outside, outside_of
from hotlap.attach.roles.quiet_steps import QuietSteps
from hotlap.attach.roles.session import Part, Session
from hotlap.attach.roles.uncounted_steps import CAPTURED, HandUpdates, words_for
from hotlap.attach.seams import evaluates_first, known_optimizers
from hotlap.device import process_settings
from hotlap.task import TaskFacts
from hotlap.trace import event_kinds, frames, store
from hotlap.trace.clock import DATA, OTHER, PhaseClock
from hotlap.trace.denormals import count_denormals
from hotlap.trace.events import Events
from hotlap.trace.facts import (
    anchor_of,
    count_data_parallel,
    count_steps_per_epoch,
    device_of,
    loader_facts,
    place_of,
    plan_by_rounds,
    plan_steps,
)
from hotlap.trace.learning import Learning
from hotlap.trace.loaders import Loaders
from hotlap.trace.padded_batches import PaddedBatches
from hotlap.trace.recorder import Limits, Recorder
from hotlap.trace.rounds import Rounds
from hotlap.trace.settings import Settings
from hotlap.trace.steppers import Stepper, Steppers
from hotlap.usercode import files_to_report, keep_script

_LATER = 3
"""Steps after which parameters that are in no optimizer are looked at again."""
_LOOPS_AT_STEP = 3
_finds_anomalies = torch.is_anomaly_enabled
_thread = threading.get_ident
_Tensor = torch.Tensor


class Watch(Part):
    """Feeds a recorder with what the seams hear, and knows loaders, models and optimizers.

    With the option `folder` the trace is written there, and what happens is noted as events.

    Args:
        session: what it is a part of. Its option `started` is when the process was started.
        limits: when enough has been seen.
        then: called with this once enough has been seen; ends the trial if None.
    """

    wants_phases = True

    def __init__(
        self,
        session: Session,
        limits: Limits,
        then: "Callable[[Watch], None] | None" = None,
    ) -> None:
        options = session.config.options
        # The report may come after the script's end.
        keep_script()
        self.recorder = Recorder(
            limits,
            options["started"],
            lambda seconds: session.channel.send("step_time", seconds=seconds),
        )
        self.roots: list[Any] = []
        self.wrappers = Wrappers()
        self._others: list[Any] = []
        """Modules that no optimizer trains, called in training before the first step."""
        self.steppers = Steppers()
        self._session = session
        self._then = then or (lambda _: session.stop())
        self._folder = options.get("folder") if session.config.role == "observe" else None
        self.wants_events = self._folder is not None
        # In a profile, or a proof, an operator of hotlap's own would be found.
        self.recorder.reads_losses = self.wants_events
        self._may_capture = self.wants_events and process_settings.has_cuda()
        self.loaders = Loaders()
        self._backwards = self._optimizers = 0
        self._outside: dict[int, Outside] = {}
        """By the numbers of optimizers, what is to be looked at again."""
        self._by_hand = HandUpdates() if self.wants_events else None
        """None once an optimizer has stepped."""
        self._last: tuple[Callable[[], Any], Stepper | None] = (lambda: None), None
        """What stepped last, and its place in the loop."""
        self._stepping: Stepper | None = None
        """The place in the loop whose step is being made."""
        self._quiet: QuietSteps | None = None
        """Hears the ends of steps while nothing else is heard of them."""
        self.learning: Callable[[], Learning] = Learning
        """Returns what belongs into the trace beside what is heard here."""
        self._loops_before: list[list[frames.Loop]] = []
        self._loops: list[frames.Loop] = []
        self._stack: list[frames.Function] = []
        self._rounds, self._settings, self._padded = Rounds(), Settings(), PaddedBatches()

    @property
    def clock(self) -> PhaseClock:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.recorder.clock

    @property
    def events(self) -> Events | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        events = self.recorder.events
        return events if self.wants_events and not events.is_asleep else None

    @property
    def steps(self) -> int:
        """Steps taken: with several optimizers, one of each of them."""
        return self.recorder.steps

    def is_first(self, optimizer: Any) -> bool:
        """True if the steps of this optimizer, which has begun one, are counted as iterations."""
        stepper = self.steppers.find(optimizer)
        return stepper is not None and stepper.number == 0

    def is_at_epochs_begin(self, iterator: Any) -> bool:
        """True if no step was taken since the training loader of this iterator was begun anew."""
        known = self.loaders.find(iterator)
        return known is not None and known.training and known.starts[-1:] == [self.steps]

    def is_between_steps(self) -> bool:
        """True if every optimizer that is stepped has taken as many steps."""
        steppers = self.steppers.all
        taken = {stepper.steps for stepper in steppers}
        # Which ones are never stepped, wrappers of others or copies, the first round shows.
        shown = taken != {1} or len(steppers) == len(known_optimizers())
        return len(taken) == 1 and shown

    def hears(self, name: str) -> bool:
        wanted = {
            "forward_begins": self.recorder.setup_s == 0.0,
            "forward_ends": bool(self.wrappers.known),
            "step_begins": self._quiet is None or not self.recorder.events.is_asleep,
        }
        return super().hears(name) and wanted.get(name, True)

    def hearer(self, name: str) -> Callable[..., Any]:
        if name == "step_done" and self._quiet is not None and self.recorder.events.is_asleep:
            return self._quiet.step_done
        return super().hearer(name)

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        self.loaders.begin(loader, iterator, self.steps, self._optimizers)
        self.recorder.look_soon()
        if self._quiet is not None:
            self._quiet.until = 0.0
        if self.wants_events:
            self.recorder.events.step = self.steps
            self.recorder.events.note(event_kinds.LOADER_BEGUN, 3)

    def pass_begun(self, loader: Any, iterator: Any) -> None:
        self.iterator_made(loader, iterator)

    def batch_begins(self, iterator: Any) -> None:
        recorder = self.recorder
        known, clock = self.loaders.find(iterator), recorder.clock
        # A thread that reads ahead does not make the loop wait.
        if _thread() == recorder.thread:
            if recorder.setup_s == 0.0:
                recorder.begin()
            clock.note((DATA if known is None or known.feeds_steps else OTHER, clock.now()))
        if known is not None and not known.where:
            known.where = frames.location_of(frames.caller())
            known.function = next(iter(frames.stack(frames.caller())), None)

    def batch_ends(self, iterator: Any, batch: Any) -> Any:
        known = None if batch is None else self.loaders.read(iterator)
        if known is not None and known.training and self.recorder.is_timed:
            self._padded.look(batch, frames.caller())
        clock = self.recorder.clock
        if _thread() == self.recorder.thread:
            clock.note((OTHER, clock.now()))
        return batch

    def optimizer_made(self, optimizer: Any) -> None:
        del optimizer
        self._optimizers += 1

    def root_found(self, module: Any) -> None:
        if not self.roots:
            self.recorder.run_on(place_of([module]))
        time_sums(module)
        self.wrappers.add(module)
        self.roots.append(module)

    def other_called(self, module: Any) -> None:
        is_known = any(module is other for other in self._others)
        if not is_known and next(module.parameters(), None) is not None:
            self._others.append(module)

    def forward_ends(self, root: Any, output: Any) -> None:
        del output
        self.wrappers.forward_ends(root)

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        del root
        # In a script without a loader training begins here.
        self.recorder.begin()
        self._session.bind()
        return inputs

    def evaluation_forward_ends(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        del args, kwargs, output
        self.recorder.note_evaluation(frames.caller(), is_training=module.training)
        self.loaders.evaluate()

    def backward_begins(self, loss: Any) -> None:
        recorder = self.recorder
        if self.wrappers.known:
            self.wrappers.backward_begins()
        self._backwards += 1
        if recorder.is_beginning:
            recorder.thread = _thread()
            self._settings.note_backward(frames.caller())
            recorder.note_part(frames.caller())
        if _finds_anomalies():
            self._settings.finds_anomalies = True
        self.loaders.train(evaluates_first=evaluates_first())
        by_hand = self._by_hand
        if by_hand is not None and by_hand.backward_begins([*self.roots, *self._others]):
            error = words_for(frames.location_of(frames.caller()))
            self._session.channel.send("refused", error=error)
        # In most runs that are observed it is a plain loss, whose number is read at once.
        if recorder.reads_losses and type(loss) is _Tensor and loss.is_cpu and loss.numel() == 1:
            recorder.add_loss(loss.item())
        else:
            recorder.note_loss(loss)

    def event_happens(self, kind: str) -> None:
        if self.wants_events:
            self.recorder.events.step = self.steps
            self.recorder.events.note(kind, 3)

    def step_begins(self, optimizer: Any) -> None:
        if self._may_capture and process_settings.is_capturing():
            # It would be waited for in vain: a replay calls no optimizer.
            self._session.channel.send("refused", error=CAPTURED)
        (last, stepper), self._by_hand = self._last, None
        if stepper is None or last() is not optimizer:
            stepper = self.steppers.find_or_place(optimizer)
            self._last = weakref.ref(optimizer), stepper
        # With several optimizers an iteration ends at the last step before the first one's next.
        if stepper.number == 0 and len(self.steppers.all) > 1:
            self.recorder.commit()
        if self.recorder.is_beginning:
            self.recorder.note_part(frames.caller())
        self._stepping = stepper

    def step_failed(self, optimizer: Any) -> None:
        del optimizer
        self._stepping = None

    def step_done(self, optimizer: Any) -> None:
        if self._quiet is not None:
            # Nobody has told that it began.
            self.step_begins(optimizer)
        stepper, self._stepping = self._stepping, None
        assert stepper is not None, "a step ended that had not begun"
        recorder = self.recorder
        if stepper.steps == 0:
            self._settings.note_gradients(optimizer)
            found = outside_of(optimizer, [*self.roots, *self._others], known_optimizers())
            stepper.facts = found.added_to(stepper.facts)
            if found.left:
                self._outside[stepper.number] = found
        elif stepper.steps == _LATER and stepper.number in self._outside:
            found = self._outside.pop(stepper.number).look_again()
            stepper.facts = found.added_to(stepper.facts)
        is_alone = len(self.steppers.all) == 1
        stepper.steps = recorder.steps + 1 if is_alone else stepper.steps + 1
        if is_alone:
            recorder.end_step(self.loaders.starts)
        else:
            recorder.clock.enter(OTHER)
            if stepper.number == 0:
                recorder.count_step()
            recorder.mark_step()
        steps = recorder.steps
        if self._others:
            self._others.clear()
        if steps < _LOOPS_AT_STEP and stepper.number == 0:
            self._loops_before.append(frames.loops_around(frames.caller()))
        elif steps == _LOOPS_AT_STEP and not self._loops:
            self._loops = frames.loops_around(frames.caller())
            self._stack = frames.stack(frames.caller())
        if not self.loaders.starts and self.wants_events and self._rounds.is_open:
            self._rounds.step_done(steps, frames.loops_around(frames.caller()))
        if stepper.number == 0 and self.wrappers.known:
            self.wrappers.step_done(steps)
        if not is_alone:
            if stepper.number == 0:
                recorder.tell_step()
            recorder.check_limits(self.loaders.starts)
        self._be_quiet()
        if recorder.is_over:
            self._then(self)

    def _be_quiet(self) -> None:
        """Note only the ends of the next steps, where nothing else of them is wanted."""
        recorder = self.recorder
        is_simple = len(self.steppers.all) == 1 and not self.wrappers.known
        may_be = (
            is_simple
            and bool(self.loaders.starts)
            and recorder.may_be_quiet()
            and not self._may_capture
        )
        if may_be and self._quiet is not None and self._quiet.optimizer is self._last[0]:
            self._quiet.until = recorder.looks_at
        elif may_be or self._quiet is not None:
            self._quiet = QuietSteps(recorder, self._last[0], self.step_done) if may_be else None
            self._session.bind_steps()

    def report(self) -> dict[str, Any]:
        self.recorder.close()
        if self._folder is not None:
            training = self.loaders.training
            batches = sum(known.batches for known in training)
            anchor = anchor_of(self.steps, self._backwards, batches, len(self.steppers.all))
            # Of the loader that the steps of an epoch are counted by.
            trace = self.recorder.trace(self.facts(), anchor, [k.starts for k in training[:1]])
            learning = self.learning()
            problems = (*learning.problems, *self._padded.problems())
            learning = replace(learning, problems=problems)
            also = {"learning": learning, "evaluates_first": evaluates_first()}
            store.write(replace(trace, **also), Path(self._folder))
        return {"steps": self.steps, "files": files_to_report()}

    def facts(self) -> TaskFacts:
        """Return what the run has shown of its task."""
        layers = collections.Counter(
            type(module).__name__ for root in self.roots for module in root.modules()
        )
        training = self.loaders.training
        per_epoch = count_steps_per_epoch(training, self.steps)
        planned, why = plan_steps(self._loops, self._stack, training, per_epoch, self._loops_before)
        if not training:
            per_epoch = self._rounds.steps
            if planned is None:
                planned, why = plan_by_rounds(self._rounds, self._loops) or (planned, why)
        page_faults, system_share = self.recorder.page_means()
        device_bytes, device_room = process_settings.memory_of_process()
        return TaskFacts(
            device=device_of(self.roots),
            threads=torch.get_num_threads(),
            layers=dict(layers),
            loaders=tuple(loader_facts(known, self.steps) for known in self.loaders.all),
            optimizers=tuple(stepper.facts for stepper in self.steppers.all),
            steps_per_epoch=per_epoch,
            planned_steps=planned,
            planned_why=why,
            page_faults=page_faults,
            system_share=system_share,
            denormals=count_denormals(known_optimizers()),
            data_parallel=count_data_parallel(self.roots),
            ranks=self._session.ranks,
            exposed_ms=self.wrappers.exposed_ms(self.roots, self.steps),
            sums=self.wrappers.facts(self.steps),
            device_bytes=device_bytes,
            device_room=device_room,
            padding=self._padded.facts(),
            **self._settings.facts(self.roots),
        )
