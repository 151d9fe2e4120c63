"""`Repetition`: a captured step, repeated by the script itself; `Findings`: the errors so far.

Forward, loss, backward and clipping are the script's own code, started from the captured weights
and RNG states. The update is repeated apart from it, by torch's optimizer without its foreach and
fused implementations.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from safetensors import safe_open

from hotlap import nested
from hotlap.attach.listener import mute_listener
from hotlap.attach.roles.carried import CapturedState
from hotlap.attach.roles.evaluations import repeat
from hotlap.attach.roles.networks import Networks, names_of, parameters_of
from hotlap.attach.roles.observe import Watch
from hotlap.attach.roles.sampling import place_of
from hotlap.attach.roles.session import Session
from hotlap.attach.seams import known_optimizers
from hotlap.rng import set_rng_states
from hotlap.trial.comparing import (
    compare_buffers,
    compare_gradients,
    compare_updates,
    is_nearly,
    relative_error,
)
from hotlap.trial.repeat_in_dtype import own_dtype, repeat_in_dtype
from hotlap.trial.repetition_ways import EXACT, LAID_OUT, PLAIN, ways_of

Gradients = dict[str, torch.Tensor | None]
Step = tuple[list[Gradients], dict[str, torch.Tensor]]
"""Of a repeated step: the gradients of each update, and the buffers that it leaves."""

_NUMBERS = (bool, int, float, str, type(None), list, tuple, torch.Tensor)
"""Kinds of hyperparameters that are recorded as what they are."""
_IMAGES = 4
"""Dimensions of a tensor that has such a layout."""


class Findings:
    """What the repeated steps have shown; ends the trial when there is no more to see.

    Args:
        session: whose options `evaluations` (files), `dtype`, `rounding` and
            `memory_format` are read.
        watch: knows the models.
    """

    def __init__(self, session: Session, watch: Watch) -> None:
        self._session, self._watch = session, watch
        self.networks = Networks(watch.roots)
        self._dtype = session.config.options["dtype"]
        self.is_rounding = session.config.options["rounding"]
        """True if a plan may round as float32 does; else as a narrower format does."""
        self._memory_format = session.config.options["memory_format"]
        self._evaluations: list[dict[str, Any]] = []
        self._results: list[dict[str, Any]] = []
        self._whole = 0
        self._problem = ""

    @property
    def dtype(self) -> torch.dtype:
        """What the reference computes in."""
        return getattr(torch, self._dtype)

    @property
    def ways(self) -> tuple[str, ...]:
        """How each step is repeated."""
        return ways_of(self._memory_format)

    def repetition(self, sample: dict[str, Any], way: str) -> "Repetition":
        """Return a sample to be repeated in one of the `ways`."""
        return Repetition(
            sample["file"],
            sample["hyperparameters"],
            self.dtype if way == EXACT else torch.float32,
            autocasts=way != EXACT and not self.is_rounding,
            memory_format=self._memory_format if way == LAID_OUT else "",
        )

    def compare(self, repeated: "Repetition", steps: Mapping[str, Step]) -> None:
        """Add what a captured step differs by from its repetitions.

        Args:
            repeated: the step.
            steps: its repetitions in each of the `ways`.
        """
        names = names_of(self._watch.roots)
        gradients = {way: steps[way][0] for way in self.ways}
        for number, place in enumerate(repeated.places):
            of_update = {
                way: _rename(found[number], names[place]) for way, found in gradients.items()
            }
            captured = _rename(repeated.captured_gradients(number), names[place])
            row = self._gradients(captured, of_update[EXACT], of_update[PLAIN])
            if LAID_OUT in of_update:
                row[LAID_OUT] = compare_gradients(captured, of_update[EXACT], of_update[LAID_OUT])
            row |= repeated.update_error(number, names[place])
            if number == 0:
                row["buffers"] = repeated.compare_buffers(steps[EXACT][1], steps[PLAIN][1])
            row |= {"step": repeated.meta["step"], "dtype": self._dtype}
            self._results.append({**row, "optimizer": place})
        self._whole += 1

    def _gradients(self, captured: Gradients, exact: Gradients, plain: Gradients) -> dict[str, Any]:
        if self.is_rounding:
            return compare_gradients(captured, exact, plain)
        row, narrow = (compare_gradients(each, exact, None) for each in (captured, plain))
        return row | {"narrow_error": narrow["gradient_error"], "narrow_lost": narrow["lost"]}

    def count_whole(self) -> None:
        """A step was repeated that is compared elsewhere."""
        self._whole += 1

    def finish_trial(self) -> None:
        """Repeat what was evaluated, on the script's own modules, and end."""
        for file in self._session.config.options["evaluations"]:
            # One that cannot be repeated says nothing of the others, nor of the steps.
            with contextlib.suppress(Exception):
                found = repeat(file, self._watch.roots, self.dtype)
                if found is not None:
                    self._evaluations.append(found)
        self._session.stop()

    def end_with(self, problem: str) -> None:
        """End the trial: nothing can be repeated."""
        self._problem = problem
        self._session.stop()

    def run_guarded(self, work: Callable[[], Any]) -> Any:
        """Do work of ours; what it raises is not the script's fault, and must not look like it."""
        try:
            # An optimizer of ours that steps is no step of the script's.
            with mute_listener():
                return work()
        except Exception as error:
            self.end_with(f"{type(error).__name__}: {error}")

    def report(self) -> dict[str, Any]:
        """Return what was found, for the trial's report."""
        raised = getattr(sys, "last_value", None)
        return {
            "results": self._results,
            "evaluations": self._evaluations,
            "whole": self._whole,
            "problem": self._problem,
            "raised": "" if raised is None else f"{type(raised).__name__}: {raised}",
        }


