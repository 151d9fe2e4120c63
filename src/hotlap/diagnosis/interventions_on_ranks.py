"""Interventions on `DistributedDataParallel`: no search for unused parameters, fewer sums."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hotlap.techniques import Numerics, Proof, Technique
from hotlap.techniques.record import ProcessTarget


def _without_search(target: ProcessTarget) -> ProcessTarget:
    target.switch = lambda: _wrap_without_search(target.notes)
    return target


def _wrap_without_search(notes: dict[str, Any]) -> Callable[[], None]:
    from torch.nn.parallel import DistributedDataParallel

    init = DistributedDataParallel.__init__
    signature = inspect.signature(init)

    @functools.wraps(init)
    def init_without_search(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        notes["wrapped"] = notes.get("wrapped", 0) + given.arguments.get(
            "find_unused_parameters", False
        )
        given.arguments["find_unused_parameters"] = False
        init(*given.args, **given.kwargs)

    DistributedDataParallel.__init__ = init_without_search
    return lambda: setattr(DistributedDataParallel, "__init__", init)


def _proof_without_search(target: ProcessTarget) -> Proof:
    if not target.notes.get("wrapped"):
        return Proof("no_effect", "no DistributedDataParallel was made that searches")
    return Proof("applied", "find_unused_parameters=False")


NO_SEARCH = Technique(
    name="no_search",
    seam="process",
    numerics=lambda: Numerics.CHANGES,
    why_not=lambda: "a step that leaves a parameter unused would fail without the search",
    apply=_without_search,
    proof=_proof_without_search,
    candidates=lambda: (),
    on_ranks=True,
)


@dataclass(frozen=True)
class FewerSumsOptions:
    """Which of the backwards sum."""

    every: int
    """One of so many."""


def _with_fewer_sums(target: ProcessTarget, options: FewerSumsOptions) -> ProcessTarget:
    target.switch = lambda: _sum_seldom(target.notes, options.every)
    return target


def _sum_seldom(notes: dict[str, Any], every: int) -> Callable[[], None]:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    forward = DistributedDataParallel.forward
    forwards: dict[int, int] = {}

    @functools.wraps(forward)
    def forward_without_sum(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and torch.is_grad_enabled() and self.require_backward_grad_sync):
            return forward(self, *args, **kwargs)
        count = forwards[id(self)] = forwards.get(id(self), 0) + 1
        # What `no_sync` does; a backward asks what its forward was.
        self.require_backward_grad_sync = count % every == 0
        notes["left_out"] = notes.get("left_out", 0) + (count % every != 0)
        try:
            return forward(self, *args, **kwargs)
        finally:
            self.require_backward_grad_sync = True

    DistributedDataParallel.forward = forward_without_sum
    return lambda: setattr(DistributedDataParallel, "forward", forward)


def _proof_of_fewer_sums(target: ProcessTarget) -> Proof:
    count = target.notes.get("left_out", 0)
    if not count:
        return Proof("no_effect", "no backward was made without its sum")
    return Proof("applied", f"{count} backwards without a sum")


FEWER_SUMS = Technique(
    name="fewer_sums",
    seam="process",
    numerics=lambda: Numerics.CHANGES,
    why_not=lambda: "which backward is the last one of a step, only the script knows",
    apply=_with_fewer_sums,
    proof=_proof_of_fewer_sums,
    candidates=lambda: (),
    Options=FewerSumsOptions,
    on_ranks=True,
)


PAGES = {
    NO_SEARCH.name: "Makes DistributedDataParallel with find_unused_parameters=False, so that no "
    "step is searched for unused parameters. A diagnosis races it against the plain script to "
    "measure what the search costs. No plan can hold it: a step that leaves a parameter unused "
    "would fail.",
    FEWER_SUMS.name: "Sums gradients over ranks once in a given number of backward passes, as "
    "`no_sync` does. A diagnosis races it against the plain script to measure what the other sums "
    "cost. No plan can hold it: only the script knows which backward pass is the last of a step.",
}
"""Name of an intervention -> what `hotlap explain` says of it."""
