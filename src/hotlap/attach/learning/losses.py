"""Losses by the line that sends them backward: their autograd graphs, means, evaluation mode."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hotlap.attach.learning.broadcasts import find_table
from hotlap.attach.learning.graphs import nodes_of
from hotlap.trace import frames
from hotlap.trace.learning import LossFacts
from hotlap.trace.saved_tensors import read_saved
from hotlap.usercode import is_users

_LOOKS = 4
"""Losses of one line whose graph is looked at: the line makes the same again and again."""
_MEAN = 1
"""`reduction="mean"` in the graph of torch's losses."""
_SAME = frozenset(
    {
        "AliasBackward0",
        "CloneBackward0",
        "PermuteBackward0",
        "ReshapeAliasBackward0",
        "SelectBackward0",
        "SliceBackward0",
        "SqueezeBackward0",
        "SqueezeBackward1",
        "ToCopyBackward0",
        "TransposeBackward0",
        "UnsafeViewBackward0",
        "UnsqueezeBackward0",
        "ViewBackward0",
    }
)
"""What passes numbers on as they are."""
_TWICE = {
    "LogSoftmaxBackward0": ("SoftmaxBackward0", "softmax"),
    "BinaryCrossEntropyWithLogitsBackward0": ("SigmoidBackward0", "sigmoid"),
}
_LIKELIHOODS = ("NllLossBackward0", "NllLoss2DBackward0")
_NO_LOGARITHMS = {
    "AddmmBackward0": "layer",
    "ConvolutionBackward0": "layer",
    "MmBackward0": "layer",
    "SigmoidBackward0": "sigmoid",
    "SoftmaxBackward0": "softmax",
}
"""What gives no logarithms of probabilities -> its name."""


@dataclass
class _Line:
    backwards: int = 0
    looks: int = 0
    means: int = 0
    normalized_twice: str = ""
    without_logarithm: str = ""
    table: int = 0
    replaced: int = 0
    replaced_of: int = 0
    not_scaled: int = 0
    evaluated: int = 0
    """In evaluation mode, whether or not a step has used their gradients."""
    waiting: int = 0
    """Of these, how many have sent gradients that neither a step nor a zeroing has come upon."""
    waiting_after_training: int = 0
    in_evaluation_mode: int = 0
    after_training: int = 0


class Losses:
    """Counts losses by the line that sends them backward."""

    def __init__(self) -> None:
        self.has_waiting = False
        """True if `step_begins` or `gradients_zeroed` would do anything."""
        self._lines: dict[str, _Line] = {}
        self._places: dict[tuple[int, int], tuple[_Line, Any]] = {}
        """Code, which is kept, and instruction -> what is known of their line."""
        self.settled: dict[tuple[int, int], _Line] = {}
        """Lines whose losses are only counted, so that `add` need not be called in every step."""

    def add(
        self,
        place: frames.Place,
        loss: Any,
        *,
        is_narrow: bool,
        is_evaluating: bool,
        is_scaled: bool = False,
    ) -> None:
        """Note a loss, before its backward.

        Args:
            place: what sends it backward.
            loss: of which only the graph is looked at, never the value.
            is_narrow: it comes of float16.
            is_evaluating: it comes of a model in evaluation mode that behaves otherwise in it.
            is_scaled: a scaler has multiplied it, and divides the gradients by as much.
        """
        code, instruction = place
        line, _ = self._places.get((id(code), instruction)) or self._find_line(place)
        if line.looks < _LOOKS:
            _look_at(loss, line, is_scaled=is_scaled)
        else:
            self.settled[id(code), instruction] = line
        line.not_scaled += is_narrow
        if is_evaluating:
            line.waiting += 1
            line.waiting_after_training += line.backwards > line.evaluated
            line.evaluated += 1
            self.has_waiting = True
        line.backwards += 1

    def first_step_begins(self) -> None:
        """All losses so far came of a model in evaluation mode, which was not known."""
        for line in self._lines.values():
            line.in_evaluation_mode += line.backwards - line.evaluated
            line.evaluated = line.backwards

    def step_begins(self) -> None:
        """A step uses the gradients of all losses since they were zeroed last."""
        for line in self._lines.values():
            line.in_evaluation_mode += line.waiting
            line.after_training += line.waiting_after_training
        self.gradients_zeroed()

    def gradients_zeroed(self) -> None:
        """No step will use the gradients that are there: they were asked for by an attack, say."""
        for line in self._lines.values():
            line.waiting = line.waiting_after_training = 0
        self.has_waiting = False

    def _find_line(self, place: frames.Place) -> "tuple[_Line, Any]":
        code, instruction = place
        line = self._lines.setdefault(frames.location_at(place), _Line())
        found = self._places[id(code), instruction] = line, code
        return found

    @property
    def has_odd(self) -> bool:
        """True if a loss was seen, or none so far, of which each one must be counted."""
        lines = self._lines.values()
        is_settled = len(self.settled) == len(self._places) > 0
        return not is_settled or any(line.not_scaled or line.evaluated for line in lines)

    def facts(self, estimate: Callable[[int], int] = int) -> tuple[LossFacts, ...]:
        """Return what was seen.

        Args:
            estimate: returns how many backwards there were of those that were counted.
        """
        return tuple(
            LossFacts(
                where=where,
                backwards=estimate(line.backwards),
                is_mean=line.looks > 0 and line.means == line.looks,
                normalized_twice=line.normalized_twice,
                without_logarithm=line.without_logarithm,
                table=line.table,
                replaced=line.replaced,
                replaced_of=line.replaced_of,
                not_scaled=line.not_scaled,
                in_evaluation_mode=line.in_evaluation_mode,
                after_training=line.after_training,
            )
            for where, line in self._lines.items()
        )


