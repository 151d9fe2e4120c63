"""Role `verify` of a recipe: digests of the run, and single steps captured to be repeated.

The engine owns the step, so a sampled step is kept as what a checkpoint holds before it (weights,
optimizer, random states, by name), its batch, its gradient, and the weights after it. It is
repeated by the engine itself, under no plan, from that state.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from hotlap import nested
from hotlap.checkpoint.shards import local_of
from hotlap.engine.build import BuiltRun
from hotlap.engine.evaluate import evaluate
from hotlap.engine.roles.named_tensors import (
    NamedTensors,
    gradients,
    trained_parameters,
    trained_weights,
    untrained_tensors,
)
from hotlap.engine.roles.trial import Trial
from hotlap.engine.state.content import capture
from hotlap.engine.state.position import Position
from hotlap.engine.step.passes import trained_tensors
from hotlap.engine.steps import StepDone, steps_of
from hotlap.sequences.padding import Pad
from hotlap.trial import digest
from hotlap.trial.averages import Averages
from hotlap.trial.custody import Custody
from hotlap.trial.gradient_custody import GradientCustody
from hotlap.trial.hyperparameters import group_hyperparameters
from hotlap.trial.step_files import write_step
from hotlap.trial.untrained_custody import UntrainedCustody, start_of
from hotlap.trial.update_follower import follower_of

EVALUATED = 32
"""Held-out batches that a proof evaluates, at most."""


def verify(trial: Trial) -> None:
    """Digest every batch, loss and weight of the first steps; keep some steps whole.

    Options: `steps` (the horizon), `samples` (steps to keep whole), `folder` (where to keep them).
    Each is handed over with a message `sample`, and the run goes on when that has been answered: it
    may be removed by then.
    """
    fed = _FeedDigests(trial.task.collate)
    delivered = _Delivered(trial.config.options.get("drawn_with", 0))
    task = trial.task
    heard = replace(task, model=delivered.wrap_model(task.model), loss=fed.wrap_loss(task.loss))
    built = trial.build(heard)
    run = _Recorded(trial, built, fed, delivered)
    run.take(trial.config.options["steps"])
    run.evaluate()
    trial.report(built, steps=len(run.weights), record=run.record())


class _FeedDigests:
    """Digests of what each step was fed: what its loss was called with, micro-batches joined."""

    def __init__(self, collate: Any = None) -> None:
        self.digests: list[str] = []
        self._collate = collate
        self._given: list[Any] = []
        self._seen: list[Any] = []

    def wrap_loss(self, loss: Any) -> Any:
        """Return the task's loss, with an ear in it."""

        def listening(model: Any, batch: Any) -> Any:
            # In evaluation mode it is the engine that looks whether a loss is a mean.
            if torch.is_grad_enabled() and model.training:
                self._seen.append(batch)
            return loss(model, batch)

        return listening

    def begin(self, micros: list[tuple[int, Any]]) -> None:
        """Remember what the feed hands out for a step, and forget the one before."""
        self._given = [batch for _, batch in micros]
        self._seen = []

    def end(self, replayed: list[Any]) -> None:
        """Digest the step; by what it has read where it called no loss, as a replayed graph."""
        read = self._seen or replayed or self._given
        self.digests.append(digest.of_nested(join_micro_batches(read, self._collate)))
        self._given, self._seen = [], []


class _Delivered:
    """Follows the gradients of a recipe's model from its making on, before any technique acts."""

    def __init__(self, seed: int) -> None:
        self._built: BuiltRun | None = None
        self._micros, self._is_missed = 1, True
        self.custody = GradientCustody(seed, is_capturing=self._is_capturing)

    def wrap_model(self, make: Callable[[], Any]) -> Callable[[], Any]:
        """Return the task's `model`, whose gradients are followed."""

        def make_followed() -> Any:
            model = make()
            if isinstance(model, torch.nn.Module):
                self.custody.watch(model.parameters())
            return model

        return make_followed

    def _is_capturing(self) -> bool:
        return self._built is not None and self._built.hardware.is_capturing()

    def follow(self, built: BuiltRun) -> None:
        """Follow the updates of a run, too."""
        self._built = built

    def begin_step(self, micros: int) -> None:
        """A step of so many micro-batches begins."""
        # The update before may have been left out.
        self.custody.update_ends()
        self._micros, self._is_missed = micros, True

    def begin_update(self) -> None:
        """The optimizer is about to step, and this is not recorded as a graph."""
        assert self._built is not None, "a step begins before the run is built"
        if self._built.weights:
            return
        self._is_missed = False
        parameters = trained_tensors(self._built.optimizer)
        self.custody.update_begins(0, parameters, self._divisor())

    def end_step(self) -> None:
        """A step has ended whose update was taken."""
        assert self._built is not None, "a step ends before the run is built"
        if self._is_missed and self._built.weights:
            self.custody.miss_update(0, "copies of the parameters are trained")
        elif self._is_missed and self._built.step.target.graph is not None:
            self.custody.miss_update(0, "a graph of the whole step is replayed")

    def _divisor(self) -> float:
        """Return what the engine has divided the gradients by since they were computed."""
        assert self._built is not None, "a step begins before the run is built"
        passes, scaler = self._built.step.passes, self._built.step.target.scaler
        scale = 1.0 if scaler is None else float(scaler.get_scale())
        # The loss of a single micro-batch is divided before its backward.
        items: Any = passes.items if self._micros > 1 else None
        return scale if items is None else scale * float(items)


