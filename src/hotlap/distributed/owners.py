"""`Owners`: each parameter is updated by one rank, which alone keeps the state for it."""

from collections.abc import Iterable
from typing import Any

from hotlap.distributed.reduce import Reduce


def deal(sizes: Iterable[int], world: int) -> list[int]:
    """Return the rank that owns each item: the largest first, each to whom has least so far.

    >>> deal([4, 1, 3, 2], 2)
    [0, 0, 1, 1]
    """
    held = [0] * world
    found: dict[int, int] = {}
    for number, size in sorted(enumerate(sizes), key=lambda item: (-item[1], item[0])):
        rank = min(range(world), key=lambda each: (held[each], each))
        found[number] = rank
        held[rank] += size
    return [found[number] for number in range(len(found))]


class Owners:
    """Lets each rank update its own parameters only, and sends what was updated to all others.

    Groups, hyperparameters and gradients of the optimizer stay those of all parameters: only while
    it steps, parameters of other ranks have no gradient, and torch's optimizers pass them over.

    Args:
        optimizer: just made; the state that it may have of other ranks' parameters is dropped.
        reduce: the ranks.
    """

    shares_parameters = False

    def __init__(self, optimizer: Any, reduce: Reduce) -> None:
        self._reduce = reduce
        self._ranks: dict[int, int] = {}
        """Id of a parameter -> the rank that owns it."""
        self._parameters: list[Any] = []
        """In the order in which they were dealt; a reference keeps each id its own."""
        self._hidden: list[tuple[Any, Any]] = []
        self.updates = 0
        """Of the optimizer, that were sent around."""
        self._deal(optimizer)
        for parameter in self._parameters:
            if not self.keeps(parameter):
                optimizer.state.pop(parameter, None)
        optimizer.register_step_pre_hook(self._hide)
        optimizer.register_step_post_hook(self._send)

    def keeps(self, parameter: Any) -> bool:
        """Return whether this rank keeps the optimizer's state for a parameter."""
        return self._ranks.get(id(parameter), self._reduce.rank) == self._reduce.rank

    def gather(self) -> None:
        """Do nothing: every rank has all parameters."""

    @property
    def counts(self) -> tuple[int, int]:
        """Parameter tensors that this rank updates, and all."""
        own = sum(rank == self._reduce.rank for rank in self._ranks.values())
        return own, len(self._ranks)

    def _deal(self, optimizer: Any) -> None:
        """Deal what is not dealt yet: a group may be added to the optimizer at any time."""
        new: dict[int, Any] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in self._ranks:
                    new[id(parameter)] = parameter
        sizes = [each.numel() * each.element_size() for each in new.values()]
        for key, rank in zip(new, deal(sizes, self._reduce.world), strict=True):
            self._ranks[key] = rank
        self._parameters += new.values()

    def _hide(self, optimizer: Any, *_: Any) -> None:
        self._deal(optimizer)
        # A step that raised has left them hidden, and its run has ended.
        self._hidden = [
            (parameter, parameter.grad)
            for parameter in self._parameters
            if parameter.grad is not None and not self.keeps(parameter)
        ]
        for parameter, _gradient in self._hidden:
            parameter.grad = None

    def _send(self, *_: Any) -> None:
        for parameter, gradient in self._hidden:
            parameter.grad = gradient
        self._hidden = []
        ranks = [self._ranks[id(parameter)] for parameter in self._parameters]
        self._reduce.send_tensors(self._parameters, ranks)
        self.updates += 1
