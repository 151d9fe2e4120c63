"""Checks a plain script's optimizer state dict against the recipe's optimizer, and loads it.

A state dict of torch's knows parameters by their number, in the order of the groups. `order.py`
says which of them is which of the recipe's; every shape is checked.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from hotlap.checkpoint.codec import encode
from hotlap.checkpoint.foreign_run import ForeignRun
from hotlap.checkpoint.read import Checkpoint
from hotlap.engine.build import BuiltRun
from hotlap.engine.continuing.order import has_names, match_parameters
from hotlap.engine.state.equality import is_same
from hotlap.engine.state.fitting_optimizer import state_like, wrong_groups, wrong_states
from hotlap.engine.state.optimizer import load_optimizer, names_by_id
from hotlap.errors import UsageError
from hotlap.trial.hyperparameters import IMPLEMENTATION

_LABELS = ("params", "param_names", "name")
"""Entries of a group that decide nothing."""
_LATER = ("maximize", "decoupled_weight_decay")
"""Hyperparameters that older versions of torch did not have."""
_OF_SCHEDULES = ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum")
"""Entries that schedulers put into groups."""
_MOMENTUM = ("momentum", "betas")
"""What schedules with cycles change besides the rate."""
_COMPILED = "_orig_mod."


@dataclass(frozen=True)
class NamedStates:
    """The states of an optimizer by `parameter/key`, as a checkpoint of hotlap has them."""

    tensors: dict[str, torch.Tensor]
    scalars: dict[str, Any]
    parameters: int
    """Of the optimizer."""
    with_state: int
    """Those of them that have a state."""
    matched: str
    """How the file's were matched with the recipe's."""

    @property
    def updates(self) -> int | None:
        """The largest number of updates that was counted for a parameter; None without a count."""
        counts = [v for k, v in self.tensors.items() if k.endswith("/step") and v.numel() == 1]
        return max((int(count.item()) for count in counts), default=None)


def kept_state(built: BuiltRun) -> Mapping[str, Any] | None:
    """Return what the recipe's optimizer keeps for a small parameter; None if that is not known."""
    group = next(group for group in built.optimizer.param_groups if group["params"])
    first = group["params"][0]
    return state_like(built.optimizer, group, first.dim(), first.is_complex())


def name_states(built: BuiltRun, run: ForeignRun, weights: Mapping[str, Any]) -> NamedStates:
    """Return the states in a file by the names of the recipe's parameters.

    Args:
        built: the recipe's run.
        run: what the file holds.
        weights: of the file, by the model's names, in the file's order.

    Raises:
        UsageError: they are of another optimizer, or of other groups of parameters.
    """
    if "eight_bit_optimizer" in built.plan.techniques:
        raise UsageError(
            "the plan has `eight_bit_optimizer`, whose state has another form than the one in "
            f"'{run.path}'. Remove [techniques.eight_bit_optimizer] from the plan."
        )
    own, groups = built.optimizer.param_groups, run.optimizer["param_groups"]
    _check_sizes(own, groups, run)
    names, states = names_by_id(built), run.optimizer["state"]
    for number, (mine, theirs) in enumerate(zip(own, groups, strict=True)):
        _check_kind(built.optimizer, mine, theirs, run)
        _check_values(built, number, theirs, run)
        _check_names(mine, theirs, names, run)
        _check_in_model(mine, names, run)
    matching = match_parameters(built, run, weights, names)
    tensors: dict[str, torch.Tensor] = {}
    scalars: dict[str, Any] = {}
    with_state, like = 0, kept_state(built) or {}
    for mine, indices in zip(own, matching.indices, strict=True):
        for index, parameter in zip(indices, mine["params"], strict=True):
            found = {k: v for k, v in states.get(index, {}).items() if v is not None}
            with_state += bool(found)
            for key, value in found.items():
                path = f"{names[id(parameter)]}/{key}"
                if key == "step" and type(value) is int and isinstance(like.get(key), torch.Tensor):
                    # As older versions of torch counted.
                    value = torch.tensor(float(value))
                if isinstance(value, torch.Tensor):
                    # As `Optimizer.load_state_dict` does.
                    is_cast = key != "step" and value.is_floating_point()
                    tensors[path] = value.to(parameter.dtype) if is_cast else value
                else:
                    scalars[path] = encode(value, "the optimizer's state")
    count = sum(len(group["params"]) for group in own)
    return NamedStates(tensors, scalars, count, with_state, matching.said)


