"""`Limits`: least time of a step on this machine, from its FLOPs, its bytes and measured rates."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from hotlap.diagnosis.time_plan import Clock
from hotlap.errors import RunError, TrialError
from hotlap.host import kept_ceilings
from hotlap.host.ceilings import Ceilings, measure
from hotlap.host.facts import Host
from hotlap.lab.counting import count_step
from hotlap.lab.trial import Lab
from hotlap.trace.costs import CONVENTION, StepCosts
from hotlap.trace.schema import Trace

_SHARE = 0.1
"""Of the budget, for counting, and again for measuring what the machine can do."""
_STEPS = 5.0
"""Plain steps that a process takes that counts: three are counted, each slowly."""
_PATIENCE, _PATIENCE_S = 3.0, 5.0
"""How much longer a set-up may take than the one that was watched: a hang must not use the budget
up."""
_CEILINGS_S = 5.0
_RATES = {"float32": "fp32_gflops", "bfloat16": "bf16_gflops", "float16": "fp16_gflops"}


@dataclass(frozen=True)
class Limits:
    """What a step needs, and what this machine was seen to do. None is what is not known."""

    costs: StepCosts | None = None
    ceilings: Ceilings | None = None
    step_ms: float = 0.0
    """The median of the steps that were timed."""
    why: str = ""
    """Why something is not known."""

    @property
    def flops(self) -> int | None:
        """Operations of a step; None where not one could be counted."""
        return sum(self.costs.flops.values()) or None if self.costs is not None else None

    @property
    def computing_ms(self) -> float | None:
        """What they take at the highest rates; formats of which no rate is known left out."""
        if self.costs is None or self.ceilings is None:
            return None
        rates = _rates(self.ceilings, is_reduced=self.costs.is_reduced)
        known = {name: n for name, n in self.costs.flops.items() if rates.get(name)}
        return sum(n / rates[name] / 1e6 for name, n in known.items()) if known else None

    @property
    def moving_ms(self) -> float | None:
        """What reading and writing the training's state takes, as far as no cache holds it."""
        costs, rates = self.costs, self.ceilings
        if costs is None or costs.cache_bytes is None or rates is None or not rates.copy_gb_s:
            return None
        return max(0, costs.state_bytes - costs.cache_bytes) / rates.copy_gb_s / 1e6

    @property
    def needed_ms(self) -> float | None:
        """What a step would take at these rates, if both are done at the same time."""
        return max((ms for ms in (self.computing_ms, self.moving_ms) if ms), default=None)

    @property
    def is_contradicted(self) -> bool:
        """True if the step is faster than that: the rates are not the highest."""
        return self.needed_ms is not None and self.needed_ms > self.step_ms

    @property
    def least_ms(self) -> float | None:
        """What a step takes at least, in the formats that it computes in."""
        return None if self.is_contradicted else self.needed_ms

    @property
    def utilization(self) -> float | None:
        """Share of the step in which the machine computes, if it does so at its highest rate."""
        computing = self.computing_ms
        return None if computing is None or self.is_contradicted else computing / self.step_ms

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of `hotlap diagnose --json`, under `limits`."""
        costs = self.costs
        return {
            "flops": self.flops,
            "flops_by_format": {} if costs is None else dict(costs.flops),
            "uncounted": [] if costs is None else list(costs.uncounted),
            "state_bytes": None if costs is None else costs.state_bytes,
            "computing_ms": self.computing_ms,
            "moving_ms": self.moving_ms,
            "least_step_ms": self.least_ms,
            "flops_utilization": self.utilization,
            "convention": CONVENTION,
            "ceilings": None if self.ceilings is None else asdict(self.ceilings),
            "why_unknown": self.why,
        }


def find_limits(
    lab: Lab,
    host: Host,
    trace: Trace,
    clock: Clock,
    progress: Callable[[str], None] = lambda _: None,
    reserve_s: float = 0.0,
) -> Limits:
    """Count a step in a process of its own, and compare it with what the machine can do.

    Args:
        lab: where the trial is held.
        host: where it runs.
        trace: the script, as it was watched.
        clock: a small share of its budget is used.
        progress: called with a line now and then.
        reserve_s: seconds of the budget that trials will need.
    """
    step_ms = trace.step_ms()["median"]
    needed = trace.setup_s + _STEPS * step_ms / 1e3
    spare = _SHARE * clock.seconds
    left = clock.left - reserve_s
    if trace.facts.ranks > 1:
        return Limits(step_ms=step_ms, why="the steps of several ranks are not counted")
    if needed > min(spare, left):
        least = math.ceil(max(needed / _SHARE, clock.seconds - left + needed))
        why = (
            f"counting what a step computes takes about {needed:.0f} s: use --budget {least}s or "
            "more"
        )
        return Limits(step_ms=step_ms, why=why)
    progress(f"counting what a step computes, in a process of its own: about {needed:.0f} s")
    try:
        costs = count_step(lab, seconds=spare, set_up_s=_PATIENCE * needed + _PATIENCE_S)
    except TrialError as error:
        why = f"the step could not be counted: {str(error).splitlines()[0]}"
        return Limits(step_ms=step_ms, why=why)
    if not costs.flops:
        why = "no matrix product, convolution or attention was seen in a step"
        return Limits(costs, step_ms=step_ms, why=why)
    left = clock.left - reserve_s
    ceilings, why = _ceilings(host, costs.device, min(spare, left), progress)
    found = Limits(costs, ceilings, step_ms, why)
    if found.is_contradicted and clock.left - reserve_s > _CEILINGS_S:
        # What was kept may have been measured on a busy machine.
        ceilings, why = _measure(host, costs.device, progress)
        found = Limits(costs, ceilings, step_ms, why)
    if found.is_contradicted:
        return replace(found, why="the step is faster than the rates that were measured here allow")
    return found


def _ceilings(
    host: Host, device: str, seconds: float, progress: Callable[[str], None]
) -> tuple[Ceilings | None, str]:
    """Return the best rates ever seen of a device, or why there are none."""
    kept = kept_ceilings.load(host, device)
    if kept is not None:
        return kept, ""
    if device not in ("cpu", "cuda"):
        return None, f"what {device} can do is not measured"
    if seconds < _CEILINGS_S:
        named = {"cpu": "the CPU", "cuda": "the GPU"}[device]
        return None, f"what {named} can do was not measured here yet; `hotlap env` does that"
    return _measure(host, device, progress)


def _measure(
    host: Host, device: str, progress: Callable[[str], None]
) -> tuple[Ceilings | None, str]:
    progress(f"measuring what {device} can do: about {_CEILINGS_S:.0f} s")
    try:
        measured = measure(busy_cores=host.busy_cores, device=device)
    except RunError as error:
        return None, str(error)
    return kept_ceilings.keep(host, measured), ""


def _rates(ceilings: Ceilings, *, is_reduced: bool) -> Mapping[str, float]:
    """Return format -> GFLOP/s; a product in a shorter format may be as fast as one of bfloat16."""
    rates = {name: getattr(ceilings, rate) or 0.0 for name, rate in _RATES.items()}
    if is_reduced:
        rates["float32"] = max(rates["float32"], rates["bfloat16"])
    return rates
