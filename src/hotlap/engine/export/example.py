"""`Example`: inputs that the loss gives the model; exports with them, and compares outputs."""

import contextlib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from hotlap.engine.memory.sample_batches import batches_of, first_samples, per_sample
from hotlap.errors import RunError, UsageError
from hotlap.task import Task

_SAMPLES = 4
_TOLERANCE = 1e-3
"""Of the largest output: ONNX runs other kernels."""


@dataclass(frozen=True)
class Example:
    """What the loss gives the model for a batch, and for one with a sample more."""

    nested: Any
    """How arguments and keywords are nested, as a tree of torch's."""
    leaves: list[Any]
    """What is in them."""
    following: list[Any]
    """The same for the batch with a sample more."""
    added: list[tuple[int, ...]]
    """What a sample adds to each dimension of each leaf; () for what is no tensor."""

    @property
    def _has_batch(self) -> bool:
        return any(map(any, self.added))

    def export_program(self, model: Any) -> Any:
        """Return the model as a program whose batch may have any size."""
        batch = torch.export.Dim("batch", min=1, max=2**20)
        sizes = [
            {dim: batch if more == 1 else more * batch for dim, more in enumerate(added) if more}
            for added in self.added
        ]
        args, kwargs = pytree.tree_unflatten([size or None for size in sizes], self.nested)
        by_name = inspect.signature(model.forward).bind(*args, **kwargs).arguments
        args, kwargs = pytree.tree_unflatten(self.leaves, self.nested)
        try:
            with torch.no_grad():
                return torch.export.export(
                    model, args, kwargs, dynamic_shapes=dict(by_name), strict=False
                )
        except Exception as error:
            raise RunError(
                f"torch.export cannot export the model: {type(error).__name__}: {error}\n"
                "Change the model's forward, or export a state dict: pass --to with a file name "
                "that ends with .pt or .safetensors."
            ) from error

    def compare(self, model: Any, other: Callable[..., Any]) -> str:
        """Run both on these batches and on one sample; return in words how far they differ.

        Raises:
            RunError: they differ by more than rounding, or in the number of outputs.
        """
        given, sizes = [self.leaves], "these inputs, whose shapes do not depend on the batch size"
        if self._has_batch:
            given += [self.following, list(map(_of_one, self.leaves, self.added))]
            sizes = f"batch sizes {_SAMPLES}, {_SAMPLES + 1} and 1"
        worst = 0.0
        for leaves in given:
            with torch.no_grad():
                ours, theirs = self._outputs(model, leaves), self._outputs(other, leaves)
            if len(ours) != len(theirs):
                raise RunError(
                    f"the exported program has {len(theirs)} outputs, and the model {len(ours)}. "
                    "Expected: as many. To export a state dict instead, pass --to with a file name "
                    "that ends with .pt or .safetensors."
                )
            for left, right in zip(ours, theirs, strict=True):
                worst = max(worst, _relative_difference(left, right))
        if not worst <= _TOLERANCE:
            raise RunError(
                f"the output of the exported program differs from the model's by {worst:.2g} of "
                f"the largest output. Expected: at most {_TOLERANCE:g}. To export a state dict "
                "instead, pass --to with a file name that ends with .pt or .safetensors."
            )
        return f"differs by at most {worst:.1e} of the largest output, for {sizes}"

    def _outputs(self, program: Callable[..., Any], leaves: list[Any]) -> list[Any]:
        # A forward may write into its inputs, and must not find what another one has written.
        own = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(own, self.nested)
        return pytree.tree_leaves(program(*args, **kwargs))


def _relative_difference(left: Any, right: Any) -> float:
    """Return by how much an output differs, as a share of its largest number; inf if wholly."""
    if not isinstance(left, torch.Tensor) or not left.is_floating_point():
        is_tensor = isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)
        same = torch.equal(left, right) if is_tensor else left == right
        return 0.0 if bool(same) else math.inf
    finite = left.isfinite()
    mine, theirs = (each.masked_fill(finite, 0.0) for each in (left, right))
    if not torch.allclose(mine, theirs, equal_nan=True):
        return math.inf
    if not bool(finite.any()):
        return 0.0
    off = float((left - right)[finite].abs().max())
    return off / (float(left[finite].abs().max()) or 1.0) if math.isfinite(off) else math.inf


def _of_one(leaf: Any, added: tuple[int, ...]) -> Any:
    for dim, more in enumerate(added):
        leaf = leaf.narrow(dim, 0, more).contiguous() if more else leaf
    return leaf


def example_of(task: Task, model: Any) -> Example:
    """Return what the loss gives the model for the first samples.

    Raises:
        UsageError: the loss does not call the model, or gives it what no batch of another size
            could be made of.
    """
    samples = first_samples(task, _SAMPLES)
    source = batches_of(samples, task)
    # The same samples, so that both are padded alike.
    order = torch.arange(_SAMPLES + 1) % len(samples)
    leaves, nested = _record_inputs(task, model, source.batch_of(order[:-1]))
    following, again = _record_inputs(task, model, source.batch_of(order))
    if nested != again:
        raise UsageError(_fixed_axis_message("arguments of the structure ", nested, again))
    added = []
    for before, after in zip(leaves, following, strict=True):
        if not isinstance(before, torch.Tensor):
            # Others are no inputs of a program, which torch says itself.
            if isinstance(before, int | float | str) and before != after:
                raise UsageError(_fixed_axis_message("", before, after))
            added.append(())
            continue
        more = per_sample(before.shape, _SAMPLES, after.shape)
        if more is None:
            shapes = tuple(before.shape), tuple(after.shape)
            raise UsageError(_fixed_axis_message("a tensor of shape ", *shapes))
        added.append(more)
    return Example(nested, leaves, following, added)


class _Seen(BaseException):
    """Ends a loss once its model was called. No `Exception`: users' code catches these."""


def _record_inputs(task: Task, model: Any, batch: Any) -> tuple[list[Any], Any]:
    """Return what the loss calls the model with first, flat, and how it is nested."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def record(module: Any, args: Any, kwargs: Any) -> None:
        del module
        seen.append((args, kwargs))
        # What comes later may need gradients, or write into what was seen.
        raise _Seen

    handle = model.register_forward_pre_hook(record, with_kwargs=True)
    try:
        with contextlib.suppress(_Seen):
            task.loss(model, batch)
    finally:
        handle.remove()
    if not seen:
        raise UsageError(
            "loss(model, batch) does not call the model, so the model's input is unknown. Call "
            "`model(...)` in the loss, or export a state dict: pass --to with a file name that "
            "ends with .pt or .safetensors."
        )
    leaves, nested = pytree.tree_flatten(seen[0])
    return [each.detach() if isinstance(each, torch.Tensor) else each for each in leaves], nested


def _fixed_axis_message(what: str, before: Any, after: Any) -> str:
    return (
        f"the loss calls the model with {what}{before} for a batch of {_SAMPLES}, and {after} for "
        f"one of {_SAMPLES + 1}, so the exported program could not take other batch sizes. In the "
        "loss, pass the model constants, and tensors whose dimensions are constant or multiples of "
        "the batch size; or export a state dict: pass --to with a file name that ends with .pt or "
        ".safetensors."
    )
