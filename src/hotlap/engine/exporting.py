"""What was trained, for those who use it elsewhere: a state dict, torch.export, or ONNX."""

import importlib
import importlib.util
import inspect
import io
import logging
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.utils import _pytree as pytree

from hotlap.checkpoint.files import check_path
from hotlap.checkpoint.foreign import fitted, is_foreign, read_foreign
from hotlap.engine.build import seed_everything
from hotlap.engine.memory.few import batches_of, first_of, per_sample
from hotlap.engine.outfile import check_free, replaced, saving
from hotlap.engine.state.saving import find
from hotlap.engine.state.weights import extra_of, load_buffers, load_model
from hotlap.errors import MissingFile, RunError, UsageError
from hotlap.task import Task

log = logging.getLogger("hotlap")

FORMATS = (".pt", ".safetensors", ".pt2", ".onnx")
_SAMPLES = 4
_TOLERANCE = 1e-3
"""Of the largest output: ONNX runs other kernels."""


@dataclass(frozen=True)
class Exported:
    """A file that was written, and what showed that it gives what the model gives."""

    path: Path
    bytes: int
    checked: str
    source: Path
    """The file of weights, or the folder `step-...`, that it was made of."""

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "bytes": self.bytes,
            "checked": self.checked,
            "source": str(self.source),
        }


def weights_of(
    source: str | Path,
    wanted: Mapping[str, torch.Tensor],
    notice: Callable[[str], None] = log.info,
) -> dict[str, torch.Tensor]:
    """Return the weights of a run's folder, of a folder `step-...`, or of a file.

    Args:
        source: see `hotlap.checkpoint.foreign` for the files.
        wanted: the model's own state dict.
        notice: called, in words, with what they are of, and why newer steps were passed over.

    Raises:
        MissingFile: it is not there.
        UsageError: the weights are those of another model.
        CheckpointCorrupt: it is not what it says it is.
    """
    found = _found(source, notice)
    notice(f"weights of '{found.path}'")
    return fitted(found.weights, wanted, found.path)


@dataclass(frozen=True)
class _Found:
    """What a model is put together from."""

    path: Path
    weights: Mapping[str, torch.Tensor]
    buffers: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Those that no state dict has."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What modules gave by `get_extra_state`."""


def _found(source: str | Path, notice: Callable[[str], None]) -> _Found:
    path = Path(source)
    check_path(path)
    if is_foreign(path):
        return _Found(path, read_foreign(path))
    if not path.is_dir():
        raise MissingFile(
            f"'{path}' is not there. Allowed: a run's folder, a folder `step-...`, or a file of "
            "weights."
        )
    saved, passed = find(str(path), None)
    for why in passed:
        notice(f"passed over: {why}")
    assert saved is not None
    buffers = saved.tensors.get("buffers", {})
    return _Found(saved.path, saved.tensors["model"], buffers, extra_of(saved.state))


def export(
    task: Task,
    source: str | Path,
    to: str | Path,
    *,
    overwrite: bool = False,
    notice: Callable[[str], None] = log.warning,
) -> Exported:
    """Write a trained model into a file.

    Args:
        task: whose model it is; its data give the example input.
        source: a run's folder, a folder `step-...`, or a file of weights.
        to: `.pt` and `.safetensors` hold a state dict for the plain model, `.pt2` a program of
            torch.export, `.onnx` one for other runtimes. Programs are in evaluation mode.
        overwrite: replace a file that is there.
        notice: called with why newer steps of the run were passed over, in words.

    Raises:
        MissingFile: `source`, or a package that the format needs, is not there.
        UsageError: the format is not known, the file exists, or the weights do not fit.
        RunError: the model cannot be exported, or the program gives something else.
        StorageError: the file could not be written.
    """
    path = Path(to)
    if path.suffix not in FORMATS:
        raise UsageError(f"'{path}' has no known ending. Allowed: {', '.join(FORMATS)}.")
    check_free(path, overwrite)
    if path.suffix == ".onnx":
        _need_onnx()
    seed_everything(task.seed)
    model = task.model()
    found = _found(source, notice)
    weights = fitted(found.weights, model.state_dict(), found.path)
    load_model(model, {**weights, **found.extra})
    load_buffers(model, found.buffers)
    model.eval()
    checked = replaced(path, lambda aside: _WRITERS[path.suffix](task, model, aside))
    return Exported(path, path.stat().st_size, checked, found.path)


def _state_dict(task: Task, model: Any, path: Path) -> str:
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if path.suffix == ".pt":
        with saving():
            torch.save(weights, path)
        again = torch.load(path, weights_only=True)
    else:
        # Tied weights share memory, which that format does not hold.
        with saving():
            save_file({name: tensor.clone() for name, tensor in weights.items()}, path)
        again = read_foreign(path)
    task.model().load_state_dict(again)
    same = all(torch.equal(again[name], tensor) for name, tensor in weights.items())
    if not same:
        raise RunError(f"'{path}' does not hold what was written.")
    return f"{len(weights)} tensors, read again and equal, load into the plain model"


