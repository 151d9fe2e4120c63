"""For rules that read source lines: those in which the forward was sampled, in order."""

import math
import re
from collections.abc import Iterable, Sequence

from hotlap.rules.nomination import Nomination
from hotlap.rules.sampled import WORTH_SAYING
from hotlap.trace.schema import HotLine, Trace

_FEW = 8
"""Samples below which a share says nothing."""
_NEAR = 10
"""Lines between one that assigns a variable and one that uses it, at most."""
_Z = 1.96
_ASSIGNED = re.compile(r"(\w+)\s*=[^=]")


def forward_lines(trace: Trace) -> list[HotLine]:
    """Return the lines below which the forward was sampled, as they stand in their files."""
    lines = [line for line in trace.lines if line.phase == "forward" and line.samples]
    return sorted(lines, key=place_of)


def place_of(line: HotLine) -> tuple[str, int]:
    """Return file and number of a line."""
    file, _, number = line.where.rpartition(":")
    return file, int(number)


def assigned(line: HotLine) -> str:
    """Return the variable that a line assigns, empty if none."""
    found = _ASSIGNED.match(line.text)
    return found[1] if found else ""


def uses(line: HotLine, name: str) -> bool:
    """Return whether a line speaks of a variable."""
    return bool(name) and re.search(rf"\b{name}\b", line.text) is not None


def after(lines: Iterable[HotLine], line: HotLine) -> list[HotLine]:
    """Return the lines shortly after one."""
    file, number = place_of(line)
    near = range(number + 1, number + _NEAR + 1)
    return [each for each in lines if place_of(each)[0] == file and place_of(each)[1] in near]


def nominate_lines(
    trace: Trace,
    lines: Sequence[HotLine],
    what: str,
    by_hand: str,
    *,
    saved: float | None = None,
) -> list[Nomination]:
    """Return the nomination of lines that belong together; none if they cost too little.

    Args:
        trace: what was watched.
        lines: where the time was sampled; the one with most of it stands for all.
        what: what is done there.
        by_hand: the edit.
        saved: share of the forward that the edit saves, if not all of it.
    """
    share, samples = sum(line.share for line in lines), sum(line.samples for line in lines)
    means = trace.phase_means()
    # What is computed in these lines has its part in the backward.
    both = means["forward"] + means["backward"]
    mean = trace.step_ms()["mean"]
    if samples < _FEW or share * both < WORTH_SAYING * mean:
        return []
    error = _Z * math.sqrt(share * (1 - min(share, 1.0)) / (samples / share))
    part = share if saved is None else saved
    low, high = (max(0.0, part * (1 + sign * error / share)) * both for sign in (-1, 1))
    main = max(lines, key=lambda line: line.share)
    return [
        Nomination(
            where=main.where,
            evidence=(
                f"{what}: {share * both:.2f} of {mean:.2f} ms a step, its backward included, "
                f"sampled {samples} times below {', '.join(line.where for line in lines)}"
            ),
            remedies=(),
            advice={},
            at_most_ms=share * both,
            by_hand=by_hand,
            sampled_ms=(part * both, low, high),
        )
    ]
