"""The state of each technique in a tuning's report, and its reason."""

import math
from collections.abc import Iterable, Mapping, Sequence

from hotlap.lab.arm import Arm
from hotlap.lab.decisions import Decision
from hotlap.lab.process_race import Race
from hotlap.lab.statistics import Ratio, figures, paired_ratio
from hotlap.plan import Plan
from hotlap.tuning.candidates import Candidate

STATES = ("refused", "not_tried", "no_effect", "applied")
"""From what says least to what says most."""
NO_TIME_FOR_RACES = "the budget is too short for races in fresh processes"
Row = dict[str, str]


class Notes:
    """What is known of each technique so far.

    A technique may have several options, each tried in several races: the one that says most
    speaks for it, among equals the fastest. What the proof of the plan says that is chosen
    overrules everything.
    """

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._speed: dict[str, float] = {}
        self._raced_live: set[str] = set()
        self._gained_alone: set[str] = set()
        self._on_top: dict[tuple[Plan, str], str] = {}
        self.untried: dict[str, str] = {}
        """Candidate that was not tried -> why."""
        self.unproven = ""
        """Why something that was faster is not proven to learn the same; empty if nothing was."""
        self.not_worth_it = ""
        """Why something that was faster does not shorten the whole run; empty if nothing was."""

    def note_inapplicable(self, reasons: Mapping[str, str]) -> None:
        """Note techniques that cannot serve here, with the reason."""
        for name, why in reasons.items():
            self._note(name, "refused", why)

    def note_untried(self, candidates: Iterable[Candidate], why: str) -> None:
        """Note candidates that were in no race."""
        for candidate in candidates:
            self.untried[candidate.name] = why
            self._note(candidate.technique, "not_tried", f"{candidate.name}: {why}")

    def note_race(self, candidate: Candidate, arm: Arm, race: Race) -> None:
        """Note what came out for a candidate that was started alone."""
        name = candidate.technique
        proof = next((row for row in arm.techniques if row["name"] == name), None)
        if arm.is_late:
            self.note_untried([candidate], arm.failed or "")
        elif arm.failed is not None:
            state = "no_effect" if arm.is_slow else "refused"
            self._note(name, state, f"{candidate.name}: {arm.failed}")
        elif arm.name not in race.arms or proof is None:
            self.note_untried([candidate], "no turn of it was finished")
        elif proof["state"] != "applied":
            self._note(name, proof["state"], proof["why"])
        else:
            ratio = race.ratio(arm.name)
            self._note(name, "no_effect", in_words(candidate, race), speed=ratio.median)
            if race.gains(arm.name, race.floor):
                self._gained_alone.add(name)

    def note_live(self, candidate: Candidate, decision: Decision) -> None:
        """Note what came out for a candidate that was switched on and off in a live process."""
        if decision.ratio is None:
            state = "refused" if decision.state == "failed" else "not_tried"
            self._note(candidate.technique, state, decision.why or "no turn of it was finished")
            return
        ratio = decision.ratio
        self._raced_live.add(candidate.name)
        words = f"{candidate.name} alone, in one process: {figures(ratio)}"
        if decision.state == "undecided" and ratio.high < 1:
            words += ", no gain"
        elif decision.state == "undecided":
            rounds = f" after {ratio.pairs} round{'s' * (ratio.pairs != 1)}"
            words += f", undecided{f': {decision.why}' if decision.why else rounds}"
        elif decision.state == "not_faster":
            words += ", no gain"
        else:
            self._gained_alone.add(candidate.technique)
        self._note(candidate.technique, "no_effect", words, speed=ratio.median)

    def note_on_top(self, candidate: Candidate, plan: Plan, ratio: Ratio) -> None:
        """Note what a candidate gave in a plan of several, in addition to the others of it."""
        self._on_top[plan, candidate.technique] = f"in one process: {figures(ratio)}"

    def note_earlier(self, candidate: Candidate, decision: Decision) -> None:
        """Note what came out for a candidate that an earlier tuning has decided."""
        words = f": {figures(decision.ratio)}, no gain" if decision.ratio else f": {decision.why}"
        words = f"{candidate.name} alone, in an earlier tuning{words}"
        speed = decision.ratio.median if decision.ratio else 0.0
        state = "refused" if decision.state == "failed" else "no_effect"
        self._note(candidate.technique, state, words, speed=speed)

    def note_extension(self, candidate: Candidate, arm: Arm, race: Race, best: Plan) -> None:
        """Note what a candidate gave on top of the plan that is best without it."""
        if arm.is_late:
            self.note_untried([candidate], arm.failed or "")
        elif arm.failed is not None:
            state = "no_effect" if arm.is_slow else "refused"
            self._note(candidate.technique, state, f"{candidate.name}: {arm.failed}")
        elif arm.name in race.arms and str(best) in race.arms:
            ratio = paired_ratio(race.arms[str(best)].turns_ms, race.arms[arm.name].turns_ms)
            words = f"{candidate.name} in addition to {best}: {figures(ratio)}"
            self._on_top[arm.plan, candidate.technique] = f"in fresh processes: {figures(ratio)}"
            self._note(candidate.technique, "no_effect", words, speed=ratio.median)

    def note_once(self, candidate: Candidate, why: str) -> None:
        """Note that what a candidate gave on top of the best plan was seen in one race only."""
        row = self._rows.get(candidate.technique)
        if row is not None and row["why"].startswith(f"{candidate.name} in addition to "):
            row["why"] += f"; {why}"

    def note_replaced(self, candidate: Candidate, by: Plan) -> None:
        """Note a candidate that cannot be in one plan with what was found to be faster."""
        words = f"{candidate.name}: it cannot be combined with {by}"
        self._note(candidate.technique, "not_tried", words)

    def note_unconfirmed(self, plans: Iterable[Plan], option: str) -> None:
        """Note that plans looked faster, and that no other race could tell whether they are.

        Args:
            plans: the plans.
            option: the `--budget` that would do.
        """
        for name in {name for plan in plans for name in plan.techniques}:
            words = f"; undecided: the budget had no time for a second race: use {option}"
            self._rows[name]["why"] += words

    def note_failed_proof(self, plan: Plan, name: str, tier: str, evidence: str) -> None:
        """Note that a plan was faster, and not proven to learn the same."""
        self.unproven = f"{name} was faster, and its verdict is `{tier}`: {evidence}"
        for technique in plan.techniques:
            self._overrule(technique, "refused", f"verdict `{tier}` on {name}: {evidence}")

    def note_not_worth_it(self, plan: Plan, why: str) -> None:
        """Note that a plan's steps are faster, and that the whole run is not."""
        self.not_worth_it = why
        for technique in plan.techniques:
            self._overrule(technique, "no_effect", why)

    def note_unclaimed(self, plan: Plan, why: str) -> None:
        """Note that a plan's gain contradicts other measurements."""
        for technique in plan.techniques:
            self._overrule(technique, "no_effect", f"could not tell: {why}")

    def note_chosen(
        self, plan: Plan, in_race: Sequence[Mapping[str, str]], whole: Sequence[Mapping[str, str]]
    ) -> None:
        """Note the techniques of the plan that won, as their own proofs say.

        Args:
            plan: the plan.
            in_race: the proofs in the race that it won.
            whole: those of the run that was watched from its start; such a run may end before a
                technique takes effect, within the first epoch for example.
        """
        rows = {row["name"]: row for row in in_race}
        rows |= {row["name"]: row for row in whole if row["state"] == "applied"}
        for name in plan.techniques:
            self._overrule(name, rows[name]["state"], rows[name]["why"] + self._adds(plan, name))
        for name in self._gained_alone:
            row = self._rows[name]
            is_open = self._speed[name] < math.inf and row["state"] == "no_effect"
            if is_open and " in addition to " not in row["why"]:
                row["why"] += f"; not found to gain in addition to {plan}"

    def _adds(self, plan: Plan, name: str) -> str:
        """Return in words what a technique of a plan gave in addition to the others of it."""
        if len(plan.techniques) == 1:
            return ""
        if (plan, name) in self._on_top:
            return f"; in addition to the rest of the plan, {self._on_top[plan, name]}"
        for smaller, technique in self._on_top:
            is_part = smaller.techniques.items() <= plan.techniques.items()
            if technique == name and is_part and (rest := smaller.without(name)):
                return f"; in addition to {rest}, {self._on_top[smaller, name]}"
        return "; what it gives in addition to the rest of the plan was not measured"

    def rows(self, order: Iterable[str]) -> tuple[Row, ...]:
        """Return {name, state, why} of every technique that is known, in that order."""
        found = []
        for name in order:
            if name not in self._rows:
                continue
            row = dict(self._rows[name])
            own = {one for one in self.untried if one.partition("(")[0] == name}
            if row["state"] != "not_tried":
                for where, others in (
                    ("", own - self._raced_live),
                    (" alone in fresh processes", own & self._raced_live),
                ):
                    if others:
                        # What has no options is called by its name alone.
                        which = "" if others == {name} else f": {', '.join(sorted(others))}"
                        row["why"] += f"; not tried{where}{which}"
            found.append(row)
        return tuple(found)

    def _note(self, name: str, state: str, why: str, *, speed: float = 0.0) -> None:
        known = self._rows.get(name)
        if known is not None:
            said = (STATES.index(known["state"]), self._speed[name])
            if said >= (STATES.index(state), speed):
                return
        self._rows[name] = {"name": name, "state": state, "why": why}
        self._speed[name] = speed

    def _overrule(self, name: str, state: str, why: str) -> None:
        self._rows[name] = {"name": name, "state": state, "why": why}
        self._speed[name] = math.inf


def in_words(candidate: Candidate, race: Race) -> str:
    """Return what a candidate gave alone, and whether that is a gain."""
    ratio = race.ratio(candidate.name)
    words = f"{candidate.name} alone, in race 1: {figures(ratio)}"
    if race.gains(candidate.name, race.floor):
        return words
    if ratio.low <= 1 + race.floor:
        return f"{words}, not above what identical runs differ by ({race.floor:.1%})"
    means = race.ratio_of_means(candidate.name)
    return f"{words}, but {means:.2f}x by the mean of all steps: few steps take much longer"
