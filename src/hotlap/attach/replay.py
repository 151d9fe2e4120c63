"""Repeats captured steps inside the plain script, in float64, and says how far they were off.

The process runs the unedited script without any plan. Its training loop is handed the captured
batch, weights and random state, so that forward, loss, backward and clipping are the script's own
code; the update is repeated by torch's single-tensor optimizer from the captured gradient.
"""

import json
from typing import Any

import torch
from safetensors import safe_open

from hotlap.attach.capture import parameters_of
from hotlap.attach.observe import ObserveRole


class ReferenceRole(ObserveRole):
    """Options: `samples` [{file, numbers}] and `dtype` (`float64` or `float32`).

    Every sample takes two steps of the script: one in the reference's dtype, and one in float32
    without a plan, whose error is what honest rounding looks like for this very step.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._reference = getattr(torch, self.config.options["dtype"])
        self._queue = [
            (sample, dtype)
            for sample in self.config.options["samples"]
            for dtype in (self._reference, torch.float32)
        ]
        self._wide = torch.empty(0)
        self._current: _Sample | None = None
        self._batch = 0
        self.results: list[dict[str, Any]] = []

    def batch_ends(self, iterator: Any, batch: Any) -> Any:
        super().batch_ends(iterator, batch)
        if batch is None:
            return batch
        if self._current is None:
            self._next()
        assert self._current is not None
        replaced = self._current.batch(self._batch)
        self._batch += 1
        return replaced

    def _next(self) -> None:
        if not self._queue:
            self.stop()
        sample, dtype = self._queue.pop(0)
        self._current = _Sample(sample["file"], sample["numbers"], dtype)
        self._batch = 0

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        inputs = super().forward_begins(root, inputs)
        sample = self._current
        assert sample is not None
        if not sample.loaded:
            sample.load_into(self._roots)
        return tuple(sample.cast(value) for value in inputs)

    def step_begins(self, optimizer: Any) -> None:
        sample = self._current
        if sample is not None:
            if sample.dtype == self._reference:
                result, self._wide = sample.compare(optimizer)
                self.results.append(result)
            else:
                narrow = sample.gradients(optimizer)[1]
                self.results[-1]["plain_error"] = relative(narrow, self._wide)
            for _, parameter in parameters_of(optimizer):
                # Nothing is left for the script's own step: its state keeps another dtype.
                parameter.grad = None
            self._current = None
        super().step_begins(optimizer)

    def _check_limits(self) -> None:
        if not self._queue:
            self.stop()

    def report(self) -> dict[str, Any]:
        return {"results": self.results}


class _Sample:
    """One captured step, to be repeated in `dtype`."""

    def __init__(self, file: str, numbers: list[dict[str, Any]], dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.numbers = numbers
        self.loaded = False
        with safe_open(file, framework="pt") as archive:
            self.meta = json.loads(archive.metadata()["hotlap"])
            self.tensors = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118

    def cast(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.to(self.dtype)
        return value

    def batch(self, position: int) -> Any:
        position %= len(self.meta["specs"])
        spec = self.meta["specs"][position]
        count = sum(1 for name in self.tensors if name.startswith(f"batch.{position}."))
        leaves = iter([self.cast(self.tensors[f"batch.{position}.{k}"]) for k in range(count)])
        return rebuild_plain(spec, leaves)

    def load_into(self, roots: list[Any]) -> None:
        self.loaded = True
        for number, root in enumerate(roots):
            for name, tensor in [*root.named_parameters(), *root.named_buffers()]:
                captured = self.tensors.get(f"model.{number}.{name}")
                if captured is not None:
                    tensor.data = self.cast(captured).to(tensor.device)
                    # Left from a step in another dtype, it could not be added to.
                    tensor.grad = None
        torch.set_rng_state(self.tensors["rng"])
        for name, state in self.tensors.items():
            if name.startswith("rng.cuda."):
                torch.cuda.set_rng_state(state, int(name.rpartition(".")[2]))

    def gradients(self, optimizer: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the captured gradient and the repeated one, each as one float64 vector."""
        captured, repeated = [], []
        for key, parameter in parameters_of(optimizer):
            if f"grad.{key}" in self.tensors and parameter.grad is not None:
                captured.append(self.tensors[f"grad.{key}"].double().flatten())
                repeated.append(parameter.grad.detach().cpu().double().flatten())
        return torch.cat(captured), torch.cat(repeated)

    def compare(self, optimizer: Any) -> tuple[dict[str, Any], torch.Tensor]:
        """Return the captured step's errors against this repetition, and the repeated gradient."""
        captured, repeated = self.gradients(optimizer)
        result = {
            "step": self.meta["step"],
            "dtype": str(self.dtype).removeprefix("torch."),
            "gradient_error": relative(captured, repeated),
            "gradient_slope": float(captured @ repeated / (repeated @ repeated)),
            "update_error": self._update_error(optimizer),
        }
        return result, repeated

    def _update_error(self, optimizer: Any) -> float | None:
        """Repeat the update in float64: captured gradient and state, the plain run's numbers."""
        groups, expected, taken = [], [], []
        clones: dict[str, torch.Tensor] = {}
        for g, (group, numbers) in enumerate(
            zip(optimizer.param_groups, self.numbers, strict=True)
        ):
            parameters = []
            for i in range(len(group["params"])):
                clone = self.tensors[f"before.{g}.{i}"].double().requires_grad_()
                gradient = self.tensors.get(f"grad.{g}.{i}")
                clone.grad = None if gradient is None else gradient.double()
                clones[f"{g}.{i}"] = clone
                parameters.append(clone)
            keep = {k: v for k, v in numbers.items() if k in group and k != "initial_lr"}
            keep = {k: tuple(v) if isinstance(v, list) else v for k, v in keep.items()}
            groups.append({"params": parameters, **keep})
        try:
            twin = type(optimizer)(groups, lr=self.numbers[0]["lr"])
        except TypeError:
            # An optimizer whose constructor asks for more cannot be made anew from its groups.
            return None
        for key, clone in clones.items():
            prefix = f"state.{key}."
            for name, value in self.tensors.items():
                if name.startswith(prefix):
                    wide = value.double() if value.shape == clone.shape else value.clone()
                    twin.state[clone][name.removeprefix(prefix)] = wide
        twin.step()
        for key, clone in clones.items():
            before = self.tensors[f"before.{key}"].double()
            expected.append((clone.detach() - before).flatten())
            taken.append((self.tensors[f"after.{key}"].double() - before).flatten())
        return relative(torch.cat(taken), torch.cat(expected))


def relative(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the length of the difference, as a share of the reference's length."""
    scale = float(reference.norm())
    difference = float((value - reference).norm())
    return difference / scale if scale else (0.0 if difference == 0 else float("inf"))


def rebuild_plain(spec: Any, leaves: Any) -> Any:
    """Return the batch that `to_plain` described, its tensors taken from the iterator `leaves`."""
    if spec == "tensor":
        return next(leaves)
    kind, parts = spec
    if kind == "dict":
        return {key: rebuild_plain(part, leaves) for key, part in parts}
    items = [rebuild_plain(part, leaves) for part in parts]
    return items if kind == "list" else tuple(items)
