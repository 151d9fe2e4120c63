"""Which parameter of a plain script's optimizer is which of the recipe's.

The state dict of an optimizer numbers parameters and seldom names them. The state dict of the model
in the same file has them by name, in the order in which the script's model registered them, which
is the order of `model.parameters()`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotlap.checkpoint.foreign_run import ForeignRun
from hotlap.engine.build import BuiltRun
from hotlap.errors import UsageError


@dataclass(frozen=True)
class Matching:
    """The parameters of a file's optimizer, in the order of the recipe's."""

    indices: Sequence[Sequence[Any]]
    """Of each group, the file's number of each of the recipe's parameters."""
    said: str
    """How they were matched."""


def match_parameters(
    built: BuiltRun, run: ForeignRun, weights: Mapping[str, Any], names: Mapping[int, str]
) -> Matching:
    """Match the parameters of two optimizers that have groups of the same sizes.

    Args:
        built: the recipe's run; its optimizer holds only parameters of the model.
        run: what the file holds.
        weights: of the file, by the model's names, in the file's order.
        names: id of each tensor that is trained -> its name.

    Raises:
        UsageError: the file has the names in another order, and what the script's optimizer held
            does not follow from that.
    """
    groups = run.optimizer["param_groups"]
    indices = [group["params"] for group in groups]
    if not any(_has_state(state) for state in run.optimizer["state"].values()):
        return Matching(indices, "matched by order")
    if all(has_names(group) for group in groups):
        return Matching(indices, "matched by order, and the names in the file agree")
    same = _first_names(built.model)
    theirs, registered = _in_order(weights, same), list(dict.fromkeys(same.values()))
    is_plain = _in_order(built.model.state_dict(), same) == registered
    key, said = run.keys["model"], f"matched by order, which '{run.keys['model']}' has too"
    for group in built.optimizer.param_groups:
        mine = [names[id(parameter)] for parameter in group["params"]]
        given = _only(theirs, mine)
        if given == mine:
            continue
        if not is_plain or mine != _only(registered, mine):
            said = "matched by order alone, which could not be compared with the script's"
            continue
        place = next(i for i, name in enumerate(mine) if given[i] != name)
        where = f"'{key}' in '{run.path}' has '{given[place]}' where the recipe has '{mine[place]}'"
        stored = [name for name in weights if name in same]
        if stored == sorted(stored):
            raise UsageError(
                f"{where}. The names in the file are sorted, so the order of the parameters in the "
                "script's optimizer is unknown. If the script's model defines its modules in the "
                "file's order, use that order in the recipe's model. If not, load these weights "
                "into the script's model, and save the file again with `model.state_dict()` as "
                f"'{key}'."
            )
        if len(indices) > 1 or mine != registered:
            raise UsageError(
                f"{where}. States can be matched by name only if one group of the optimizer holds "
                f"all {len(registered)} parameters of the model. Use the script's order of modules "
                "in the recipe's model."
            )
        numbers = dict(zip(given, indices[0], strict=True))
        said = (
            f"matched by name, as '{key}' has another order than the recipe; this assumes that the "
            "script passed `model.parameters()` to the optimizer"
        )
        return Matching([[numbers[name] for name in mine]], said)
    return Matching(indices, said)


def has_names(group: Mapping[str, Any]) -> bool:
    """True if a group has the name of each of its parameters."""
    given = group.get("param_names")
    return isinstance(given, list) and len(given) == len(group["params"])


def _has_state(state: Mapping[str, Any]) -> bool:
    return any(value is not None for value in state.values())


def _first_names(model: Any) -> dict[str, str]:
    """Return each name of a parameter -> the first of those that modules share it under."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[id(parameter)] for name, parameter in every}


def _in_order(names: Iterable[str], same: Mapping[str, str]) -> list[str]:
    """Return the parameters among the names of a state dict, each once."""
    return list(dict.fromkeys(same[name] for name in names if name in same))


def _only(names: Sequence[str], wanted: Sequence[str]) -> list[str]:
    chosen = set(wanted)
    return [name for name in names if name in chosen]
