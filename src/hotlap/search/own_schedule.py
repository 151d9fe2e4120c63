"""`at_rung`: a task whose schedule is run through up to a rung, with `--schedule rung`."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from hotlap.task import Task


def at_rung(task: Task, until: int, whole: int) -> Task:
    """Return a task whose schedule ends at a rung, as if the run were that long.

    Args:
        task: with the schedule of the whole run, or none.
        until: steps of the trial at the rung.
        whole: steps of the whole run, where the task does not say it.
    """
    if task.schedule is None:
        return task
    total = task.total_steps or whole
    # At the last rung, too: it goes on from the state of a shortened one.
    return replace(task, schedule=_shortened(task.schedule, min(until, total), total))


def _shortened(make: Callable[[Any], Any], until: int, total: int) -> Callable[[Any], Any]:
    def schedule(optimizer: Any) -> Any:
        made = make(optimizer)
        # It follows what is measured, and has no length.
        if isinstance(made, ReduceLROnPlateau):
            return made
        return Shortened(made, lambda: make(optimizer), optimizer, until, total)

    return schedule


class Shortened:
    """A schedule of `total` steps that is run through in `until` of them: it skips some.

    It knows only how many steps it has taken. Loaded at a later rung, it takes as many as its own
    schedule would have taken by then, from the beginning: a schedule may follow from its last rate.

    Args:
        inner: the schedule, before its first step.
        again: makes it anew.
        optimizer: whose rates it sets.
        until: steps of the shortened one.
        total: steps of the whole one.
    """

    def __init__(
        self, inner: Any, again: Callable[[], Any], optimizer: Any, until: int, total: int
    ) -> None:
        self.optimizer, self._inner, self._again = optimizer, inner, again
        self._until, self._total = until, total
        self._taken = self._inside = 0

    def step(self) -> None:
        """Take one step of the shortened schedule."""
        self._taken += 1
        self._follow()

    def _follow(self) -> None:
        while self._inside < self._taken * self._total // self._until:
            self._inner.step()
            self._inside += 1

    def get_last_lr(self) -> list[float]:
        """Return the rates of the optimizer's groups."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return how many steps were taken: the same for a rung and for the next one."""
        return {"taken": self._taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where this schedule is after as many steps."""
        for group in self.optimizer.param_groups:
            group["lr"] = group.get("initial_lr", group["lr"])
        self._inner, self._taken, self._inside = self._again(), state["taken"], 0
        with warnings.catch_warnings():
            # Steps of the optimizer that another process has taken.
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
            self._follow()
