"""Roles `reference` (repeats captured steps in float64, no plan) and `seeds` (losses by seed)."""

import copy
import json
import math
import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from hotlap import nested
from hotlap.checkpoint.read import Checkpoint
from hotlap.engine.evaluate import evaluate
from hotlap.engine.roles.named_tensors import NamedTensors, gradients
from hotlap.engine.roles.trial import Trial, leave
from hotlap.engine.roles.verify import EVALUATED
from hotlap.engine.state.content import restore
from hotlap.engine.steps import steps_of
from hotlap.plan import Plan
from hotlap.task import Task
from hotlap.trial.comparing import compare_buffers, compare_gradients, compare_updates
from hotlap.trial.repeat_in_dtype import own_dtype, repeat_in_dtype
from hotlap.trial.repetition_ways import LAID_OUT

_FILES = ("model", "optimizer", "random", "buffers")
"""Parts of a checkpoint that a sample holds."""
MEASURED = 1e-3
"""Error of a measure, as a share of it, that rounding may lead to."""
TIES = 3
"""Samples that a count may be off by."""


def reference(trial: Trial) -> None:
    """Repeat sampled steps without a plan, and say how far they were off, one message at a time.

    Options: `dtype` (`float64` or `float32`); `rounding`: repeat each step in plain float32 too,
    whose error is what honest rounding looks like for this step; else in bfloat16, as autocast does
    it, whose error is what a narrow format looks like; `memory_format`: repeat it like that once
    more, with the weights in that layout. Messages: `repeat` {file,
    hyperparameters}, and `evaluate` {file}; each is answered by `repeated`: {row}, or {rows}.
    """
    options = trial.config.options
    wide = _Plain(trial, getattr(torch, options["dtype"]))
    narrow = _Plain(trial, torch.float32)
    narrow.autocasts = not options["rounding"]
    laid_out = _laid_out(trial, narrow, options["memory_format"])
    while (message := trial.channel.receive()) is not None:
        try:
            sample = _Sample(message["file"])
            if message["kind"] == "evaluate":
                trial.channel.send("repeated", rows=_compare_measures(sample, wide, narrow))
                continue
            row = _repeat_step(sample, message["hyperparameters"], wide, narrow, laid_out)
        except Exception as error:
            why = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            ours = not (wide.in_task or narrow.in_task)
            trial.channel.send("repeated", problem=why, ours=ours)
            continue
        trial.channel.send("repeated", row={"dtype": options["dtype"], **row})
    leave()


def _laid_out(trial: Trial, narrow: "_Plain", memory_format: str) -> "_Plain | None":
    if not memory_format:
        return None
    made = _Plain(trial, torch.float32)
    made.autocasts = narrow.autocasts
    made.built.model.to(memory_format=getattr(torch, memory_format))
    return made


def _repeat_step(
    sample: "_Sample",
    numbers: list[dict[str, Any]],
    wide: "_Plain",
    narrow: "_Plain",
    laid_out: "_Plain | None",
) -> dict[str, Any]:
    exact = wide.gradient(sample)
    plain = narrow.gradient(sample)
    captured = sample.part("gradient")
    row = compare_gradients(captured, exact, None if narrow.autocasts else plain)
    if narrow.autocasts:
        of_plain = compare_gradients(plain, exact, None)
        row |= {"narrow_error": of_plain["gradient_error"], "narrow_lost": of_plain["lost"]}
    if laid_out is not None:
        row[LAID_OUT] = compare_gradients(captured, exact, laid_out.gradient(sample))
    before = {**sample.part("model"), **sample.part("buffers")}
    row["buffers"] = compare_buffers(before, sample.part("buffer"), wide.buffers, narrow.buffers)
    return {"step": sample.meta["step"], **row, **wide.update_error(sample, numbers)}


def _compare_measures(sample: "_Sample", wide: "_Plain", narrow: "_Plain") -> list[dict[str, Any]]:
    """Return, for each measure, how far it is off from its repetitions, as shares of it."""
    exact, plain = wide.evaluate(sample), narrow.evaluate(sample)
    rows = []
    for name, value in sample.meta["measures"].items():
        size = abs(exact[name]) or 1.0
        off = [abs(each - exact[name]) / size for each in (value, plain[name])]
        # What counts samples jumps where one of them is a tie.
        limit = MEASURED + TIES / wide.evaluated / size
        rows.append({"name": name, "error": off[0], "plain_error": off[1], "limit": limit})
    return [row for row in rows if not math.isnan(row["error"])]


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

    def part(self, name: str) -> NamedTensors:
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
            # Copies: a loss may write into its batch, and each repetition gets the same one.
            cast = [v.to(dtype if v.is_floating_point() else v.dtype, copy=True) for v in ordered]
            there = iter([value.to(device) for value in cast])
            found.append((count, nested.rebuild(nested.from_json(spec), there)))
        return found


class _Plain:
    """The task without a plan, in another format, to repeat single steps with."""

    def __init__(self, trial: Trial, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.autocasts = False
        self.in_task = False
        """True from the beginning of the task's loss to the update: what is raised there is the
        recipe's."""
        self.built = trial.build(self._listening(_in_format(trial.task, dtype)), Plan())
        self._gradient: NamedTensors = {}
        self.buffers: NamedTensors = {}
        self.evaluated = 0
        """Samples that were evaluated."""
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

    def gradient(self, sample: _Sample) -> NamedTensors:
        """Return the gradient of the sampled step, clipped as the task says."""
        restore(self.built, sample.checkpoint)
        self._gradient, self.in_task = {}, False
        own = own_dtype(iter(sample.part("model").values()))
        kind = self.built.hardware.kind
        narrow = torch.autocast(kind, dtype=torch.bfloat16, enabled=self.autocasts)
        with repeat_in_dtype(self.dtype, own), narrow:
            self.built.step(sample.micros(self.dtype, self.built.device))
        self.buffers = {k: v.detach().clone() for k, v in self.built.model.named_buffers()}
        return self._gradient

    def evaluate(self, sample: _Sample) -> dict[str, float]:
        """Return what is measured with the weights of a sample."""
        restore(self.built, sample.checkpoint)
        self.in_task = True
        original, self.evaluated = self.built.held_out, 0
        self.built.held_out = _Cast(self, original)  # pyright: ignore[reportAttributeAccessIssue]
        try:
            return evaluate(self.built)
        finally:
            self.built.held_out = original
            self.in_task = False

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


class _Cast:
    """Held-out samples in another format."""

    def __init__(self, plain: _Plain, source: Any) -> None:
        self._plain, self._source = plain, source

    def epoch(self, *args: Any) -> Iterator[Any]:
        for micros in islice(self._source.epoch(*args), EVALUATED):
            self._plain.evaluated += sum(count for count, _ in micros)
            yield [(count, nested.map_tensors(batch, self._cast)) for count, batch in micros]

    def _cast(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(self._plain.dtype) if value.is_floating_point() else value


_HANDED_OUT: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Models that the recipe has given."""


def _in_format(task: Task, dtype: torch.dtype) -> Task:
    def model() -> Any:
        made = task.model()
        # A recipe may hand out one module, which must not be both models.
        if made in _HANDED_OUT:
            made = copy.deepcopy(made)
        _HANDED_OUT.add(made)
        return made.to(dtype)

    return replace(task, model=model)


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
