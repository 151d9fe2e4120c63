"""What a verdict on a recipe rests on: its run digested, and single steps repeated in float64.

The engine owns the step, so a sampled step is kept as what a checkpoint holds before it (weights,
optimizer, random states, by name), its batch, its gradient, and the weights after it. It is
repeated by the engine itself, under no plan, from that state.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from hotlap import nested
from hotlap.checkpoint.read import Checkpoint
from hotlap.engine.build import Built
from hotlap.engine.roles.trial import Trial, leave
from hotlap.engine.run import StepDone, steps_of
from hotlap.engine.state.content import Position, capture, restore
from hotlap.plan import Plan
from hotlap.task import Task
from hotlap.trial import digest
from hotlap.trial.comparing import compare_gradients, compare_updates
from hotlap.trial.custody import Custody
from hotlap.trial.drawing import own_dtype, repeating_in
from hotlap.trial.numbers import numbers_of

_FILES = ("model", "optimizer", "random", "buffers")
"""Parts of a checkpoint that a sample holds."""

Named = dict[str, torch.Tensor]


def verify(trial: Trial) -> None:
    """Digest every batch, loss and weight of the first steps; keep some steps whole.

    Options: `steps` (the horizon), `samples` (steps to keep whole), `folder` (where to keep them).
    Each is handed over with a message `sample`, and the run goes on when that has been answered: it
    may be removed by then.
    """
    fed = _Fed()
    built = trial.build(replace(trial.task, loss=fed.listening(trial.task.loss)))
    run = _Recorded(trial, built, fed)
    run.take(trial.config.options["steps"])
    trial.report(built, steps=len(run.weights), record=run.record())


class _Fed:
    """Digests of what each step was fed: what its loss was called with, micro-batches joined."""

    def __init__(self) -> None:
        self.digests: list[str] = []
        self._given: list[Any] = []
        self._seen: list[Any] = []

    def listening(self, loss: Any) -> Any:
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

    def end(self) -> None:
        """Digest the step; by what was given where it called no loss, as a replayed graph does."""
        self.digests.append(digest.of_nested(joined(self._seen or self._given)))
        self._given, self._seen = [], []


def joined(batches: list[Any]) -> Any:
    """Return the batch that these are the parts of, or all of them where they do not fit."""
    leaves: list[list[torch.Tensor]] = [[] for _ in batches]
    specs = [nested.take_apart(batch, found) for batch, found in zip(batches, leaves, strict=True)]
    columns = [list(column) for column in zip(*leaves, strict=False)]
    fits = specs[0] is not None and all(spec == specs[0] for spec in specs)
    if not fits or not all(map(_can_join, columns)):
        return batches
    whole = [torch.cat(column) if len(column) > 1 else column[0] for column in columns]
    return [repr(specs[0]), whole]


def _can_join(column: list[torch.Tensor]) -> bool:
    return len(column) == 1 or all(
        leaf.dim() > 0 and leaf.shape[1:] == column[0].shape[1:] for leaf in column
    )


class _Recorded:
    """A run while it is recorded, from outside the step."""

    def __init__(self, trial: Trial, built: Built, fed: _Fed) -> None:
        self.built, self.fed = built, fed
        self.losses: list[torch.Tensor] = []
        self.loss_digests: list[int] = []
        self.weights: list[str] = []
        self.numbers: list[str] = []
        self.sampler = _Sampler(built, trial)
        self._start = {
            name: [digest.of_tensor(weight), weight.requires_grad]
            for name, weight in _named(built).items()
        }
        self._buffers: list[str] = []
        self._custody = Custody()
        self._original = built.source.epoch
        built.source.epoch = self._epoch  # pyright: ignore[reportAttributeAccessIssue]
        built.optimizer.register_step_pre_hook(lambda *_: self._update_begins())

    def _update_begins(self) -> None:
        self.sampler.at_update()
        # A replayed graph has no place to look in.
        if not self.built.hardware.is_capturing():
            self._custody.look(0, self.built.optimizer, trained(self.built).values())

    def _epoch(self, *args: Any) -> Iterator[Any]:
        for micros in self._original(*args):
            self.fed.begin(micros)
            self.numbers.append(json.dumps(numbers_of(self.built.optimizer), sort_keys=True))
            self.sampler.before_step(len(self.weights), micros)
            self._custody.begins(0, self.built.optimizer, trained(self.built).values())
            yield micros

    def take(self, horizon: int) -> None:
        """Train to the horizon, or the task's end."""
        for step in steps_of(self.built):
            self.fed.end()
            self.losses.append(step.loss.detach())
            self.loss_digests.append(digest.of_tensor(step.loss))
            self.weights.append(digest.of_nested(list(trained(self.built).values())))
            self._custody.ends(0, self.built.optimizer, self.weights[-1])
            self._buffers.append(digest.of_nested(list(self.built.model.buffers())))
            self.sampler.after_step(step)
            if step.number >= horizon:
                return

    def record(self) -> dict[str, Any]:
        """Return the record as `lab.verdict` reads it."""
        return {
            "fed": self.fed.digests,
            "inputs": [],
            "losses": [float(loss) for loss in self.losses],
            "loss_digests": self.loss_digests,
            "weights": self.weights,
            "start": self._start,
            "buffers": self._buffers,
            "moved": self._custody.moved,
            "state_moved": self._custody.state_moved,
            "numbers": self.numbers[: len(self.weights)],
            "not_sampled": self.sampler.reason,
        }


