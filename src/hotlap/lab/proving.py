"""Runs what a verdict needs: the plain script twice, the plan, and the repetition in float64."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.errors import HotlapError, TrialError
from hotlap.lab.recipes import RecipeRun
from hotlap.lab.trial import Lab, Trial, observe
from hotlap.lab.verdict import (
    LEAST_SEEDS,
    LEAST_SLOPES,
    STATISTICAL_CHECKS,
    SeedLosses,
    Verdict,
    judge,
    repeats_itself,
)
from hotlap.plan import Plan
from hotlap.techniques import Numerics, Technique, numerics_of

SAMPLES = 5
NARROW_SAMPLES = LEAST_SLOPES + 18
"""More than are needed: the doubt of their mean falls with them."""
SEED_STEPS = 256
_SEEDS = tuple(range(1, LEAST_SEEDS))
"""What is added to the task's own seed, which has been trained from anyway."""
DTYPES = ("float64", "float32")
"""What a step is repeated in: the second where a recipe or script cannot do the first."""
_TIMEOUT_S = 900.0
_NOT_LIMITED = {"seconds": 0, "epochs": 0, "naming_s": 0}


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
    """

    lab: Lab
    horizon: int
    known: Mapping[str, Technique]
    fill_ahead: bool = False
    checks: Collection[str] = STATISTICAL_CHECKS

    def __post_init__(self) -> None:
        self.plain: dict[str, Any] = {}
        self._plain_seeds: list[list[float]] = []
        self.differs: str | None = None

    def run_plain(self) -> None:
        """Run the plain script twice; seed it from outside if it does not repeat itself."""
        self.plain = self._record(Plan({}))
        self.differs = repeats_itself(self.plain, self._record(Plan({})))
        if self.differs is not None and self.lab.inject_seed is None:
            self.lab.inject_seed = 0
            self.plain = self._record(Plan({}))
            self.differs = repeats_itself(self.plain, self._record(Plan({})))

    @property
    def steps(self) -> int:
        """Steps that the plain run was really followed for."""
        return len(self.plain["weights"])

    def prove(self, plan: Plan) -> Verdict:
        """Run the script under the plan and judge it."""
        claimed = numerics_of(plan, self.known)
        is_statistical = claimed.best_verdict == "statistical"
        if claimed is Numerics.EXACT:
            # Sampled steps are kept whole, which takes time: first without.
            verdict = self._judge(self._record(plan), claimed)
            if verdict.tier in ("exact", "changed"):
                return verdict
        samples = self._sampled(NARROW_SAMPLES if is_statistical else SAMPLES)
        repeated = None
        if isinstance(self.lab.script, RecipeRun):
            repeated = Repeated(self.lab, self._numbers, rounding=not is_statistical)
        record = self._record(plan, samples, repeated)
        verdict = self._judge(record, claimed)
        if verdict.tier in ("changed", claimed.best_verdict):
            return verdict
        if repeated is None:
            reference = self._reference(record)
        else:
            reference = repeated.rows, repeated.problem or record["not_sampled"]
        verdict = self._judge(record, claimed, reference=reference)
        if not is_statistical or verdict.tier == "changed":
            return verdict
        return self._judge(record, claimed, reference=reference, seeds=self._seeds(plan, record))

    def _judge(
        self,
        record: Mapping[str, Any],
        claimed: Numerics,
        *,
        reference: tuple[list[dict[str, Any]], str] | None = None,
        seeds: SeedLosses | None = None,
    ) -> Verdict:
        rows, problem = reference or ([], "not repeated")
        return judge(
            self.plain,
            record,
            claimed=claimed,
            plain_repeats=self.differs,
            reference=rows,
            reference_problem=problem,
            checks=self.checks,
            seeds=seeds,
        )

    def _seeds(self, plan: Plan, record: Mapping[str, Any]) -> SeedLosses | None:
        if not isinstance(self.lab.script, RecipeRun) or "seeds" not in self.checks:
            return None
        steps = min(self.steps, SEED_STEPS)
        if not self._plain_seeds:
            self._plain_seeds = [self.plain["losses"][:steps], *self._losses(Plan({}), steps)]
        return SeedLosses(
            plain=self._plain_seeds,
            other=[record["losses"][:steps], *self._losses(plan, steps)],
        )

    def _losses(self, plan: Plan, steps: int) -> list[list[float]]:
        """Return the losses of the seeds that come after the task's own."""
        report = observe(
            self.lab, plan, timeout_s=_TIMEOUT_S, role="seeds", seeds=_SEEDS, steps=steps
        )
        return list(report["losses"].values())

    def _sampled(self, count: int) -> tuple[int, ...]:
        """Return the steps to keep whole: an early one, and others spread over the horizon."""
        last = self.steps - 1
        spread = {max(1, last * k // count) for k in range(1, count)}
        return tuple(sorted({min(3, last), *spread}))

    def _record(
        self, plan: Plan, samples: tuple[int, ...] = (), repeated: "Repeated | None" = None
    ) -> dict[str, Any]:
        try:
            report = observe(
                self.lab,
                plan,
                timeout_s=_TIMEOUT_S,
                role="verify",
                answers={} if repeated is None else {"sample": repeated.sample},
                fill_ahead=self.fill_ahead,
                steps=self.horizon,
                samples=samples,
                folder=str(self.lab.exchange),
                **_NOT_LIMITED,
            )
        finally:
            if repeated is not None:
                repeated.end()
        return report["record"]

    def _reference(self, record: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
        if not record["samples"]:
            return [], record["not_sampled"]
        samples = [
            {"file": file, "numbers": self._numbers(int(file.rpartition("-")[2].split(".")[0]))}
            for file in record["samples"]
        ]
        problem = ""
        for dtype in DTYPES:
            try:
                report = observe(
                    self.lab, timeout_s=_TIMEOUT_S, role="reference", samples=samples, dtype=dtype
                )
                return report["results"], ""
            except TrialError as error:
                problem = _not_repeated(dtype, error)
        return [], problem

    def _numbers(self, step: int) -> Any:
        return json.loads(self.plain["numbers"][step])


class Repeated:
    """Sampled steps of a recipe, repeated while the run that they come from waits.

    Samples of large models are large: there is never more than one.

    Args:
        lab: where the repeating process is started.
        numbers: step -> the plain run's hyperparameters at it.
        rounding: see `recipe_proof.reference`.
    """

    def __init__(self, lab: Lab, numbers: Callable[[int], Any], *, rounding: bool) -> None:
        self.lab, self.numbers, self.rounding = lab, numbers, rounding
        self.rows: list[dict[str, Any]] = []
        self.problem = ""
        """Why there are no rows, empty if there are some."""
        self._dtypes = list(DTYPES)
        # At once: it imports while the run that it will wait for does.
        self._trial: Trial | None = self._start()

    def _start(self) -> Trial:
        return self.lab.start("reference", dtype=self._dtypes[0], rounding=self.rounding)

    def sample(self, message: Mapping[str, Any]) -> None:
        """Repeat the step that a message `sample` speaks of, and remove its file."""
        file = Path(message["file"])
        while self._dtypes:
            try:
                self.rows.append(self._repeat(file, self.numbers(message["step"])))
                break
            except HotlapError as error:
                self.problem = _not_repeated(self._dtypes.pop(0), error)
                self.rows.clear()
                self.end()
        file.unlink()

    def _repeat(self, file: Path, numbers: Any) -> dict[str, Any]:
        if self._trial is None:
            self._trial = self._start()
        self._trial.send("repeat", file=str(file), numbers=numbers)
        return self._trial.message(["repeated"], _TIMEOUT_S)["row"]

    def end(self) -> None:
        """End the repeating process."""
        if self._trial is not None:
            self._trial.kill()
            self._trial = None


def _not_repeated(dtype: str, error: HotlapError) -> str:
    return f"the step could not be repeated in {dtype}: {str(error).strip().splitlines()[-1]}"
