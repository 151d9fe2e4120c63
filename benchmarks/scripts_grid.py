"""The pick of a tuning against the best plan of a grid: `benchmarks scripts --grid NAME`."""

import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.races import TWINS, raced
from hotlap.attach.entry import Script
from hotlap.lab.statistics import Ratio
from hotlap.plan import Plan

AXES: tuple[tuple[Mapping[str, Mapping[str, Any]], ...], ...] = (
    ({}, {"resident": {}}, {"workers": {"count": 1}}, {"workers": {"count": 2}}),
    ({}, {"optimizer": {"implementation": "fused"}}),
    ({}, {"threads": {"count": 1}}),
    ({}, {"channels_last": {}}),
)
"""The grid is every choice of one of each: 32 plans, the plain script among them. What cannot be
applied to a script changes nothing there."""
_AT_ONCE = 8
"""Plans that race together; processes of more of them might not fit into memory."""
_FINAL_ROUNDS = 15


@dataclass(frozen=True)
class GridAnswer:
    """What a grid says of a pick."""

    best: Plan
    pick_x_best: Ratio
    """How many times faster than the best plan of the grid the pick is, in a race of the two."""
    seconds: float
    """That the grid took, without that race."""


def plans() -> Iterator[Plan]:
    """Yield the plans of the grid, but for the plain script."""
    for choice in itertools.product(*AXES):
        merged = {name: options for each in choice for name, options in each.items()}
        if merged:
            yield Plan(merged)


def try_grid(
    name: str, script: Script, pick: Plan, *, rounds: int, turn_s: float
) -> GridAnswer | None:
    """Race every plan of the grid against the plain script, then the best one against the pick.

    Returns:
        None if no plan of the grid took a turn.
    """
    started = time.monotonic()
    x_plain: dict[Plan, float] = {}
    for some in _some():
        ways = dict.fromkeys(TWINS, (script, Plan())) | {str(plan): (script, plan) for plan in some}
        races = raced(f"{name}, grid", ways, starts=1, rounds=rounds, turn_s=turn_s)
        took_turns = [plan for plan in some if str(plan) in races.ways]
        x_plain |= {plan: races.x_plain(str(plan)).median for plan in took_turns}
    seconds = time.monotonic() - started
    if not x_plain:
        return None
    best = max(x_plain, key=lambda plan: x_plain[plan])
    ways = dict.fromkeys(TWINS, (script, Plan())) | {"best": (script, best), "pick": (script, pick)}
    final = raced(f"{name}, pick", ways, starts=1, rounds=_FINAL_ROUNDS, turn_s=turn_s)
    return GridAnswer(best, final.compare("best", "pick"), seconds)


def _some() -> Iterator[tuple[Plan, ...]]:
    """Yield the plans, a few at a time."""
    left = iter(plans())
    while some := tuple(itertools.islice(left, _AT_ONCE)):
        yield some
