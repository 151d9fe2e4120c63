"""Repeats captured steps inside the plain script, in float64, and says how far they were off.

The process runs the unedited script without any plan. Its training loop is handed the captured
batch, weights and RNG state, so that forward, loss, backward and clipping are the script's own
code; the update is repeated by torch's single-tensor optimizer from the captured gradient.
"""

import contextlib
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from safetensors import safe_open

from hotlap import nested
from hotlap.attach.listener import unheard
from hotlap.attach.roles.evaluations import repeat
from hotlap.attach.roles.observe import Watch
from hotlap.attach.roles.sampling import buffers_of, parameters_of, place_of, states_of
from hotlap.attach.roles.session import Part, Session
from hotlap.attach.seams import known_optimizers
from hotlap.trial.comparing import compare_buffers, compare_gradients, compare_updates
from hotlap.trial.drawing import own_dtype, repeating_in
from hotlap.trial.rng import set_rng_states
from hotlap.trial.terms import Terms

Gradients = dict[str, torch.Tensor | None]


class Reference(Part):
    """Options: `samples` [{file, numbers}], `evaluations` (files) and `dtype` (`float64` or
    `float32`).

    Every sample takes two steps of the script: one in the reference's dtype, and one in float32
    without a plan, whose error is what honest rounding looks like for this very step. The script's
    first step is its own: it shows which modules are trained, and from which loader.

    Args:
        session: what it is a part of, after `watch`.
        watch: knows models and loaders.
    """

    wants_phases = True

    def __init__(self, session: Session, watch: Watch) -> None:
        options = session.config.options
        self._session, self._watch = session, watch
        self._dtype = options["dtype"]
        self._queue = [
            (sample, dtype)
            for sample in options["samples"]
            for dtype in (getattr(torch, self._dtype), torch.float32)
        ]
        self._repeated: _Repetition | None = None
        self._exact: list[Gradients] = []
        self._exact_buffers: dict[str, torch.Tensor] = {}
        self.evaluations: list[dict[str, Any]] = []
        self._terms = Terms()
        self.results: list[dict[str, Any]] = []
        self.whole = 0
        """Samples that were repeated from their beginning to their end."""
        self.problem = ""
        """What went wrong in work of ours."""

    def batch_ends(self, iterator: Any, batch: Any) -> Any:
        if batch is None or self._watch.steps == 0 or not self._watch.is_training(iterator):
            return batch
        return self._guarded(self._replaced)

    def _replaced(self) -> Any:
        current = self._repeated
        if current is not None and current.updates:
            # The script has begun its next step.
            self._end(current)
        if self._repeated is None:
            if not self._queue:
                self._leave()
            sample, dtype = self._queue[0]
            self._repeated = _Repetition(sample["file"], sample["numbers"], dtype)
            self._repeated.begin(self._watch.roots)
        return self._repeated.batch()

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        del root
        current = self._repeated
        if current is None:
            return inputs
        self._guarded(lambda: current.load(self._watch.roots))
        self._terms.attach(self._watch.roots)
        return nested.mapped(inputs, current.cast)

    def step_begins(self, optimizer: Any) -> None:
        current = self._repeated
        if current is not None:
            self._guarded(lambda: current.note_update(optimizer))

    def step_ends(self, optimizer: Any) -> None:
        current = self._repeated
        if current is not None:
            self._guarded(lambda: current.take_over(optimizer))
            if current.is_whole:
                self._guarded(lambda: self._end(current))

    def step_done(self, optimizer: Any) -> None:
        del optimizer
        if not self._queue:
            self._guarded(self._leave)

    def _leave(self) -> None:
        """Repeat what was evaluated, on the script's own modules, and end."""
        for file in self._session.config.options["evaluations"]:
            # One that cannot be repeated says nothing of the others, nor of the steps.
            with contextlib.suppress(Exception):
                found = repeat(file, self._watch.roots, getattr(torch, self._dtype))
                if found is not None:
                    self.evaluations.append(found)
        self._session.stop()

    def _end(self, repeated: "_Repetition") -> None:
        """Compare, if the script has taken the step as the captured run took it; else try again."""
        repeated.end(self._watch.roots)
        self._repeated = None
        if not repeated.is_whole:
            return
        self._queue.pop(0)
        if len(self._queue) % 2:
            self._exact, self._exact_buffers = repeated.gradients, repeated.buffers
            return
        names = _names_of(self._watch.roots)
        steps = zip(repeated.places, self._exact, repeated.gradients, strict=True)
        for number, (place, exact, plain) in enumerate(steps):
            row = compare_gradients(
                _renamed(repeated.captured(number), names[place]),
                _renamed(exact, names[place]),
                _renamed(plain, names[place]),
            )
            row |= repeated.update_error(number, names[place])
            row["longest"] = self._terms.longest
            for key, parameter in parameters_of(known_optimizers()[place]):
                found = row["tensors"].get(names[place].get(key, f"parameter {key}"))
                if found is not None:
                    found |= self._terms.of(parameter)
            if number == 0:
                row["buffers"] = repeated.compare_buffers(self._exact_buffers)
            row |= {"step": repeated.meta["step"], "dtype": self._dtype}
            self.results.append({**row, "optimizer": place})
        self.whole += 1

    def _guarded(self, work: Callable[[], Any]) -> Any:
        """Do work of ours; what it raises is not the script's fault, and must not look like it."""
        try:
            # An optimizer of ours that steps is no step of the script's.
            with unheard():
                return work()
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"
            self._session.stop()

    def report(self) -> dict[str, Any]:
        raised = getattr(sys, "last_value", None)
        return {
            "results": self.results,
            "evaluations": self.evaluations,
            "whole": self.whole,
            "problem": self.problem,
            "raised": "" if raised is None else f"{type(raised).__name__}: {raised}",
        }


