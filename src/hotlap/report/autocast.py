"""What `hotlap diagnose --memory` says of autocast, in sentences."""

from hotlap.diagnosis.autocast import AutocastEffect
from hotlap.lab.autocast import COUNTED, PhaseTimes
from hotlap.lab.statistics import SMALLEST_FLOOR, Ratio, figures, is_gain
from hotlap.rules.memory.record import size
from hotlap.trace.memory_schema import Peak

_NAMES = {"forward": "forward", "backward": "backward", "optimizer": "update", "step": "step"}


def autocast_line(effect: AutocastEffect) -> str:
    """Return what autocast does to memory and time, each as a pair: as it is -> switched."""
    used = f"Autocast ({effect.format}) is {'used' if effect.change == 'off' else 'not used'}"
    if effect.as_it_is is None or effect.switched is None:
        return f"{used}; switching it {effect.change} was not compared: {effect.why_not}."
    memory = "; ".join(
        f"{name} {size(before)} -> {size(after)}"
        for name, before, after in _pairs(effect.as_it_is, effect.switched)
    )
    words = f"{used}. With it switched {effect.change}, by trial: {memory}"
    if not effect.times:
        return f"{words}. It was not timed: {effect.why_not_timed}."
    times = "; ".join(f"{_NAMES[name]} {_in_words(each)}" for name, each in effect.times.items())
    step = effect.times.get("step")
    turns = next(iter(effect.times.values())).ratio.pairs
    return (
        f"{words}; {times}. Medians of {turns} turns each way, of {COUNTED} steps each, without "
        f"the observation of memory{'' if step is None else _verdict(step.ratio, effect.change)}."
    )


def _pairs(before: Peak, after: Peak) -> list[tuple[str, int, int]]:
    kinds = [("activations", before.kinds["activations"], after.kinds["activations"])]
    return [("peak", before.bytes, after.bytes), *(row for row in kinds if row[1] or row[2])]


def _in_words(times: PhaseTimes) -> str:
    pair = f"{times.as_it_is.median:.2f} -> {times.switched.median:.2f} ms"
    return f"{pair}, {figures(times.ratio)}"


def _verdict(ratio: Ratio, change: str) -> str:
    words = f". With autocast {change}, a step "
    if is_gain(ratio, SMALLEST_FLOOR):
        return words + "is faster here"
    if ratio.high < 1 - SMALLEST_FLOOR:
        return words + "is slower here"
    return words + "is neither faster nor slower by what was measured"
