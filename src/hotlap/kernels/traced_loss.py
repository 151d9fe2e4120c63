"""Puts the chunked cross-entropy into a graph that `torch.compile` has traced.

`rewrite` looks for a linear layer whose output is only renamed (views, casts, slices of positions)
and taken by `F.cross_entropy`, and calls one operator in place of all of it. The operator takes
the gradients of the layer with the loss, chunk by chunk; the backward multiplies them.
"""

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.nn import functional

from hotlap.kernels.cross_entropy import Chunks, Setting, Work

_seen: list[Chunks] = []
"""What counts the chunks of the calls that run now; the innermost is last."""


@contextlib.contextmanager
def counted(seen: Chunks) -> Iterator[None]:
    """Count the chunks of what runs inside."""
    _seen.append(seen)
    try:
        yield
    finally:
        _seen.pop()


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
    setting = Setting(
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
        rows=rows,
        dtype=product,
        loss_dtype=loss,
        is_traced=True,
        seen=_seen[-1] if _seen else Chunks(),
    )
    setting.seen.losses += 1
    setting.seen.rows = len(hidden)
    with torch.autocast(hidden.device.type, enabled=False):
        work = Work(hidden, weight, bias, targets, None, setting)
        total, gradients = work.losses_and_gradients((wants[0], wants[1], wants[2]))
    first, second, third = (hidden.new_empty(0) if g is None else g for g in gradients)
    return total, first, second, third


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
    del targets, product, ignore_index, label_smoothing, reduction, rows
    tensors = (hidden, weight, bias)
    gradients = (
        torch.empty_like(each) if is_wanted and each is not None else hidden.new_empty(0)
        for each, is_wanted in zip(tensors, wants, strict=True)
    )
    return (hidden.new_empty((), dtype=loss), *gradients)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.wants = inputs[4]
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*output[1:])


def _backward(ctx: Any, factor: Any, *_: Any) -> Any:
    scaled = [
        (each * factor).to(each.dtype) if is_wanted and each.numel() else None
        for each, is_wanted in zip(ctx.saved_tensors, ctx.wants, strict=True)
    ]
    return (*scaled, *[None] * 8)


chunked.register_autograd(_backward, setup_context=_save)

_RENAMES = ("view", "reshape", "flatten", "contiguous", "float", "to")
_RENAMING = (torch.reshape, torch.flatten)
_NAMES = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction")
_PLAIN = {"weight": None, "size_average": None, "reduce": None}
"""What the operator has no argument for, and what it must be."""
_DEFAULTS = {"ignore_index": -100, "label_smoothing": 0.0, "reduction": "mean"}
"""As `F.cross_entropy` has them, in the operator's order."""


def rewrite(module: GraphModule, rows: int) -> int:
    """Let the operator take every loss of a linear layer's output; return how many it takes.

    Args:
        module: as Dynamo traced it; it is changed.
        rows: rows of logits that exist at once.
    """
    for node in reversed(module.graph.nodes):
        # A cast of logits that nobody reads must not pass for a reader.
        if not node.users and _only_renames(node):
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
    chain = _chain(given["input"])
    # A loss for each row, and probabilities as targets, are left to torch.
    is_one_number = _value(node).dim() == 0
    if chain is None or not is_one_number or _value(given["target"]).is_floating_point():
        return False
    *renames, layer = chain
    hidden, weight, bias = layer.args
    product = _value(layer).dtype
    wants = [each is not None and _value(each).requires_grad for each in layer.args]
    if product not in (torch.bfloat16, torch.float32) or not any(wants):
        return False
    options = {**_DEFAULTS, **{name: given[name] for name in _DEFAULTS if name in given}}
    if options["reduction"] == "none" or any(isinstance(each, Node) for each in options.values()):
        return False
    graph = module.graph
    with graph.inserting_before(node):
        for rename in reversed(renames):
            if rename.target is operator.getitem:
                hidden = graph.call_function(operator.getitem, (hidden, rename.args[1]))
        hidden = graph.call_method("reshape", (hidden, -1, _value(weight).shape[1]))
        tensors = (hidden, weight, bias, given["target"])
        both = graph.call_function(
            torch.ops.hotlap.chunked_cross_entropy.default,
            (*tensors, wants, product, _value(node).dtype, *options.values(), rows),
        )
        loss = graph.call_function(operator.getitem, (both, 0))
    loss.meta = dict(node.meta)
    node.replace_all_uses_with(loss)
    for dead in (node, *chain):
        graph.erase_node(dead)
    return True


def _chain(taken: Any) -> list[Node] | None:
    """Return what leads from the logits that a loss takes back to their layer, which comes last.

    None where that is no linear layer, its classes are not last, or something else takes them, too.
    """
    chain: list[Node] = []
    node, classes = taken, 0
    while isinstance(node, Node) and len(node.users) == 1:
        chain.append(node)
        if node.target is functional.linear:
            is_plain = len(node.args) == 3 and not node.kwargs
            return chain if is_plain and _value(taken).dim() == 2 else None
        classes = classes or _value(node).shape[-1]
        if _value(node).shape[-1] != classes or not _only_renames(node):
            return None
        node = node.args[0]
    return None


def _only_renames(node: Node) -> bool:
    source = node.args[0] if node.args else None
    if not isinstance(source, Node) or not isinstance(_value(source), torch.Tensor):
        return False
    before, after = _value(source), _value(node)
    if before.shape[-1:] != after.shape[-1:]:
        return False
    if node.target is operator.getitem:
        key = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        is_sliced = all(part is Ellipsis or isinstance(part, slice) for part in key)
        return is_sliced and before.dim() == after.dim()
    if not after.is_floating_point():
        return False
    return node.target in (_RENAMES if node.op == "call_method" else _RENAMING)


def _value(node: Any) -> Any:
    """Return the tensor without numbers that a node stands for."""
    return node.meta.get("example_value")
