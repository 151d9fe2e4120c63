"""Watches `DistributedDataParallel`: sums, unused parameters. What an optimizer does not reach."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from hotlap.attach.on_ranks import exposed_ms, read_log
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

    def exposed_ms(self, modules: Sequence[Any], steps: int) -> float:
        """Return how long a step waits for sums of gradients after its backwards, in ms.

        Args:
            modules: those that are trained.
            steps: iterations of the training loop.
        """
        sums = self.facts(steps)
        return exposed_ms(modules) * sums.per_step if sums is not None else 0.0

    def _searching(self) -> list[_Wrapper]:
        return [each for each in self.known if _searches(each.module)]


def _searches(module: Any) -> bool:
    # With a static graph only the first step is searched.
    return module.find_unused_parameters and not module.static_graph