def trained(built: Built) -> Named:
    """Return the tensors that are trained, by the names of the plain model's parameters."""
    return {name: weight.detach() for name, weight in _named(built).items()}


def _named(built: Built) -> Named:
    own = {**dict(built.model.named_parameters()), **built.weights}
    return {name: own[name] for name in sorted(own)}


def gradients(built: Built) -> Named:
    """Return the gradients that are there, by the names of the plain model's parameters."""
    own = {**dict(built.model.named_parameters()), **built.weights}
    return {name: own[name].grad for name in sorted(own) if own[name].grad is not None}


class _Sampler:
    """Keeps single steps whole, each in a file of its own."""

    def __init__(self, built: Built, trial: Trial) -> None:
        options = trial.config.options
        self.built, self.channel = built, trial.channel
        self.wanted: set[int] = set(options.get("samples", ()))
        self.folder = Path(options["folder"])
        self.reason = "" if self.wanted else "no steps were asked for"
        self._tensors: Named = {}
        self._meta: dict[str, Any] = {}

    def before_step(self, step: int, micros: list[tuple[int, Any]]) -> None:
        """Keep state and batch, if the step is one of those wanted."""
        self._tensors, self._meta = {}, {}
        if step not in self.wanted:
            return
        specs = []
        for number, (_, batch) in enumerate(micros):
            leaves: list[torch.Tensor] = []
            spec = nested.take_apart(batch, leaves)
            if spec is None:
                self.reason, self.wanted = "a batch holds something else than tensors", set()
                return
            specs.append(nested.to_json(spec))
            for position, leaf in enumerate(leaves):
                self._keep(f"batch/{number}/{position}", leaf)
        tensors, state = capture(self.built, Position(step))
        for file, part in tensors.items():
            for name, tensor in part.items():
                self._keep(f"{file}/{name}", tensor)
        counts = [count for count, _ in micros]
        self._meta = {"step": step, "state": state, "specs": specs, "counts": counts}

    def at_update(self) -> None:
        """Keep the gradient as the update gets it, clipped and unscaled."""
        # A replayed graph leaves its gradients where `after_step` finds them.
        if self._meta and not self.built.hardware.is_capturing():
            for name, gradient in gradients(self.built).items():
                # Where it is: a copy to the host would wait, and a step may be watched for that.
                self._tensors[f"gradient/{name}"] = gradient.detach().clone()

    def after_step(self, step: StepDone) -> None:
        """Keep the weights, and write the file."""
        if not self._meta or not step.is_taken:
            return
        if not any(name.startswith("gradient/") for name in self._tensors):
            self.at_update()
        for name, tensor in list(self._tensors.items()):
            if name.startswith("gradient/"):
                self._keep(name, tensor)
        for name, weight in trained(self.built).items():
            self._keep(f"after/{name}", weight)
        path = self.folder / f"step-{self._meta['step']:06d}.safetensors"
        save_file(self._tensors, path, metadata={"hotlap": json.dumps(self._meta)})
        self.channel.send("sample", file=str(path), step=self._meta["step"])
        self.channel.receive()

    def _keep(self, name: str, tensor: torch.Tensor) -> None:
        self._tensors[name] = tensor.detach().cpu().contiguous().clone()


def reference(trial: Trial) -> None:
    """Repeat sampled steps without a plan, and say how far they were off, one message at a time.

    Options: `dtype` (`float64` or `float32`), and `rounding`: repeat each step in plain float32
    too, whose error is what honest rounding looks like for this step. Messages: `repeat` {file,
    numbers}, answered by `repeated` {row}.
    """
    options = trial.config.options
    wide = _Plain(trial, getattr(torch, options["dtype"]))
    narrow = _Plain(trial, torch.float32) if options["rounding"] else None
    while (message := trial.channel.receive()) is not None:
        try:
            row = _repeated(_Sample(message["file"]), message["numbers"], wide, narrow)
        except Exception as error:
            why = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            ours = not (wide.in_task or (narrow is not None and narrow.in_task))
            trial.channel.send("repeated", problem=why, ours=ours)
            continue
        trial.channel.send("repeated", row={"dtype": options["dtype"], **row})
    leave()