def join_micro_batches(batches: list[Any], collate: Any = None) -> Any:
    """Return the batch that these are the parts of, or all of them where they do not fit.

    Args:
        batches: the micro-batches of a step.
        collate: the task's; where it pads, each of them may be padded to another length.
    """
    leaves: list[list[torch.Tensor]] = [[] for _ in batches]
    specs = [
        nested.flatten_into(batch, found) for batch, found in zip(batches, leaves, strict=True)
    ]
    columns = [list(column) for column in zip(*leaves, strict=False)]
    fits = specs[0] is not None and all(spec == specs[0] for spec in specs)
    if not fits:
        return batches
    if not all(map(_can_join, columns)):
        return _join_padded(batches, collate)
    whole = [torch.cat(column) if len(column) > 1 else column[0] for column in columns]
    return [repr(specs[0]), whole]


def _join_padded(batches: list[Any], collate: Any) -> Any:
    if not isinstance(collate, Pad):
        return batches
    try:
        return join_micro_batches([collate.join(batches)])
    except (KeyError, IndexError, TypeError, AttributeError, RuntimeError):
        # Another batch than `collate` made, by the task's `batch_transform`.
        return batches


def _can_join(column: list[torch.Tensor]) -> bool:
    return len(column) == 1 or all(
        leaf.dim() > 0 and leaf.shape[1:] == column[0].shape[1:] for leaf in column
    )


class _Recorded:
    """A run while it is recorded, from outside the step."""

    def __init__(
        self, trial: Trial, built: BuiltRun, fed: _FeedDigests, delivered: _Delivered
    ) -> None:
        self.trial, self.built, self.fed, self.delivered = trial, built, fed, delivered
        self.losses: list[torch.Tensor] = []
        self.loss_digests: list[int] = []
        self.weights: list[str] = []
        self.hyperparameters: list[str] = []
        self.sampler = _Sampler(built, trial)
        self._evaluated: list[list[Any]] = []
        self._epochs = 0
        self._start = start_of(trained_parameters(built).items(), built.model.named_buffers())
        self._untrained = UntrainedCustody()
        self._custody = Custody()
        self._follower = follower_of(trial.config.options)
        self._averages = Averages()
        delivered.follow(built)
        self._original = built.source.epoch
        built.source.epoch = self._epoch  # pyright: ignore[reportAttributeAccessIssue]
        built.optimizer.register_step_pre_hook(lambda *_: self._update_begins())

    def _update_begins(self) -> None:
        self.sampler.at_update()
        # A replayed graph has no place to look in.
        if not self.built.hardware.is_capturing():
            self.delivered.begin_update()
            self._custody.look(0, self.built.optimizer, trained_weights(self.built).values())

    def _epoch(self, *args: Any) -> Iterator[Any]:
        self._epochs += 1
        for micros in self._original(*args):
            self.fed.begin(micros)
            self.delivered.begin_step(len(micros))
            self.built.step.settle()  # The groups' rates are looked at.
            self.hyperparameters.append(
                json.dumps(group_hyperparameters(self.built.optimizer), sort_keys=True)
            )
            self.sampler.looks = bool(self.sampler.wanted) and self._follower.is_looking
            self.sampler.before_step(len(self.weights), micros)
            trained = trained_tensors(self.built.optimizer)
            self._averages.update_begins([self.built.model], trained)
            self._follower.update_begins(0, self.built.optimizer)
            self._custody.update_begins(
                0, self.built.optimizer, trained_weights(self.built).values()
            )
            self._untrained.forward_begins(untrained_tensors(self.built).items())
            yield micros

    def take(self, horizon: int) -> None:
        """Train to the horizon, or the task's end."""
        for step in steps_of(self.built):
            replayed = self.built.step.executor.replayed
            self.fed.end([batch for _, batch in replayed or ()])
            self.losses.append(step.loss.detach())
            self.loss_digests.append(digest.of_tensor(step.loss))
            weights = trained_weights(self.built).values()
            self.weights.append(self._custody.update_ends(0, self.built.optimizer, weights))
            self._untrained.update_ends(untrained_tensors(self.built).items())
            # What the update got is still there.
            is_odd = self._follower.has_gradients(0, self.built.optimizer)
            if step.is_taken:
                self.delivered.end_step()
                self._follower.update_ends(0, self.built.optimizer)
            self.sampler.after_step(step, is_odd=is_odd)
            if step.number >= horizon:
                return

    def evaluate(self) -> None:
        """Evaluate where the run has come to, and let that be repeated."""
        if self.built.held_out is None:
            return
        read = _Digested(self.built.held_out, self.trial.task.collate)
        self.built.held_out = read  # pyright: ignore[reportAttributeAccessIssue]
        measures = evaluate(self.built)
        given = digest.of_nested(list(measures.values()))
        self._evaluated.append([0, len(self.weights), read.digest(), given])
        self.sampler.take_measures(len(self.weights), measures)

    def record(self) -> dict[str, Any]:
        """Return the record as `lab.verdict` reads it."""
        return {
            "batches": self.fed.digests,
            "inputs": [],
            "losses": [float(loss) for loss in self.losses],
            "loss_digests": self.loss_digests,
            "weights": self.weights,
            "start": self._start,
            **self._untrained.report(),
            **self._custody.report(),
            "delivered": self.delivered.custody.report(),
            "hyperparameters": self.hyperparameters[: len(self.weights)],
            "evaluated": self._evaluated,
            "reads_fixed": True,
            "epochs": self._epochs,
            "averages": self._averages.report(),
            "followed": self._follower.report(),
            "not_sampled": self.sampler.reason,
        }