def _rename(tensors: Gradients, names: dict[str, str]) -> Gradients:
    return {names.get(key, f"parameter {key}"): value for key, value in tensors.items()}


def _widen(value: torch.Tensor) -> torch.Tensor:
    """Return a copy in double precision."""
    return value.to(torch.complex128 if value.is_complex() else torch.float64, copy=True)


class Repetition:
    """One captured step, while the script repeats it in `dtype`."""

    def __init__(
        self,
        file: str,
        numbers: list[Any],
        dtype: torch.dtype,
        *,
        autocasts: bool = False,
        memory_format: str = "",
    ) -> None:
        self.dtype = dtype
        self.autocasts = autocasts
        """True to compute in bfloat16 as autocast does."""
        self._memory_format = memory_format
        self.numbers = numbers
        """The plain run's hyperparameters at each update of the step."""
        with safe_open(file, framework="pt") as archive:
            self.meta = json.loads(archive.metadata()["hotlap"])
            self.tensors = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118
        self._own = own_dtype(t for name, t in self.tensors.items() if name.startswith("model."))
        self.places = [update["optimizer"] for update in self.meta["updates"]]
        """Which optimizers update in the step."""
        self.gradients: list[Gradients] = []
        self.buffers: dict[str, torch.Tensor] = {}
        """What the step has left in them."""
        self.updates: list[int] = []
        """Which optimizers have updated."""
        self.state = CapturedState(self.meta, self.tensors)
        self._batches = 0
        self._before: dict[str, tuple[torch.Tensor, torch.Tensor, bool]] = {}
        self._formats = contextlib.ExitStack()

    @property
    def is_whole(self) -> bool:
        """True once the script has taken the batches and updates that the captured step took."""
        return self._batches == len(self.meta["specs"]) and self.updates == self.places

    def begin(self, networks: Networks) -> None:
        """Load the weights; from here on the script computes in `dtype`."""
        self._formats.enter_context(repeat_in_dtype(self.dtype, self._own))
        self.load(networks)
        if self.autocasts:
            kind = next((tensor.device.type for _, tensor in networks.states()), "cpu")
            self._formats.enter_context(torch.autocast(kind, dtype=torch.bfloat16))

    def load(self, networks: Networks, module: Any = None) -> None:
        """Load what has not been loaded: a module may be called for the first time.

        Args:
            networks: whose tensors are loaded.
            module: the only one of them, if not None.
        """
        for name, tensor in networks.states(module):
            captured = self.tensors.get(f"model.{name}")
            if captured is not None and name not in self._before:
                self._before[name] = (tensor, tensor.data, tensor.requires_grad)
                # A copy, as batch norm writes into its buffers; in the layout that the script uses.
                cast = self.cast_beside if networks.is_beside(name) else self.cast
                like = cast(tensor.data)
                copy = torch.empty_like(like).copy_(captured)
                tensor.data = self._laid_out(copy)
                # A script may freeze a layer for a while, and be in another while here.
                if tensor.is_leaf and tensor.is_floating_point():
                    tensor.requires_grad_(self.meta["takes_gradient"][name])
                # Left from a step in another dtype, it could not be added to.
                tensor.grad = None

    def _laid_out(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self._memory_format or tensor.dim() != _IMAGES:
            return tensor
        # Not `contiguous`, which leaves a tensor of one channel as it is.
        return tensor.to(memory_format=getattr(torch, self._memory_format))

    def end(self, networks: Networks) -> None:
        """Give the script its own weights back, and its own dtype."""
        self._formats.close()
        self.buffers = {name: buffer.detach().clone() for name, buffer in networks.buffers()}
        self.buffers |= self.state.returned or {}
        for tensor, data, takes_gradient in self._before.values():
            gradient, tensor.grad = tensor.grad, None
            tensor.data = data
            if gradient is not None:
                tensor.grad = gradient.to(data.dtype)
            if tensor.is_leaf and tensor.is_floating_point():
                tensor.requires_grad_(takes_gradient)

    def compare_buffers(
        self, exact: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]
    ) -> dict[str, Any]:
        """Compare the buffers after the captured step, see `comparing.compare_buffers`."""
        captured = {
            kind: {k.removeprefix(kind): v for k, v in self.tensors.items() if k.startswith(kind)}
            for kind in ("model.", "buffer.")
        }
        captured["model."] |= self.state.before
        captured["buffer."] |= self.state.after
        return compare_buffers(captured["model."], captured["buffer."], exact, plain)

    def cast(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(self.dtype) if value.is_floating_point() else value

    def cast_beside(self, value: torch.Tensor) -> torch.Tensor:
        """Return a tensor of a module that is only called: it may be in a dtype of its own."""
        return value.to(self.dtype) if value.dtype == self._own else value

    def has_inputs(self, inputs: tuple[Any, ...]) -> bool:
        """True if these are the inputs of the step's first forward, but for their rounding."""
        leaves = nested.given_tensors(inputs)
        if leaves is None:
            return False
        names = [f"input.{number}" for number in range(len(leaves))]
        if {name for name in self.tensors if name.startswith("input.")} != {*names}:
            return False
        return all(
            is_nearly(leaf.detach().cpu(), self.tensors[name])
            for name, leaf in zip(names, leaves, strict=True)
        )

    def draw_again(self) -> None:
        """Put the random generators where they were when the step began."""
        self._set_random("rng.0.")

    def _set_random(self, head: str) -> None:
        set_rng_states(
            {k.removeprefix(head): v for k, v in self.tensors.items() if k.startswith(head)}
        )

    def batch(self) -> Any:
        """Return the next batch of the step; RNG state is then what it was there."""
        position = min(self._batches, len(self.meta["specs"]) - 1)
        self._batches += 1
        self._set_random(f"rng.{position}.")
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
            gradient = self.gradients[number].get(key)
            # The script may look at it after the update, or go on adding to it.
            parameter.grad = None if gradient is None else gradient.clone()
            after = self.tensors.get(f"after.{number}.{key}")
            if after is not None and after.shape == parameter.shape:
                parameter.data = self.cast(after).to(parameter.device)

    def captured_gradients(self, number: int) -> Gradients:
        """Return the gradients that an update of the captured step had."""
        return {key: self.tensors.get(f"grad.{number}.{key}") for key in self._keys(number)}

    def _keys(self, number: int) -> list[str]:
        head = f"before.{number}."
        return [name.removeprefix(head) for name in self.tensors if name.startswith(head)]

    def update_error(self, number: int, names: dict[str, str]) -> dict[str, Any]:
        """Repeat the update in float64: captured gradient and state, the plain run's numbers."""
        optimizer = known_optimizers()[self.places[number]]
        groups, clones = [], {}
        captured = self.captured_gradients(number)
        for g, (group, numbers) in enumerate(
            zip(optimizer.param_groups, self.numbers[number], strict=True)
        ):
            parameters = []
            for i in range(len(group["params"])):
                key = f"{g}.{i}"
                if key not in captured:
                    # A gradient that is missing altogether is what the other check sees.
                    continue
                clone = _widen(self.tensors[f"before.{number}.{key}"]).requires_grad_()
                gradient = captured[key]
                clone.grad = None if gradient is None else _widen(gradient)
                clones[key] = clone
                parameters.append(clone)
            keep = {k: v for k, v in numbers.items() if k in group and k != "initial_lr"}
            keep = {k: tuple(v) if isinstance(v, list) else v for k, v in keep.items()}
            # What is no number was recorded as a text: a function, say, that picks parameters.
            keep = {k: v if isinstance(group[k], _NUMBERS) else group[k] for k, v in keep.items()}
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
                    wide = _widen(value) if value.shape == clone.shape else value.clone()
                    twin.state[clone][name.removeprefix(prefix)] = wide
        try:
            twin.step()
        except TypeError:
            # One that computes the loss by itself, as LBFGS does, asks for a closure.
            return {"update_error": None}
        found = compare_updates(
            _rename({key: self.tensors[f"before.{number}.{key}"] for key in clones}, names),
            _rename({key: self.tensors[f"after.{number}.{key}"] for key in clones}, names),
            _rename(dict(clones), names),
        )
        states = {
            names.get(key, key): self._state_errors(number, key, twin.state[clone])
            for key, clone in clones.items()
        }
        return {**found, "states": states}

    def _state_errors(self, number: int, key: str, expected: Mapping[str, Any]) -> dict[str, float]:
        """Return what a parameter's state is off by after the update, a share for each entry."""
        return {
            name: relative_error(self.tensors.get(f"state_after.{number}.{key}.{name}"), value)
            for name, value in expected.items()
            if isinstance(value, torch.Tensor) and value.dim() and value.is_floating_point()
        }
