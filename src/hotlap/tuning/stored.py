"""A `Tuning` as plain data for the cache, and back: plans, verdicts, ratios and trial rows."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hotlap.lab.check import Check
from hotlap.lab.coverage import Limit
from hotlap.lab.curves import LossCurves
from hotlap.lab.statistics import Ratio, Spread
from hotlap.lab.verdict import Verdict
from hotlap.lab.whole_run import WholeRun
from hotlap.plan import Plan
from hotlap.trace.schema import Trace
from hotlap.tuning.hints import HintAnswer
from hotlap.tuning.result import ProvenPlan, TrialRow, Tuning

Data = Mapping[str, Any]


def data_of(tuning: Tuning) -> dict[str, Any]:
    """Return what `tuning_of` takes."""
    return asdict(tuning, dict_factory=_with_plans_as_data)


def _with_plans_as_data(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: each.to_json() if isinstance(each, Plan) else each for name, each in items}


def tuning_of(data: Data) -> Tuning:
    """Return the tuning that `data_of` was given, after JSON.

    Raises:
        KeyError, TypeError, ValueError: another version of hotlap has written it.
    """
    return Tuning(
        **{
            **data,
            "plan": plan_of(data["plan"]),
            "verdict": verdict_of(data["verdict"]),
            "speedup": Ratio(**data["speedup"]),
            "live": _ratio(data["live"]),
            "fresh": _ratio(data["fresh"]),
            "baseline_ms": Spread(**data["baseline_ms"]),
            "best_ms": Spread(**data["best_ms"]),
            "pair_ms": tuple(data["pair_ms"]) if data["pair_ms"] else None,
            "whole_run": {name: WholeRun(**run) for name, run in data["whole_run"].items()},
            "proven_plans": tuple(map(_read_proven, data["proven_plans"])),
            "trials": tuple(map(_trial, data["trials"])),
            "techniques": tuple(data["techniques"]),
            "not_tried": tuple(data["not_tried"]),
            "hints": tuple(map(_answer, data["hints"])),
            "not_reached": tuple(data["not_reached"]),
            "unprotected": tuple(data["unprotected"]),
            "trace": Trace.from_json(data["trace"]),
            "base": plan_of(data["base"]),
        }
    )


def plan_of(data: Data) -> Plan:
    """Return the plan of which `data` is the `to_json`."""
    return Plan(data)


def verdict_of(data: Data) -> Verdict:
    """Return the verdict of which `data` is the `asdict`."""
    curves = data["curves"]
    return Verdict(
        **{
            **data,
            "curves": None if curves is None else LossCurves.from_json(curves),
            "checks": tuple(Check(**check) for check in data["checks"]),
            "limits": tuple(Limit(**limit) for limit in data["limits"]),
            "not_checked": tuple(data["not_checked"]),
        }
    )


def _ratio(data: Data | None) -> Ratio | None:
    return None if data is None else Ratio(**data)


def _read_proven(data: Data) -> ProvenPlan:
    return ProvenPlan(
        **{
            **data,
            "plan": plan_of(data["plan"]),
            "speedup": Ratio(**data["speedup"]),
            "verdict": verdict_of(data["verdict"]),
            "live": _ratio(data["live"]),
            "fresh": _ratio(data["fresh"]),
        }
    )


def _trial(data: Data) -> TrialRow:
    return TrialRow(
        **{
            **data,
            "plan": plan_of(data["plan"]),
            "speedup": _ratio(data["speedup"]),
            "ms": None if data["ms"] is None else Spread(**data["ms"]),
        }
    )


def _answer(data: Data) -> HintAnswer:
    return HintAnswer(**{**data, "plan": plan_of(data["plan"]), "raced": _ratio(data["raced"])})
