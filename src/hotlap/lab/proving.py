"""`Prover` runs what a verdict needs: the plain script, the plan, float64 repetition."""

import json
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hotlap.lab.curves import loss_curves
from hotlap.lab.followed_runs import FollowedRuns
from hotlap.lab.late_steps import LateSteps, judge_late, split_late
from hotlap.lab.recipe_repetition import TIMEOUT_S, RecipeRepetition
from hotlap.lab.run_checks import LEAST_SEEDS, SeedLosses
from hotlap.lab.sampled_steps import LEAST_SLOPES, SampledSteps
from hotlap.lab.script_repetition import problem_of_samples, repeat_steps
from hotlap.lab.trial import Lab
from hotlap.lab.trial_report import run_to_report
from hotlap.lab.verdict import STATISTICAL_CHECKS, Verdict, judge, steps_of
from hotlap.plan import Plan
from hotlap.techniques import Numerics, Technique, numerics_of

SAMPLES = 6
NARROW_SAMPLES = LEAST_SLOPES + 18
"""More than are needed: the doubt of their mean falls with them."""
SEED_STEPS = 256
_SEEDS = tuple(range(1, LEAST_SEEDS))
"""What is added to the task's own seed, which has been trained from anyway."""
_REPEATED = {"gradient", "update", "buffers", "evaluation"}
"""Checks that a plain run fails as well where it cannot be repeated."""
_BFLOAT16_BITS = 16
"""Of the format that narrow steps are compared with."""


