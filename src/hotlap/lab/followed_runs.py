"""`FollowedRuns`: runs in the role `verify`, plainly twice and under plans, and their records."""

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotlap.lab.auxiliary_checks import check_averages
from hotlap.lab.recipe_repetition import TIMEOUT_S, RecipeRepetition
from hotlap.lab.trial import Lab
from hotlap.lab.trial_report import run_to_report
from hotlap.lab.updates import unrepeated_generators
from hotlap.lab.verdict import repeats_itself
from hotlap.plan import Plan

_NOT_LIMITED = {"seconds": 0, "epochs": 0, "naming_s": 0}


@dataclass
class FollowedRuns:
    """Runs of one script or recipe, each followed step by step.

    Args:
        lab: where the trials are held.
        base: what the plain run is run under.
        horizon: steps that each run is followed for.
        drawn_with: seed of the elements that are compared.
        fill_ahead: serve samples from memory from the first step on.
        at_once: follow a script's second plain run beside the first plan's, see `Prover`.
    """

    lab: Lab
    base: Plan
    horizon: int
    drawn_with: int
    fill_ahead: bool = False
    at_once: bool = False
    plain: dict[str, Any] = field(default_factory=dict)
    """What the plain run was like, without what does not repeat itself."""
    differs: str | None = None
    """How the second plain run differs from the first, in words; None if it does not."""
    techniques: list[dict[str, str]] = field(default_factory=list)
    """{name, state, why} of the newest plan's techniques."""
    _is_compared: bool = False
    """True once it is known how a second plain run differs."""
    _second: "Future[dict[str, Any]] | None" = None
    """The second plain run, while it goes on beside another."""

    def run_plain(self) -> None:
        """Follow the plain run; `follow` finds out whether another one gives the same."""
        self.plain = self._follow(self.base, is_first=True)

    def _begin_second(self) -> None:
        """Follow the second plain run beside what comes next."""
        self._second = Future()
        threading.Thread(target=self._run_second, args=(self._second,), daemon=True).start()

    def _run_second(self, second: "Future[dict[str, Any]]") -> None:
        try:
            # What it keeps must not be taken for what the plan's run keeps meanwhile.
            folder = self.lab.exchange / "second"
            folder.mkdir(exist_ok=True)
            second.set_result(self._follow(self.base, folder=folder))
        except BaseException as error:
            second.set_exception(error)

    def _take_second(self, again: dict[str, Any]) -> bool:
        """Compare the plain runs; True if both were run again, with seeds."""
        self._compare(again)
        if self.differs is None or self.lab.inject_seed is not None:
            return False
        self.lab.inject_seed = 0
        self.plain = self._follow(self.base, is_first=True)
        self._compare(self._follow(self.base))
        return True

    def _compare(self, again: dict[str, Any]) -> None:
        self._is_compared = True
        self.differs = repeats_itself(self.plain, again)
        if self.plain["buffers"] != again["buffers"]:
            # A buffer may hold the time, say: what does not repeat itself proves nothing.
            self.plain["buffers"] = None
        if check_averages(self.plain, again).state == "failed":
            self.plain["averages"] = None
        if _read(self.plain) != _read(again):
            self.plain["evaluated"] = None
        self.plain["not_repeated"] = unrepeated_generators(self.plain, again)

    def follow(
        self,
        plan: Plan,
        samples: tuple[int, ...] = (),
        repeated: RecipeRepetition | None = None,
        *,
        at_own_places: bool = False,
        claims_exact: bool = False,
    ) -> dict[str, Any]:
        """Return the record of a run under the plan.

        Before any record is returned, the plain run is known to repeat itself, or seeded from
        outside if it does not: by a second plain run, or by the plan's own where that claims to be
        exact and has the plain run's bits.

        Args:
            plan: what is applied.
            samples: steps to keep whole.
            repeated: repeats a recipe's samples as they come.
            at_own_places: keep them so that they can be repeated at their own places only.
            claims_exact: True if the plan's run is expected to have the plain run's bits.
        """
        options: dict[str, Any] = {"samples": samples, "at_own_places": at_own_places}
        is_script = self.lab.subject.step_owner == "script"
        if self.at_once and is_script and not self._is_compared and not claims_exact:
            self._begin_second()
        try:
            record = self._follow(plan, repeated, **options)
        except BaseException:
            # The next plan must find the plain runs compared.
            if self._second is not None:
                self._end_plain()
            raise
        if claims_exact and not self._is_compared and _is_repetition(self.plain, record):
            return record
        if not self._is_compared and self._end_plain():
            # It had other seeds than what it would be compared with.
            record = self._follow(plan, repeated, **options)
        return record

    def _end_plain(self) -> bool:
        """Compare with a second plain run, once it is over; True if both were run again."""
        second, self._second = self._second, None
        if second is None:
            return self._take_second(self._follow(self.base))
        return self._take_second(second.result())

    def _follow(
        self,
        plan: Plan,
        repeated: RecipeRepetition | None = None,
        *,
        samples: tuple[int, ...] = (),
        at_own_places: bool = False,
        folder: Path | None = None,
        is_first: bool = False,
    ) -> dict[str, Any]:
        gradients = str(self.lab.exchange / "gradients.safetensors")
        try:
            report = run_to_report(
                self.lab,
                plan,
                timeout_s=TIMEOUT_S,
                role="verify",
                answers={}
                if repeated is None
                else {"sample": repeated.sample, "evaluation": repeated.evaluation},
                fill_ahead=self.fill_ahead,
                steps=self.horizon,
                samples=samples,
                at_own_places=at_own_places,
                folder=str(folder or self.lab.exchange),
                drawn_with=self.drawn_with,
                gradients=gradients if is_first else None,
                beside=None if is_first else gradients,
                **_NOT_LIMITED,
            )
        finally:
            if repeated is not None:
                repeated.end()
        if plan != self.base:
            # Of the plan that is judged, not of the runs that it is compared with.
            self.techniques = report["techniques"]
        return report["record"]


def _is_repetition(plain: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether a run tells of the plain one what a second plain run would: that nothing in
    it differs from one run to the next."""
    return (
        repeats_itself(plain, other) is None
        and plain["buffers"] == other["buffers"]
        and check_averages(plain, other).state != "failed"
        and _read(plain) == _read(other)
        and not unrepeated_generators(plain, other)
    )


def _read(record: dict[str, Any]) -> list[Any]:
    """Return what was evaluated: when, by which module, on what."""
    return [row[:3] for row in record["evaluated"]]
