"""Runs what a verdict needs: the plain script twice, the plan, and the repetition in float64."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from hotlap.errors import HotlapError, TrialError
from hotlap.lab.trial import Lab, observe
from hotlap.lab.verdict import CHECKS, Verdict, judge, repeats_itself
from hotlap.plan import Plan
from hotlap.techniques import Numerics, Technique, numerics_of

SAMPLES = 5
_TIMEOUT_S = 900.0
_NOT_LIMITED = {"seconds": 0, "epochs": 0, "naming_s": 0}


@dataclass
class Prover:
    """Proves plans of one script against the same plain runs.

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
    checks: Collection[str] = CHECKS

    def __post_init__(self) -> None:
        self.plain: dict[str, Any] = {}
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
        # Sampled steps are kept whole, which takes time: a plan that claims bit-equality is first
        # tried without.
        wide = claimed is not Numerics.EXACT
        record = self._record(plan, samples=self._sampled() if wide else ())
        verdict = self._judge(record, claimed, reference=None)
        if verdict.tier in ("exact", "changed") or verdict.tier == claimed.best_verdict:
            return verdict
        if not wide:
            record = self._record(plan, samples=self._sampled())
        return self._judge(record, claimed, reference=self._reference(record))

    def _judge(
        self,
        record: Mapping[str, Any],
        claimed: Numerics,
        *,
        reference: tuple[list[dict[str, Any]], str] | None,
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
        )

    def _sampled(self) -> tuple[int, ...]:
        """Return the steps to keep whole: an early one, and others spread over the horizon."""
        last = self.steps - 1
        spread = {max(1, last * k // SAMPLES) for k in range(1, SAMPLES)}
        return tuple(sorted({min(3, last), *spread}))

    def _record(self, plan: Plan, samples: tuple[int, ...] = ()) -> dict[str, Any]:
        report = observe(
            self.lab,
            plan,
            timeout_s=_TIMEOUT_S,
            role="verify",
            fill_ahead=self.fill_ahead,
            steps=self.horizon,
            samples=samples,
            folder=str(self.lab.exchange),
            **_NOT_LIMITED,
        )
        return report["record"]

    def _reference(self, record: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
        if not record["samples"]:
            return [], record["not_sampled"]
        samples = [{"file": file, "numbers": self._numbers(file)} for file in record["samples"]]
        problem = ""
        for dtype in ("float64", "float32"):
            try:
                report = observe(
                    self.lab, timeout_s=_TIMEOUT_S, role="reference", samples=samples, dtype=dtype
                )
                return report["results"], ""
            except TrialError as error:
                problem = f"the step could not be repeated in {dtype}: {_last_line(error)}"
        return [], problem

    def _numbers(self, file: str) -> Any:
        step = int(file.rpartition("-")[2].split(".")[0])
        return json.loads(self.plain["numbers"][step])


def _last_line(error: HotlapError) -> str:
    return str(error).strip().splitlines()[-1]


Progress = Callable[[str], None]
