"""Role `reference`: repeats captured steps without a plan, on batches handed to the script."""

from typing import Any

from hotlap import nested
from hotlap.attach.roles.observe import Watch
from hotlap.attach.roles.repetition import Findings, Repetition, Step
from hotlap.attach.roles.session import Part, Session


class Reference(Part):
    """Options: `samples` [{file, hyperparameters}], `evaluations` (files), `dtype` (`float64` or
    `float32`), `rounding` and `memory_format`.

    Every sample takes two steps of the script: one in the reference's dtype, and one without a plan
    whose error is what honest rounding looks like for this very step: in float32 if `rounding`,
    else in bfloat16 as autocast computes it. With a `memory_format` a third one is taken like the
    second, with the weights in that layout. The script's first step is its own: it shows which
    modules are trained, and from which loader.

    Args:
        session: what it is a part of, after `watch`.
        watch: knows models and loaders.
    """

    wants_phases = True
    wants_others = True

    def __init__(self, session: Session, watch: Watch) -> None:
        self._watch = watch
        self._findings = Findings(session, watch)
        self._queue = [
            (sample, way)
            for sample in session.config.options["samples"]
            for way in self._findings.ways
        ]
        self._repeated: Repetition | None = None
        self._steps: dict[str, Step] = {}

    def batch_ends(self, iterator: Any, batch: Any) -> Any:
        if batch is None or self._watch.steps == 0:
            return batch
        if not self._watch.loaders.is_trained_on(iterator):
            return batch
        return self._findings.run_guarded(self._replace_batch)

    def _replace_batch(self) -> Any:
        current = self._repeated
        if current is not None and current.updates:
            # The script has begun its next step.
            self._end(current)
        if self._repeated is None:
            if not self._queue:
                self._findings.finish_trial()
            self._repeated = self._findings.repetition(*self._queue[0])
            self._repeated.begin(self._findings.networks)
        return self._repeated.batch()

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        del root
        current = self._repeated
        if current is None:
            return inputs
        self._findings.run_guarded(lambda: current.load(self._findings.networks))
        return nested.map_tensors(inputs, current.cast)

    def other_forward_begins(self, module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        networks, current = self._findings.networks, self._repeated
        networks.note_call(module)
        if current is None:
            return inputs
        self._findings.run_guarded(lambda: current.load(networks, module))
        return nested.map_tensors(inputs, current.cast_beside)

    def step_begins(self, optimizer: Any) -> None:
        current = self._repeated
        if current is not None:
            self._findings.run_guarded(lambda: current.note_update(optimizer))

    def step_ends(self, optimizer: Any) -> None:
        current = self._repeated
        if current is not None:
            self._findings.run_guarded(lambda: current.take_over(optimizer))
            if current.is_whole:
                self._findings.run_guarded(lambda: self._end(current))

    def step_done(self, optimizer: Any) -> None:
        del optimizer
        if not self._queue:
            self._findings.run_guarded(self._findings.finish_trial)

    def _end(self, repeated: Repetition) -> None:
        """Compare, if the script has taken the step as the captured run took it; else try again."""
        repeated.end(self._findings.networks)
        self._repeated = None
        if not repeated.is_whole:
            return
        _, way = self._queue.pop(0)
        self._steps[way] = (repeated.gradients, repeated.buffers)
        if len(self._steps) == len(self._findings.ways):
            self._findings.compare(repeated, self._steps)
            self._steps = {}

    def report(self) -> dict[str, Any]:
        return self._findings.report()
