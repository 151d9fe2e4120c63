"""The optimizer steps tensor by tensor.

What it sees   a torch optimizer in its default implementation whose step takes a share of the step.
Why it costs   a dozen passes over every parameter, each an operator call of its own that reads and
               writes all of it; `fused` makes one pass.
What to do     `fused=True` where rounding may differ, `foreach=True` where no bit may (technique
               `optimizer`).
Evidence       the share of the step, the number of tensors; convicted by running the same optimizer
               in the other implementation.
"""

from hotlap.plan import Plan
from hotlap.rules.nomination import Nomination
from hotlap.trace.schema import Trace

WORTH_A_TRIAL = 0.03


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate every optimizer that runs its default implementation."""
    mean = trace.step_ms()["mean"]
    spent = trace.phase_means()["optimizer"]
    slow = [
        optimizer
        for optimizer in trace.facts.optimizers
        if optimizer.implementation == "default" and optimizer.name.startswith("torch.optim.")
    ]
    # On a GPU torch's default is `foreach` already.
    if not slow or trace.facts.device != "cpu" or spent < WORTH_A_TRIAL * mean:
        return []
    optimizer = slow[0]
    kind = optimizer.name.rpartition(".")[2]
    return [
        Nomination(
            rule="slow_optimizer",
            kind="speed",
            where=optimizer.where,
            evidence=(
                f"{kind}.step takes {spent:.2f} of {mean:.2f} ms a step, for "
                f"{optimizer.parameters} tensors with {optimizer.elements:,} numbers"
            ),
            remedies=(
                Plan({"optimizer": {"implementation": "fused"}}),
                Plan({"optimizer": {"implementation": "foreach"}}),
            ),
            advice={"optimizer": f"{kind}(..., fused=True), or foreach=True to keep every bit"},
            at_most_ms=spent,
        )
    ]
