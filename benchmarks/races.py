"""Races between ways to train, each repeated with fresh processes, and how they are told.

Two processes of one program differ for as long as they live, by more than an interval over the
rounds of one race says: figures that must be near 1 need several starts.
"""

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.__main__ import Result
from hotlap.attach.entry import Script
from hotlap.lab.arm import Arm
from hotlap.lab.process_race import Race, race
from hotlap.lab.statistics import Ratio, Spread, noise_floor, paired_ratio, spread
from hotlap.lab.trial import Lab
from hotlap.plan import Plan

TWINS = ("plain", "plain again")


@dataclass(frozen=True)
class Races:
    """What came out of races between the same ways."""

    label: str
    races: tuple[Race, ...]

    @property
    def ways(self) -> list[str]:
        """Those that no race left out."""
        first, *more = self.races
        return [name for name in first.arms if all(name in each.arms for each in more)]

    def turns_ms(self, way: str) -> list[float]:
        """Return ms per step, one a round, race after race."""
        return [ms for each in self.races for ms in each.arms[way].turns_ms]

    def spread(self, way: str) -> Spread:
        return spread(self.turns_ms(way))

    def x_plain(self, way: str) -> Ratio:
        """Return how many times faster than the plain script that way is."""
        base_ms = [ms for each in self.races for ms in each.base_ms]
        return paired_ratio(base_ms, self.turns_ms(way))

    def compare(self, ours: str, theirs: str) -> Ratio:
        """Return how many times a step of theirs a step of ours takes."""
        return paired_ratio(self.turns_ms(ours), self.turns_ms(theirs))

    def tell(self, result: Result, column: str, unit: str, per_step: int) -> None:
        """Add a row and two figures for each way.

        Args:
            result: where they go.
            column: what the label is, as "model".
            unit: what a step has many of, as "samples".
            per_step: how many.
        """
        for way in self.ways:
            step, ratio = self.spread(way), self.x_plain(way)
            rate = per_step * 1000 / step.median
            result.rows.append(
                {
                    column: self.label,
                    "way": way,
                    "ms/step": f"{step.median:.3f} ({step.low:.3f} to {step.high:.3f})",
                    f"{unit}/s": f"{rate:,.0f}",
                    "x plain": f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
                    "turns": step.n,
                }
            )
            result.figures[f"{self.label}: {way}: {unit}_per_s"] = rate
            result.figures[f"{self.label}: {way}: x_plain"] = ratio.median

    def tell_pair(self, result: Result, ours: str, theirs: str) -> float:
        """Add the figure of two ways, and a note; return the figure, nan if one was left out."""
        if ours not in self.ways or theirs not in self.ways:
            result.notes.append(f"{self.label}: `{ours}` and `{theirs}` were not in every race")
            return float("nan")
        ratio = self.compare(ours, theirs)
        figure = f"{self.label}: {ours} / {theirs}"
        if figure not in result.figures:
            starts = ", ".join(f"{median:.3f}" for median in self._by_start(ours, theirs))
            result.notes.append(
                f"{self.label}: a step of `{ours}` takes {ratio.median:.3f} ({ratio.low:.3f} to "
                f"{ratio.high:.3f}) times that of `{theirs}`"
                + (f"; by start {starts}" if len(self.races) > 1 else "")
            )
        result.figures[figure] = ratio.median
        return ratio.median

    def tell_floor(self, result: Result, more: str = "") -> None:
        """Add a note of how far identical runs may be apart."""
        floor = noise_floor([self.turns_ms(way) for way in TWINS])
        steps = " or ".join(sorted({str(each.steps_per_turn) for each in self.races}))
        result.notes.append(
            f"{self.label}: {more}identical plain runs may be {floor:.1%} apart; {steps} steps a "
            "turn"
        )

    def _by_start(self, ours: str, theirs: str) -> list[float]:
        return [
            paired_ratio(each.arms[ours].turns_ms, each.arms[theirs].turns_ms).median
            for each in self.races
        ]


def raced(
    label: str,
    ways: Mapping[str, tuple[Script, Plan]],
    *,
    starts: int,
    rounds: int,
    turn_s: float,
) -> Races:
    """Let the ways train in turns, `TWINS` among them, with fresh processes for each start."""
    return Races(
        label,
        tuple(_one(f"{label}, start {start + 1}", ways, rounds, turn_s) for start in range(starts)),
    )


def _one(label: str, ways: Mapping[str, tuple[Script, Plan]], rounds: int, turn_s: float) -> Race:
    with ExitStack() as stack:
        arms = [
            Arm(name, plan, stack.enter_context(Lab(script)))
            for name, (script, plan) in ways.items()
        ]
        found = race(
            arms,
            twins=TWINS,
            rounds=rounds,
            turn_s=turn_s,
            progress=lambda text: print(f"{label}: {text}", file=sys.stderr),
        )
    for arm in arms:
        if arm.failed is not None:
            print(f"{label}: {arm.name} was left out: {arm.failed}", file=sys.stderr)
    return found
