"""`Networks`: the modules that a script trains, and those that it only calls beside them."""

import weakref
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from hotlap.attach.seams import known_optimizers


class Networks:
    """Names of all tensors that a step starts from, and which of them no optimizer updates.

    Beside the modules that are trained a script may call others: a teacher, a target network, a
    momentum encoder, a loss with weights of its own. They are counted in the order of their first
    calls, those of each class by themselves, and not kept alive.

    Args:
        roots: the modules that are trained; more may come.
    """

    def __init__(self, roots: Sequence[Any]) -> None:
        self.roots = roots
        self._others: dict[str, weakref.ref[Any]] = {}

    def note_call(self, module: Any) -> str:
        """A module that no optimizer trains is called; return its name if it is new, else ""."""
        if any(ref() is module for ref in self._others.values()):
            return ""
        # A lazy one has no numbers before its first call has ended.
        if any(map(is_lazy, [*module.parameters(), *module.buffers()])):
            return ""
        self._others = {name: ref for name, ref in self._others.items() if ref() is not None}
        kind = type(module).__name__
        names = (f"{kind} {number}" for number in count(1))
        # One that is made anew in each step has the same name in each.
        name = next(name for name in names if name not in self._others)
        self._others[name] = weakref.ref(module)
        return name

    @property
    def others(self) -> list[Any]:
        """The modules that are only called and still there."""
        return [module for _, module in self._modules() if not self._is_root(module)]

    def is_beside(self, name: str) -> bool:
        """Return whether a name in `states` is of one of the `others`."""
        return name.partition(".")[0] in self._others

    def _is_root(self, module: Any) -> bool:
        return any(module is root for root in self.roots)

    def _modules(self) -> Iterator[tuple[str, Any]]:
        yield from ((str(number), root) for number, root in enumerate(self.roots, 1))
        for name, ref in self._others.items():
            module = ref()
            if module is not None and not self._is_root(module):
                yield name, module

    def states(self, only: Any = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Give the tensors that a step starts from, each once, with a name.

        They are what the modules hold, and what optimizers hold besides.

        Args:
            only: the module whose tensors are given; None for all.
        """
        seen: set[int] = set()
        for place, module in self._modules():
            if only is not None and module is not only:
                continue
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                if id(tensor) not in seen and not is_lazy(tensor):
                    seen.add(id(tensor))
                    yield f"{place}.{name}", tensor
        if only is not None:
            return
        for number, optimizer in enumerate(known_optimizers()):
            for key, parameter in parameters_of(optimizer):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield f"optimizer.{number}.{key}", parameter

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Give the buffers of the modules, with the names that `states` gives them."""
        for place, module in self._modules():
            for name, buffer in module.named_buffers():
                yield f"{place}.{name}", buffer

    def untrained(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Give the tensors of `states` that no optimizer updates.

        Those of a root without any trained parameter are left out: its optimizer has died, as that
        of the last fold, or of the last task.
        """
        trained = {id(p) for each in known_optimizers() for _, p in parameters_of(each)}
        over = {
            place
            for place, root in self._modules()
            if self._is_root(root) and all(id(p) not in trained for p in root.parameters())
        }
        for name, each in self.states():
            if id(each) not in trained and name.partition(".")[0] not in over:
                yield name, each


def parameters_of(optimizer: Any) -> list[tuple[str, torch.Tensor]]:
    """Return (group.position, parameter) of everything that the optimizer holds."""
    return [
        (f"{g}.{i}", parameter)
        for g, group in enumerate(optimizer.param_groups)
        for i, parameter in enumerate(group["params"])
    ]


def names_of(roots: list[Any]) -> list[dict[str, str]]:
    """Return, for each optimizer, the names of its parameters by their places in it."""
    names: dict[int, tuple[str, str]] = {}
    for place, root in enumerate(roots, 1):
        for name, parameter in root.named_parameters():
            names.setdefault(id(parameter), (name, f"{place}.{name}"))
    found = []
    for number, optimizer in enumerate(optimizers := known_optimizers(), 1):
        of = {
            key: names.get(id(parameter), (f"parameter {key}",) * 2)
            for key, parameter in parameters_of(optimizer)
        }
        # Two models of one optimizer may call their parameters alike.
        is_unique = len({short for short, _ in of.values()}) == len(of)
        head = f"optimizer {number}: " if len(optimizers) > 1 else ""
        found.append(
            {key: head + (short if is_unique else whole) for key, (short, whole) in of.items()}
        )
    return found
