"""Rules look at a trace and nominate what may be slow. They never convict: a trial does.

One file, one rule, one pure function from `Trace` to nominations. No torch in here.
"""

from collections.abc import Callable

from hotlap.rules import per_item_decode, returned_memory, slow_data, slow_optimizer
from hotlap.rules.nomination import Nomination
from hotlap.trace.schema import Trace

RULES: dict[str, Callable[[Trace], list[Nomination]]] = {
    "per_item_decode": per_item_decode.nominate,
    "slow_data": slow_data.nominate,
    "slow_optimizer": slow_optimizer.nominate,
    "returned_memory": returned_memory.nominate,
}

DOCS: dict[str, str] = {
    "per_item_decode": per_item_decode.__doc__ or "",
    "slow_data": slow_data.__doc__ or "",
    "slow_optimizer": slow_optimizer.__doc__ or "",
    "returned_memory": returned_memory.__doc__ or "",
}


def nominate(trace: Trace) -> list[Nomination]:
    """Return what any rule nominates, in the order of the rules."""
    return [nomination for rule in RULES.values() for nomination in rule(trace)]
