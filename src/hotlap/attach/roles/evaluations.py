"""Records a script's forwards without gradients, and keeps some with inputs to repeat them."""

import contextlib
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from hotlap import nested
from hotlap.rng import rng_states, set_rng_states
from hotlap.trace.identity import IdentityTable
from hotlap.trial import digest
from hotlap.trial.comparing import compare_outputs
from hotlap.trial.repeat_in_dtype import own_dtype, repeat_in_dtype
from hotlap.trial.repetition_ways import EVALUATIONS

COPY = -1
"""Stands for the place of a module that is a copy of one that is trained."""
_CONSTANTS = (bool, int, float, str, type(None))
_RANDOM = "rng."
"""Begins the names of the states of random generators."""


class Evaluations:
    """Listens to the outermost forwards, in evaluation or without gradients, of watched modules.

    Args:
        folder: where the kept ones are written, None to keep none.
    """

    def __init__(self, folder: Path | None) -> None:
        self.forwards: list[list[Any]] = []
        """Of each: which module, after how many updates, digests of inputs and outputs."""
        self.of_loaders: list[int] = []
        """Which of them, from 0, are given what a loader has handed out, unchanged."""
        self.in_training: list[list[Any]] = []
        """The same in training mode, where they are part of a step, as of a target network."""
        self._folder = folder
        self._batch: frozenset[int] = frozenset()
        """Digests of the tensors of the last batch."""
        self._kept: dict[int, tuple[dict[str, torch.Tensor], dict[str, Any]]] = {}
        self._begun: dict[int, tuple[int, dict[str, torch.Tensor]]] = {}
        """Identity of a module whose forward has begun -> where it is kept, and the states of the
        random generators before it."""
        self._places: IdentityTable[int] = IdentityTable()
        self._draw = random.SystemRandom()

    def watch(self, module: Any, place: int) -> None:
        """Listen to this module too; `place` says which of those that are trained it is."""
        self._places.put(module, place)

    def batch_ends(self, batch: Any) -> None:
        """A loader has handed out a batch, which may be evaluated."""
        self._batch = frozenset(_digests_of(batch))

    def evaluation_forward_begins(self, module: Any) -> None:
        """A watched module is called."""
        if self._folder is None or module.training:
            return
        count = len(self.forwards) + len(self._begun) + 1
        slot = count - 1 if count <= EVALUATIONS else self._draw.randrange(count)
        if slot < EVALUATIONS:
            self._begun[id(module)] = slot, rng_states()

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
        given = _digests_of([args, kwargs])
        if given and self._batch.issuperset(given):
            self.of_loaders.append(len(self.forwards))
        self.forwards.append([place, updates, *digests])
        slot, random_before = self._begun.pop(id(module), (None, {}))
        if slot is not None:
            self._kept.pop(slot, None)
            with contextlib.suppress(Exception):
                # What cannot be kept is missing among those that are repeated.
                self._kept[slot] = _pack_forward(module, args, kwargs, output, random_before)

    def write(self) -> list[str]:
        """Write the kept forwards; return their files."""
        files = []
        for slot, (tensors, meta) in self._kept.items():
            path = Path(self._folder or "") / f"evaluation-{slot}.safetensors"
            with contextlib.suppress(Exception):
                save_file(tensors, path, metadata={"hotlap": json.dumps(meta)})
                files.append(str(path))
        return files


def _digests_of(value: Any) -> list[int]:
    """Return the digest of each tensor, whatever its shape: a model may be given a view of it.

    Of what cannot be read nothing is known, and nothing is returned.
    """
    try:
        return digest.of_tensors([_flat(tensor.detach()) for tensor in digest.tensors_in(value)])
    except Exception:
        return []


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    is_plain = tensor.layout == torch.strided and not tensor.is_nested
    return tensor.flatten() if is_plain else tensor


def _pack_forward(
    module: Any, args: Any, kwargs: Any, output: Any, random_before: Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    found: dict[str, torch.Tensor] = {}
    leaves: list[torch.Tensor] = []
    specs = {"input": _pack([list(args), dict(kwargs)], leaves)}
    outputs = digest.tensors_in(output)
    if not outputs:
        raise ValueError("a forward gave no tensor")
    now = rng_states()
    if any(not torch.equal(state, now[name]) for name, state in random_before.items()):
        found |= {f"{_RANDOM}{name}": state for name, state in random_before.items()}
    for kind, tensors in (("input", leaves), ("output", outputs)):
        for number, leaf in enumerate(tensors):
            found[f"{kind}.{number}"] = _copy_tensor(leaf)
    for number, tensor in enumerate(_tensors_of(module)):
        found[f"model.{number}"] = _copy_tensor(tensor)
    kind = "cuda" if any(t.is_cuda for t in module.parameters()) else "cpu"
    dtype = str(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else ""
    return found, {**specs, "class": type(module).__qualname__, "autocast": dtype}


def _pack(value: Any, leaves: list[torch.Tensor]) -> Any:
    """Append the tensors of what a module was called with, and return the rest as JSON.

    Raises:
        ValueError: it holds an object of another kind.
    """
    if type(value) in _CONSTANTS:
        return {"constant": value}
    if isinstance(value, torch.Tensor):
        leaves.append(value)
        return {"tensor": value.is_sparse}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_pack(item, leaves) for item in value]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: _pack(item, leaves) for key, item in value.items()}}
    structure = nested.flatten_to_json(value, leaves)
    if structure is None:
        raise ValueError(f"a {type(value).__name__} cannot be kept")
    return {"other": structure}


def _unpack(packed: Any, leaves: Iterator[torch.Tensor]) -> Any:
    ((kind, held),) = packed.items()
    if kind == "constant":
        return held
    if kind == "tensor":
        return next(leaves).to_sparse() if held else next(leaves)
    if kind == "dict":
        return {key: _unpack(item, leaves) for key, item in held.items()}
    if kind == "other":
        return nested.rebuild(nested.from_json(held), leaves)
    items = [_unpack(item, leaves) for item in held]
    return items if kind == "list" else tuple(items)


def _copy_tensor(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    return dense.cpu().contiguous().clone()


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
    random = {
        name.removeprefix(_RANDOM): state
        for name, state in tensors.items()
        if name.startswith(_RANDOM)
    }
    found, before = [], rng_states()
    try:
        for wide in (dtype, None):
            # The plain one as the script ran it, in the narrow format that it may have asked for.
            set_rng_states(random or before)
            found.append(_forward(root, meta, held, inputs, device, wide))
    finally:
        set_rng_states(before)
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
    args, kwargs = _unpack(meta["input"], iter([cast(leaf) for leaf in inputs]))
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
    return digest.tensors_in(output)