def load_states(
    built: BuiltRun, run: ForeignRun, named: NamedStates, weights: Mapping[str, Any], steps: int
) -> None:
    """Put the states and the learning rates of a file into an optimizer that was just made.

    Args:
        built: its scheduler stands where the run continues, if the file has none.
        run: what the file holds.
        named: see `name_states`.
        weights: of the file, by the model's names.
        steps: done when the file was saved.

    Raises:
        UsageError: a state is not one of that optimizer, or has another shape than its parameter.
    """
    tensors, groups = dict(named.tensors), []
    for number, (mine, theirs) in enumerate(
        zip(built.optimizer.param_groups, run.optimizer["param_groups"], strict=True)
    ):
        # All else is as in the recipe, see `_check_values`.
        moved = _scheduled(built, mine) if run.scheduler is not None else ()
        kept = {}
        for key in mine.keys() - {"params"}:
            value = _as_kind_of(mine[key], theirs[key]) if key in moved else mine[key]
            if isinstance(value, torch.Tensor):
                tensors[f"group {number}/{key}"] = value
            else:
                kept[key] = encode(value, f"the optimizer's {key}")
        groups.append(kept)
    saved = {"scalars": named.scalars, "groups": groups}
    wrong = wrong_groups(built, saved, tensors) or wrong_states(
        built, named.scalars, tensors, steps
    )
    if wrong is not None:
        raise UsageError(
            f"the optimizer state in '{run.path}' does not fit the recipe: {wrong}. Use the "
            "script's model, optimizer and order of parameters in the recipe."
        )
    held = {"model": weights, "optimizer": tensors}
    load_optimizer(built, Checkpoint(run.path, steps, held, {"optimizer": saved}))


def _check_sizes(own: list[Any], groups: Any, run: ForeignRun) -> None:
    """Refuse groups of other numbers of parameters."""
    states = run.optimizer["state"]
    is_one = isinstance(groups, list) and isinstance(states, Mapping)
    if not is_one or not all(
        isinstance(group, Mapping) and isinstance(group.get("params"), list) for group in groups
    ):
        raise UsageError(
            f"'{run.keys['optimizer']}' in '{run.path}' is not a state dict of an optimizer: "
            "`state` must be a dictionary, and `param_groups` a list of dictionaries. Pass --keys "
            "optimizer=KEY if another key holds it. If none does, use --weights instead of "
            "--continue to start a new run from the weights."
        )
    mine, theirs = [len(g["params"]) for g in own], [len(g["params"]) for g in groups]
    if mine != theirs:
        raise UsageError(
            f"the optimizer in '{run.path}' has {_list_sizes(theirs)}, and the recipe's has "
            f"{_list_sizes(mine)}. Create the script's parameter groups, in the same order, in the "
            "recipe's optimizer(model)."
        )
    indices = [index for group in groups for index in group["params"]]
    known = set(indices)
    unknown = [key for key in states if key not in known]
    if unknown or len(known) != len(indices):
        repeated = next((each for each in indices if indices.count(each) > 1), None)
        what = (
            f"has a state of parameter {unknown[0]!r}, which is in none of its `param_groups`"
            if unknown
            else f"has parameter {repeated!r} more than once in its `param_groups`"
        )
        raise UsageError(
            f"the optimizer in '{run.path}' {what}, unlike any `optimizer.state_dict()` of torch. "
            "Use --weights instead of --continue to start a new run from the weights; or, if you "
            "can run the script again, save `optimizer.state_dict()` unchanged."
        )


def _list_sizes(sizes: list[int]) -> str:
    if not sizes:
        return "no groups"
    if len(sizes) == 1:
        return f"one group of {sizes[0]} parameters"
    return f"{len(sizes)} groups of {', '.join(map(str, sizes[:8]))} parameters"


def _hyperparameters(group: Mapping[str, Any]) -> set[str]:
    return {*group} - {*IMPLEMENTATION, *_LABELS, *_OF_SCHEDULES}