def _look_at(loss: Any, line: _Line, *, is_scaled: bool) -> None:
    """Look at the graph of a loss."""
    root = loss.grad_fn if isinstance(loss, torch.Tensor) else None
    if is_scaled and root is not None and root.next_functions:
        root = root.next_functions[0][0]
    if root is None:
        return
    line.looks += 1
    line.means += _is_plain_mean(root)
    line.normalized_twice = line.normalized_twice or _find_normalized_twice(root)
    line.without_logarithm = line.without_logarithm or _find_without_logarithm(root)
    line.table = line.table or find_table(root)
    replaced, of = _count_replaced(root)
    line.replaced += replaced
    line.replaced_of += of


def _is_plain_mean(node: Any) -> bool:
    """Return whether a loss is a mean, or a sum of means, that nothing divides or weights."""
    name = type(node).__name__
    if name in ("MeanBackward0", "MeanBackward1"):
        return True
    if hasattr(node, "_saved_reduction"):
        return node._saved_reduction == _MEAN
    inner = [each for each, _ in node.next_functions if each is not None]
    if name == "AddBackward0":
        return bool(inner) and all(map(_is_plain_mean, inner))
    return name in _SAME and len(inner) == 1 and _is_plain_mean(inner[0])


def _find_normalized_twice(root: Any) -> str:
    for node in nodes_of(root):
        before, word = _TWICE.get(type(node).__name__, ("", ""))
        if before and type(_source(node)).__name__ == before:
            return word
    return ""


def _find_without_logarithm(root: Any) -> str:
    for node in nodes_of(root):
        if type(node).__name__ in _LIKELIHOODS:
            return _NO_LOGARITHMS.get(type(_source(node)).__name__, "")
    return ""


def _count_replaced(root: Any) -> tuple[int, int]:
    """Return how many numbers `nan_to_num` replaces in a loss on the CPU, and of how many."""
    for node in nodes_of(root):
        # Other nodes are asked for nothing: what they have saved, a hook may have to compute.
        if type(node).__name__ == "NanToNumBackward0":
            for before in read_saved(node, "_saved_self"):
                if before.device.type == "cpu":
                    return int((~torch.isfinite(before)).sum()), before.numel()
            break
    return 0, 0


def _source(node: Any) -> Any:
    """Return the node that made the first input of a node, past those that pass it on."""
    inner = node.next_functions[0][0] if node.next_functions else None
    while inner is not None and type(inner).__name__ in _SAME and inner.next_functions:
        inner = inner.next_functions[0][0]
    return inner


class Modes:
    """Knows which of the watched modules behave otherwise in evaluation mode."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._holders: weakref.WeakKeyDictionary[Any, list[weakref.ref[Any]]] = (
            weakref.WeakKeyDictionary()
        )
        """Of each module the innermost ones in it that have parameters, and a part whose mode
        matters: such a part is its own if it has any."""

    def differ(self, module: Any) -> bool:
        """Return whether a module has dropout or batch norm, or asks for its mode itself."""
        if module not in self._known:
            self._known[module] = any(map(_depends_on_mode, module.modules()))
        return self._known[module]

    def forget_training(self, module: Any) -> bool:
        """Return whether such a module is in evaluation mode with every part of it, and trains
        what is around a part whose mode matters: one that is frozen is kept in that mode."""
        is_evaluating = self.differ(module) and not any(each.training for each in module.modules())
        return is_evaluating and self._is_trained(module)

    def _is_trained(self, module: Any) -> bool:
        if module not in self._holders:
            parts = [name for name, part in module.named_modules() if _depends_on_mode(part)]
            self._holders[module] = [weakref.ref(_holder_of(module, name)) for name in parts]
        holders = [holder for refer in self._holders[module] if (holder := refer()) is not None]
        return any(each.requires_grad for holder in holders for each in holder.parameters())


def _holder_of(root: Any, name: str) -> Any:
    """Return a part, or the innermost module around it, that has parameters."""
    while name:
        part = root.get_submodule(name)
        if next(part.parameters(), None) is not None:
            return part
        name = name.rpartition(".")[0]
    return root


def _depends_on_mode(module: Any) -> bool:
    if isinstance(module, torch.nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
        return module.track_running_stats
    if isinstance(module, torch.nn.RNNBase | torch.nn.MultiheadAttention):
        return module.dropout > 0
    # As `F.dropout(x, 0.5, self.training)`.
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and is_users(code.co_filename) and "training" in code.co_names
