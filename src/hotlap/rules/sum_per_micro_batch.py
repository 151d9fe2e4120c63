"""Gradients are summed over ranks after every micro-batch, not once for each step.

What it sees   `DistributedDataParallel` with several backward passes for each step of the
               optimizer (gradient accumulation), each of which sums all gradients over all ranks.
Why it costs   only the sum of the last one is needed: gradients are added up on each rank first,
               and the sum over ranks of the total is the same. All others are sent for nothing.
What to do     `with model.no_sync():` around forward and backward of all micro-batches but the last
               one of a step. Accelerate does so within `accelerator.accumulate(model)`, Lightning
               with `accumulate_grad_batches`.
Evidence       sums and steps, counted; convicted by running the same script with one sum a step.
"""

from hotlap.plan import Plan
from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.event_kinds import BACKWARD
from hotlap.trace.schema import Trace

WORTH_A_TRIAL = 0.03
_SEVERAL = 1.5
"""Sums for each step. A last step of an epoch may have fewer micro-batches than the others."""


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the backward of a loop that sums several times for each step."""
    facts, sums = trace.facts, trace.facts.sums
    # With several optimizers, a backward need not belong to the step of the first.
    if facts.ranks == 1 or sums is None or len(facts.optimizers) != 1:
        return []
    backward = trace.phase_means()["backward"]
    spare = (sums.per_step - 1) * sums.ms
    most = min(spare, backward) if sums.ms else backward
    if sums.per_step < _SEVERAL or most < WORTH_A_TRIAL * trace.step_ms()["mean"]:
        return []
    every = round(sums.per_step)
    backwards = [event.where for event in trace.events if event.kind == BACKWARD]
    return [
        Nomination(
            where=next(iter([*backwards, facts.optimizers[0].where])),
            evidence=f"all gradients are summed over {facts.ranks} ranks {sums.per_step:.3g} times "
            "for each step of the optimizer, once after each micro-batch; one sum is enough",
            remedies=(),
            advice={},
            at_most_ms=most,
            bound=Plan({"fewer_sums": {"every": every}}),
            bound_words=f"with one sum in {every} backwards",
            by_hand="`with model.no_sync():` around forward and backward of every micro-batch but "
            "the last one of a step",
        )
    ]


RULE = Rule(name="sum_per_micro_batch", kind="speed", nominate=nominate)
