"""Role `own_place`: repeats captured steps where the script itself comes to them."""

from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from hotlap import nested
from hotlap.attach.roles.carried import Carried
from hotlap.attach.roles.observe import Watch
from hotlap.attach.roles.repetition import Findings, Gradients, Repetition, Step
from hotlap.attach.roles.sampling import copy_for_storage
from hotlap.attach.roles.session import Part, Session
from hotlap.trial.repeat_in_dtype import own_dtype
from hotlap.trial.repetition_ways import EXACT


class AtOwnPlace(Part):
    """Repeats steps whose batches come from no DataLoader, and so cannot be handed to the script.

    The script draws them itself: it is put where the captured run was when the step before had
    ended, in its loop and in its random numbers, and must come to the same inputs. So each place is
    passed once only, and a trial is held for each of the ways in which steps are repeated: those of
    the plain script write what they find, and that in the reference's dtype comes last.

    What the model itself has returned before, as the hidden state of a recurrent network, depends
    on how the steps before were rounded: the forward is given what was captured, and what it makes
    of that is compared like buffers.

    Options: those of `Reference`; `way`; and `repeated`, the folder that the first trials write to
    and the last one reads from.

    Args:
        session: what it is a part of, after `watch`.
        watch: knows the models.
    """

    wants_phases = True
    wants_others = True

    def __init__(self, session: Session, watch: Watch) -> None:
        options = session.config.options
        self._watch = watch
        self._findings = Findings(session, watch)
        self._wide = self._findings.dtype
        self._queue = list(options["samples"])
        self._folder, self._way = Path(options["repeated"]), options["way"]
        self._waiting: Repetition | None = None
        """The next step's, before it begins."""
        self._repeated: Repetition | None = None
        self._is_known = False
        """True if the inputs of the step's first forward were seen to be those of the capture."""
        self._carried = Carried()

    def batch_ends(self, iterator: Any, batch: Any) -> Any:
        if batch is None or not self._watch.loaders.is_trained_on(iterator):
            return batch
        self._begin()
        # What is drawn like it is drawn in its dtype, and a loss may take no others.
        return batch if self._repeated is None else nested.map_tensors(batch, self._repeated.cast)

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        self._begin()
        carried = self._findings.run_guarded(lambda: self._carried.forward_begins(inputs))
        current = self._repeated
        if current is None:
            return self._narrow(root, inputs)
        if not self._is_known:
            inputs = self._findings.run_guarded(lambda: self._recognize(current, inputs, carried))
        self._findings.run_guarded(lambda: current.load(self._findings.networks))
        return nested.map_tensors(inputs, current.cast)

    def _narrow(self, module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs of a step that is not repeated."""
        own = own_dtype(chain(module.parameters(), module.buffers()))
        # A batch may have been read ahead, in a step that was repeated.
        return nested.map_tensors(inputs, lambda t: t.to(own) if t.dtype == self._wide else t)

    def other_forward_begins(self, module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        networks = self._findings.networks
        networks.note_call(module)
        # The step that is waited for may begin with this, an evaluation may as well.
        current = self._repeated or self._waiting
        if current is None:
            return self._narrow(module, inputs)
        self._findings.run_guarded(lambda: current.load(networks, module))
        return nested.map_tensors(inputs, current.cast_beside)

    def forward_ends(self, root: Any, output: Any) -> None:
        del root
        self._findings.run_guarded(lambda: self._carried.forward_ends(output))
        current = self._repeated
        if current is not None:
            self._findings.run_guarded(lambda: current.state.note_returned(output))

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._repeated, self._is_known = waiting, False
            self._findings.run_guarded(lambda: waiting.begin(self._findings.networks))

    def _recognize(
        self, repeated: Repetition, inputs: tuple[Any, ...], carried: dict[int, int]
    ) -> tuple[Any, ...]:
        """Return the inputs of the step's first forward, with the captured state of the model."""
        self._is_known = True
        inputs = repeated.state.put_into(inputs, carried)
        if not repeated.has_inputs(inputs):
            self._findings.end_with(
                "when it runs again, the script computes a different batch for step "
                f"{repeated.meta['step'] + 1}"
            )
        return inputs

    def step_begins(self, optimizer: Any) -> None:
        current = self._repeated
        if current is not None:
            self._findings.run_guarded(lambda: current.note_update(optimizer))

    def step_ends(self, optimizer: Any) -> None:
        current = self._repeated
        if current is not None:
            self._findings.run_guarded(lambda: current.take_over(optimizer))

    def step_done(self, optimizer: Any) -> None:
        del optimizer
        self._findings.run_guarded(self._pass_on)

    def _pass_on(self) -> None:
        if not self._watch.is_between_steps():
            return
        current, self._repeated = self._repeated, None
        if current is not None:
            current.end(self._findings.networks)
            if current.is_whole:
                self._compare(current)
        if not self._queue:
            self._findings.finish_trial()
        sample = self._queue[0]
        if sample["step"] == self._watch.steps:
            self._queue.pop(0)
            self._waiting = self._findings.repetition(sample, self._way)
            self._waiting.draw_again()

    def _compare(self, repeated: Repetition) -> None:
        if self._way != EXACT:
            save_file(_pack(repeated.gradients, repeated.buffers), self._file(self._way, repeated))
            self._findings.count_whole()
            return
        steps = {
            way: _unpack(load_file(self._file(way, repeated)), repeated.gradients)
            for way in self._findings.ways
            if way != EXACT
        }
        steps[EXACT] = (repeated.gradients, repeated.buffers)
        self._findings.compare(repeated, steps)

    def _file(self, way: str, repeated: Repetition) -> Path:
        return self._folder / f"{way}-{repeated.meta['step']:06d}.safetensors"

    def report(self) -> dict[str, Any]:
        return self._findings.report()


def _pack(gradients: list[Gradients], buffers: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    tensors = {f"buffer.{name}": buffer for name, buffer in buffers.items()}
    for number, of_update in enumerate(gradients):
        for key, gradient in of_update.items():
            if gradient is not None:
                tensors[f"grad.{number}.{key}"] = gradient
    return {name: copy_for_storage(tensor) for name, tensor in tensors.items()}


def _unpack(tensors: dict[str, torch.Tensor], like: list[Gradients]) -> Step:
    gradients: list[Gradients] = [
        {key: tensors.get(f"grad.{number}.{key}") for key in of_update}
        for number, of_update in enumerate(like)
    ]
    head = "buffer."
    buffers = {k.removeprefix(head): v for k, v in tensors.items() if k.startswith(head)}
    return gradients, buffers
