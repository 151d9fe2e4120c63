"""The optimizer steps tensor by tensor.

What it sees   a torch optimizer in its default implementation whose step takes a share of the step.
Why it costs   a dozen passes over every parameter, each an operator call of its own that reads and
               writes all of it; `fused` makes one pass.
What to do     `fused=True` where rounding may differ, `foreach=True` where no bit may (technique
               `optimizer`).
Evidence       the share of the step, the number of tensors; convicted by running the same optimizer
               in the other implementation, or, where it has none (sparse gradients), by a run whose
               optimizer finds no gradients and does nothing.
"""

from collections.abc import Sequence

from hotlap.plan import Plan
from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.task.facts import FOREACH, FUSED
from hotlap.trace.schema import Trace

WORTH_A_TRIAL = 0.03
FREE_STEP = Plan({"free_step": {}})
"""Lets the optimizer do nothing: what a perfect one would give."""
_FUSED = Plan({"optimizer": {"implementation": "fused"}})
_FOREACH = Plan({"optimizer": {"implementation": "foreach"}})
_IMPLEMENTED = {_FUSED: FUSED, _FOREACH: FOREACH}
_WORTH_SAYING = 0.3
"""No optimizer is free; below this share of the step one without a remedy is none to speak of, as
of any other single call of a library."""
_OF_SPARSE = (
    "its gradients are sparse tensors, for which torch has no other implementation: a dense "
    "embedding (sparse=False) with fused=True is faster where a batch touches a large part of the "
    "rows, or the table is small; step it less often, or make the table smaller"
)


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the optimizer that runs its default implementation, or one of the user's own."""
    mean = trace.step_ms()["mean"]
    spent = trace.phase_means()["optimizer"]
    slow = [
        optimizer
        for optimizer in trace.facts.optimizers
        if optimizer.implementation in ("default", "custom")
        # Its step calls a closure, with the forward and the backward in it.
        and not optimizer.name.endswith(".LBFGS")
    ]
    # On a GPU torch's default is `foreach` already.
    if not slow or trace.facts.device != "cpu" or spent < WORTH_A_TRIAL * mean:
        return []
    optimizer = slow[0]
    kind = optimizer.name.rpartition(".")[2]
    has_other = optimizer.implementation == "default" and not optimizer.sparse
    remedies = [plan for plan, kinds in _IMPLEMENTED.items() if has_other and kind in kinds]
    fused, foreach = f"{kind}(..., fused=True)", f"{kind}(..., foreach=True)"
    return [
        Nomination(
            where=optimizer.where,
            evidence=(
                f"the optimizer phase takes {spent:.2f} of {mean:.2f} ms a step: {kind} updates "
                f"{optimizer.parameters} tensors with {optimizer.elements:,} numbers"
                + (", with sparse gradients" if optimizer.sparse else "")
            ),
            remedies=tuple(remedies),
            advice={
                "optimizer": f"{fused}, or foreach=True to keep every bit"
                if _FUSED in remedies
                else foreach,
                str(_FUSED): fused,
                str(_FOREACH): foreach,
            },
            at_most_ms=spent,
            bound=FREE_STEP,
            bound_words="with an optimizer that does nothing",
            bound_share=_WORTH_SAYING,
            by_hand=_OF_SPARSE
            if optimizer.sparse
            else f"{_why_none(kind, remedies)}: use a cheaper optimizer, or larger batches and "
            "fewer steps",
            partial=frozenset({"optimizer"}),
        )
    ]


def _why_none(kind: str, remedies: Sequence[Plan]) -> str:
    if not remedies:
        return f"{kind} has no faster implementation here"
    return f"no other implementation of {kind} was surely faster here"


RULE = Rule(name="slow_optimizer", kind="speed", nominate=nominate)
