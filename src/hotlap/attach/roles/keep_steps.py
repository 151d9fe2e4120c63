"""Part `KeepSteps`: keeps whole steps of a process whose techniques are switched live."""

from collections.abc import Callable
from typing import Any

from hotlap.attach.roles.loop_ends import LoopEnds
from hotlap.attach.roles.networks import Networks
from hotlap.attach.roles.observe import Watch
from hotlap.attach.roles.sampling import StepSampler
from hotlap.attach.roles.session import Part
from hotlap.trial.hyperparameters import group_hyperparameters


class KeepSteps(Part):
    """Keeps steps for the role `reference`, which finds their hyperparameters beside them.

    Args:
        watch: has watched the process, and knows modules and loaders.
        options: those of `StepSampler`, and `after`, the steps that were taken before.
        then: called with `rows`, what was kept, the `reason` where something was not, and `taken`,
            the steps that it took, once the last of them is over.
    """

    wants_evaluation = True
    wants_others = True

    def __init__(
        self,
        watch: Watch,
        options: dict[str, Any],
        then: Callable[..., None],
    ) -> None:
        self._watch, self._then = watch, then
        self._networks = Networks(watch.roots)
        self._sampler = StepSampler(options)
        self._last = max(options["samples"])
        self._ends = LoopEnds()
        self._after = self._steps = options["after"]
        self._hyperparameters: list[Any] = []

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        self._watch.loaders.place(loader, iterator)

    def root_found(self, module: Any) -> None:
        self._watch.roots.append(module)

    def batch_ends(self, iterator: Any, batch: Any) -> Any:
        if batch is not None:
            loaders = self._watch.loaders
            loaders.read(iterator)
            is_trained_on = loaders.is_trained_on(iterator)
            self._sampler.batch(self._steps, batch, self._networks, is_trained_on=is_trained_on)
        return batch

    def other_forward_begins(self, module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        # Only those of a class that is trained, too: nobody has looked for others before.
        self._networks.note_call(module)
        self._sampler.other_forward(module, self._networks)
        return inputs

    def evaluation_forward_ends(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        del module, args, kwargs, output
        self._watch.loaders.evaluate()
        self._sampler.evaluation_ends()

    def backward_begins(self, loss: Any) -> None:
        del loss
        self._watch.loaders.train()
        self._sampler.backward_begins()

    def step_begins(self, optimizer: Any) -> None:
        self._sampler.step_begins(self._steps)
        self._hyperparameters.append(group_hyperparameters(optimizer))
        self._sampler.before_update(optimizer, len(self._hyperparameters) - 1)

    def step_ends(self, optimizer: Any) -> None:
        self._sampler.after_update(optimizer)

    def step_done(self, optimizer: Any) -> None:
        self._steps += self._ends.ends(optimizer)
        if self._steps <= self._last + 1:
            return
        # A step ends before the next one's batch: another optimizer may belong to it.
        self._sampler.finish()
        rows = [
            {**row, "hyperparameters": [self._hyperparameters[at] for at in row["updates"]]}
            for row in self._sampler.written
        ]
        self._then(rows=rows, reason=self._sampler.reason, taken=self._steps - self._after)
