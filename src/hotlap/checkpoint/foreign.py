"""Reads weights in other formats (`.pt`, safetensors, Lightning) without running any code in them.

Files of safetensors, and what `torch.save` made: a bare state dict, or a dictionary that holds one
beside the optimizer's and an epoch. Names lose what wrappers put before them: `_orig_mod.` of
torch.compile, `module.` of DataParallel.
"""

import argparse
import os
import pickle
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from hotlap.checkpoint.numpy_scalars import NUMPY_SCALARS
from hotlap.checkpoint.other_formats import describe_other
from hotlap.errors import CheckpointCorrupt, MissingFile, UsageError

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".tar")
MODEL_KEYS = (
    "model",
    "state_dict",
    "model_state_dict",
    "model_state",
    "net",
    "network",
    "weights",
)
"""Keys under which people save a state dict beside other things."""
_COMPILED = "_orig_mod."
_EXTRA = "_extra_state"
"""How names end of what modules give by `get_extra_state`."""
_MOST_NAMED = 3


def is_foreign(path: Path) -> bool:
    """True if a path is a file that `read_foreign` takes, by its ending."""
    return path.suffix in SUFFIXES and not path.is_dir()


def read_foreign(path: Path) -> dict[str, torch.Tensor]:
    """Return the weights in a file, by name, without what torch.compile put before it.

    Raises:
        MissingFile: there is no such file.
        UsageError: it has another ending, holds no state dict, or something that is no plain data.
        CheckpointCorrupt: it is cut or damaged.
    """
    if not path.is_file():
        why = "is not a regular file" if path.exists() else "was not found"
        if path.is_symlink() and not path.exists():
            why = f"is a symlink to '{os.readlink(path)}', which does not exist"
        raise MissingFile(
            f"'{path}' {why}. Expected: an existing file of weights ({', '.join(SUFFIXES)}). Check "
            "the path."
        )
    if path.suffix not in SUFFIXES:
        raise UsageError(
            f"'{path}' does not have the suffix of a file of weights. Expected: "
            f"{', '.join(SUFFIXES)}. Rename the file if it is one of these."
        )
    if path.suffix == ".safetensors":
        return without_compiled(_safetensors(path), path)
    held = unpickle(path)
    if not isinstance(held, Mapping):
        raise UsageError(
            f"'{path}' contains a {type(held).__name__}, not weights. Expected: a state dict, or a "
            "dictionary that contains one. Save it in the script that made the model, with "
            "`torch.save(model.state_dict(), FILE)`."
        )
    if is_state_dict(held):
        return without_compiled(held, path)
    found = next((held[key] for key in MODEL_KEYS if is_state_dict(held.get(key))), None)
    if found is None:
        raise UsageError(
            f"'{path}' is a dictionary with the keys {', '.join(map(repr, list(held)[:8]))}. "
            "Expected: the model's state dict, alone or under one of the keys "
            f"{', '.join(MODEL_KEYS)}. If another key holds it, load the file with "
            "`torch.load(FILE, map_location='cpu')`, and save that part alone to a new file with "
            "`torch.save`."
        )
    return without_compiled(found, path)


def fit_to_model(
    weights: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor], path: Path
) -> dict[str, torch.Tensor]:
    """Return the weights under the model's own names.

    Args:
        weights: by the names of the file.
        wanted: the model's own state dict.
        path: of the file, for the message.

    Raises:
        UsageError: they are those of another model; the message names what differs.
    """
    # What modules give by `get_extra_state` is no weight, and need not be in a file.
    wanted = {name: each for name, each in wanted.items() if isinstance(each, torch.Tensor)}
    found = _by_own_names(weights, wanted)
    missing, more = wanted.keys() - found.keys(), found.keys() - wanted.keys()
    shapes = [
        f"{name} has shape {tuple(found[name].shape)}, in the model {tuple(wanted[name].shape)}"
        for name in wanted.keys() & found.keys()
        if found[name].shape != wanted[name].shape
    ]
    problems = [
        f"{what} {_list_some(names)}"
        for what, names in (("missing keys:", missing), ("unexpected keys:", more), ("", shapes))
        if names
    ]
    bare = {
        name: tensor.layout if tensor.layout != torch.strided else tensor.device
        for name, tensor in found.items()
        if tensor.is_meta or tensor.layout != torch.strided
    }
    if bare:
        kinds = ", ".join(sorted({str(kind) for kind in bare.values()}))
        problems.append(f"tensors without dense values ({kinds}): {_list_some(bare)}")
    else:
        broken = [name for name in found if _is_broken(found[name], wanted.get(name))]
        if broken:
            why = "use a file that was saved before these appeared"
            problems.append(f"NaN or infinite values in {_list_some(broken)} ({why})")
        complexes = [
            name
            for name in found.keys() & wanted.keys()
            if found[name].is_complex() and not wanted[name].is_complex()
        ]
        if complexes:
            problems.append(f"complex values in {_list_some(complexes)}")
        whole = [
            name
            for name in found.keys() & wanted.keys()
            if wanted[name].is_floating_point()
            and not (found[name].is_floating_point() or found[name].is_complex())
        ]
        if whole:
            kinds = ", ".join(sorted({str(found[name].dtype) for name in whole}))
            problems.append(
                f"{kinds} for floating-point values in {_list_some(whole)} (quantized weights have "
                "to be converted back first)"
            )
    if problems:
        raise UsageError(
            f"the weights in '{path}' cannot be used for this model: "
            f"{'; '.join(problems).strip()}. Use a file that was saved from the same model, or "
            "change model() in the recipe to match the file."
        )
    return found