def _check_kind(
    optimizer: Any, mine: Mapping[str, Any], theirs: Mapping[str, Any], run: ForeignRun
) -> None:
    """Refuse a group that an optimizer of another class made."""
    own, given = _hyperparameters(mine), _hyperparameters(theirs)
    missing = {key for key in own - given if key not in _LATER}
    if not missing and given <= own:
        return
    kind, likely = type(optimizer).__name__, _likely_class(given)
    hint = "" if likely is None else f", probably {likely}"
    differs = [f"lacks {_quote(missing)}"] if missing else []
    differs += [f"has {_quote(given - own)}"] if given - own else []
    raise UsageError(
        f"the optimizer in '{run.path}' is not the recipe's {kind}: its group "
        f"{' and '.join(differs)}. In the recipe, use the optimizer that saved this file{hint}."
    )


def _quote(keys: set[str]) -> str:
    return ", ".join(f"'{key}'" for key in sorted(keys, key=str))


def _likely_class(keys: set[str]) -> str | None:
    """Return the optimizer of torch whose groups have these hyperparameters."""
    for name, kind in sorted(vars(torch.optim).items()):
        if not inspect.isclass(kind) or kind is torch.optim.Optimizer:
            continue
        if not issubclass(kind, torch.optim.Optimizer):
            continue
        made = cast(Any, kind)([torch.nn.Parameter(torch.zeros(2, 2))])
        if _hyperparameters(made.param_groups[0]) - {*_LATER} == keys - {*_LATER}:
            return name
    return None


def _scheduled(built: BuiltRun, group: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the hyperparameters of a group that the recipe's schedule changes."""
    if built.scheduler is None:
        return ()
    has_cycles = bool({"max_momentum", "base_momentum"} & group.keys())
    return ("lr", *(key for key in _MOMENTUM if has_cycles and key in group))


def _as_kind_of(own: Any, given: Any) -> Any:
    """Return a number as a tensor where the recipe's is one, and the other way round."""
    if isinstance(own, torch.Tensor):
        return torch.as_tensor(given, dtype=own.dtype)
    return given.item() if isinstance(given, torch.Tensor) else given


def _check_values(built: BuiltRun, number: int, theirs: Mapping[str, Any], run: ForeignRun) -> None:
    """Refuse hyperparameters that are not the recipe's; see docs/decisions.md."""
    mine = built.optimizer.param_groups[number]
    for key in sorted(_hyperparameters(mine).difference(_scheduled(built, mine))):
        given = theirs.get(key, mine[key])
        if not is_same(mine[key], given):
            kind = type(built.optimizer).__name__
            hint = " (AdamW has True, Adam False)" if key == "decoupled_weight_decay" else ""
            raise UsageError(
                f"'{key}' of parameter group {number} is {given!r} in '{run.path}', but "
                f"{mine[key]!r} in the recipe's {kind}{hint}. Set {_remedy(key, theirs, given)}"
            )


def _remedy(key: str, theirs: Mapping[str, Any], given: Any) -> str:
    """Say what to set a hyperparameter to: a rate that a scheduler has moved is no script's own."""
    began = theirs.get("initial_lr")
    if key != "lr" or began is None or is_same(began, given):
        return f"`{key}` in the recipe's optimizer(model) to {given!r}."
    return (
        f"`lr` in the recipe's optimizer(model) to {began!r}, with which the script began, and use "
        f"the script's scheduler as `schedule` in the task; or set `lr` to {given!r} to continue "
        "at a constant rate."
    )


def _check_names(
    mine: Mapping[str, Any], theirs: Mapping[str, Any], names: Mapping[int, str], run: ForeignRun
) -> None:
    """Refuse another order of parameters, where the file has their names."""
    if not has_names(theirs):
        return
    for name, parameter in zip(theirs["param_names"], mine["params"], strict=True):
        both = names.get(id(parameter), ""), str(name)
        own, plain = (each.replace(_COMPILED, "") for each in both)
        if plain != own and not plain.endswith(f".{own}"):
            raise UsageError(
                f"the optimizer in '{run.path}' has the parameter '{plain}' where the recipe's has "
                f"'{own}'. Pass the parameters to the recipe's optimizer in the script's order."
            )


def _check_in_model(mine: Mapping[str, Any], names: Mapping[int, str], run: ForeignRun) -> None:
    for parameter in mine["params"]:
        if id(parameter) not in names:
            raise UsageError(
                f"the recipe's optimizer holds a parameter of shape {tuple(parameter.shape)} that "
                f"is not in the model, so its value is not in '{run.path}'. Pass only the model's "
                "parameters to the optimizer, or use --weights instead of --continue to start a "
                "new run from the weights."
            )
