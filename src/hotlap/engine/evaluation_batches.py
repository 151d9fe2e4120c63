"""Chooses how many held-out samples are measured at once on a device with memory of its own."""

from hotlap.engine.build import BuiltRun
from hotlap.engine.evaluate import evaluate
from hotlap.feed.sources.source import Source, share

_ENOUGH_BYTES = 64 * 2**20
"""What a batch of evaluation may need, if it is larger than those of training. A call on a device
costs more than the work of a small model; a language model's scores fill its memory."""
_MOST_SAMPLES = 8192


def enlarge_batches(built: BuiltRun) -> None:
    """Let evaluation take larger batches than training if these need little memory.

    To be called once, after some held-out batch was evaluated: what libraries take for good with
    their first call is not a batch's. The answer depends on the model and its batches alone, so
    that a run which is resumed measures as it did before.

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
    if times > 1 and not is_split:
        source.batch *= 1 << times.bit_length() - 1
        source.micro = share(source.batch, source.world)
        source.last = len(source)
