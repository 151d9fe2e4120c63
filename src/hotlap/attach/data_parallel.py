"""Watches `DistributedDataParallel`: sums, unused parameters. What an optimizer does not reach."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from hotlap.attach.on_ranks import read_log
from hotlap.task import GradientSums

_FIRST = 8
"""Steps after each of which is looked, and the distance of looks from then on: the wrapper makes
its whole log for it."""


@dataclass(eq=False)
class _Wrapper:
    module: Any
    is_pending: bool = False
    """True from a forward that prepares for a sum to the backward that makes it."""
    sums: int = 0
    looks: int = 0
    unused_bytes: int = 0


class Wrappers:
    """Counts the sums of gradients over ranks, and looks what the search for parameters found."""

    def __init__(self) -> None:
        self.known: list[_Wrapper] = []

    def add(self, module: Any) -> None:
        """Follow a module, if it is a wrapper."""
        if isinstance(module, DistributedDataParallel):
            self.known.append(_Wrapper(module))

    def forward_ends(self, module: Any) -> None:
        """A training forward of a module has ended."""
        for each in self.known:
            # False within `no_sync`.
            if each.module is module and module.require_backward_grad_sync:
                each.is_pending = True

    def backward_begins(self) -> None:
        """The outermost backward begins."""
        for each in self.known:
            each.sums += each.is_pending
            each.is_pending = False

    def step_done(self, steps: int) -> None:
        """An iteration of the training loop has ended.

        Args:
            steps: iterations so far.
        """
        if steps <= _FIRST or steps % _FIRST == 0:
            for each in self._searching():
                log = read_log(each.module)
                each.looks += "unused_parameter_size" in log
                unused = int(log.get("unused_parameter_size", 0))
                each.unused_bytes = max(each.unused_bytes, unused)

    def facts(self, steps: int) -> GradientSums | None:
        """Return what was seen of the wrapper with most sums, None if there is none.

        Args:
            steps: iterations of the training loop.
        """
        if not self.known or not steps:
            return None
        most = max(self.known, key=lambda each: each.sums)
        return GradientSums(
            per_step=most.sums / steps,
            ms=int(read_log(most.module).get("avg_backward_comm_time", 0)) / 1e6,
            searches=most in self._searching(),
            looks=most.looks,
            unused_bytes=most.unused_bytes,
        )

    def _searching(self) -> list[_Wrapper]:
        return [each for each in self.known if _searches(each.module)]


def _searches(module: Any) -> bool:
    # With a static graph only the first step is searched.
    return module.find_unused_parameters and not module.static_graph


def outside_of(optimizer: Any, modules: Iterable[Any], optimizers: Iterable[Any]) -> "Outside":
    """Return what an optimizer does not reach, after a backward.

    Args:
        optimizer: has just stepped.
        modules: those that were called in training.
        optimizers: all of them.
    """
    trained = {id(p): (p, module) for module in modules for p in module.parameters()}
    held = {id(p) for each in optimizers for group in each.param_groups for p in group["params"]}
    own = [p for group in optimizer.param_groups for p in group["params"]]
    lost = [p for p in own if p.requires_grad and p.grad is None and id(p) not in trained]
    left = [
        type(module).__name__
        for key, (p, module) in trained.items()
        if p.requires_grad and p.grad is not None and key not in held
    ]
    return Outside(len(lost), len(left), left[0] if left else "")


@dataclass(frozen=True)
class Outside:
    """Parameters that an optimizer and the modules that are trained do not share."""

    lost: int
    """Tensors of the optimizer's that are in none of the modules, and have no gradient."""
    left: int
    """Tensors of the modules with a gradient that are in no optimizer."""
    module: str
    """Class of the module of the first of these, empty if there is none."""
