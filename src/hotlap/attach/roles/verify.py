"""Role `verify`: records what a verdict needs: digests, hyperparameters, captured steps."""

import json
import threading
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy

from hotlap import nested
from hotlap.attach.listener import State, hide_own_optimizer
from hotlap.attach.roles.carried import Carried, memory_of
from hotlap.attach.roles.evaluations import COPY, Evaluations
from hotlap.attach.roles.networks import Networks
from hotlap.attach.roles.observe import Watch
from hotlap.attach.roles.sampling import StepSampler
from hotlap.attach.roles.saves import saved_row
from hotlap.attach.roles.session import Part, Session
from hotlap.attach.seams import known_optimizers
from hotlap.trace import event_kinds
from hotlap.trial import digest
from hotlap.trial.averages import Averages
from hotlap.trial.custody import Custody
from hotlap.trial.gradient_custody import GradientCustody
from hotlap.trial.hyperparameters import group_hyperparameters
from hotlap.trial.late_starts import LateStarts
from hotlap.trial.untrained_custody import UntrainedCustody, start_of
from hotlap.trial.update_follower import follower_of


class Verify(Part):
    """Digests every batch, loss and weight of the first steps; keeps some steps whole.

    Options: `steps` (the horizon), `samples` (steps to keep whole), `folder` (where to keep them),
    and those of `hotlap.trial.update_follower.follower_of`.

    Args:
        session: what it is a part of, after `watch`.
        watch: knows models, optimizers and loaders.
    """

    wants_phases = True
    wants_evaluation = True
    wants_events = True
    wants_others = True

    def __init__(self, session: Session, watch: Watch) -> None:
        self.batches: list[str] = []
        self.loss_digests: list[int] = []
        self.weights: list[str] = []
        self.hyperparameters: list[str] = []
        self._session, self._watch = session, watch
        self._inputs = _Inputs()
        self._start: dict[str, list[Any]] = {}
        self._networks = Networks(watch.roots)
        self._untrained = UntrainedCustody()
        self._custody = Custody()
        self._late = LateStarts(session.config.options.get("drawn_with", 0))
        self._steps_at: list[int] = []
        """Updates before each step of the first optimizer."""
        self._carried = Carried()
        self._carried_moved: list[int] = []
        """Updates before forwards whose carried state is not what the model has returned."""
        self._gradients = GradientCustody(session.config.options.get("drawn_with", 0))
        self._scales: dict[int, float] = {}
        """Id of an optimizer -> what its gradients were divided by since their backward."""
        self._follower = follower_of(session.config.options, session.random_before)
        self._sampler = StepSampler(session.config.options)
        self._averages = Averages()
        self._saved = 0
        self._saves: list[Any] = []
        """Of each `torch.save`, see `saved_row`."""
        self._until: int | None = None
        """Steps at the end of the epoch in which the horizon was passed, 0 if that is far."""
        self._evaluations = Evaluations(self._sampler.folder)
        self._forwards = 0
        """Without gradients since the last update."""

    def optimizer_made(self, optimizer: Any) -> None:
        # Before a technique listens to the gradients too, and may change them.
        self._gradients.watch(_parameters_of(optimizer))

    def root_found(self, module: Any) -> None:
        self._evaluations.watch(module, len(self._watch.roots))
        self._note_start(str(len(self._watch.roots)), module)

    def _note_start(self, place: str, module: Any) -> None:
        # A model that comes later may have been made of what was trained by then.
        if not self.weights:
            started = start_of(module.named_parameters(), module.named_buffers())
            self._start |= {f"{place}.{name}": held for name, held in started.items()}

    def other_forward_begins(self, module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        name = self._networks.note_call(module)
        if name:
            self._note_start(name, module)
        self._sampler.other_forward(module, self._networks)
        self._untrained.forward_begins(self._networks.untrained())
        return inputs

    def batch_ends(self, iterator: Any, batch: Any) -> Any:
        if batch is not None:
            self.batches.append(digest.of_readable(batch))
            # An evaluation between two steps reads batches that belong to neither.
            if self._is_past() and self._begins_epoch(iterator):
                self._session.stop()
            is_trained_on = self._watch.steps == 0 or self._watch.loaders.is_trained_on(iterator)
            if not is_trained_on:
                self._evaluations.batch_ends(batch)
            if is_trained_on is not False:
                self._inputs.new_step()
                self._sampler.looks = bool(self._sampler.wanted) and self._follower.is_looking
                self._sampler.batch(
                    self._watch.steps, batch, self._networks, is_trained_on=is_trained_on
                )
        return batch

    def other_forward_ends(self, module: Any, output: Any) -> None:
        del module
        self._inputs.forward_ends(output)

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        del root
        self._untrained.forward_begins(self._networks.untrained())
        given = (*inputs, *nested.tensors(State.keywords)) if State.keywords else inputs
        self._inputs.forward_begins(given, len(self.weights))
        carried = self._carried.forward_begins(inputs)
        if self._carried.was_changed:
            self._carried_moved.append(len(self.weights))
        self._sampler.forward(self._watch.steps, inputs, self._networks, carried)
        return inputs

    def forward_ends(self, root: Any, output: Any) -> None:
        del root
        self._inputs.forward_ends(output)
        self._carried.forward_ends(output)
        self._sampler.forward_ends(output)

    def evaluation_forward_begins(self, module: Any) -> None:
        self._evaluations.evaluation_forward_begins(module)

    def evaluation_forward_ends(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        self._sampler.evaluation_ends()
        self._evaluations.evaluation_forward_ends(module, args, kwargs, output, len(self.weights))
        if threading.current_thread() is not threading.main_thread():
            return
        # Of many forwards between two updates, as where words are chosen one by one, a few.
        self._forwards += 1
        if not self._forwards & (self._forwards - 1):
            self._custody.evaluation()
            self._untrained.evaluation(self._networks.untrained())

    def backward_begins(self, loss: Any) -> None:
        self._sampler.backward_begins()
        self.loss_digests.append(digest.of_tensor(loss))

    def gradients_unscaled(self, optimizer: Any, scaler: Any) -> None:
        self._scales[id(optimizer)] = scaler.get_scale()

    def object_saved(self, value: Any) -> None:
        # In another thread how far training is by then is not the same twice.
        if threading.current_thread() is not threading.main_thread():
            return
        self._saves.append(saved_row(value, self._networks, len(self.weights)))
        self._custody.evaluation()

    def event_happens(self, kind: str) -> None:
        self._saved += kind == event_kinds.SAVE

    def step_begins(self, optimizer: Any) -> None:
        self.hyperparameters.append(json.dumps(group_hyperparameters(optimizer), sort_keys=True))
        stepper = self._watch.steppers.find(optimizer)
        if stepper is not None and stepper.number == 0:
            self._sampler.step_begins(self._watch.steps)
            self._steps_at.append(len(self.weights))
        assert stepper is not None, "an optimizer steps that has no place"
        trained = [p for each in known_optimizers() for p in _parameters_of(each)]
        others = self._networks.others
        for copy in self._averages.update_begins(self._watch.roots, trained, others):
            State.copies.put(copy, True)
            self._evaluations.watch(copy, COPY)
        scale = self._scales.pop(id(optimizer), 1.0)
        self._gradients.update_begins(stepper.number, _parameters_of(optimizer), scale)
        self._follower.update_begins(stepper.number, optimizer)
        is_odd = self._follower.has_gradients(stepper.number, optimizer)
        self._sampler.before_update(optimizer, len(self.hyperparameters) - 1, is_odd=is_odd)
        self._custody.update_begins(stepper.number, optimizer, _weights_of(optimizer))
        self._late.update_begins(_parameters_of(optimizer), len(self.weights))
        if not self.weights:
            self._follow_the_others(optimizer)

    def _follow_the_others(self, first: Any) -> None:
        """Note what each other optimizer begins from: a step of the first one may change it."""
        for optimizer in known_optimizers():
            if optimizer is not first and not any(map(is_lazy, _parameters_of(optimizer))):
                self._custody.follow(optimizer, _weights_of(optimizer))
                self._late.know(_parameters_of(optimizer))

    def step_ends(self, optimizer: Any) -> None:
        self._gradients.update_ends()
        self._sampler.after_update(optimizer)
        stepper = self._watch.steppers.find(optimizer)
        assert stepper is not None, "a step ended that had not begun"
        left = self._custody.update_ends(stepper.number, optimizer, _weights_of(optimizer))
        self.weights.append(left)
        with hide_own_optimizer():
            self._follower.update_ends(stepper.number, optimizer)
        self._untrained.update_ends(self._networks.untrained())
        self._forwards = 0
        if not self._watch.loaders.training:
            self._inputs.new_step()

    def step_failed(self, optimizer: Any) -> None:
        del optimizer
        self._gradients.update_ends()

    def step_done(self, optimizer: Any) -> None:
        del optimizer
        if self._watch.is_between_steps():
            self._sampler.looks = bool(self._sampler.wanted) and self._follower.is_looking
            self._sampler.mark_step_boundary(self._watch.steps)
        if self._is_past() and not self._may_be_evaluated():
            self._session.stop()

    def _begins_epoch(self, iterator: Any) -> bool:
        return self._watch.is_at_epochs_begin(iterator)

    def _is_past(self) -> bool:
        return self._watch.steps >= self._session.config.options["steps"]

    def _may_be_evaluated(self) -> bool:
        """True if the epoch ends before long, and nothing was evaluated so far."""
        if self._until is None:
            left = self._watch.loaders.left_in_epoch()
            horizon = self._session.config.options["steps"]
            # A script that makes its loader anew in each epoch has always some of one left.
            self._until = self._watch.steps + left if left is not None and left <= horizon else 0
        return not self._evaluations.forwards and self._watch.steps <= self._until

    def report(self) -> dict[str, Any]:
        self._sampler.finish()
        return {
            "record": {
                "steps": self._watch.steps,
                "batches": self.batches,
                "inputs": self._inputs.digests,
                "inputs_at": self._inputs.updates,
                "losses": self._watch.recorder.losses(),
                "loss_digests": self.loss_digests,
                "weights": self.weights,
                "start": self._start,
                "late_starts": self._late.rows,
                "steps_at": self._steps_at,
                **self._untrained.report(),
                **self._custody.report(),
                "carried_moved": self._carried_moved,
                "delivered": self._gradients.report(),
                "hyperparameters": self.hyperparameters,
                "epochs": self._watch.loaders.epochs(),
                "saved": self._saved,
                "saves": self._saves,
                "followed": self._follower.report(),
                "averages": self._averages.report(),
                "evaluated": self._evaluations.forwards,
                "evaluated_batches": self._evaluations.of_loaders,
                "without_gradients": self._evaluations.in_training,
                "evaluations": self._evaluations.write(),
                "samples": self._sampler.written,
                "not_sampled": self._sampler.reason,
            },
        }


def _weights_of(optimizer: Any) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in _parameters_of(optimizer)]


def _parameters_of(optimizer: Any) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class _Inputs:
    """Digests of what is fed to the model from outside.

    Only the first training forward of a step is digested, and of its inputs only what no model has
    computed: with several networks in a row, or a hidden state that is carried on, an input follows
    from the weights, and differs as soon as they are rounded in another way.
    """

    def __init__(self) -> None:
        self.digests: list[str] = []
        self.updates: list[int] = []
        """For each digest, how many updates came before it."""
        self._is_first = True
        self._computed: list[StorageWeakRef] = []

    def new_step(self) -> None:
        """What comes next is fed from outside."""
        self._is_first = True

    def forward_begins(self, inputs: tuple[Any, ...], updates: int) -> None:
        """Digest the inputs of a model that is trained."""
        if self._is_first and inputs:
            self.digests.append(digest.of_readable(inputs, self._is_computed))
            self.updates.append(updates)
        self._is_first = False

    def forward_ends(self, output: Any) -> None:
        """Remember what a model has computed, for as long as the script keeps it."""
        self._computed = [ref for ref in self._computed if not ref.expired()]
        found = map(memory_of, digest.tensors_in(output))
        self._computed += [memory for memory in found if memory is not None]

    def _is_computed(self, tensor: torch.Tensor) -> bool:
        if tensor.grad_fn is not None:
            return True
        # A script may differentiate by its inputs; what an optimizer updates is no such input.
        if tensor.requires_grad and any(
            tensor is each for optimizer in known_optimizers() for each in _parameters_of(optimizer)
        ):
            return True
        return memory_of(tensor) in self._computed
