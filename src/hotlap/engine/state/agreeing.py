"""Ranks that each hold parts of a run agree on layout, step and scalars of a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotlap.checkpoint.layout import Layout, Tensors, describe, layout_of
from hotlap.checkpoint.shards import local_of
from hotlap.distributed.reduce import Reduce
from hotlap.engine.state.validity import LISTED, listing
from hotlap.errors import RunError


@dataclass(frozen=True)
class AgreedParts:
    """What is saved of a step, the same on every rank."""

    layout: Layout
    state: dict[str, Any]
    """Everything that is no tensor; that of the first rank is written."""
    broken: str | None
    """First tensor of the first such rank that is not finite."""


def agree_on_parts(
    own: Tensors, state: Mapping[str, Any], step: int, broken: str | None, reduce: Reduce
) -> AgreedParts:
    """Tell the other ranks what this one writes, and return what all of them write.

    Args:
        own: what this rank writes.
        state: everything else, as plain data. What an optimizer keeps of a parameter that is no
            tensor may be known to one rank only.
        step: optimizer steps done.
        broken: name of a tensor of this rank that is not finite, None if there is none.
        reduce: the ranks; each of them makes this call.

    Raises:
        RunError: the parts of the ranks do not fit together; the same on every rank.
    """
    optimizer = state["optimizer"]
    said = reduce.gather([step, broken, optimizer["scalars"], describe(own)])
    steps = [each[0] for each in said]
    try:
        if len(set(steps)) > 1:
            raise ValueError(f"the ranks are at the steps {steps}")
        layout = layout_of([each[3] for each in said])
    except ValueError as error:
        raise RunError(
            f"the ranks' parts of step {step} cannot be saved: {error}. Report this as a bug of "
            "hotlap, with the run's plan, and resume from the last checkpoint, as in "
            "--resume auto."
        ) from error
    scalars: dict[str, Any] = {}
    for each in said:
        scalars = {**each[2], **scalars}
    whole = {
        group: {name: local_of(each) for name, each in names.items()}
        for group, names in own.items()
        if group not in layout
    }
    listed = {**listing(whole), **_listing_of(layout)}
    state = {**state, "optimizer": {**optimizer, "scalars": scalars}, LISTED: listed}
    return AgreedParts(layout, state, next((each[1] for each in said if each[1]), None))


def _listing_of(layout: Layout) -> dict[str, Any]:
    """Return the dtype and shape of each tensor of a layout, as `listing` does."""
    return {
        group: {name: [tensor["dtype"], tensor["shape"]] for name, tensor in names.items()}
        for group, names in layout.items()
        if names
    }
