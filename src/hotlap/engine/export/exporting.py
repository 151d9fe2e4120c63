"""Exports a trained model: a state dict, torch.export, or ONNX."""

import importlib
import importlib.util
import io
import logging
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.utils import _pytree as pytree

from hotlap.checkpoint.foreign import by_plain_name, fit_to_model
from hotlap.engine.build import seed_everything
from hotlap.engine.export.example import Example, example_of
from hotlap.engine.export.outfile import check_free, saving, write_atomically
from hotlap.engine.export.stored_weights import read_stored_weights
from hotlap.engine.state.weights import load_buffers, load_model, versions_of, with_versions
from hotlap.errors import MissingFile, RunError, UsageError
from hotlap.task import Task

log = logging.getLogger("hotlap")

FORMATS = (".pt", ".safetensors", ".pt2", ".onnx")


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
        raise UsageError(
            f"'{path}' has no known suffix. Expected: a file name that ends with "
            f"{', '.join(FORMATS)}."
        )
    check_free(path, overwrite)
    if path.suffix == ".onnx":
        _need_onnx()
    seed_everything(task.seed)
    model = task.model()
    found = read_stored_weights(source, notice)
    weights = fit_to_model(found.weights, model.state_dict(), found.path)
    load_model(model, {**weights, **found.extra})
    load_buffers(model, found.buffers)
    model.eval()
    checked = write_atomically(path, _writer(task, model, path.suffix))
    return Exported(path, path.stat().st_size, checked, found.path)


def _writer(task: Task, model: Any, suffix: str) -> Callable[[Path], str]:
    """Return what writes the model into a file of a format, and says what it has checked.

    The user's code has run by then: an error of the file system in it is no failed write.
    """
    if suffix in (".pt", ".safetensors"):
        return lambda path: _state_dict(task, model, path)
    example = example_of(task, model)
    program = example.export_program(model)
    save = _onnx if suffix == ".onnx" else _program
    return lambda path: save(model, example, program, path)


def _state_dict(task: Task, model: Any, path: Path) -> str:
    state = model.state_dict()
    own = by_plain_name(state)
    plain = {name: state[own[name]] for name in own}
    weights = {k: v.contiguous() for k, v in plain.items() if isinstance(v, torch.Tensor)}
    # What modules give by `get_extra_state`: the other format holds tensors only.
    others = {k: v for k, v in plain.items() if k not in weights}
    if path.suffix == ".pt":
        with saving():
            torch.save(with_versions({**weights, **others}, _plain_versions(state)), path)
        again = torch.load(path, weights_only=True)
    else:
        # Tied weights share memory, which that format does not hold.
        with saving():
            save_file({name: tensor.clone() for name, tensor in weights.items()}, path)
        again = load_file(path)
    load_model(task.model(), {own[name]: value for name, value in again.items()})
    same = all(torch.equal(again[name], tensor) for name, tensor in weights.items())
    if not same:
        raise RunError(
            f"'{path}' was read back, and its tensors differ from the model's. Export again. If "
            "that fails too, check the disk."
        )
    without = f", without {', '.join(others)}" if others and path.suffix != ".pt" else ""
    return f"{len(weights)} tensors, equal when read back, and loaded into the plain model{without}"


def _plain_versions(state: Any) -> Any:
    """Return the versions of a model's modules, by their names without torch.compile."""
    versions = versions_of(state)
    if versions is None:
        return None
    # What compiles comes before what it holds, and has the same name then: that of the plain model.
    names = [(f"{name}.".replace("_orig_mod.", "")[:-1], name) for name in versions]
    return OrderedDict((plain, versions[name]) for plain, name in names)


def _program(model: Any, example: Example, program: Any, path: Path) -> str:
    # Torch's own writer ends the process where a file cannot be written to its end.
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    path.write_bytes(buffer.getbuffer())
    again = torch.export.load(path).module()
    return example.compare(model, again)


def _onnx(model: Any, example: Example, program: Any, path: Path) -> str:
    onnxruntime = importlib.import_module("onnxruntime")
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

    def tensors_of(*args: Any, **kwargs: Any) -> Any:
        # The file has no output where the model gives None.
        return [leaf for leaf in pytree.tree_leaves(model(*args, **kwargs)) if leaf is not None]

    return f"{example.compare(tensors_of, run)}, in onnxruntime"


def _need_onnx() -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            raise MissingFile(
                f"ONNX export needs the package {name}, which is not installed. Install it with "
                "`pip install 'hotlap[export]'`."
            )
