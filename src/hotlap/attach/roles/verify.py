"""Records what a verdict needs: what was fed, the task's numbers, weights, and sampled steps."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.multiprocessing.reductions import StorageWeakRef

from hotlap import nested
from hotlap.attach.roles.observe import Watch
from hotlap.attach.roles.session import Part, Session
from hotlap.attach.seams import known_optimizers
from hotlap.techniques import Refusal
from hotlap.trial import digest
from hotlap.trial.numbers import numbers_of
from hotlap.trial.rng import rng_states


class Verify(Part):
    """Digests every batch, loss and weight of the first steps; keeps some steps whole.

    Options: `steps` (the horizon), `samples` (steps to keep whole), `folder` (where to keep them).

    Args:
        session: what it is a part of, after `watch`.
        watch: knows models, optimizers and loaders.
    """

    wants_phases = True

    def __init__(self, session: Session, watch: Watch) -> None:
        self.fed: list[str] = []
        self.loss_digests: list[int] = []
        self.weights: list[str] = []
        self.numbers: list[str] = []
        self._session, self._watch = session, watch
        self._inputs = _Inputs()
        self._sampler = _StepSampler(session.config.options)

    def batch_ends(self, iterator: Any, batch: Any) -> Any:
        if batch is not None:
            self.fed.append(digest.of_nested(batch))
            # An evaluation between two steps reads batches that belong to neither.
            if self._watch.steps == 0 or self._watch.is_training(iterator):
                self._inputs.new_step()
                self._sampler.batch(self._watch.steps, batch, self._watch.roots)
        return batch

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        del root
        self._inputs.forward_begins(inputs, len(self.weights))
        return inputs

    def forward_ends(self, root: Any, output: Any) -> None:
        del root
        self._inputs.forward_ends(output)

    def backward_begins(self, loss: Any) -> None:
        self.loss_digests.append(digest.of_tensor(loss))

    def step_begins(self, optimizer: Any) -> None:
        self.numbers.append(json.dumps(numbers_of(optimizer), sort_keys=True))
        stepper = self._watch.steppers.find(optimizer)
        if stepper is not None and stepper.number == 0:
            self._sampler.step_begins(self._watch.steps)
        self._sampler.before_update(optimizer, len(self.numbers) - 1)

    def step_ends(self, optimizer: Any) -> None:
        self._sampler.after_update(optimizer)
        weights = [p.detach() for group in optimizer.param_groups for p in group["params"]]
        self.weights.append(digest.of_nested(weights))
        if not self.fed:
            self._inputs.new_step()

    def step_done(self, optimizer: Any) -> None:
        del optimizer
        if self._watch.steps >= self._session.config.options["steps"]:
            self._session.stop()

    def report(self) -> dict[str, Any]:
        self._sampler.finish()
        return {
            "record": {
                "steps": self._watch.steps,
                "fed": self.fed,
                "inputs": self._inputs.digests,
                "inputs_at": self._inputs.updates,
                "losses": self._watch.recorder.losses(),
                "loss_digests": self.loss_digests,
                "weights": self.weights,
                "numbers": self.numbers,
                "samples": self._sampler.written,
                "not_sampled": self._sampler.reason,
            },
        }


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
        if self._is_first:
            self.digests.append(digest.of_nested(self._without_computed(inputs)))
            self.updates.append(updates)
        self._is_first = False

    def forward_ends(self, output: Any) -> None:
        """Remember what a model has computed, for as long as the script keeps it."""
        self._computed = [ref for ref in self._computed if not ref.expired()]
        self._computed += [StorageWeakRef(t.untyped_storage()) for t in _dense_tensors(output)]

    def _without_computed(self, value: Any) -> Any:
        words = "computed by a model"
        return nested.mapped(value, lambda t: words if self._is_computed(t) else t)

    def _is_computed(self, tensor: torch.Tensor) -> bool:
        if tensor.requires_grad:
            return True
        return any(
            StorageWeakRef(t.untyped_storage()) in self._computed for t in _dense_tensors(tensor)
        )


def _dense_tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in nested.tensors(value) if leaf.layout == torch.strided]


class _StepSampler:
    """Keeps single steps whole: batches, RNG, weights, and each update that the step takes.

    A step begins with its first batch and ends before the next one's; an optimizer for each of
    several networks updates in it.
    """

    def __init__(self, options: Any) -> None:
        self.wanted: set[int] = set(options.get("samples", ()))
        self.folder = Path(options["folder"]) if options.get("folder") else None
        self.written: list[dict[str, Any]] = []
        """The file of each step, and which updates of the run belong to it."""
        self.reason = "" if self.wanted else "no steps were asked for"
        self._step: int | None = None
        self._clear()

    def _clear(self) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        self._specs: list[Any] = []
        self._updates: list[dict[str, Any]] = []

    def batch(self, step: int, batch: Any, roots: list[Any]) -> None:
        """A training batch is handed over; `step` steps have been taken before it."""
        if self._step is not None and step > self._step:
            self.finish()
        if self._step is None:
            if step not in self.wanted:
                return
            self._step = step
            for name, tensor in states_of(roots):
                self._keep(f"model.{name}", tensor)
        leaves: list[torch.Tensor] = []
        spec = nested.take_apart(batch, leaves)
        if spec is None:
            self._give_up("a batch holds something else than tensors")
            return
        number = len(self._specs)
        for position, leaf in enumerate(leaves):
            self._keep(f"batch.{number}.{position}", leaf)
        # Not at the forward: a script may draw noise as soon as it has the batch.
        for name, state in rng_states().items():
            self._keep(f"rng.{number}.{name}", state)
        self._specs.append(nested.to_json(spec))

    def step_begins(self, step: int) -> None:
        """The first optimizer's step begins; `step` have been taken before it."""
        if self._step is None and step in self.wanted:
            self._give_up("the batches of the step did not come from a DataLoader")

    def before_update(self, optimizer: Any, update: int) -> None:
        """An optimizer's step begins, the `update`-th of the run."""
        if self._step is None:
            return
        number = len(self._updates)
        for key, parameter in parameters_of(optimizer):
            self._keep(f"before.{number}.{key}", parameter)
            if parameter.grad is not None:
                self._keep(f"grad.{number}.{key}", parameter.grad)
            for name, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    self._keep(f"state.{number}.{key}.{name}", value)
        self._updates.append({"optimizer": place_of(optimizer), "update": update})

    def after_update(self, optimizer: Any) -> None:
        """An optimizer's step has ended."""
        if self._step is not None and self._updates:
            for key, parameter in parameters_of(optimizer):
                self._keep(f"after.{len(self._updates) - 1}.{key}", parameter)

    def finish(self) -> None:
        """Write the step that is kept, if there is one."""
        if self._step is None or not self._updates:
            return
        if self.folder is None:
            raise Refusal("no folder was given to keep samples in")
        path = self.folder / f"step-{self._step:06d}.safetensors"
        meta = {"step": self._step, "specs": self._specs, "updates": self._updates}
        save_file(self._tensors, path, metadata={"hotlap": json.dumps(meta)})
        updates = [update["update"] for update in self._updates]
        self.written.append({"file": str(path), "updates": updates})
        self._step = None
        self._clear()

    def _keep(self, name: str, tensor: torch.Tensor) -> None:
        self._tensors[name] = tensor.detach().cpu().contiguous().clone()

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self.wanted = set()
        self._step = None
        self._clear()


def states_of(roots: list[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Give the tensors that a step starts from, with a name for each.

    They are what the trained modules hold, and what optimizers hold besides.
    """
    seen: set[int] = set()
    for number, root in enumerate(roots):
        for name, tensor in [*root.named_parameters(), *root.named_buffers()]:
            seen.add(id(tensor))
            yield f"{number}.{name}", tensor
    for number, optimizer in enumerate(known_optimizers()):
        for key, parameter in parameters_of(optimizer):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"optimizer.{number}.{key}", parameter


def place_of(optimizer: Any) -> int:
    """Return which of the process's optimizers this is, in the order that they were made."""
    return [id(known) for known in known_optimizers()].index(id(optimizer))


def parameters_of(optimizer: Any) -> list[tuple[str, torch.Tensor]]:
    """Return (group.position, parameter) of everything that the optimizer holds."""
    return [
        (f"{g}.{i}", parameter)
        for g, group in enumerate(optimizer.param_groups)
        for i, parameter in enumerate(group["params"])
    ]
