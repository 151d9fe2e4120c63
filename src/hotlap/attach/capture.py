"""Records what a verdict needs: what was fed, the task's numbers, weights, and sampled steps."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from hotlap.attach import digest
from hotlap.attach.observe import ObserveRole
from hotlap.feed.gather import flatten
from hotlap.techniques import Refusal

IMPLEMENTATION_KEYS = ("params", "foreach", "fused", "capturable", "differentiable")
"""Entries of an optimizer's groups that say how it computes, not what."""


class VerifyRole(ObserveRole):
    """Digests every batch, loss and weight of the first steps; keeps some steps whole.

    Options: `steps` (the horizon), `samples` (steps to keep whole), `folder` (where to keep them).
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.fed: list[str] = []
        self.inputs: list[str] = []
        self.loss_digests: list[int] = []
        self.weights: list[str] = []
        self.numbers: list[str] = []
        self._sampler = _StepSampler(self.config.options)

    def batch_ends(self, iterator: Any, batch: Any) -> Any:
        if batch is not None:
            self.fed.append(digest.of_nested(batch))
            known = getattr(iterator, "_hotlap_loader", None)
            # An evaluation between two steps reads batches that belong to neither.
            trains = self.steps == 0 or (known is not None and known.training)
            if trains and self.steps in self._sampler.wanted:
                self._sampler.batch(batch)
        return super().batch_ends(iterator, batch)

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        self.inputs.append(digest.of_nested(inputs))
        if self.steps in self._sampler.wanted:
            self._sampler.before_forward(self._roots)
        return super().forward_begins(root, inputs)

    def backward_begins(self, loss: Any) -> None:
        super().backward_begins(loss)
        self.loss_digests.append(digest.of_tensor(loss))

    def step_begins(self, optimizer: Any) -> None:
        numbers = json.dumps(numbers_of(optimizer), sort_keys=True)
        self.numbers.append(numbers)
        super().step_begins(optimizer)
        if self.steps in self._sampler.wanted:
            self._sampler.before_step(optimizer, float(self.losses[-1]) if self.losses else None)

    def step_ends(self, optimizer: Any) -> None:
        if self.steps in self._sampler.wanted:
            self._sampler.after_step(optimizer, self.steps)
        weights = [p.detach() for group in optimizer.param_groups for p in group["params"]]
        self.weights.append(digest.of_nested(weights))
        super().step_ends(optimizer)

    def _check_limits(self) -> None:
        if self.steps >= self.config.options["steps"]:
            self.stop()

    def report(self) -> dict[str, Any]:
        return {
            **super().report(),
            "record": {
                "fed": self.fed,
                "inputs": self.inputs,
                "losses": [float(loss) for loss in self.losses],
                "loss_digests": self.loss_digests,
                "weights": self.weights,
                "numbers": self.numbers,
                "samples": self._sampler.written,
                "not_sampled": self._sampler.reason,
            },
        }


def numbers_of(optimizer: Any) -> list[dict[str, Any]]:
    """Return every hyperparameter of every group, as plain values."""
    return [
        {key: _plain(value) for key, value in group.items() if key not in IMPLEMENTATION_KEYS}
        for group in optimizer.param_groups
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else digest.of_tensor(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, int | float | str | bool | type(None)) else repr(value)


class _StepSampler:
    """Keeps single steps whole: batch, random state, weights, gradients, optimizer, result."""

    def __init__(self, options: Any) -> None:
        self.wanted: set[int] = set(options.get("samples", ()))
        self.folder = Path(options["folder"]) if options.get("folder") else None
        self.written: list[str] = []
        self.reason = "" if self.wanted else "no steps were asked for"
        self._tensors: dict[str, torch.Tensor] = {}
        self._specs: list[Any] = []
        self._loss: float | None = None

    def batch(self, batch: Any) -> None:
        leaves: list[torch.Tensor] = []
        spec = flatten(batch, leaves)
        if spec is None:
            self._give_up("a batch holds something else than tensors")
            return
        for position, leaf in enumerate(leaves):
            self._keep(f"batch.{len(self._specs)}.{position}", leaf)
        self._specs.append(to_plain(spec))

    def before_forward(self, roots: list[Any]) -> None:
        if "rng" in self._tensors:
            return
        self._keep("rng", torch.get_rng_state())
        if torch.cuda.is_initialized():
            for number, state in enumerate(torch.cuda.get_rng_state_all()):
                self._keep(f"rng.cuda.{number}", state)
        for number, root in enumerate(roots):
            for name, tensor in [*root.named_parameters(), *root.named_buffers()]:
                self._keep(f"model.{number}.{name}", tensor)

    def before_step(self, optimizer: Any, loss: float | None) -> None:
        self._loss = loss
        for key, parameter in parameters_of(optimizer):
            self._keep(f"before.{key}", parameter)
            if parameter.grad is not None:
                self._keep(f"grad.{key}", parameter.grad)
            for name, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    self._keep(f"state.{key}.{name}", value)

    def after_step(self, optimizer: Any, step: int) -> None:
        for key, parameter in parameters_of(optimizer):
            self._keep(f"after.{key}", parameter)
        self._write(step)

    def _keep(self, name: str, tensor: torch.Tensor) -> None:
        self._tensors[name] = tensor.detach().cpu().contiguous().clone()

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self.wanted = set()

    def _write(self, step: int) -> None:
        self.wanted.discard(step)
        if self.folder is None:
            raise Refusal("no folder was given to keep samples in")
        if not self._specs:
            self._give_up("the batches of the step did not come from a DataLoader")
            return
        path = self.folder / f"step-{step:06d}.safetensors"
        meta = {"step": step, "specs": self._specs, "loss": self._loss}
        save_file(self._tensors, path, metadata={"hotlap": json.dumps(meta)})
        self.written.append(str(path))
        self._tensors, self._specs = {}, []


def parameters_of(optimizer: Any) -> list[tuple[str, torch.Tensor]]:
    """Return (group.position, parameter) of everything that the optimizer holds."""
    return [
        (f"{g}.{i}", parameter)
        for g, group in enumerate(optimizer.param_groups)
        for i, parameter in enumerate(group["params"])
    ]


def to_plain(spec: Any) -> Any:
    """Return a batch's structure as plain JSON: `tensor`, or [kind, parts]."""
    if spec == "tensor":
        return spec
    kind, parts = spec
    if issubclass(kind, dict):
        return ["dict", [[key, to_plain(part)] for key, part in parts]]
    return ["list" if issubclass(kind, list) else "tuple", [to_plain(part) for part in parts]]
