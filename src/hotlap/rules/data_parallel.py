"""The model is wrapped in torch.nn.DataParallel: one process drives all devices.

What it sees   torch.nn.DataParallel as the trained model, or as a part of it.
Why it costs   in every step the model is copied from the first device to the others, the batch is
               scattered, outputs are gathered on the first device, which also computes the loss and
               takes the optimizer's step: it works longest and holds most. One Python process, with
               one interpreter lock, starts the work of all devices, one after the other.
What to do     one process for each device: `torchrun --nproc_per_node N` with
               torch.nn.parallel.DistributedDataParallel and a DistributedSampler, or a recipe with
               `hotlap train --devices N`. Checkpoints keep `module.` before each name, which
               hotlap removes when it reads them.
Evidence       the wrapper itself and the number of its devices. No trial of hotlap's measures what
               it costs: with fewer than two devices it calls the model directly, and costs nothing.
"""

from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the training loop of a model in a torch.nn.DataParallel."""
    facts = trace.facts
    count = facts.data_parallel
    if count is None or not facts.optimizers:
        return []
    structure = (
        "torch.nn.DataParallel wraps the model: one process copies it to all devices in each step, "
        "scatters the batch, and gathers outputs on the first device, which works longest and "
        "holds most"
    )
    means = trace.phase_means()
    most = means["forward"] + means["backward"]
    if count < 2:
        here = "no devices" if count == 0 else "one device"
        structure += (
            f"; it has {here} here, calls the model directly and costs nothing, so its cost on "
            "several devices was not measured"
        )
        most = 0.0
    else:
        structure += f"; it has {count} devices, through which all of forward and backward goes"
    ranks = max(count, 2)
    return [
        Nomination(
            where=facts.optimizers[0].where,
            evidence=structure,
            remedies=(),
            advice={},
            at_most_ms=most,
            by_hand=(
                "one process for each device: DistributedDataParallel and a DistributedSampler "
                f"under `torchrun --nproc_per_node {ranks}`, or a recipe under `hotlap train "
                f"RECIPE --devices {ranks}`"
            ),
        )
    ]


RULE = Rule(name="data_parallel", kind="speed", nominate=nominate)