def _names_of(roots: list[Any]) -> list[dict[str, str]]:
    """Return, for each optimizer, the names of its parameters by their places in it."""
    names: dict[int, str] = {}
    for root in roots:
        for name, parameter in root.named_parameters():
            names.setdefault(id(parameter), name)
    optimizers = known_optimizers()
    return [
        {
            key: f"optimizer {number}: {name}" if len(optimizers) > 1 else name
            for key, parameter in parameters_of(optimizer)
            for name in [names.get(id(parameter), f"parameter {key}")]
        }
        for number, optimizer in enumerate(optimizers, 1)
    ]


def _renamed(tensors: Gradients, names: dict[str, str]) -> Gradients:
    return {names.get(key, f"parameter {key}"): value for key, value in tensors.items()}


class _Repetition:
    """One captured step, while the script repeats it in `dtype`."""

    def __init__(self, file: str, numbers: list[Any], dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.numbers = numbers
        """The plain run's hyperparameters at each update of the step."""
        with safe_open(file, framework="pt") as archive:
            self.meta = json.loads(archive.metadata()["hotlap"])
            self.tensors = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118
        self.places = [update["optimizer"] for update in self.meta["updates"]]
        """Which optimizers update in the step."""
        self.gradients: list[Gradients] = []
        self.buffers: dict[str, torch.Tensor] = {}
        """What the step has left in them."""
        self.updates: list[int] = []
        """Which optimizers have updated."""
        self._batches = 0
        self._before: dict[str, tuple[torch.Tensor, torch.Tensor, bool]] = {}
        self._formats = contextlib.ExitStack()

    @property
    def is_whole(self) -> bool:
        """True once the script has taken the batches and updates that the captured step took."""
        return self._batches == len(self.meta["specs"]) and self.updates == self.places

    def begin(self, roots: list[Any]) -> None:
        """Load the weights; from here on the script computes in `dtype`."""
        model = (t for name, t in self.tensors.items() if name.startswith("model."))
        self._formats.enter_context(repeating_in(self.dtype, own_dtype(model)))
        self.load(roots)

    def load(self, roots: list[Any]) -> None:
        """Load what has not been loaded: a module may be called for the first time."""
        for name, tensor in states_of(roots):
            captured = self.tensors.get(f"model.{name}")
            if captured is not None and name not in self._before:
                self._before[name] = (tensor, tensor.data, tensor.requires_grad)
                # A copy: batch norm writes into its buffers.
                tensor.data = self.cast(captured).to(tensor.device, copy=True)
                # A script may freeze a layer for a while, and be in another while here.
                if tensor.is_leaf and tensor.is_floating_point():
                    tensor.requires_grad_(self.meta["takes_gradient"][name])
                # Left from a step in another dtype, it could not be added to.
                tensor.grad = None

    def end(self, roots: list[Any]) -> None:
        """Give the script its own weights back, and its own dtype."""
        self._formats.close()
        self.buffers = {name: buffer.detach().clone() for name, buffer in buffers_of(roots)}
        for tensor, data, takes_gradient in self._before.values():
            tensor.grad = None
            tensor.data = data
            if tensor.is_leaf and tensor.is_floating_point():
                tensor.requires_grad_(takes_gradient)

    def compare_buffers(self, exact: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Compare the buffers after the captured step, see `comparing.compare_buffers`."""
        captured = {
            kind: {k.removeprefix(kind): v for k, v in self.tensors.items() if k.startswith(kind)}
            for kind in ("model.", "buffer.")
        }
        return compare_buffers(captured["model."], captured["buffer."], exact, self.buffers)

    def cast(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(self.dtype) if value.is_floating_point() else value

    def batch(self) -> Any:
        """Return the next batch of the step; RNG state is then what it was there."""
        position = min(self._batches, len(self.meta["specs"]) - 1)
        self._batches += 1
        head = f"rng.{position}."
        set_rng_states(
            {k.removeprefix(head): v for k, v in self.tensors.items() if k.startswith(head)}
        )
        count = sum(1 for name in self.tensors if name.startswith(f"batch.{position}."))
        leaves = iter([self.cast(self.tensors[f"batch.{position}.{k}"]) for k in range(count)])
        return nested.rebuild(nested.from_json(self.meta["specs"][position]), leaves)

    def note_update(self, optimizer: Any) -> None:
        """Keep the gradient, and leave nothing for the script's own update."""
        self.updates.append(place_of(optimizer))
        gradients: Gradients = {}
        for key, parameter in parameters_of(optimizer):
            gradients[key] = parameter.grad
            parameter.grad = None
        self.gradients.append(gradients)

    def take_over(self, optimizer: Any) -> None:
        """Let what follows in the step see the weights that the captured update has made."""
        number = len(self.updates) - 1
        if self.updates != self.places[: number + 1]:
            return
        for key, parameter in parameters_of(optimizer):
            after = self.tensors.get(f"after.{number}.{key}")
            if after is not None and after.shape == parameter.shape:
                parameter.data = self.cast(after).to(parameter.device)

    def captured(self, number: int) -> Gradients:
        """Return the gradients that an update of the captured step had."""
        return {key: self.tensors.get(f"grad.{number}.{key}") for key in self._keys(number)}

    def _keys(self, number: int) -> list[str]:
        head = f"before.{number}."
        return [name.removeprefix(head) for name in self.tensors if name.startswith(head)]

    def update_error(self, number: int, names: dict[str, str]) -> dict[str, Any]:
        """Repeat the update in float64: captured gradient and state, the plain run's numbers."""
        optimizer = known_optimizers()[self.places[number]]
        groups, clones = [], {}
        captured = self.captured(number)
        for g, (group, numbers) in enumerate(
            zip(optimizer.param_groups, self.numbers[number], strict=True)
        ):
            parameters = []
            for i in range(len(group["params"])):
                key = f"{g}.{i}"
                if key not in captured:
                    # A gradient that is missing altogether is what the other check sees.
                    continue
                clone = self.tensors[f"before.{number}.{key}"].double().requires_grad_()
                gradient = captured[key]
                clone.grad = None if gradient is None else gradient.double()
                clones[key] = clone
                parameters.append(clone)
            keep = {k: v for k, v in numbers.items() if k in group and k != "initial_lr"}
            keep = {k: tuple(v) if isinstance(v, list) else v for k, v in keep.items()}
            groups.append({"params": parameters, **keep})
        try:
            twin = type(optimizer)(groups, lr=self.numbers[number][0]["lr"])
        except TypeError:
            # An optimizer whose constructor asks for more cannot be made again from its groups.
            return {"update_error": None}
        for key, clone in clones.items():
            prefix = f"state.{number}.{key}."
            for name, value in self.tensors.items():
                if name.startswith(prefix):
                    wide = value.double() if value.shape == clone.shape else value.clone()
                    twin.state[clone][name.removeprefix(prefix)] = wide
        twin.step()
        return compare_updates(
            _renamed({key: self.tensors[f"before.{number}.{key}"] for key in clones}, names),
            _renamed({key: self.tensors[f"after.{number}.{key}"] for key in clones}, names),
            _renamed(dict(clones), names),
        )