@dataclass
class Prover:
    """Proves plans of one script or recipe against the same plain runs.

    Args:
        lab: where the trials are held.
        horizon: steps that each run is followed for.
        known: the techniques by name.
        fill_ahead: serve samples from memory from the first step on, where the horizon is too
            short to come to a second epoch.
        checks: the checks to make, see `verdict`.
        base: what the plain run is run under; a plan is then compared with another one.
        seed: what each proof's sampled steps are drawn with; drawn itself if None. A plan that knew
            them could be right at these alone.
    """

    lab: Lab
    horizon: int
    known: Mapping[str, Technique]
    fill_ahead: bool = False
    checks: Collection[str] = STATISTICAL_CHECKS
    seed: int | None = None
    base: Plan = field(default_factory=Plan)
    at_once: bool | None = False
    """True to follow a script's plain run and the first plan's at the same time, which saves nearly
    half of it: there must be memory for both. None if that is to be found out, on a CPU."""
    late: Mapping[Plan, LateSteps] = field(default_factory=dict)
    """Of plans that act after the horizon: steps of a live process that are checked as well."""

    def __post_init__(self) -> None:
        self._runs = FollowedRuns(
            self.lab,
            self.base,
            self.horizon,
            drawn_with=_draw_seed() if self.seed is None else self.seed,
            fill_ahead=self.fill_ahead,
            at_once=self.at_once,
        )
        self._plain_seeds: list[list[float]] = []
        self._at_own_places = False
        """True if a script's steps are repeated at their own places in it only."""
        self._controls: dict[tuple[bool, tuple[int, ...]], SampledSteps] = {}
        self._late = SampledSteps(problem="not repeated")
        """The late steps of the newest plan, repeated."""

    def run_plain(self) -> None:
        """Run the plain script, with `at_once` in the background until `prove` is called.

        `prove` finds out whether it repeats itself, see `FollowedRuns.follow`; if it does not, it
        is seeded from outside.
        """
        self._runs.run_plain()

    def wait_for_plain(self) -> None:
        """Wait for the plain run's end, if it has begun.

        Raises:
            TrialError: it failed.
        """
        self._runs.wait_for_plain()

    @property
    def has_plain(self) -> bool:
        """True once the plain run has begun."""
        return self._runs.has_plain

    @property
    def plain(self) -> dict[str, Any]:
        """The record of the plain run, empty before it has begun; waits for its end.

        Raises:
            TrialError: it failed.
        """
        return self._runs.plain

    @property
    def differs(self) -> str | None:
        """How the second plain run differs from the first, in words; None if it does not."""
        return self._runs.differs

    @property
    def applied(self) -> list[dict[str, str]]:
        """{name, state, why} of the newest plan's techniques."""
        return self._runs.techniques

    @property
    def steps(self) -> int:
        """Steps that the plain run was really followed for."""
        return steps_of(self.plain)

    def prove(self, plan: Plan) -> Verdict:
        """Run the script under the plan and judge it."""
        self._late = SampledSteps(problem="not repeated")
        verdict, late = self._prove(plan), self.late.get(plan)
        return verdict if late is None else judge_late(verdict, late, self._late)

    def _prove(self, plan: Plan) -> Verdict:
        claims = (numerics_of(each, self.known) for each in (plan, self.base))
        claimed = max(claims, key=list(Numerics).index)
        if claimed is Numerics.EXACT:
            # Sampled steps are kept whole, which takes time: first without.
            verdict = self._judge(self._record(plan, claims_exact=True), claimed)
            # A step that one rank alone repeats would wait for the others.
            if verdict.tier in ("exact", "changed") or "ranks" in self.plain:
                return verdict
        verdict, sampled, record = self._judge_repeated(plan, claimed)
        is_open = any(c.name in _REPEATED and c.state == "not_made" for c in verdict.checks)
        is_script = self.lab.subject.step_owner == "script"
        # Late steps are repeated together with the others, and have no places of their own.
        may_differ = is_script and not self._at_own_places and plan not in self.late
        if verdict.tier == "unproven" and is_open and may_differ:
            # A script's steps may hang on where it is: on its counters, on batches read ahead.
            self._at_own_places = True
            again = self._judge_repeated(plan, claimed)
            self._at_own_places = again[0].tier != "unproven"
            if self._at_own_places:
                verdict, sampled, record = again
        seeds_needed = any(check.name == "seeds" for check in verdict.checks)
        if not seeds_needed or verdict.tier == "changed":
            return verdict
        return self._judge(record, claimed, sampled, seeds=self._seeds(plan, record))

    def prove_ahead(self, plan: Plan) -> Verdict:
        """Return the verdict of `prove` where samples are served from the first step on."""
        before = self.fill_ahead
        self.fill_ahead = self._runs.fill_ahead = True
        try:
            return self.prove(plan)
        finally:
            self.fill_ahead = self._runs.fill_ahead = before

    def _judge_repeated(
        self, plan: Plan, claimed: Numerics
    ) -> tuple[Verdict, SampledSteps, dict[str, Any]]:
        """Judge by sampled steps; what fails by these alone must pass in the plain run."""
        is_statistical = claimed.best_verdict == "statistical"
        sampled, record = self._repeat(plan, statistical=is_statistical, claimed=claimed)
        verdict = self._judge(record, claimed, sampled)
        if verdict.failed and {*verdict.failed} <= _REPEATED:
            steps = () if is_statistical else sorted({row["step"] for row in sampled.rows})
            control = self._plain_repeated(tuple(steps))
            verdict = self._judge(record, claimed, sampled, control=control)
        return verdict, sampled, record

    def _repeat(
        self,
        plan: Plan,
        *,
        statistical: bool = False,
        claimed: Numerics | None = None,
        steps: tuple[int, ...] = (),
    ) -> tuple[SampledSteps, dict[str, Any]]:
        """Run the plan, keep some steps whole and repeat them without it.

        A script's steps are not repeated where nothing rests on them, if `claimed` is given. Which
        steps are kept is drawn, unless `steps` says so.
        """
        seed = _draw_seed() if self.seed is None else self.seed
        count = NARROW_SAMPLES if statistical else SAMPLES
        is_length_known = self._runs.is_plain_over
        steps = steps or self._draw(count, seed)
        drawn = f"in pairs, sampled with seed {seed}"
        if self.lab.subject.step_owner == "engine":
            repeated = RecipeRepetition(
                self.lab,
                self._numbers,
                rounding=not statistical,
                memory_format=self._memory_format(plan),
            )
            record = self._record(plan, steps, repeated)
            return self._of_format(plan, repeated.collect(record["not_sampled"], drawn)), record
        record = self._record(plan, steps)
        if not is_length_known:
            last = self.steps - 2
            steps = tuple(step for step in steps if step <= last)
            # In the one that the run is stopped in another optimizer may be missing.
            record["samples"] = [row for row in record["samples"] if row["step"] <= last]
            if len(steps) < len(self._draw(count, seed)):
                # The script ends long before the horizon: again, now that it is known where.
                return self._repeat(plan, statistical=statistical, claimed=claimed)
        if claimed is not None and plan not in self.late:
            verdict = self._judge(record, claimed)
            if verdict.tier in ("changed", claimed.best_verdict):
                return SampledSteps(problem="not repeated"), record
        sampled = self._reference(record, len(steps), drawn, plan=plan, rounding=not statistical)
        sampled = self._of_format(plan, sampled)
        if plan in self.late:
            sampled, self._late = split_late(sampled, self.late[plan])
        return sampled, record

    def _draw(self, count: int, seed: int) -> tuple[int, ...]:
        """Return about `count` steps to keep whole, in all parts of a run."""
        if self.lab.subject.step_owner != "script":
            return draw_steps(count, self.steps, seed)
        is_known = self._runs.is_plain_over
        length = self.steps if is_known else self.horizon
        # The repetition takes two of the script's own steps for each.
        count = min(count, max(2, length // 2 - 1))
        if is_known:
            return draw_steps(count, length, seed)
        # It may go on to the end of an epoch, no more than as long again.
        return draw_steps(2 * count, 2 * length - 2, seed)

    def _memory_format(self, plan: Plan | None) -> str:
        """Return the layout that a plan gives the weights."""
        names = () if plan is None else plan.techniques
        return next((f for name in names if (f := self.known[name].memory_format)), "")

    def _of_format(self, plan: Plan, sampled: SampledSteps) -> SampledSteps:
        """Return sampled steps without what bfloat16 gives, where the plan's format is coarser."""
        if all(self.known[name].format_bits >= _BFLOAT16_BITS for name in plan.techniques):
            return sampled
        rows = [{k: v for k, v in row.items() if k != "narrow_error"} for row in sampled.rows]
        return replace(sampled, rows=rows)

    def _plain_repeated(self, steps: tuple[int, ...]) -> SampledSteps:
        """Return steps of a plain run, repeated: is what they are compared with to be believed?

        Args:
            steps: those of the plan; drawn if there are none. Of a script whose windows of
                micro-batches are not all alike, some steps can be repeated with batches that are
                given to it, and others cannot.
        """
        key = self._at_own_places, steps
        if key not in self._controls:
            self._controls[key] = self._repeat(self.base, steps=steps)[0]
        return self._controls[key]

    def _judge(
        self,
        record: Mapping[str, Any],
        claimed: Numerics,
        reference: SampledSteps | None = None,
        *,
        control: SampledSteps | None = None,
        seeds: SeedLosses | None = None,
    ) -> Verdict:
        verdict = judge(
            self.plain,
            record,
            claimed=claimed,
            plain_repeats=self.differs,
            reference=reference,
            control=control,
            checks=self.checks,
            seeds=seeds,
        )
        plain_seeds = () if seeds is None else seeds.plain
        horizon = min(self.steps, steps_of(record))
        curves = loss_curves(self.plain["losses"], record["losses"], plain_seeds, horizon)
        return replace(verdict, curves=curves)

    def _seeds(self, plan: Plan, record: Mapping[str, Any]) -> SeedLosses | None:
        if "seeds" not in self.checks:
            return None
        steps = min(self.steps, SEED_STEPS)
        if not self._plain_seeds:
            self._plain_seeds = [self.plain["losses"][:steps], *self._losses(self.base, steps)]
        return SeedLosses(
            plain=self._plain_seeds,
            other=[record["losses"][:steps], *self._losses(plan, steps)],
        )

    def _losses(self, plan: Plan, steps: int) -> list[list[float]]:
        """Return the losses of the seeds that come after the task's own."""
        if self.lab.subject.step_owner == "script":
            return [self._losses_of_script(plan, steps, seed) for seed in _SEEDS]
        report = run_to_report(
            self.lab, plan, timeout_s=TIMEOUT_S, role="seeds", seeds=_SEEDS, steps=steps
        )
        return list(report["losses"].values())

    def _losses_of_script(self, plan: Plan, steps: int, seed: int) -> list[float]:
        self.lab.shift_seeds = seed
        try:
            report = run_to_report(
                self.lab,
                plan,
                timeout_s=TIMEOUT_S,
                role="seeds",
                fill_ahead=self.fill_ahead,
                steps=steps,
            )
        finally:
            self.lab.shift_seeds = 0
        return report["losses"][:steps]

    def _record(
        self,
        plan: Plan,
        samples: tuple[int, ...] = (),
        repeated: RecipeRepetition | None = None,
        *,
        claims_exact: bool = False,
    ) -> dict[str, Any]:
        return self._runs.follow(
            plan,
            samples,
            repeated,
            at_own_places=self._at_own_places,
            claims_exact=claims_exact,
        )

    def _reference(
        self,
        record: Mapping[str, Any],
        asked: int,
        drawn: str,
        *,
        plan: Plan | None = None,
        rounding: bool = True,
    ) -> SampledSteps:
        """Repeat the sampled steps of a script, and those that were kept of a later age."""
        problem = problem_of_samples(record, asked)
        if problem:
            return SampledSteps(problem=problem)
        samples = [
            {**sample, "hyperparameters": [self._numbers(at) for at in sample["updates"]]}
            for sample in record["samples"]
        ]
        late = None if plan is None else self.late.get(plan)
        return repeat_steps(
            self.lab,
            [*samples, *(late.rows if late is not None else ())],
            evaluations=record["evaluations"],
            rounding=rounding,
            memory_format=self._memory_format(plan),
            drawn=drawn,
        )

    def _numbers(self, update: int) -> Any:
        return json.loads(self.plain["hyperparameters"][update])


def _draw_seed() -> int:
    return random.SystemRandom().getrandbits(32)


def draw_steps(count: int, steps: int, seed: int) -> tuple[int, ...]:
    """Draw `count` of a run's `steps`: neighbouring pairs, one in each part of the run.

    What is done at every other step shows in one step of each pair.
    """
    # Another optimizer may follow in the step that the run is stopped in.
    last = steps - 2
    pairs = min(count // 2, last // 2)
    if pairs < 1:
        return ()
    generator = random.Random(seed)
    found: list[int] = []
    for part in range(pairs):
        begin, end = 1 + last * part // pairs, 1 + last * (part + 1) // pairs
        step = generator.randint(begin, end - 2)
        found += [step, step + 1]
    return tuple(found)
