"""Captures single steps of a script to be repeated: batches, RNG states, weights, updates."""

from pathlib import Path
from typing import Any

import torch

from hotlap import nested
from hotlap.attach.roles.networks import Networks, parameters_of
from hotlap.attach.seams import known_optimizers
from hotlap.distributed.shares import is_share
from hotlap.rng import rng_states
from hotlap.techniques import Refusal
from hotlap.trial.step_files import write_step


class StepSampler:
    """Keeps single steps whole: batches, RNG, weights, and each update that the step takes.

    A step begins with its first batch and ends before the next one's; an optimizer for each of
    several networks updates in it. Where no DataLoader hands out a batch, it begins when the step
    before has ended: the script draws its batches itself, and can do so again.
    """

    def __init__(self, options: Any) -> None:
        self.wanted: set[int] = set(options.get("samples", ()))
        self.folder = Path(options["folder"]) if options.get("folder") else None
        self.written: list[dict[str, Any]] = []
        """The file of each step, and which updates of the run belong to it."""
        self.reason = "" if self.wanted else "no steps were requested"
        self.looks = False
        """True while steps that nobody asked for are begun too: they may turn out to be odd."""
        self._step: int | None = None
        self._random: dict[str, torch.Tensor] | None = None
        """RNG when the step before ended, until a batch is handed over or a forward begins."""
        self._early: dict[str, torch.Tensor] = {}
        """Of modules that were called before the forward with which the step begins."""
        self._at_own_places = bool(options.get("at_own_places"))
        """True to repeat every step where it is, also those whose batches could be handed over."""
        self._was_handed = False
        """True if a batch was handed over since the last step ended."""
        self._clear()

    def _clear(self) -> None:
        self._is_guess = False
        """True while nothing has shown that the batches are trained on."""
        self._draws_itself = False
        self._networks = Networks(())
        self._takes_gradient: dict[str, bool] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        self._specs: list[Any] = []
        self._updates: list[dict[str, Any]] = []
        self._carried: dict[int, int] | None = None
        """Of the step's first forward, while it runs: see `Carried.forward_begins`."""
        self._states: dict[int, int] = {}
        """The same, once it has returned."""

    def batch(
        self, step: int, batch: Any, networks: Networks, *, is_trained_on: bool | None = True
    ) -> None:
        """A batch is handed over; `step` steps have been taken before it.

        Args:
            step: steps before it.
            batch: what a DataLoader hands out.
            networks: that the script has called.
            is_trained_on: None if that is not known yet, as of a data set that the script has just
                made; then `backward_begins` or `evaluation_ends` tells.
        """
        if self._at_own_places or is_trained_on is False:
            return
        if is_trained_on:
            self.evaluation_ends()
            self._is_handed()
        if self._step is not None and step > self._step:
            self.finish()
        if self._step is not None and is_trained_on is None and not self._is_guess:
            return
        if self._step is None:
            # Before the first forward it is not known which modules are trained.
            if step not in self.wanted and not (self.looks and networks.roots):
                return
            self._begin(step, networks)
            if self._step is None:
                return
            self._is_guess = not is_trained_on
        if self._draws_itself:
            self._give_up("some batches of a step came from a DataLoader, others did not")
            return
        leaves: list[torch.Tensor] = []
        spec = nested.flatten_to_json(batch, leaves)
        if spec is None:
            self._give_up_batch(nested.NOT_IN_JSON)
            return
        if any(leaf.is_nested for leaf in leaves):
            self._give_up_batch("a batch holds a nested tensor, which cannot be kept")
            return
        number = len(self._specs)
        for position, leaf in enumerate(leaves):
            self._keep(f"batch.{number}.{position}", leaf)
        # Not at the forward: a script may draw noise as soon as it has the batch.
        for name, state in rng_states().items():
            self._keep(f"rng.{number}.{name}", state)
        self._specs.append(spec)

    def _is_handed(self) -> None:
        self._random = None
        self._was_handed = True

    def backward_begins(self) -> None:
        """A backward begins: what was handed over is trained on."""
        if self._is_guess:
            self._is_guess = False
            self._is_handed()

    def evaluation_ends(self) -> None:
        """What was handed over last is evaluated, or belongs to no step for another reason."""
        if self._is_guess:
            self._step = None
            self._clear()

    def mark_step_boundary(self, step: int) -> None:
        """`step` steps have been taken, by every optimizer: what comes next is of the next one."""
        if self._draws_itself:
            self.finish()
        draws_itself, self._was_handed = not self._was_handed, False
        self._early = {}
        if draws_itself and (step in self.wanted or self.looks):
            self._random = rng_states()

    def other_forward(self, module: Any, networks: Networks) -> None:
        """A module that no optimizer trains is called; the forward may change it."""
        if self._step is None and self._random is not None:
            for name, tensor in networks.states(module):
                self._early.setdefault(name, copy_for_storage(tensor))
        self.keep_states()

    def forward(
        self, step: int, inputs: Any, networks: Networks, carried: dict[int, int] | None = None
    ) -> None:
        """A training forward begins; `step` steps have been taken before it.

        Args:
            step: steps before it.
            inputs: of the forward.
            networks: that the script has called.
            carried: which of the inputs the model has returned before, see `Carried`.
        """
        states, self._random = self._random, None
        if states is None or self._step is not None:
            return
        self._begin(step, networks)
        if self._step is None:
            return
        self._draws_itself = True
        leaves = nested.given_tensors(inputs)
        if leaves is None:
            self._give_up("the model is called with objects that are not tensors")
            return
        for number, leaf in enumerate(leaves):
            self._keep(f"input.{number}", leaf)
        for name, state in states.items():
            self._keep(f"rng.0.{name}", state)
        self._carried = carried

    def forward_ends(self, output: Any) -> None:
        """A training forward returns this."""
        carried, self._carried = self._carried, None
        if carried and self._step is not None:
            returned = list(nested.tensors(output))
            self._states = {at: n for at, n in carried.items() if n < len(returned)}
            for at, number in self._states.items():
                self._keep(f"returned.{at}", returned[number])

    def _begin(self, step: int, networks: Networks) -> None:
        self._step = step
        self._networks = networks
        self.keep_states()

    def keep_states(self) -> None:
        """Keep what is not kept yet of the step: a module may be called for the first time."""
        if self._step is None or self._updates:
            return
        for name, tensor in self._networks.states():
            if is_share(tensor):
                self._give_up("each rank holds a share of the parameters (`fully_shard`)")
                return
            if name not in self._takes_gradient:
                self._keep(f"model.{name}", self._early.get(name, tensor))
                self._takes_gradient[name] = tensor.requires_grad

    def step_begins(self, step: int) -> None:
        """The first optimizer's step begins; `step` have been taken before it."""
        if self._step is None and step in self.wanted:
            self._give_up(
                "its batches do not come from a DataLoader, and its steps do not begin with a "
                "training forward"
            )

    def before_update(self, optimizer: Any, update: int, *, is_odd: bool = False) -> None:
        """An optimizer's step begins, the `update`-th of the run.

        Args:
            optimizer: the optimizer.
            update: counted from 0.
            is_odd: keep the step, whether it was asked for or not.
        """
        if self._step is None:
            return
        if is_odd:
            self.wanted.add(self._step)
        if self._step not in self.wanted and len(known_optimizers()) == 1:
            self._step = None
            self._clear()
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
            number = len(self._updates) - 1
            for key, parameter in parameters_of(optimizer):
                self._keep(f"after.{number}.{key}", parameter)
                for name, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, torch.Tensor) and value.dim():
                        self._keep(f"state_after.{number}.{key}.{name}", value)
            # Each optimizer's update may follow on a forward: those of the last one stay.
            for name, buffer in self._networks.buffers():
                self._keep(f"buffer.{name}", buffer)

    def finish(self) -> None:
        """Write the step that is kept, if there is one."""
        if self._step is None or not self._updates:
            return
        if self._step not in self.wanted:
            self._step = None
            self._clear()
            return
        if self.folder is None:
            raise Refusal(
                f"step {self._step} of the script is to be captured, but hotlap gave no folder for "
                "it. This is a bug in hotlap. Report it with this message."
            )
        path = self.folder / f"step-{self._step:06d}.safetensors"
        meta = {
            "step": self._step,
            "specs": self._specs,
            "updates": self._updates,
            "takes_gradient": self._takes_gradient,
            "states": self._states,
        }
        problem = write_step(self._tensors, path, meta)
        if problem:
            self._give_up(problem)
            return
        updates = [update["update"] for update in self._updates]
        written = {"file": str(path), "updates": updates, "step": self._step}
        self.written.append(written | {"draws_itself": self._draws_itself})
        self._step = None
        self._clear()

    def _keep(self, name: str, tensor: torch.Tensor) -> None:
        self._tensors[name] = copy_for_storage(tensor)

    def _give_up_batch(self, reason: str) -> None:
        # What may belong to no step says nothing of those that are wanted.
        if self._is_guess:
            self.evaluation_ends()
        else:
            self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self.wanted = set()
        self._step = None
        self._clear()


def copy_for_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy that safetensors takes."""
    dense = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
    return dense.cpu().contiguous().clone()


def place_of(optimizer: Any) -> int:
    """Return which of the process's optimizers this is, in the order that they were made."""
    return [id(known) for known in known_optimizers()].index(id(optimizer))
