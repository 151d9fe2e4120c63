"""Records a script's forwards without gradients, and keeps some with inputs to repeat them."""

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from hotlap import nested
from hotlap.trace.identity import IdentityTable
from hotlap.trial import digest
from hotlap.trial.comparing import compare_outputs
from hotlap.trial.repeat_in_dtype import own_dtype, repeat_in_dtype

COPY = -1
"""Stands for the place of a module that is a copy of one that is trained."""
SAMPLES = 3
"""Forwards that are kept whole."""


class Evaluations:
    """Listens to the outermost forwards, in evaluation or without gradients, of watched modules.

    Args:
        folder: where the kept ones are written, None to keep none.
    """

    def __init__(self, folder: Path | None) -> None:
        self.forwards: list[list[Any]] = []
        """Of each: which module, after how many updates, digests of inputs and outputs."""
        self.in_training: list[list[Any]] = []
        """The same in training mode, where they are part of a step, as of a target network."""
        self._folder = folder
        self._kept: dict[int, tuple[dict[str, torch.Tensor], dict[str, Any]]] = {}
        self._places: IdentityTable[int] = IdentityTable()
        self._draw = random.SystemRandom()

    def watch(self, module: Any, place: int) -> None:
        """Listen to this module too; `place` says which of those that are trained it is."""
        self._places.put(module, place)

    def evaluation_forward_ends(
        self, module: Any, args: Any, kwargs: Any, output: Any, updates: int
    ) -> None:
        """A forward of a watched module has returned."""
        place = self._places.get(module)
        digests = [digest.of_readable([args, kwargs]), digest.of_readable(output)]
        if module.training:
            # It may draw, and change buffers: by itself it could not be repeated.
            self.in_training.append([place, updates, *digests])
            return
        self.forwards.append([place, updates, *digests])
        if self._folder is None:
            return
        count = len(self.forwards)
        slot = count - 1 if count <= SAMPLES else self._draw.randrange(count)
        if slot < SAMPLES:
            with contextlib.suppress(Exception):
                # A sparse or foreign tensor cannot be kept.
                kept = _pack_forward(module, args, kwargs, output)
                if kept is not None:
                    self._kept[slot] = kept

    def write(self) -> list[str]:
        """Write the kept forwards; return their files."""
        files = []
        for slot, (tensors, meta) in self._kept.items():
            path = Path(self._folder or "") / f"evaluation-{slot}.safetensors"
            with contextlib.suppress(Exception):
                save_file(tensors, path, metadata={"hotlap": json.dumps(meta)})
                files.append(str(path))
        return files


def _pack_forward(
    module: Any, args: Any, kwargs: Any, output: Any
) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    found: dict[str, torch.Tensor] = {}
    specs = {}
    leaves: list[torch.Tensor] = []
    specs["input"] = nested.flatten_to_json([list(args), dict(kwargs)], leaves)
    outputs = list(nested.tensors(output))
    if specs["input"] is None or not outputs:
        return None
    for kind, tensors in (("input", leaves), ("output", outputs)):
        for number, leaf in enumerate(tensors):
            found[f"{kind}.{number}"] = _copy_tensor(leaf)
    for number, tensor in enumerate(_tensors_of(module)):
        found[f"model.{number}"] = _copy_tensor(tensor)
    kind = "cuda" if any(t.is_cuda for t in module.parameters()) else "cpu"
    dtype = str(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else ""
    return found, {**specs, "class": type(module).__qualname__, "autocast": dtype}


def _copy_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().clone()


def _tensors_of(module: Any) -> list[torch.Tensor]:
    """Return parameters and buffers: a copy of a module has them in the same order."""
    return [*module.parameters(), *module.buffers()]


def repeat(file: str, roots: list[Any], dtype: torch.dtype) -> dict[str, Any] | None:
    """Repeat a forward that was kept, with its weights, on one of the modules that are trained.

    Args:
        file: where it was kept.
        roots: the modules.
        dtype: what it is repeated in; and once more in its own.

    Returns:
        See `compare_outputs`; None if no module has its class and shapes.
    """
    with safe_open(file, framework="pt") as archive:
        meta = json.loads(archive.metadata()["hotlap"])
        tensors = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118
    held = _number_tensors(tensors, "model")
    for root in roots:
        own = _tensors_of(root)
        if type(root).__qualname__ == meta["class"] and [t.shape for t in own] == [
            t.shape for t in held
        ]:
            break
    else:
        return None
    inputs, output = _number_tensors(tensors, "input"), _number_tensors(tensors, "output")
    device = own[0].device if own else torch.device("cpu")
    found = []
    for wide in (dtype, None):
        # The plain one as the script ran it, in the narrow format that it may have asked for.
        found.append(_forward(root, meta, held, inputs, device, wide))
    return compare_outputs(output, *found)


def _number_tensors(tensors: dict[str, torch.Tensor], kind: str) -> list[torch.Tensor]:
    count = sum(1 for name in tensors if name.startswith(f"{kind}."))
    return [tensors[f"{kind}.{number}"] for number in range(count)]


def _forward(
    root: Any,
    meta: dict[str, Any],
    held: list[torch.Tensor],
    inputs: list[torch.Tensor],
    device: torch.device,
    dtype: torch.dtype | None,
) -> list[torch.Tensor]:
    def cast(value: torch.Tensor) -> torch.Tensor:
        wide = value if dtype is None or not value.is_floating_point() else value.to(dtype)
        return wide.to(device)

    own = _tensors_of(root)
    before = [tensor.data for tensor in own]
    modes = [(module, module.training) for module in root.modules()]
    args, kwargs = nested.rebuild(
        nested.from_json(meta["input"]), iter([cast(leaf) for leaf in inputs])
    )
    narrow = getattr(torch, meta["autocast"].rpartition(".")[2]) if meta["autocast"] else None
    try:
        for tensor, value in zip(own, held, strict=True):
            tensor.data = cast(value)
        root.eval()
        with (
            torch.no_grad(),
            repeat_in_dtype(dtype or own_dtype(iter(held)), own_dtype(iter(held))),
            torch.autocast(device.type, dtype=narrow, enabled=bool(narrow) and dtype is None),
        ):
            output = root(*args, **kwargs)
    finally:
        for tensor, value in zip(own, before, strict=True):
            tensor.data = value
        for module, mode in modes:
            module.training = mode
    return list(nested.tensors(output))
