"""`Evaluations`: forwards of a trained model that no backward follows, by the lines they are at."""

from dataclasses import dataclass, field
from itertools import islice
from types import FrameType
from typing import Any

import torch

from hotlap.attach.learning.graphs import asks_for_gradient, has_graph
from hotlap.attach.learning.losses import Modes
from hotlap.nested import tensors
from hotlap.trace import frames
from hotlap.trace.learning import EvaluationFacts
from hotlap.usercode import is_users

_OUTPUTS = 8
"""Tensors of one output that are followed into its backward; the rest of a large one is not."""
_CALLERS = 4
"""Of a forward, functions of the user's that are told apart: one may train and evaluate."""
_OF_STATISTICS = frozenset({"update_bn", "update_bn_stats", "update_bn_statistics"})
"""Functions, torch's own among them, that compute the statistics of batch norm: in training mode,
as they must."""


@dataclass
class _Evaluated:
    forwards: int = 0
    passes: int = 0
    at_step: int = -1
    in_training_mode: int = 0
    with_gradients: int = 0
    modules: set[int] = field(default_factory=set)
    """Identities of those that were called."""

    def count(self, step: int) -> None:
        self.forwards += 1
        self.passes += self.at_step != step
        self.at_step = step


@dataclass
class _Trained:
    """A call of a model in training mode, with gradients on."""

    places: tuple[frames.Place, ...]
    """Where it is, and where the functions around it are called, from the innermost outwards."""
    evaluated: _Evaluated = field(default_factory=_Evaluated)
    is_used: bool = False
    """A backward has reached what was returned there, or nobody can tell."""
    has_modes: bool = False
    """The model behaves otherwise in evaluation mode."""

    def use(self, *_gradients: Any) -> None:
        self.is_used = True


class Evaluations:
    """Tells forwards of an evaluation from those of the training.

    Args:
        modes: knows the modules that behave otherwise in evaluation mode.
    """

    def __init__(self, modes: Modes) -> None:
        self._modes = modes
        self._evaluated: dict[str, _Evaluated] = {}
        self._trained: dict[tuple[tuple[int, int], ...], _Trained] = {}
        """By the identities of functions and their instructions."""
        self._in_evaluation: set[int] = set()
        """Identities of modules that were called in evaluation mode."""
        self._undecided: tuple[Any, str, bool] | None = None
        """A forward in evaluation mode that a backward may follow: module, line, and whether the
        gradient of an input is asked for."""
        self._step = 0

    @property
    def is_undecided(self) -> bool:
        return self._undecided is not None

    @property
    def has_modules(self) -> bool:
        """A model was called in evaluation mode."""
        return bool(self._in_evaluation)

    def take_undecided(self) -> Any:
        """Return the module whose forward waits for a backward: there is one."""
        undecided, self._undecided = self._undecided, None
        return undecided[0] if undecided else None

    def decide(self) -> None:
        """No backward has followed the newest forward in evaluation mode."""
        undecided, self._undecided = self._undecided, None
        if undecided is not None:
            _, where, is_asked_for = undecided
            # `torch.autograd.grad` may follow, as where forces are the gradient of an energy.
            if not is_asked_for:
                self._count(where).with_gradients += 1

    def add(self, module: Any, inputs: Any, output: Any, where: str, step: int) -> None:
        """Add a forward in evaluation mode, or without gradients."""
        self.decide()
        self._step = step
        if not module.training:
            self._in_evaluation.add(id(module))
        if torch.is_grad_enabled():
            if has_graph(output):
                self._undecided = (module, where, asks_for_gradient(inputs))
        elif not (module.training and _computes_statistics(frames.caller())):
            seen = self._count(where)
            seen.modules.add(id(module))
            seen.in_training_mode += module.training and self._modes.differ(module)

    def add_training(self, module: Any, output: Any, frame: FrameType | None, step: int) -> None:
        """Add a forward in training mode, with gradients on.

        Those of a model that is evaluated without `eval()` and `no_grad()` are known by what does
        not come: a backward that reaches what they have returned.
        """
        if not step:
            # A first look at what a model returns is no evaluation.
            return
        places: list[frames.Place] = []
        current = frame
        while current is not None and len(places) < _CALLERS:
            if is_users(current.f_code.co_filename):
                places.append((current.f_code, current.f_lasti))
            current = current.f_back
        if not places:
            return
        # To hash a code object is to hash all that it holds.
        key = tuple((id(code), instruction) for code, instruction in places)
        line = self._trained.get(key)
        if line is None:
            line = self._trained[key] = _Trained(tuple(places))
        if line.is_used or _computes_statistics(frame):
            return
        found = islice(tensors(output), _OUTPUTS)
        nodes = [tensor.grad_fn for tensor in found if tensor.grad_fn is not None]
        if not nodes:
            line.use()
            return
        for node in nodes:
            node.register_prehook(line.use)
        line.evaluated.count(step)
        line.evaluated.modules.add(id(module))
        line.has_modes = line.has_modes or self._modes.differ(module)

    def _count(self, where: str) -> _Evaluated:
        seen = self._evaluated.setdefault(where, _Evaluated())
        seen.count(self._step)
        return seen

    def facts(self, steps: int) -> tuple[EvaluationFacts, ...]:
        """Return what was seen in so many steps."""
        self.decide()
        found = [(where, each, 0) for where, each in self._evaluated.items()]
        used = {place for line in self._trained.values() if line.is_used for place in line.places}
        for line in self._trained.values():
            each = line.evaluated
            # Of the newest step's forwards some backward may still come.
            if not line.is_used and each.at_step < steps and each.forwards > 1:
                each.in_training_mode = each.forwards * line.has_modes
                # Of a function that trains as well it is the call that evaluates.
                place = next((each for each in line.places if each not in used), line.places[0])
                found.append((frames.location_at(place), each, each.forwards))
        return tuple(
            EvaluationFacts(
                where,
                each.forwards,
                each.passes,
                each.in_training_mode,
                each.with_gradients,
                unused,
                is_evaluated=not each.modules.isdisjoint(self._in_evaluation),
            )
            for where, each, unused in found
        )


def _computes_statistics(frame: FrameType | None) -> bool:
    """Return whether a function that computes the statistics of batch norm is running."""
    while frame is not None:
        if frame.f_code.co_name in _OF_STATISTICS:
            return True
        frame = frame.f_back
    return False
