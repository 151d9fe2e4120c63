"""Adam and AdamW with their two averages in 8 bits.

What it does   replaces torch's Adam(W) by torchao's or bitsandbytes': the two averages of each
               parameter take one byte per number and a scale per block, instead of four bytes
               each. Hyperparameters, parameter groups, schedules and checkpoints stay the same; a
               checkpoint holds the codes and scales as plain tensors.
When it helps  memory: six bytes less per trained parameter, where the optimizer's state is what
               does not fit.
When it hurts  time: a step of the optimizer is more work, not less, and torchao compiles it once
               per shape of a parameter, seconds each. Beliefs to correct: it does not make a step
               faster, and it does not make weights, gradients or activations smaller. Parameters of
               fewer than 4096 numbers keep averages of float32.
Numerics       changes: each update sees rounded averages. Runs that were compared in the literature
               end equally well; that is no proof for this one.
Measured       not yet measured on a GPU. On a CPU it ran, and a resumed run ended with the bits of
               one that did not stop (tests/techniques/test_eight_bit.py).
Source         Dettmers et al. 2022, arXiv 2110.02861; documentation of torchao.optim and of
               bitsandbytes.optim.
"""

import contextlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hotlap.task import TaskFacts
from hotlap.techniques.record import Numerics, Proof, Refusal, StepTarget, Technique

_FLAGS = ("amsgrad", "maximize", "differentiable", "capturable")
_KEPT = ("lr", "betas", "eps", "weight_decay")
_OR_WITHOUT = "or use a plan without eight_bit_optimizer."


@dataclass(frozen=True)
class Options:
    package: Literal["torchao", "bitsandbytes"] = "torchao"
    """Whose optimizer; bitsandbytes needs a CUDA device."""
    compiled: bool = True
    """torchao only: compile the update, as torchao does. Without it each operator runs for itself,
    which needs no compiler and is slower."""


def why_not(task: TaskFacts, host: Any, options: Options) -> str | None:
    if importlib.util.find_spec(options.package) is None:
        return _explain_absence(options.package)
    if options.package == "bitsandbytes" and (task.device == "cpu" or not host.gpus):
        return (
            f"package='bitsandbytes' needs a CUDA device, but the model trains on '{task.device}' "
            f'({len(host.gpus)} GPUs on the host). Set package = "torchao" in the plan, under '
            "[techniques.eight_bit_optimizer]."
        )
    known = ("torch.optim.adam.Adam", "torch.optim.adamw.AdamW")
    if task.optimizers and not any(row.name in known for row in task.optimizers):
        name = task.optimizers[0].name
        return (
            f"eight_bit_optimizer cannot replace the optimizer {name}. Expected: torch.optim.Adam "
            "or torch.optim.AdamW; or use a plan without eight_bit_optimizer."
        )
    return None


def _explain_absence(package: str) -> str:
    return (
        f"the package {package} is not installed. Install it with `pip install {package}`, "
        f"{_OR_WITHOUT}"
    )


def apply(target: StepTarget, options: Options) -> StepTarget:
    plain = target.optimizer
    reason = _obstacle(plain)
    if reason is not None:
        raise Refusal(reason)
    if importlib.util.find_spec(options.package) is None:
        raise Refusal(_explain_absence(options.package))
    groups = [
        {"params": list(group["params"]), **{key: group[key] for key in _KEPT}}
        for group in plain.param_groups
    ]
    if options.package == "bitsandbytes":
        if target.device != "cuda":
            raise Refusal(
                "eight_bit_optimizer with package='bitsandbytes' needs a CUDA device, but the "
                f"model is on '{target.device}'. Set package = \"torchao\" in the plan, under "
                "[techniques.eight_bit_optimizer]."
            )
        made = _bitsandbytes(plain, groups)
    else:
        made = _torchao(plain, groups, options, target)
    target.optimizer = made
    target.notes["eight_bit_optimizer"] = lambda: _sizes(made)
    return target


def _obstacle(optimizer: Any) -> str | None:
    """Return why an optimizer cannot be exchanged, None if it can."""
    import torch

    name = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW):
        return (
            f"the optimizer is {name}, which eight_bit_optimizer cannot replace. Use "
            f"torch.optim.Adam or torch.optim.AdamW, {_OR_WITHOUT}"
        )
    if optimizer.state:
        return (
            "the optimizer has taken steps already, and eight_bit_optimizer cannot convert its "
            f"state. Return a new optimizer from the task's `optimizer`, {_OR_WITHOUT}"
        )
    for group in optimizer.param_groups:
        asked = [flag for flag in _FLAGS if group.get(flag)]
        if asked:
            return (
                f"the optimizer has {asked[0]}=True, which eight_bit_optimizer does not support. "
                f"Set {asked[0]}=False, {_OR_WITHOUT}"
            )
        if isinstance(group["lr"], torch.Tensor):
            return (
                "the learning rate is a tensor, which eight_bit_optimizer does not support. Pass "
                f"lr as a float, {_OR_WITHOUT}"
            )
    return None


