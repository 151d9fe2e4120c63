"""Repeats a recipe's sampled steps in its own process, while the proof's run waits."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hotlap.errors import HotlapError, UsageError
from hotlap.lab.sampled_steps import SampledSteps
from hotlap.lab.trial import Lab, Trial

DTYPES = ("float64", "float32")
"""What a step is repeated in: the second where a recipe's or script's own code cannot do the first.
"""
TIMEOUT_S = 900.0


class RecipeRepetition:
    """Sampled steps of a recipe, repeated while the run that they come from waits.

    Samples of large models are large: there is never more than one.

    Args:
        lab: where the repeating process is started.
        numbers: step -> the plain run's hyperparameters at it.
        rounding, memory_format: see `repeating.reference`.
    """

    def __init__(
        self,
        lab: Lab,
        numbers: Callable[[int], Any],
        *,
        rounding: bool,
        memory_format: str = "",
    ) -> None:
        self.lab, self.numbers = lab, numbers
        self._formats = {"rounding": rounding, "memory_format": memory_format}
        self.rows: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        self._asked = 0
        self._problem = ""
        """Why there are no rows, or why they are not in float64."""
        self._dtypes = list(DTYPES)
        # At once: it imports while the run that it will wait for does.
        self._trial: Trial | None = self._start()

    def _start(self) -> Trial:
        return self.lab.start("reference", dtype=self._dtypes[0], **self._formats)

    def collect(self, not_sampled: str, drawn: str) -> SampledSteps:
        """Return what was repeated, or why nothing was."""
        if not_sampled:
            return SampledSteps(problem=not_sampled)
        if not self._dtypes:
            return SampledSteps(problem=self._problem)
        if len(self.rows) < self._asked:
            # The first were repeated in another dtype.
            words = f"{len(self.rows)} of {self._asked} steps were repeated: {self._problem}"
            return SampledSteps(problem=words)
        return SampledSteps(
            self.rows, fallback=self._problem, drawn=drawn, evaluations=self.evaluations
        )

    def evaluation(self, message: Mapping[str, Any]) -> None:
        """Repeat the evaluation that a message speaks of, and remove its file."""
        file = Path(message["file"])
        if self._dtypes:
            try:
                self.evaluations += self._ask("evaluate", file=str(file)).get("rows", [])
            except HotlapError as error:
                self._problem = f"the evaluation could not be repeated: {last_line(error)}"
        file.unlink()

    def sample(self, message: Mapping[str, Any]) -> None:
        """Repeat the step that a message `sample` speaks of, and remove its file."""
        file = Path(message["file"])
        self._asked += 1
        while self._dtypes:
            try:
                numbers = self.numbers(message["step"])
                answer = self._ask("repeat", file=str(file), hyperparameters=numbers)
            except HotlapError as error:
                # Of hotlap's own, if it refuses: another dtype would hide that.
                answer = {"problem": last_line(error), "ours": isinstance(error, UsageError)}
            if "row" in answer:
                self.rows.append(answer["row"])
                break
            self._problem = why_not_repeated(self._dtypes.pop(0), answer["problem"])
            if answer["ours"]:
                self._dtypes.clear()
            self.rows.clear()
            self.end()
        file.unlink()

    def _ask(self, what: str, **given: Any) -> dict[str, Any]:
        if self._trial is None:
            self._trial = self._start()
        self._trial.send(what, **given)
        return self._trial.message(["repeated"], TIMEOUT_S)

    def end(self) -> None:
        """End the repeating process."""
        if self._trial is not None:
            self._trial.kill()
            self._trial = None


def why_not_repeated(dtype: str, why: str) -> str:
    """Return the words for a step that could not be repeated in `dtype`."""
    return f"the step could not be repeated in {dtype}: {why}"


def last_line(error: HotlapError) -> str:
    """Return the last line of what an error says."""
    return str(error).strip().splitlines()[-1]
