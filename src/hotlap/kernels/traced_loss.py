"""Puts the chunked cross-entropy into a graph that `torch.compile` has traced.

`rewrite` looks for a linear layer whose output is only renamed (views, casts, slices of positions)
and taken by `F.cross_entropy`, and calls one operator in place of all of it. The operator takes
the gradients of the layer with the loss, chunk by chunk; the backward multiplies them.
"""

import contextlib
import operator
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.nn import functional

from hotlap.kernels.cross_entropy import Chunks, Setting, Work
from hotlap.kernels.logits import keeps_classes


class _Running(threading.local):
    """What counts the chunks of the call that this thread makes now."""

    seen: Chunks | None = None


_running = _Running()


@contextlib.contextmanager
def counted(seen: Chunks) -> Iterator[None]:
    """Count the chunks of what runs inside."""
    before, _running.seen = _running.seen, seen
    try:
        yield
    finally:
        _running.seen = before


@torch.library.custom_op("hotlap::chunked_cross_entropy", mutates_args=())
def chunked(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    wants: list[bool],
    product: torch.dtype,
    loss: torch.dtype,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
    rows: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the loss, and the gradients of hidden, weight and bias; empty ones are not wanted."""
    _check_rows(hidden, targets)
    setting = Setting(
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
        rows=rows,
        dtype=product,
        loss_dtype=loss,
        is_below_autograd=True,
        seen=_running.seen or Chunks(),
    )
    setting.seen.losses += 1
    setting.seen.rows = len(hidden)
    with torch.autocast(hidden.device.type, enabled=False):
        work = Work(hidden, weight, bias, targets, None, setting)
        total, gradients = work.losses_and_gradients((wants[0], wants[1], wants[2]))
    first, second, third = (
        hidden.new_empty(0) if each is None else each.contiguous() for each in gradients
    )
    return total, first, second, third


def _check_rows(hidden: torch.Tensor, targets: torch.Tensor) -> None:
    if hidden.shape[:-1] != targets.shape:
        raise RuntimeError(
            f"{len(hidden)} rows of logits have targets of shape {tuple(targets.shape)}. Expected: "
            "a target for each row."
        )


@chunked.register_fake
def _(
    hidden: Any,
    weight: Any,
    bias: Any,
    targets: Any,
    wants: Any,
    product: Any,
    loss: Any,
    ignore_index: Any,
    label_smoothing: Any,
    reduction: Any,
    rows: Any,
) -> Any:
    del product, ignore_index, label_smoothing, reduction, rows
    _check_rows(hidden, targets)
    tensors = (hidden, weight, bias)
    gradients = (
        each.new_empty(each.shape) if is_wanted else hidden.new_empty(0)
        for each, is_wanted in zip(tensors, wants, strict=True)
    )
    return (hidden.new_empty((), dtype=loss), *gradients)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.wants = inputs[4]
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*output[1:])


def _backward(ctx: Any, factor: Any, *_: Any) -> Any:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "the gradient of a chunked cross-entropy has no gradient of its own. Remove "
            "`chunked_loss` from the plan, or `create_graph=True` from the loss."
        )
    scaled = [
        (each * factor).to(each.dtype) if is_wanted else None
        for each, is_wanted in zip(ctx.saved_tensors, ctx.wants, strict=True)
    ]
    return (*scaled, *[None] * 8)


chunked.register_autograd(_backward, setup_context=_save)

_SAME_SHAPE = ("contiguous", "float", "to")
_OTHER_ROWS = ("view", "reshape", "flatten", torch.reshape, torch.flatten)
_FORMATS = (torch.bfloat16, torch.float32)
_NAMES = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction")
_PLAIN = {"weight": None, "size_average": None, "reduce": None}
"""What the operator has no argument for, and what it must be."""
_DEFAULTS = {"ignore_index": -100, "label_smoothing": 0.0, "reduction": "mean"}
"""As `F.cross_entropy` has them, in the operator's order."""
_AUGMENTED = (
    "iadd",
    "isub",
    "imul",
    "itruediv",
    "ifloordiv",
    "imod",
    "ipow",
    "iand",
    "ior",
    "ixor",
)
_IN_PLACE = (operator.setitem, *(getattr(operator, name) for name in _AUGMENTED))


def takes_losses(module: GraphModule) -> bool:
    """Return whether a traced graph takes a cross-entropy."""
    return any(node.target is functional.cross_entropy for node in module.graph.nodes)


def rewrite(module: GraphModule, rows: int) -> int:
    """Let the operator take every loss of a linear layer's output; return how many it takes.

    Args:
        module: as Dynamo traced it; it is changed.
        rows: rows of logits that exist at once.
    """
    if any("functorch" in getattr(node.target, "__module__", "") for node in module.graph.nodes):
        # What an operator does to batches of batches, or to gradients of gradients, nobody knows.
        return 0
    for node in reversed(module.graph.nodes):
        # A cast of logits that nobody reads must not pass for a reader.
        if not node.users and _renames(node):
            module.graph.erase_node(node)
    nodes = [node for node in module.graph.nodes if node.target is functional.cross_entropy]
    taken = sum(_replace(module, node, rows) for node in nodes)
    if taken:
        module.recompile()
    return taken


def _replace(module: GraphModule, node: Node, rows: int) -> bool:
    given = {**dict(zip((*_NAMES, "label_smoothing"), node.args, strict=False)), **node.kwargs}
    if any(given.pop(name, value) is not value for name, value in _PLAIN.items()):
        return False
    options = {**_DEFAULTS, **{name: given[name] for name in _DEFAULTS if name in given}}
    if options["reduction"] == "none" or any(isinstance(each, Node) for each in options.values()):
        return False
    chain, targets = _chain(given["input"]), _value(given["target"])
    if chain is None or targets.dtype != torch.int64 or _value(node).dim():
        return False
    # Without a gradient on the way, as under `no_grad`, there is none to take.
    if not all(_value(each).requires_grad for each in (node, *chain)):
        return False
    if any(_value(each).dtype not in _FORMATS for each in (node, *chain)):
        return False
    *renames, layer = chain
    if _is_changed_between(module, layer, node):
        return False
    hidden, weight, bias = layer.args
    wants = [each is not None and _value(each).requires_grad for each in layer.args]
    graph = module.graph
    with graph.inserting_before(node):
        for rename in reversed(renames):
            if rename.target is operator.getitem:
                hidden = graph.call_function(operator.getitem, (hidden, rename.args[1]))
        hidden = graph.call_method("reshape", (hidden, -1, _value(weight).shape[1]))
        tensors = (hidden, weight, bias, given["target"])
        both = graph.call_function(
            torch.ops.hotlap.chunked_cross_entropy.default,
            (*tensors, wants, _value(layer).dtype, _value(node).dtype, *options.values(), rows),
        )
        loss = graph.call_function(operator.getitem, (both, 0))
    loss.meta = dict(node.meta)
    node.replace_all_uses_with(loss)
    for dead in (node, *chain):
        graph.erase_node(dead)
    return True


def _chain(taken: Any) -> list[Node] | None:
    """Return what leads from the logits that a loss takes back to their layer, which comes last.

    None where that is no linear layer, its classes are not last, something else takes them, too, or
    positions are left out of rows that were put together before.
    """
    chain: list[Node] = []
    node = taken
    while isinstance(node, Node) and len(node.users) == 1:
        chain.append(node)
        if node.target is functional.linear:
            is_plain = len(node.args) == 3 and not node.kwargs and _value(taken).dim() == 2
            return chain if is_plain and _slices_come_first(chain) else None
        if not _renames(node):
            return None
        node = node.args[0]
    return None


def _slices_come_first(chain: list[Node]) -> bool:
    """Return whether positions are left out of the layer's output as it is."""
    kinds = [node.target for node in reversed(chain)]
    slices = [at for at, kind in enumerate(kinds) if kind is operator.getitem]
    others = [at for at, kind in enumerate(kinds) if kind in _OTHER_ROWS]
    return not slices or not others or max(slices) < min(others)


def _renames(node: Node) -> bool:
    """Return whether a node only renames the rows of a tensor, or leaves some out."""
    is_known = node.target in (*_SAME_SHAPE, *_OTHER_ROWS, operator.getitem)
    source = node.args[0] if is_known and node.args else None
    before, after = _value(source), _value(node)
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    is_there = after.is_floating_point() and before.device == after.device
    if not is_there or before.shape[-1:] != after.shape[-1:]:
        return False
    if node.target is operator.getitem:
        return before.dim() == after.dim() and keeps_classes(node.args[1], before.dim())
    return True


def _is_changed_between(module: GraphModule, layer: Node, node: Node) -> bool:
    """Return whether anything is written to between a layer and its loss.

    The operator stands where the loss is: what the layer read has to be as it was.
    """
    nodes = list(module.graph.nodes)
    return any(map(_writes, nodes[nodes.index(layer) : nodes.index(node)]))


def _writes(node: Node) -> bool:
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).endswith("__")
    name = getattr(node.target, "__name__", "")
    is_in_place = node.target in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    schema = getattr(node.target, "_schema", None)
    is_mutable = schema is not None and schema.is_mutable
    return is_in_place or is_mutable or bool({"out", "inplace"} & set(node.kwargs))


def _value(node: Any) -> Any:
    """Return the tensor without numbers that a node stands for, None if it stands for none."""
    return node.meta.get("example_value") if isinstance(node, Node) else None