def _decouples(optimizer: Any, group: Mapping[str, Any]) -> bool:
    import torch

    return bool(group.get("decoupled_weight_decay")) or isinstance(optimizer, torch.optim.AdamW)


def _kind(plain: Any) -> str:
    """Return `AdamW` or `Adam`: by what its groups do, as torch's own AdamW is an Adam."""
    ways = {_decouples(plain, group) for group in plain.param_groups}
    if len(ways) > 1:
        raise Refusal(
            "the parameter groups have different values of `decoupled_weight_decay`, and an 8-bit "
            f"optimizer has one for all groups. Set the same value in all groups, {_OR_WITHOUT}"
        )
    return "AdamW" if ways == {True} else "Adam"


def _torchao(plain: Any, groups: list[dict[str, Any]], options: Options, target: StepTarget) -> Any:
    import torch

    with _import_quietly():
        import torchao.optim  # pyright: ignore[reportMissingImports]
    base: Any = getattr(torchao.optim, f"{_kind(plain)}8bit")
    stance = "default" if options.compiled else "force_eager"

    class EightBit(base):
        """torchao's, with learning rates that stay numbers between steps."""

        def add_param_group(self, group: dict[str, Any]) -> None:
            super().add_param_group(group)
            self.param_groups[-1]["lr"] = group["lr"] if "lr" in group else self.defaults["lr"]

        def step(self, closure: Any = None) -> Any:
            rates = [group["lr"] for group in self.param_groups]
            try:
                for group in self.param_groups:
                    # Its compiled update would be compiled again for every new number.
                    group["lr"] = torch.tensor(group["lr"], dtype=torch.float32)
                with torch.compiler.set_stance(stance):
                    return super().step(closure)
            finally:
                for group, rate in zip(self.param_groups, rates, strict=True):
                    group["lr"] = rate

    EightBit.__name__ = EightBit.__qualname__ = base.__name__
    EightBit.__module__ = base.__module__
    rates = [group["lr"] for group in groups]
    made = EightBit(groups)
    for group, rate in zip(made.param_groups, rates, strict=True):
        group["lr"] = rate

    def empty(parameter: Any, key: str) -> Any:
        """Return an average of zeros, of the kind that a parameter's state has."""
        return made._new_buffer(parameter, key == "exp_avg")

    target.empty_state = empty
    return made


@contextlib.contextmanager
def _import_quietly() -> Any:
    """Import without torchao's lines on kernels that this machine does not need."""
    import logging
    import warnings

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _bitsandbytes(plain: Any, groups: list[dict[str, Any]]) -> Any:
    import bitsandbytes  # pyright: ignore[reportMissingImports]

    return getattr(bitsandbytes.optim, f"{_kind(plain)}8bit")(groups)


def _sizes(optimizer: Any) -> tuple[int, int, int]:
    """Return bytes of the state, bytes that float32 averages would take, averages in 8 bits."""
    held = wide = narrow = 0
    for parameter, state in optimizer.state.items():
        wide += 2 * 4 * parameter.numel()
        for value in state.values():
            for part in parts_of(value).values():
                held += part.numel() * part.element_size()
                # The codes: as many bytes as the parameter has numbers.
                narrow += part.element_size() == 1 and part.numel() == parameter.numel()
    return held, wide, narrow


def parts_of(value: Any) -> dict[str, Any]:
    """Return the plain tensors that a tensor consists of, by name; itself, if it is one."""
    import torch

    if not isinstance(value, torch.Tensor):
        return {}
    flatten = getattr(value, "__tensor_flatten__", None)
    if flatten is None:
        return {"": value}
    names, _ = flatten()
    return {name: getattr(value, name) for name in names}


def proof(target: StepTarget) -> Proof:
    look: Callable[[], tuple[int, int, int]] | None = target.notes.get("eight_bit_optimizer")
    held, wide, narrow = look() if look is not None else (0, 0, 0)
    if held == 0:
        return Proof("no_effect", "no step was taken")
    if narrow == 0:
        return Proof("no_effect", "no parameter is large enough: all optimizer state is in float32")
    return Proof(
        "applied",
        f"{narrow} averages are in 8 bits: the optimizer state takes {held / 2**20:.2f} MiB, in "
        f"float32 it would take {wide / 2**20:.2f} MiB",
    )


TECHNIQUE = Technique(
    name="eight_bit_optimizer",
    seam="step",
    Options=Options,
    numerics=lambda: Numerics.CHANGES,
    why_not=why_not,
    apply=apply,
    proof=proof,
    candidates=lambda: (),
)
