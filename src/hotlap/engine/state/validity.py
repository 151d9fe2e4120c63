"""Checks the values in a checkpoint: types, ranges, NaN, RNG states; nothing is loaded."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy
import torch

from hotlap.checkpoint.codec import decode
from hotlap.checkpoint.read import Checkpoint, read
from hotlap.engine.state.position import Position
from hotlap.errors import CheckpointCorrupt, MissingFile

LISTED = "tensors"
"""Key under which a step lists its tensors; steps of the first version have none."""

_NUMBER, _TEXT, _NONE = (int, float), (str,), (type(None),)
_TASK: dict[str, tuple[type, ...]] = {
    "samples": (int, *_NONE),
    "shuffle_buffer": (int, *_NONE),
    "logical_batch": (int,),
    "budget": (*_TEXT, *_NONE),
    "accumulate": (int, *_NONE),
    "seed": (int,),
    "shuffle": (bool,),
    "drop_last": (bool,),
    "transform": (*_TEXT, *_NONE),
    "batch_transform": (*_TEXT, *_NONE),
    "clip_norm": (*_NUMBER, *_NONE),
    "clip_value": (*_NUMBER, *_NONE),
    "schedule_per": _TEXT,
    "weights": (dict,),
    "optimizer": _TEXT,
    "hyperparameters": (dict,),
    "schedule": (*_TEXT, *_NONE),
    "schedule's values": (dict,),
}
_STATE: dict[str, tuple[type, ...]] = {
    "position": (dict,),
    "skipped": (int,),
    "task": (dict,),
    "extra": (dict,),
    "optimizer": (dict,),
    "schedule": (dict, *_NONE),
    "random": (dict,),
    "scaler": (dict, *_NONE),
    "clock": (dict,),
}


class _Wrong(ValueError):
    """Something in a step is not what it should be."""


def check(checkpoint: Checkpoint) -> None:
    """Raise if no run could go on from a step, whatever the task.

    Raises:
        CheckpointCorrupt: the message says what is wrong.
    """
    try:
        _check(checkpoint)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise _corrupt(checkpoint, error) from error
    except (RuntimeError, OverflowError, RecursionError) as error:
        # Of torch and numpy, whose generators refuse a state that is none.
        raise _corrupt(checkpoint, error) from error


def is_usable(path: Any) -> bool:
    """True if a run could go on from the step in that folder."""
    try:
        check(read(path))
    except (CheckpointCorrupt, MissingFile):
        return False
    return True


def listing(tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, Any]:
    """Return file -> name -> format and shape of each tensor."""
    return {
        file: {name: [str(each.dtype), list(each.shape)] for name, each in group.items()}
        for file, group in tensors.items()
        if group
    }


def not_finite(weights: Mapping[str, torch.Tensor], trained: set[str]) -> str | None:
    """Return the first weight that nobody could go on from, None if there is none.

    Args:
        weights: by name. What is not trained may be infinite, as masks are.
        trained: names of those that are trained.
    """
    for name, weight in weights.items():
        if not (weight.is_floating_point() or weight.is_complex()):
            continue
        if bool(torch.isnan(weight).any()):
            return name
        if name in trained and bool(torch.isinf(weight).any()):
            return name
    return None


def _corrupt(checkpoint: Checkpoint, error: Exception) -> CheckpointCorrupt:
    what = str(error)
    if not isinstance(error, _Wrong):
        line = f"{type(error).__name__}: {what}".splitlines()[0]
        what = f"the state cannot be read: {line[:240]}"
    message = (
        f"checkpoint '{checkpoint.path}' is damaged: {what.splitlines()[0][:300]}. Pass the run's "
        "folder instead of this checkpoint, to use its newest intact one."
    )
    return CheckpointCorrupt(message)


def _check(checkpoint: Checkpoint) -> None:
    state, tensors = checkpoint.state, checkpoint.tensors
    _check_types("the checkpoint's state", state, _STATE)
    _check_position(checkpoint)
    _check_types("the checkpoint's task", state["task"], _TASK)
    _check_listed(state.get(LISTED), tensors)
    _check_weights(tensors.get("model", {}), state["task"]["weights"])
    _check_groups(state["optimizer"], tensors.get("optimizer", {}))
    for name in ("schedule", "scaler"):
        if state[name] is not None and not isinstance(decode(state[name]), dict):
            raise _Wrong(
                f"the checkpoint's {name} is {_describe(decode(state[name]))}. Expected: dict"
            )
    if (state["schedule"] is None) != (state["task"]["schedule"] is None):
        saved = _describe(state["schedule"])
        raise _Wrong(
            f"the checkpoint's task has the schedule {state['task']['schedule']}, but its saved "
            f"state of the schedule is {saved}. Expected: a state if there is a schedule, None "
            "otherwise"
        )
    if any(not isinstance(name, str) for name in state["extra"]):
        raise _Wrong(
            f"the checkpoint's extra state has the keys {[*state['extra']]}. Expected: keys of "
            "type str"
        )
    for value in state["extra"].values():
        decode(value)
    _check_random(state["random"], tensors.get("random", {}))


def _check_types(what: str, given: Any, wanted: Mapping[str, tuple[type, ...]]) -> None:
    if not isinstance(given, Mapping):
        raise _Wrong(f"{what} is {_describe(given)}. Expected: dict")
    for key, kinds in wanted.items():
        if key not in given:
            raise _Wrong(f"{what} has no '{key}'. Expected: {', '.join(wanted)}")
        if type(given[key]) not in kinds:
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise _Wrong(f"'{key}' of {what} is {_describe(given[key])}. Expected: {expected}")


def _describe(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"


def _check_position(checkpoint: Checkpoint) -> None:
    state, names = checkpoint.state, [field.name for field in fields(Position)]
    position = state["position"]
    _check_types("the checkpoint's position", position, dict.fromkeys(names, (int,)))
    if set(position) != set(names) or min(position.values()) < 0:
        raise _Wrong(
            f"the checkpoint's position is {position}. Expected: {', '.join(names)}, each 0 or more"
        )
    step = position["step"]
    if step != checkpoint.step:
        raise _Wrong(
            f"the checkpoint's position is step {step}. Expected: {checkpoint.step}, as in its "
            "manifest"
        )
    if position["in_epoch"] > step or position["epoch"] > step:
        raise _Wrong(f"the checkpoint's position is {position}. Expected: no value above `step`")
    if not 0 <= state["skipped"] <= step:
        raise _Wrong(
            f"the checkpoint's number of skipped steps is {state['skipped']}. Expected: 0 to {step}"
        )
    clock = state["clock"]
    _check_types(
        "the checkpoint's clock", clock, {"steps": (int,), "items": _NUMBER, "loss": _NUMBER}
    )
    if not 0 <= clock["steps"] <= step:
        raise _Wrong(
            f"the checkpoint's number of timed steps is {clock['steps']}. Expected: 0 to {step}"
        )


def _check_listed(listed: Any, tensors: Mapping[str, Any]) -> None:
    if listed is not None and listed != listing(tensors):
        found = listing(tensors)
        files = listed if isinstance(listed, dict) else {}
        for file in sorted({*files, *found}):
            if files.get(file) != found.get(file):
                raise _Wrong(
                    f"the tensors in {file}.safetensors are not those that the checkpoint's state "
                    "lists. Expected: the same names and shapes"
                )
        raise _Wrong(f"'{LISTED}' of the checkpoint's state is {_describe(listed)}. Expected: dict")


def _check_weights(weights: Mapping[str, torch.Tensor], shapes: Mapping[str, Any]) -> None:
    for name in sorted({*weights, *shapes}):
        if name not in weights or name not in shapes:
            what = "lacks the weight" if name in shapes else "holds an unknown weight"
            raise _Wrong(
                f"model.safetensors {what} '{name}'. Expected: the {len(shapes)} weights of the "
                "model"
            )
        if list(weights[name].shape) != shapes[name]:
            raise _Wrong(
                f"the weight '{name}' in model.safetensors has shape {list(weights[name].shape)}. "
                f"Expected: {shapes[name]}, its shape in the model"
            )
    broken = not_finite(weights, set())
    if broken is not None:
        raise _Wrong(
            f"the weight '{broken}' in model.safetensors contains NaN. Expected: numbers only"
        )


def _check_groups(saved: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    _check_types("the checkpoint's optimizer", saved, {"scalars": (dict,), "groups": (list,)})
    for name, value in saved["scalars"].items():
        decode(value)
        if "/" not in name:
            raise _Wrong(
                f"the checkpoint's optimizer has an entry with the name '{name}'. Expected: a name "
                "of the form PARAMETER/KEY, such as `0.weight/exp_avg`"
            )
    for number, group in enumerate(saved["groups"]):
        if not isinstance(group, dict):
            raise _Wrong(
                f"group {number} of the checkpoint's optimizer is {_describe(group)}. Expected: "
                "dict"
            )
        key = _broken_number(number, group, tensors)
        if key == "lr":
            rate = group["lr"] if "lr" in group else tensors[f"group {number}/lr"]
            raise _Wrong(
                f"the learning rate of group {number} of the checkpoint's optimizer is "
                f"{_describe(decode(rate))}. Expected: a finite number"
            )
        if key is not None:
            raise _Wrong(
                f"'{key}' of group {number} of the checkpoint's optimizer is NaN. Expected: a "
                "number"
            )
    for name, tensor in tensors.items():
        if "/" not in name:
            raise _Wrong(
                f"the checkpoint's optimizer has an entry with the name '{name}'. Expected: a name "
                "of the form PARAMETER/KEY, such as `0.weight/exp_avg`"
            )
        if tensor.is_floating_point() and bool(torch.isnan(tensor).any()):
            raise _Wrong(
                f"'{name}' of the checkpoint's optimizer contains NaN. Expected: numbers only"
            )


def broken_group(groups: Sequence[Any], tensors: Mapping[str, Any]) -> str | None:
    """Return a number of an optimizer's groups that no run can be resumed with, None without one.

    Args:
        groups: as a checkpoint keeps them.
        tensors: the optimizer's tensors, by path.
    """
    for number, group in enumerate(groups):
        key = _broken_number(number, group, tensors)
        if key is not None:
            return f"{key} of group {number}"
    return None


def _broken_number(number: int, group: Mapping[str, Any], tensors: Mapping[str, Any]) -> str | None:
    """Return the key of a learning rate that is not finite, or of a number that is NaN."""
    rate = group["lr"] if "lr" in group else tensors.get(f"group {number}/lr")
    if rate is not None and not bool(torch.isfinite(torch.as_tensor(decode(rate))).all()):
        return "lr"
    is_nan = (k for k, v in group.items() if any(each != each for each in _numbers(decode(v))))
    return next(is_nan, None)


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, torch.Tensor):
        value = value.item()
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item)


def _check_random(saved: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    """Give every state to a generator of its kind that nobody draws from."""
    _check_types("the checkpoint's RNG state", saved, {"python": (dict,), "numpy": (list,)})
    random.Random().setstate(decode(saved["python"]))
    position, has_gauss, gauss = decode(saved["numpy"])
    for name in ("torch", "numpy"):
        if name not in tensors:
            raise _Wrong(
                f"the RNG state of {name} is missing in the checkpoint. Expected: those of torch "
                "and numpy"
            )
    key = tensors["numpy"]
    if key.dtype != torch.int64 or bool((key < 0).any()) or bool((key >= 2**32).any()):
        raise _Wrong(
            f"the checkpoint's RNG state of numpy holds the values {_describe(key)}. Expected: "
            "int64 values from 0 to 2**32 - 1"
        )
    legacy = ("MT19937", key.numpy().astype("uint32"), position, has_gauss, gauss)
    if not 0 <= position <= 624:
        raise _Wrong(
            f"the position in the checkpoint's RNG state of numpy is {position}. Expected: 0 to 624"
        )
    numpy.random.RandomState().set_state(legacy)
    torch.Generator().set_state(tensors["torch"])
    for name, tensor in tensors.items():
        if name.startswith("cuda ") and (tensor.dtype != torch.uint8 or tensor.shape != (16,)):
            given = f"{tensor.dtype} {list(tensor.shape)}"
            raise _Wrong(
                f"the checkpoint's RNG state of {name} is {given}. Expected: torch.uint8 [16]"
            )