def _repeated(
    sample: "_Sample", numbers: list[dict[str, Any]], wide: "_Plain", narrow: "_Plain | None"
) -> dict[str, Any]:
    exact = wide.gradient(sample)
    plain = None if narrow is None else narrow.gradient(sample)
    row = compare_gradients(sample.part("gradient"), exact, plain)
    return {"step": sample.meta["step"], **row, **wide.update_error(sample, numbers)}


class _Sample:
    """One sampled step, read back."""

    def __init__(self, file: str) -> None:
        self.file = file
        with safe_open(file, framework="pt") as archive:
            self.meta = json.loads(archive.metadata()["hotlap"])
            self.tensors = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118

    @property
    def checkpoint(self) -> Checkpoint:
        """The run before the step. Its tensors are copies: an optimizer works on what it loads."""
        parts = {
            part: {name: tensor.clone() for name, tensor in self.part(part).items()}
            for part in _FILES
        }
        return Checkpoint(Path(self.file), self.meta["step"], parts, self.meta["state"])

    def part(self, name: str) -> Named:
        """Return the tensors of one part, by the names that they have in it."""
        head = f"{name}/"
        return {k.removeprefix(head): v for k, v in self.tensors.items() if k.startswith(head)}

    def micros(self, dtype: torch.dtype, device: str) -> list[tuple[int, Any]]:
        """Return the (samples, micro-batch) of the step, its floating-point numbers in `dtype`."""
        found = []
        for number, (count, spec) in enumerate(
            zip(self.meta["counts"], self.meta["specs"], strict=True)
        ):
            leaves = self.part(f"batch/{number}")
            ordered = [leaves[str(position)] for position in range(len(leaves))]
            cast = [v.to(dtype) if v.is_floating_point() else v for v in ordered]
            there = iter([value.to(device) for value in cast])
            found.append((count, nested.rebuild(nested.from_json(spec), there)))
        return found


class _Plain:
    """The task without a plan, in another format, to repeat single steps with."""

    def __init__(self, trial: Trial, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.in_task = False
        """True from the beginning of the task's loss to the update: what is raised there is the
        recipe's."""
        self.built = trial.build(self._listening(_in_format(trial.task, dtype)), Plan())
        self._gradient: Named = {}
        self.built.optimizer.register_step_pre_hook(lambda *_: self._note_gradient())

    def _listening(self, task: Task) -> Task:
        def loss(model: Any, batch: Any) -> Any:
            self.in_task = True
            return task.loss(model, batch)

        return replace(task, loss=loss)

    def _note_gradient(self) -> None:
        self.in_task = False
        self._gradient = {
            name: gradient.detach().clone() for name, gradient in gradients(self.built).items()
        }

    def gradient(self, sample: _Sample) -> Named:
        """Return the gradient of the sampled step, clipped as the task says."""
        restore(self.built, sample.checkpoint)
        self._gradient, self.in_task = {}, False
        own = own_dtype(iter(sample.part("model").values()))
        with repeating_in(self.dtype, own):
            self.built.step(sample.micros(self.dtype, self.built.device))
        return self._gradient

    def update_error(self, sample: _Sample, numbers: list[dict[str, Any]]) -> dict[str, Any]:
        """Repeat the update: captured gradient and state, the plain run's hyperparameters."""
        restore(self.built, sample.checkpoint)
        optimizer = self.built.optimizer
        for group, plain in zip(optimizer.param_groups, numbers, strict=True):
            for key, value in plain.items():
                group[key] = tuple(value) if isinstance(value, list) else value
        before, captured = sample.part("model"), sample.part("gradient")
        weights = dict(self.built.model.named_parameters())
        for name, parameter in weights.items():
            gradient = captured.get(name)
            parameter.grad = None if gradient is None else gradient.to(parameter)
        optimizer.step()
        return compare_updates(before, sample.part("after"), dict(weights))


def _in_format(task: Task, dtype: torch.dtype) -> Task:
    return replace(task, model=lambda: task.model().to(dtype))


def seeds(trial: Trial) -> None:
    """Train from several seeds, and report every loss.

    Options: `seeds`, what is added to the task's own, and `steps` for each of them.
    """
    options = trial.config.options
    losses, built = {}, None
    for seed in options["seeds"]:
        built = trial.build(replace(trial.task, seed=trial.task.seed + seed))
        seen = []
        for step in steps_of(built):
            seen.append(step.loss.detach())
            if step.number >= options["steps"]:
                break
        losses[str(seed)] = [float(loss) for loss in seen]
    trial.report(built, steps=sum(map(len, losses.values())), losses=losses)