def _by_own_names(
    weights: Mapping[str, torch.Tensor], names: Iterable[str]
) -> dict[str, torch.Tensor]:
    """Return weights under the names of a model, as far as only wrappers make them differ."""
    # model() may compile a part of the model, or all of it: then its own names say so, too.
    own, found = by_plain_name(names), dict(weights)
    if found.keys() == set(own.values()):
        return found
    while found.keys() != own.keys():
        # DataParallel and DDP say `module.`, Lightning the name of the attribute.
        fronts = {name.partition(".")[0] for name in found if "." in name}
        if len(fronts) != 1 or not all("." in name for name in found):
            break
        (front,) = fronts
        bare = {name.partition(".")[2]: tensor for name, tensor in found.items()}
        if bare.keys() != own.keys() and any(name.startswith(f"{front}.") for name in own):
            break
        found = bare
    named = {own.get(name, name): tensor for name, tensor in found.items()}
    # What would become one is told by the names that it has.
    return named if len(named) == len(found) else found


def by_plain_name(names: Iterable[str]) -> dict[str, str]:
    """Return name without what torch.compile put into it -> name, for the names of a model.

    Where two would become one, all keep what they are called.
    """
    every = list(names)
    plain = {name.replace(_COMPILED, ""): name for name in every}
    return plain if len(plain) == len(every) else {name: name for name in every}


def _is_broken(tensor: torch.Tensor, fresh: torch.Tensor | None) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    if bool(torch.isnan(tensor).any()):
        return True
    # A mask is infinite when it is made, a weight is not.
    is_mask = fresh is not None and bool(torch.isinf(fresh).any())
    return not is_mask and bool(torch.isinf(tensor).any())


def _safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except Exception as error:
        raise CheckpointCorrupt(
            f"'{path}' is not an intact safetensors file: {error}. Copy or download it again, or "
            "save the weights again."
        ) from error


def unpickle(path: Path) -> Any:
    """Return what `torch.save` wrote, where that is plain data.

    Raises:
        UsageError: it is not, or the file is no such file at all.
        CheckpointCorrupt: the file is cut or damaged.
    """
    other = describe_other(path)
    if other is not None:
        raise UsageError(
            f"'{path}' was not written by `torch.save`: it is {other}. Expected: a file that your "
            "script wrote, as in `torch.save({'model': model.state_dict(), ...}, FILE)`."
        )
    try:
        with (
            torch.serialization.safe_globals([argparse.Namespace, *NUMPY_SCALARS]),
            warnings.catch_warnings(),
        ):
            # torch 2.11 warns of its own way to read sparse tensors.
            warnings.filterwarnings("ignore", "Sparse invariant checks", UserWarning)
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UsageError(
            f"'{path}' cannot be loaded with weights_only=True: {_first_line(error)} hotlap loads "
            "only tensors, numbers, strings, lists and dictionaries, because other objects can "
            "run code. If you trust the file, load it with `torch.load(FILE, weights_only=False)` "
            "and save only its state dicts."
        ) from error
    except Exception as error:
        raise CheckpointCorrupt(
            f"'{path}' is truncated or damaged: {_first_line(error)}. Copy or download it again, "
            "or use an earlier file that `torch.save` wrote."
        ) from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    named = [line for line in lines if "GLOBAL" in line or "Unsupported" in line]
    return (named or lines or [type(error).__name__])[0][:200]


def is_state_dict(value: Any) -> bool:
    """True if that is tensors by name, at least one, beside what modules save of their own."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        return False
    tensors = {name: each for name, each in value.items() if not name.endswith(_EXTRA)}
    return bool(tensors) and all(isinstance(each, torch.Tensor) for each in tensors.values())


def without_compiled(weights: Mapping[str, torch.Tensor], path: Path) -> dict[str, torch.Tensor]:
    """Return weights by their names without what torch.compile put into these.

    Raises:
        UsageError: one comes both with and without it.
    """
    # What a module has saved by `get_extra_state` may be no tensor.
    tensors = {name: each for name, each in weights.items() if isinstance(each, torch.Tensor)}
    plain = {name.replace(_COMPILED, ""): tensor for name, tensor in tensors.items()}
    if len(plain) != len(tensors):
        names = [name.replace(_COMPILED, "") for name in tensors]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(
            f"'{path}' holds the parameter '{twice}' twice: with the prefix '{_COMPILED}' that "
            "torch.compile adds to its name, and without. Load the file, delete the name that your "
            "model does not use from the state dict, and save the state dict to a new file."
        )
    return plain


def _list_some(names: Any) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - _MOST_NAMED} more" if len(shown) > _MOST_NAMED else ""
    return ", ".join(shown[:_MOST_NAMED]) + more
