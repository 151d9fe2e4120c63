"""`FollowedRuns`: runs in the role `verify`, plainly and under plans, and their records."""

import contextlib
import tempfile
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotlap.errors import HotlapError
from hotlap.host.memory import available_bytes
from hotlap.lab.auxiliary_checks import check_averages
from hotlap.lab.chain import IN_EVALUATION, check_custody, check_start
from hotlap.lab.recipe_repetition import TIMEOUT_S, RecipeRepetition
from hotlap.lab.run_checks import check_batches
from hotlap.lab.saves_check import check_saves
from hotlap.lab.trial import Lab
from hotlap.lab.trial_report import run_to_report
from hotlap.lab.updates import unrepeated_generators
from hotlap.lab.verdict import repeats_itself
from hotlap.plan import Plan
from hotlap.trial.gradient_rows import end_rows, is_begun
from hotlap.trial.repetition_ways import BUFFER

_NOT_LIMITED = {"seconds": 0, "epochs": 0, "naming_s": 0}
_ROOM = 3.0
"""How many times what the plain run holds must be free for the plan's run beside it, which keeps
copies of weights, gradients and the optimizer's state for sampled steps."""
_LOOK_S = 0.05


@dataclass
class FollowedRuns:
    """Runs of one script or recipe, each followed step by step.

    Args:
        lab: where the trials are held.
        base: what the plain run is run under.
        horizon: steps that each run is followed for.
        drawn_with: seed of the elements that are compared.
        fill_ahead: serve samples from memory from the first step on.
        at_once: follow a script's plain run and the first plan's at the same time, see `Prover`.
    """

    lab: Lab
    base: Plan
    horizon: int
    drawn_with: int
    fill_ahead: bool = False
    at_once: bool | None = False
    differs: str | None = None
    """How the second plain run differs from the first, in words; None if it does not."""
    techniques: list[dict[str, str]] = field(default_factory=list)
    """{name, state, why} of the newest plan's techniques."""
    _is_compared: bool = False
    """True once it is known how a second plain run differs."""
    _plain: "Future[dict[str, Any]] | None" = None
    _plain_runs: int = 0

    @property
    def has_plain(self) -> bool:
        """True once the plain run has begun."""
        return self._plain is not None

    @property
    def is_plain_over(self) -> bool:
        """True if the plain run has ended, so that its length is known."""
        return self._plain is not None and self._plain.done()

    @property
    def plain(self) -> dict[str, Any]:
        """What the plain run was like, without what does not repeat itself; empty before it begins.

        Waits for its end.
        """
        return {} if self._plain is None else self._plain.result()

    def run_plain(self) -> None:
        """Follow the plain run, in the background where the first plan's is followed with it."""
        self._plain, self._is_compared = Future(), False
        self._plain_runs += 1
        if self.at_once is not False and self.lab.subject.step_owner == "script":
            threading.Thread(target=self._run_plain, args=(self._plain,), daemon=True).start()
        else:
            self._run_plain(self._plain)
            self._plain.result()

    def _run_plain(self, found: "Future[dict[str, Any]]") -> None:
        try:
            found.set_result(self._follow(self.base, is_first=True))
        except BaseException as error:
            found.set_exception(error)
            # The plan's run would be compared with nothing.
            for trial in self.lab.trials:
                if trial.role == "verify" and trial.is_alive:
                    trial.end_with("ended_early", "was ended: the plain run had failed")
        finally:
            # Of a lab that has been closed nobody reads on.
            with contextlib.suppress(FileNotFoundError):
                end_rows(self._gradients)

    @property
    def _gradients(self) -> Path:
        """The file of the newest plain run's gradients."""
        return self.lab.exchange / f"gradients-{self._plain_runs}"

    def wait_for_plain(self) -> None:
        """Wait for the plain run's end, if it has begun.

        Raises:
            TrialError: it failed.
        """
        if self._plain is not None:
            self._plain.result()

    def _wait_for_room(self) -> None:
        """Wait until the plain run is over, or trains and leaves memory for another process."""
        if self.at_once:
            return
        while not self.is_plain_over and not is_begun(self._gradients):
            time.sleep(_LOOK_S)
        held = sum(trial.held_bytes(lambda _: 0) for trial in self.lab.trials if trial.is_alive)
        if available_bytes() < _ROOM * held:
            self.wait_for_plain()

    def _compare(self, again: dict[str, Any]) -> None:
        self._is_compared = True
        self.differs = repeats_itself(self.plain, again)
        # A buffer may hold the time, say: what does not repeat itself proves nothing.
        if self.plain["untrained"] != again["untrained"]:
            self.plain["untrained"] = None
        moved, moved_again = self.plain["untrained_moved"], again["untrained_moved"]
        for name in {*moved, *moved_again}:
            if moved.get(name) != moved_again.get(name):
                moved[name] = None
        for key in IN_EVALUATION:
            if self.plain.get(key) != again.get(key):
                self.plain[key] = None
        _forget_other_saves(self.plain, again)
        started = self.plain["start"]
        for name in [n for n, held in started.items() if held and held[1] == BUFFER]:
            if again["start"].get(name) != started[name]:
                started[name] = None
        if check_averages(self.plain, again).state == "failed":
            self.plain["averages"] = None
        if self.plain.get("without_gradients") != again.get("without_gradients"):
            self.plain["without_gradients"] = None
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
        outside if it does not. The plan's own run shows that it does where all is equal that no
        rounding may change; else the script is run plainly once more.

        Args:
            plan: what is applied.
            samples: steps to keep whole.
            repeated: repeats a recipe's samples as they come.
            at_own_places: keep them so that they can be repeated at their own places only.
            claims_exact: True if the plan's run is expected to have the plain run's bits.

        Raises:
            TrialError: the plain run or the plan's cannot be followed to its end.
        """
        if not self.is_plain_over:
            self._wait_for_room()
        if self.is_plain_over:
            self.wait_for_plain()
        try:
            record = self._follow(plan, repeated, samples=samples, at_own_places=at_own_places)
        except HotlapError:
            # What the plain run failed for says more.
            self.wait_for_plain()
            raise
        if self._is_compared or _is_repetition(self.plain, record, bit_by_bit=claims_exact):
            return record
        self._compare(self._follow(self.base))
        if self.differs is None or self.lab.inject_seed is not None:
            return record
        # It had other seeds than what it would be compared with.
        self.lab.inject_seed = 0
        self.differs = None
        self.run_plain()
        return self.follow(
            plan,
            samples,
            repeated,
            at_own_places=at_own_places,
            claims_exact=claims_exact,
        )

    def _follow(
        self,
        plan: Plan,
        repeated: RecipeRepetition | None = None,
        *,
        samples: tuple[int, ...] = (),
        at_own_places: bool = False,
        is_first: bool = False,
    ) -> dict[str, Any]:
        # Of each run: what one keeps must not be taken for what another one does.
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=self.lab.exchange))
        gradients = str(self._gradients)
        try:
            report = run_to_report(
                self.lab,
                plan,
                # Two at the same time share the cores.
                timeout_s=TIMEOUT_S if self.at_once is False else 2 * TIMEOUT_S,
                role="verify",
                answers={}
                if repeated is None
                else {"sample": repeated.sample, "evaluation": repeated.evaluation},
                fill_ahead=self.fill_ahead,
                steps=self.horizon,
                samples=samples,
                at_own_places=at_own_places,
                folder=str(folder),
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


def _forget_other_saves(plain: dict[str, Any], again: dict[str, Any]) -> None:
    """Forget of what a plain run saves what another one does not save again."""
    theirs, ours = plain.get("saves") or [], again.get("saves") or []
    if [row[:3] for row in theirs] != [row[:3] for row in ours]:
        plain["saves"] = None
        return
    for row, same in zip(theirs, ours, strict=True):
        if row[3] != same[3]:
            # It holds the time, say.
            row[3] = None


def _is_repetition(plain: dict[str, Any], other: dict[str, Any], *, bit_by_bit: bool) -> bool:
    """Return whether a run tells of the plain one what a second plain run would: that nothing in
    it differs from one run to the next.

    Args:
        plain: record of the plain run.
        other: of a run under a plan.
        bit_by_bit: False to leave aside what the plan may round in another way.
    """
    has_its_bits = repeats_itself(plain, other) is None
    # Equal bits decide a verdict whatever is claimed, and a buffer that holds the time is none.
    others = ("untrained", "without_gradients")
    differs = any(plain.get(key) != other.get(key) for key in others)
    if (bit_by_bit and not has_its_bits) or (has_its_bits and differs):
        return False
    made = (check_batches(plain, other, None), check_start(plain, other, None))
    return (
        all(check.state in ("passed", "partial") for check in made)
        and check_custody(plain, other).state not in ("failed", "not_made")
        and check_averages(plain, other).state != "failed"
        and check_saves(plain, other).state != "failed"
        and _read(plain) == _read(other)
        and not unrepeated_generators(plain, other)
    )


def _read(record: dict[str, Any]) -> list[Any]:
    """Return what was evaluated: when, by which module, on what."""
    return [row[:3] for row in record["evaluated"]]
