"""The optimizer holds parameters that are not the model's any more.

What it sees   an optimizer with parameters that no trained module has and that get no gradient,
               while parameters of the model that get one are in no optimizer.
Why it matters the optimizer steps, and what it steps is used by nobody: the model is not trained,
               or a part of it. Nothing fails, and the loss may even fall for the other parts.
What to do     make the optimizer last, when the model is complete: after `fully_shard` or
               `FullyShardedDataParallel`, which replace parameters by their shards; after a layer
               is replaced; after a copy is made of which only the copy is trained.
Evidence       which tensors the optimizer holds, and which the modules that were called, at the
               first step. It costs no time.
"""

from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the step of an optimizer that misses parameters of the model."""
    return [
        Nomination(
            where=optimizer.where,
            evidence=f"{optimizer.lost} of the {optimizer.parameters} tensors that this optimizer "
            "updates are in no module that is trained, and have no gradient; "
            f"{optimizer.left} tensors of {optimizer.left_in} have one, and are in no optimizer",
            remedies=(),
            advice={},
            at_most_ms=0.0,
            by_hand="make the optimizer from the parameters of the finished model: after "
            "`fully_shard` or another wrapper, and after layers were replaced",
        )
        for optimizer in trace.facts.optimizers
        if optimizer.lost and optimizer.left
    ]


RULE = Rule(name="stale_optimizer", kind="mistake", nominate=nominate)
