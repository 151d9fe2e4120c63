"""Chooses how many held-out samples are measured at once on a device with memory of its own."""

import math

from hotlap.engine.build import BuiltRun, seed_everything
from hotlap.engine.evaluate import evaluate
from hotlap.engine.evaluation_guard import kept_random_states
from hotlap.feed.sources.source import Source, share

_ENOUGH_BYTES = 64 * 2**20
"""What a batch of evaluation may need, if it is larger than those of training. A call on a device
costs more than the work of a small model; a language model's scores fill its memory."""
_MOST_SAMPLES = 8192
_ROUNDING = 1e-2
"""By which share of itself a measure may differ that is computed for more samples at once."""
_ROUNDED = 2
"""Samples that may count otherwise: one that is right by little may be wrong after rounding."""
_OTHER_SEED = 0x5EED


def enlarge_batches(built: BuiltRun) -> None:
    """Let evaluation take larger batches than training if these need little memory.

    Only if the measures are those of the samples: a loss over the batch, as contrastive ones are,
    would be another one. To be called once, after some held-out batch was evaluated: what libraries
    take for good with their first call is not a batch's. A run that is resumed asks again, with the
    weights it goes on from: so what rounding changes in a measure is allowed for, and the answer is
    another one only if how much the batch's size matters has passed that meanwhile.

    Args:
        built: the run.
    """
    source, hardware = built.held_out, built.hardware
    # Batches of a budget of tokens, and of a stream, are what their source makes of them.
    if not hardware.tells_needed_bytes or type(source) is not Source:
        return
    is_split = source.micro != share(source.batch, source.world)
    needed = hardware.needed_bytes(lambda: evaluate(built, batches=1))
    most = int(built.reduce.most([float(needed)])[0])
    times = min(_ENOUGH_BYTES // max(1, most), _MOST_SAMPLES // source.micro)
    if times > 1 and not is_split and _is_same_in_larger_batches(built, source):
        _set_batch(source, source.batch << times.bit_length() - 1)


def _set_batch(source: Source, batch: int) -> None:
    source.batch, source.micro = batch, share(batch, source.world)
    source.last = len(source)


def _is_same_in_larger_batches(built: BuiltRun, source: Source) -> bool:
    """Return whether two held-out batches measured as one give what they give one by one.

    Nothing is known, and nothing is said, of a measure that differs as much from itself: it draws.
    """
    apart, batch = evaluate(built, batches=2, is_trial=True), source.batch
    with kept_random_states():
        seed_everything(_OTHER_SEED)
        again = evaluate(built, batches=2, is_trial=True)
    _set_batch(source, 2 * batch)
    try:
        together = evaluate(built, batches=1, is_trial=True)
    finally:
        _set_batch(source, batch)
    few = _ROUNDED / min(2 * batch, source.length)
    return apart.keys() == together.keys() and all(
        _are_near(value, together[name], few) or not _are_near(value, again.get(name, value), few)
        for name, value in apart.items()
    )


def _are_near(one: float, other: float, few: float) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=_ROUNDING, abs_tol=few)
