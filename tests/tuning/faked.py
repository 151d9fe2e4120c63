"""Races, traces and tuners without processes, for what is decided from them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hotlap.attach.entry import Script
from hotlap.host.facts import Host
from hotlap.lab.arm import Arm
from hotlap.lab.observing import Observation
from hotlap.lab.process_race import Race
from hotlap.plan import Plan
from hotlap.task import LoaderFacts, OptimizerFacts, TaskFacts
from hotlap.techniques import registry
from hotlap.trace.schema import Anchor, Trace
from hotlap.tuning.budget import Budget
from hotlap.tuning.hints import Hint
from hotlap.tuning.time_plan import TimePlan
from hotlap.tuning.tuner import Tuner

TWINS = ("plain", "plain again", "plain once more")
LAB: Any = SimpleNamespace(
    subject=Script(path="train.py"),
    techniques=(),
    unprotected=(),
    exchange=Path("nowhere"),
    inject_seed=None,
    trials=(),
)
FACTS = TaskFacts(
    threads=2,
    layers={"Linear": 2},
    loaders=(LoaderFacts("d", 100, 10, 0, True, True, True, "a.py:3", "a.py:9", 10),),
    optimizers=(OptimizerFacts("torch.optim.adam.Adam", "default", 4, 99, "a.py:5"),),
    steps_per_epoch=100,
    planned_steps=1000,
)
Speeds = Mapping[str, float | tuple[Plan, float]]


def proofs(plan: Plan, state: str = "applied") -> list[dict[str, str]]:
    return [{"name": name, "state": state, "why": "so it says"} for name in plan.techniques]


def raced(
    speeds: Mapping[Plan, float],
    *,
    apart: float = 0.0,
    rounds: int = 8,
    plain_ms: float = 4.0,
    wobble: float = 0.002,
    stalls: Sequence[Plan] = (),
) -> Race:
    """Return a race in which each plan was so many times faster than the plain run.

    Args:
        speeds: plan -> how many times faster.
        apart: how far one of the twins was from the others.
        rounds: turns of each.
        plain_ms: a step of the plain run.
        wobble: how far a plan's turns are from each other.
        stalls: plans of which every other turn's mean is twice its median.
    """

    def arm(name: str, plan: Plan, ms: float) -> Arm:
        turns = [ms * (1 + (wobble if plan else 0) * (k % 3 - 1)) for k in range(rounds)]
        means = [t * (2 if plan in stalls and k % 2 else 1) for k, t in enumerate(turns)]
        return Arm(name, plan, LAB, turns, means, techniques=proofs(plan))

    arms = {name: arm(name, Plan(), plain_ms) for name in TWINS}
    arms[TWINS[2]] = arm(TWINS[2], Plan(), plain_ms * (1 + apart))
    for plan, speed in speeds.items():
        name = name_of(plan)
        arms[name] = arm(name, plan, plain_ms / speed)
    return Race(arms, TWINS, rounds, 50)


def name_of(plan: Plan) -> str:
    """Return the name that an arm of that plan has."""
    words = []
    for name, options in plan.techniques.items():
        inside = ",".join(f"{key}={value}" for key, value in options.items())
        words.append(f"{name}({inside})" if inside else name)
    return " + ".join(sorted(words))


def trace(step_ms: float = 4.0, steps: int = 50, setup_s: float = 2.0) -> Trace:
    row = (step_ms / 2, 0.0, step_ms / 8, step_ms / 8, step_ms / 8, step_ms / 8)
    return Trace([row] * steps, (0,), FACTS, Anchor("optimizer.step", "high", {}), setup_s=setup_s)


def watched(step_ms: float = 4.0, setup_s: float = 2.0, planned_steps: int = 1000) -> Observation:
    waiting: Any = SimpleNamespace(kill=lambda: None)
    seen = trace(step_ms, setup_s=setup_s)
    facts = replace(FACTS, planned_steps=planned_steps)
    return Observation(replace(seen, facts=facts), [], waiting)


def tuner(
    seconds: float = 1000.0, hints: Sequence[Hint] = (), accept: str = "rounding", arm_s: float = 4
) -> Tuner:
    host = Host(cpu="x", cores=2)
    made = Tuner(LAB, host, registry(), accept, Budget(seconds), lambda _: None, hints)
    now = time.monotonic()
    made.time_plan = TimePlan(
        horizon=100,
        fill_ahead=False,
        first_until=now + 0.4 * seconds,
        second_until=now + 0.6 * seconds,
        watch_s=2,
        arm_s=arm_s,
        confirm_s=arm_s,
        fill_s=0,
        prove_s=3,
        prove_narrow_s=6,
        start_s=2,
    )
    return made