class _Digested:
    """Held-out samples that are read with an ear in between; in all else they are themselves."""

    def __init__(self, source: Any, collate: Any) -> None:
        self._source, self._collate = source, collate
        self._read: list[str] = []

    def epoch(self, *args: Any) -> Iterator[Any]:
        for micros in islice(self._source.epoch(*args), EVALUATED):
            # A plan may split them.
            whole = join_micro_batches([batch for _, batch in micros], self._collate)
            self._read.append(digest.of_nested(whole))
            yield micros

    def digest(self) -> str:
        """Return the digest of all that was read."""
        return digest.of_digests(self._read)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


class _Sampler:
    """Keeps single steps whole, each in a file of its own."""

    def __init__(self, built: BuiltRun, trial: Trial) -> None:
        options = trial.config.options
        self.built, self.channel = built, trial.channel
        self.wanted: set[int] = set(options.get("samples", ()))
        self.folder = Path(options["folder"])
        self.reason = "" if self.wanted else "no steps were requested"
        self.looks = False
        """True while steps that nobody asked for are begun too: they may turn out to be odd."""
        self._tensors: NamedTensors = {}
        self._meta: dict[str, Any] = {}

    def before_step(self, step: int, micros: list[tuple[int, Any]]) -> None:
        """Keep state and batch, if the step is one of those wanted."""
        self._tensors, self._meta = {}, {}
        if step not in self.wanted and not self.looks:
            return
        specs = []
        for number, (_, batch) in enumerate(micros):
            leaves: list[torch.Tensor] = []
            specs.append(nested.flatten_to_json(batch, leaves))
            if specs[-1] is None:
                self.reason, self.wanted = nested.NOT_IN_JSON, set()
                return
            for position, leaf in enumerate(leaves):
                self._keep(f"batch/{number}/{position}", leaf)
        self._keep_state(step)
        self._meta |= {"specs": specs, "counts": [count for count, _ in micros]}

    def at_update(self) -> None:
        """Keep the gradient as the update gets it, clipped and unscaled."""
        # A replayed graph leaves its gradients where `after_step` finds them.
        if self._meta and not self.built.hardware.is_capturing():
            for name, gradient in gradients(self.built).items():
                # Where it is: a copy to the host would wait, and a step may be watched for that.
                self._tensors[f"gradient/{name}"] = gradient.detach().clone()

    def after_step(self, step: StepDone, *, is_odd: bool) -> None:
        """Keep the weights, and write the file, if the step was asked for or is odd."""
        if not self._meta or not step.is_taken:
            return
        if not is_odd and self._meta["step"] not in self.wanted:
            return
        if not any(name.startswith("gradient/") for name in self._tensors):
            self.at_update()
        for name, tensor in list(self._tensors.items()):
            if name.startswith("gradient/"):
                self._keep(name, tensor)
        for name, weight in trained_weights(self.built).items():
            self._keep(f"after/{name}", weight)
        for name, buffer in self.built.model.named_buffers():
            self._keep(f"buffer/{name}", buffer)
        self._hand_over("sample", f"step-{self._meta['step']:06d}.safetensors")

    def take_measures(self, step: int, measures: dict[str, float]) -> None:
        """Hand over what was measured, with the weights that it was measured with."""
        if not self.wanted:
            return
        self._tensors = {}
        self._keep_state(step)
        self._meta["measures"] = measures
        self._hand_over("evaluation", f"evaluation-{step:06d}.safetensors")

    def _keep_state(self, step: int) -> None:
        tensors, state = capture(self.built, Position(step))
        for file, part in tensors.items():
            for name, tensor in part.items():
                self._keep(f"{file}/{name}", local_of(tensor))
        self._meta = {"step": step, "state": state}

    def _hand_over(self, kind: str, name: str) -> None:
        self.reason = write_step(self._tensors, path := self.folder / name, self._meta)
        if self.reason:
            self.wanted = set()
        else:
            self.channel.send(kind, file=str(path), step=self._meta["step"])
            self.channel.receive()

    def _keep(self, name: str, tensor: torch.Tensor) -> None:
        self._tensors[name] = tensor.detach().cpu().contiguous().clone()
