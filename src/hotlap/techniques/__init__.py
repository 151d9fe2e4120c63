"""The techniques, in their order and by name; checks of the options in a plan, and its numerics.

One file, one technique: when it applies (`why_not`), what a plan may say of it, and how it is
applied; the other files are `record`, `applying`, and parts of single techniques. Declarations
import without torch; `apply` and `proof` import it when they are called.
"""

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, get_args, get_origin, get_type_hints

from hotlap.errors import PlanError, UnknownName, unknown_name
from hotlap.plan import Plan
from hotlap.plan.before_start import EXACT_PLAN
from hotlap.plan.outside import load_object
from hotlap.techniques.record import (
    FeedTarget,
    Live,
    Memory,
    ModelTarget,
    NoOptions,
    Numerics,
    OptimizerTarget,
    ProcessTarget,
    Proof,
    Refusal,
    StepTarget,
    Technique,
)

ORDER: tuple[str, ...] = (
    # The environment must be complete before the process starts.
    "threads",
    "flush_denormal",
    "host_allocator",
    "allocator",
    # Before cudnn_benchmark, which refuses where deterministic algorithms are asked for.
    "deterministic",
    "cudnn_benchmark",
    "matmul_precision",
    # What the other switches have made is alive when the collector is told to leave it out.
    "garbage_collector",
    # How a step is split is decided before anything reads samples.
    "micro_batch",
    # Worker processes before resident rows: resident refuses a loader that has workers, so that a
    # sample is not held once in the parent and again in every worker.
    "workers",
    # Refuses a loader that has workers. Before resident rows, which it reads for.
    "reader_threads",
    "resident",
    # What is still on the host when the others have served it is copied.
    "pinned",
    # The layout of the weights before the optimizer sees them: its state takes their layout.
    "channels_last",
    # Looks for plain linear layers, before anything else has changed how they compute.
    "fp8",
    # Chosen before compile, which keeps the kernels that it finds.
    "attention",
    # What a layer puts off, and what runs twice, before anything compiles or wraps the model.
    "chunked_loss",
    "recompute",
    # Weights get their layout before low-precision copies are made of them.
    "autocast",
    "master_weights",
    # Its state is that of the masters, where there are any.
    "eight_bit_optimizer",
    # Compiled is what the others have made of the model.
    "compile",
    # Shared is what runs, before an optimizer is made for the shares.
    "sharding",
    # The graph holds what all the others made of the step.
    "cuda_graph",
    # Last: the optimizer's own parameters may have been exchanged for masters.
    "optimizer",
)

__all__ = [
    "EXACT_PLAN",
    "ORDER",
    "FeedTarget",
    "Live",
    "Memory",
    "ModelTarget",
    "NoOptions",
    "Numerics",
    "OptimizerTarget",
    "ProcessTarget",
    "Proof",
    "Refusal",
    "StepTarget",
    "Technique",
    "check",
    "exact_part",
    "get",
    "load",
    "named",
    "numerics_of",
    "registry",
    "techniques_of",
]


def get(name: str) -> Technique:
    """Return the built-in technique of that name.

    Raises:
        UnknownName: there is none; the message lists what there is.
    """
    if name not in ORDER:
        raise UnknownName(unknown_name(name, ORDER, "technique"))
    return importlib.import_module(f"hotlap.techniques.{name}").TECHNIQUE


def techniques_of(plan: Plan, extra: Iterable[str] = ()) -> list[tuple[Technique, Any]]:
    """Return a plan's techniques with their options, in the order in which they are applied.

    No other technique is imported.

    Args:
        plan: checked before.
        extra: techniques from outside, as `module:NAME`.
    """
    found = {name: get(name) for name in ORDER if name in plan.techniques}
    outside = {technique.name: technique for technique in map(load, extra)}
    found |= {name: outside[name] for name in outside if name in plan.techniques}
    return [(found[name], found[name].options(plan.techniques[name])) for name in found]


def registry(extra: Iterable[str] = ()) -> dict[str, Technique]:
    """Return name -> technique in the order in which they are applied, `extra` ones last.

    Args:
        extra: techniques from outside, as `module:NAME`.
    """
    found = {name: get(name) for name in ORDER}
    for spec in extra:
        technique = load(spec)
        found[technique.name] = technique
    return found


def named(plan: Plan, extra: Iterable[str] = ()) -> dict[str, Technique]:
    """Return name -> technique of those that a plan names; no other built-in one is imported.

    Args:
        plan: may name techniques that do not exist.
        extra: techniques from outside, as `module:NAME`.
    """
    outside = {technique.name: technique for technique in map(load, extra)}
    names = [name for name in ORDER if name in plan.techniques]
    return {name: get(name) for name in names} | outside


def load(spec: str) -> Technique:
    """Import a technique from outside, given as `module:NAME`.

    Raises:
        UsageError: the text has another form, or names no `Technique`.
    """
    return load_object(spec, "technique", Technique)


def check(plan: Plan, known: Mapping[str, Technique] | None = None) -> None:
    """Raise `PlanError` if the plan names an unknown technique or option, or a wrong value."""
    known = registry() if known is None else known
    for name, values in plan.techniques.items():
        if name not in known:
            raise PlanError(unknown_name(name, {*ORDER, *known}, "the plan's technique"))
        _check_options(name, known[name], values)


def _check_options(name: str, technique: Technique, values: Mapping[str, Any]) -> None:
    hints = get_type_hints(technique.Options)
    for key, value in values.items():
        if key not in hints:
            allowed = list(hints) or ["(none)"]
            raise PlanError(unknown_name(key, allowed, f"the plan's technique '{name}': option"))
        if get_origin(hints[key]) is not None and value not in get_args(hints[key]):
            what = f"the plan's technique '{name}', option '{key}': value"
            raise PlanError(unknown_name(str(value), map(str, get_args(hints[key])), what))
        if get_origin(hints[key]) is None and type(value) is not hints[key]:
            raise PlanError(
                f"the plan's technique '{name}', option '{key}': {value!r} has type "
                f"{type(value).__name__}. Expected: {hints[key].__name__}."
            )
    missing = [
        f.name
        for f in fields(technique.Options)
        if f.name not in values and f.default is MISSING and f.default_factory is MISSING
    ]
    if missing:
        hint = hints[missing[0]]
        choices = ", ".join(map(str, get_args(hint)))
        allowed = f"one of {choices}" if choices else f"a value of type {hint.__name__}"
        raise PlanError(
            f"technique '{name}' needs the option '{missing[0]}'. Set it in the plan, under "
            f"[techniques.{name}], to {allowed}."
        )
    try:
        technique.options(values)
    except ValueError as error:
        # The options' own message says what is expected.
        words = f"the plan's technique '{name}': {error}"
        raise PlanError(words) from error


def exact_part(plan: Plan, known: Mapping[str, Technique] | None = None) -> Plan:
    """Return what of a plan may be used where nothing of it was measured.

    That is every technique that claims to be `exact` and does not need a race to show its gain.
    """
    known = registry() if known is None else known
    kept = {
        name: values
        for name, values in plan.techniques.items()
        if known[name].numerics(known[name].options(values)) is Numerics.EXACT
        and not known[name].needs_race
    }
    return Plan(kept)


def numerics_of(plan: Plan, known: Mapping[str, Technique] | None = None) -> Numerics:
    """Return the weakest numerics that the plan's techniques claim; `exact` for an empty plan."""
    known = registry() if known is None else known
    ranks = list(Numerics)
    claimed = [
        known[name].numerics(known[name].options(values))
        for name, values in plan.techniques.items()
    ]
    return max(claimed, key=ranks.index, default=Numerics.EXACT)
