"""Finds model, optimizer, scheduler and epoch in a plain script's `torch.save` file by its keys.

The file is a dictionary that `torch.save` wrote, with a key for each part, or Lightning's. No code
in it is run. Which key holds which part is found by the names that people use, and by what lies
there.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hotlap.checkpoint.foreign import MODEL_KEYS, is_state_dict, unpickle, without_compiled
from hotlap.errors import MissingFile, UsageError, unknown_name

PARTS: Mapping[str, tuple[str, ...]] = {
    "model": MODEL_KEYS,
    "optimizer": (
        "optimizer",
        "optimizer_state_dict",
        "optimizer_state",
        "optimizer_states",
        "optim",
        "optim_state_dict",
        "opt",
    ),
    "scheduler": (
        "scheduler",
        "scheduler_state_dict",
        "scheduler_state",
        "lr_scheduler",
        "lr_scheduler_state_dict",
        "lr_scheduler_state",
        "lr_schedulers",
        "sched",
    ),
    "epoch": ("epoch", "last_epoch"),
    "step": ("global_step", "step", "iteration"),
}
"""Part of a run -> the keys under which it is looked for."""
NONE = "none"
"""Given for a key: the part is not taken from the file."""
_MUST = ("model", "optimizer")
_SHOWN = 12
"""Keys of a file in a message."""


@dataclass(frozen=True)
class ForeignRun:
    """What a plain script saved of its run. What the parts say is not checked yet."""

    path: Path
    keys: Mapping[str, str]
    """Part -> the key that it was found under; parts that were not found are missing."""
    weights: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, Any]
    """With `state` and `param_groups`, as `Optimizer.state_dict` returns it."""
    scheduler: Mapping[str, Any] | None
    epoch: int | None
    step: int | None
    epochs_done: int | None
    """What the user says of that; the file says it if None."""
    unused: tuple[str, ...]
    """Keys of the file that are no part."""


def parse_keys(text: str) -> dict[str, str]:
    """Read `model=net,optimizer=opt`: part -> key.

    Raises:
        UsageError: it is no such list, or names something that is no part.
    """
    keys: dict[str, str] = {}
    for each in text.split(","):
        part, equals, key = (word.strip() for word in each.partition("="))
        if not (part and equals and key) or part in keys:
            raise UsageError(
                f"--keys '{text}' is not valid. Expected: pairs PART=KEY with commas between them, "
                f"as in `model=net,optimizer=opt`. PART is one of {', '.join(PARTS)}, each at most "
                "once."
            )
        keys[part] = key
    _check_parts(keys)
    return keys


def read_run(
    path: Path, keys: Mapping[str, str] | str | None = None, epochs_done: int | None = None
) -> ForeignRun:
    """Return the parts of a run in a file.

    Args:
        path: a file that `torch.save` wrote.
        keys: part -> its key in the file, or `none`, or what `parse_keys` reads; parts that are
            missing are looked for.
        epochs_done: what the user says of that.

    Raises:
        MissingFile: there is no such file.
        UsageError: it is not plain data, lacks a part, or has several that could be it.
        CheckpointCorrupt: it is cut or damaged.
    """
    given = parse_keys(keys) if isinstance(keys, str) else dict(keys or {})
    _check_parts(given)
    held = _read(path)
    found: dict[str, tuple[str, Any]] = {}
    for part, names in PARTS.items():
        if part in given:
            if given[part] == NONE and NONE not in held and part not in _MUST:
                continue
            found[part] = given[part], _named(held, part, given[part], path)
        else:
            only = _only(held, part, names, path)
            if only is not None:
                found[part] = only
    for part in _MUST:
        if part not in found:
            raise UsageError(_explain_absence(held, part, path))
    values = {part: value for part, (_, value) in found.items()}
    used = {key for key, _ in found.values()}
    return ForeignRun(
        path=path,
        keys={part: key for part, (key, _) in found.items()},
        weights=without_compiled(values["model"], path),
        optimizer=values["optimizer"],
        scheduler=values.get("scheduler"),
        epoch=values.get("epoch"),
        step=values.get("step"),
        epochs_done=epochs_done,
        unused=tuple(str(key) for key in held if key not in used),
    )


def _check_parts(keys: Mapping[str, str]) -> None:
    for part in keys:
        if part not in PARTS:
            raise UsageError(unknown_name(part, PARTS, "--keys: part"))


def _read(path: Path) -> Mapping[Any, Any]:
    if path.is_dir():
        raise UsageError(
            f"'{path}' is a folder. Expected: a file that `torch.save` wrote. To resume a run of "
            "hotlap, pass its folder to --resume instead of --continue."
        )
    if not path.is_file():
        why = "is not a regular file" if path.exists() else "was not found"
        raise MissingFile(
            f"'{path}' {why}. Expected: a file that `torch.save` wrote. Check the path."
        )
    held = None if path.suffix == ".safetensors" else unpickle(path)
    if held is None or is_state_dict(held):
        raise UsageError(
            f"'{path}' holds only weights, and no optimizer state to continue with. Use --weights "
            f"'{path}' instead of --continue, to start a new run from these weights."
        )
    if not isinstance(held, Mapping):
        raise UsageError(
            f"'{path}' contains a {type(held).__name__}. Expected: a dictionary with the state "
            "dicts of model and optimizer. Save both in your script with `torch.save({'model': "
            "model.state_dict(), 'optimizer': optimizer.state_dict()}, FILE)`."
        )
    return held


def _named(held: Mapping[Any, Any], part: str, key: str, path: Path) -> Any:
    """Return what the key that was given for a part holds."""
    if key not in held:
        near = difflib.get_close_matches(key, [k for k in held if isinstance(k, str)], 1, 0.4)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise UsageError(
            f"--keys {part}={key}: '{path}' has no key '{key}'. Expected: one of "
            f"{_list_keys(held)}.{hint}"
        )
    value = _READERS[part](held[key])
    if value is None:
        raise UsageError(
            f"--keys {part}={key}: '{key}' in '{path}' is {_describe(held[key])}. Expected: a key "
            f"that holds {_EXPECTED[part]}."
        )
    return value


def _only(
    held: Mapping[Any, Any], part: str, names: tuple[str, ...], path: Path
) -> tuple[str, Any] | None:
    """Return the one key that holds a part, and what it holds; None if no key does."""
    found = {key: _READERS[part](held[key]) for key in names if key in held}
    found = {key: value for key, value in found.items() if value is not None}
    # A number that is kept twice is one.
    numbers = {value for value in found.values() if isinstance(value, int)}
    if len(found) > 1 and len(numbers) != 1:
        first = next(iter(found))
        raise UsageError(
            f"'{path}' has several keys that could be the {part}: {', '.join(map(repr, found))}. "
            f"Pass the right one, as in --keys {part}={first}."
        )
    return next(iter(found.items()), None)


def _explain_absence(held: Mapping[Any, Any], part: str, path: Path) -> str:
    hint = (
        f"Pass --keys {part}=KEY if another key holds it, or start a new run from the weights: "
        "save the model's state dict alone to a .pt file, and pass that to --weights instead of "
        "--continue."
        if part == "optimizer"
        else f"Pass --keys {part}=KEY if another key holds it; otherwise add `'model': "
        "model.state_dict()` to the dictionary that your script saves."
    )
    return (
        f"'{path}' has the keys {_list_keys(held)}, and {_EXPECTED[part]} is under none of "
        f"{', '.join(PARTS[part])}. {hint}"
    )


def _list_keys(held: Mapping[Any, Any]) -> str:
    shown = ", ".join(repr(key) for key in list(held)[:_SHOWN])
    return shown + (f" and {len(held) - _SHOWN} more" if len(held) > _SHOWN else "")


def _describe(value: Any) -> str:
    is_short = value is None or isinstance(value, bool | int | float | str)
    return repr(value)[:60] if is_short else f"a {type(value).__name__}"


def _model(value: Any) -> Any:
    return value if is_state_dict(value) else None


def _optimizer(value: Any) -> Any:
    value = _alone(value)
    is_one = isinstance(value, Mapping) and {"state", "param_groups"} <= value.keys()
    return value if is_one else None


def _scheduler(value: Any) -> Any:
    value = _alone(value)
    is_one = isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value)
    return value if is_one else None


def _alone(value: Any) -> Any:
    """Return the only entry of a list, as Lightning saves optimizers and schedulers."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _count(value: Any) -> int | None:
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_meta:
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and value >= 0 else None


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "model": _model,
    "optimizer": _optimizer,
    "scheduler": _scheduler,
    "epoch": _count,
    "step": _count,
}
"""Part -> what returns it, of what lies under a key; None if that is no such part."""
_EXPECTED: Mapping[str, str] = {
    "model": "a state dict of the model",
    "optimizer": "a state dict of one optimizer",
    "scheduler": "a state dict of one scheduler",
    "epoch": "an integer of 0 or more",
    "step": "an integer of 0 or more",
}