def _program(task: Task, model: Any, path: Path) -> str:
    example = _example(task, model)
    program = example.exported(model)
    # Torch's own writer ends the process where a file cannot be written to its end.
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    path.write_bytes(buffer.getbuffer())
    again = torch.export.load(path).module()
    return example.compared(model, again)


def _onnx(task: Task, model: Any, path: Path) -> str:
    onnxruntime = importlib.import_module("onnxruntime")

    example = _example(task, model)
    program = example.exported(model)
    with torch.no_grad(), warnings.catch_warnings():
        # Torch warns of what its own exporter uses.
        warnings.simplefilter("ignore")
        torch.onnx.export(program, (), path, dynamo=True, external_data=False, verbose=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]

    def run(*args: Any, **kwargs: Any) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf.numpy() for leaf in leaves if isinstance(leaf, torch.Tensor)]
        outputs = session.run(None, dict(zip(names, tensors, strict=True)))
        return [torch.from_numpy(output) for output in outputs]

    return f"{example.compared(model, run)}, by onnxruntime"


_WRITERS: dict[str, Callable[[Task, Any, Path], str]] = {
    ".pt": _state_dict,
    ".safetensors": _state_dict,
    ".pt2": _program,
    ".onnx": _onnx,
}


@dataclass(frozen=True)
class _Example:
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

    def exported(self, model: Any) -> Any:
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
                f"the model cannot be exported: {type(error).__name__}: {error}"
            ) from error

    def compared(self, model: Any, other: Callable[..., Any]) -> str:
        """Run both on these batches and on one sample; return in words how far they differ.

        Raises:
            RunError: they differ by more than rounding.
        """
        given, sizes = [self.leaves], "these inputs, whose shapes do not follow the batch"
        if self._has_batch:
            given += [self.following, list(map(_of_one, self.leaves, self.added))]
            sizes = f"batches of {_SAMPLES}, {_SAMPLES + 1} and 1"
        worst = 0.0
        for leaves in given:
            args, kwargs = pytree.tree_unflatten(leaves, self.nested)
            with torch.no_grad():
                theirs = pytree.tree_leaves(other(*args, **kwargs))
                ours = pytree.tree_leaves(model(*args, **kwargs))
            for left, right in zip(ours, theirs, strict=True):
                worst = max(worst, _apart(left, right))
        if not worst <= _TOLERANCE:
            raise RunError(f"the exported program differs from the model by {worst:.2g}.")
        return f"differs by at most {worst:.1e} of the largest output, for {sizes}"


def _apart(left: Any, right: Any) -> float:
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


def _example(task: Task, model: Any) -> _Example:
    """Return what the loss gives the model for the first samples.

    Raises:
        UsageError: the loss does not call the model, or gives it what no batch of another size
            could be made of.
    """
    samples = first_of(task, _SAMPLES)
    source = batches_of(samples, task)
    # The same samples, so that both are padded alike.
    order = torch.arange(_SAMPLES + 1) % len(samples)
    leaves, nested = _given(task, model, source.batch_of(order[:-1]))
    following, again = _given(task, model, source.batch_of(order))
    if nested != again:
        raise UsageError(_fixed("arguments nested as ", nested, again))
    added = []
    for before, after in zip(leaves, following, strict=True):
        if not isinstance(before, torch.Tensor):
            # Others are no inputs of a program, which torch says itself.
            if isinstance(before, int | float | str) and before != after:
                raise UsageError(_fixed("", before, after))
            added.append(())
            continue
        more = per_sample(before.shape, _SAMPLES, after.shape)
        if more is None:
            shapes = tuple(before.shape), tuple(after.shape)
            raise UsageError(_fixed("a tensor of the shape ", *shapes))
        added.append(more)
    return _Example(nested, leaves, following, added)


def _given(task: Task, model: Any, batch: Any) -> tuple[list[Any], Any]:
    """Return what the loss calls the model with first, flat, and how it is nested."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def record(module: Any, args: Any, kwargs: Any) -> None:
        del module
        seen.append((args, kwargs))

    handle = model.register_forward_pre_hook(record, with_kwargs=True)
    try:
        with torch.no_grad():
            task.loss(model, batch)
    finally:
        handle.remove()
    if not seen:
        raise UsageError(
            "loss(model, batch) does not call the model, so its input is not known. Allowed: a "
            "loss that calls `model(...)`."
        )
    return pytree.tree_flatten(seen[0])


def _fixed(what: str, before: Any, after: Any) -> str:
    return (
        f"the loss calls the model with {what}{before} for a batch of {_SAMPLES}, and {after} for "
        f"one of {_SAMPLES + 1}, so a program could not take batches of any size. Allowed: tensors "
        "with sizes that are the same for every batch, or multiples of its samples."
    )


def _need_onnx() -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            raise MissingFile(
                f"ONNX needs the package {name}, which is not there. "
                "`pip install 'hotlap[export]'` brings it."
            )
