"""Tells optimizers apart: one that a script creates again replaces the one before it."""

from dataclasses import dataclass
from typing import Any

from hotlap.task import OptimizerFacts
from hotlap.trace import frames
from hotlap.trace.facts import optimizer_facts
from hotlap.trace.identity import IdentityTable

_ROUNDS_WITHOUT = 2
"""Steps that others at the same line take before a newcomer is taken for one that replaces them:
optimizers that are stepped side by side all show in the loop's first round."""


@dataclass(eq=False)
class Stepper:
    """One place in the training loop that is filled by an optimizer, or by one after another."""

    number: int
    facts: OptimizerFacts
    parameters: frozenset[int]
    """Identities of the tensors that it steps."""
    steps: int = 0


class Steppers:
    """The optimizers of a run by their place in it.

    Scripts make a new optimizer in each epoch, or for each fold: it goes on where the old one
    was, and an iteration still is one step of it.
    """

    def __init__(self) -> None:
        self.all: list[Stepper] = []
        self._known: IdentityTable[Stepper] = IdentityTable()
        self.find = self._known.get
        """Returns the place of an optimizer that has been placed, else None."""

    def find_or_place(self, optimizer: Any) -> Stepper:
        """Return the place of an optimizer that the user's code is stepping."""
        stepper = self.find(optimizer)
        if stepper is not None:
            return stepper
        where = frames.location_of(frames.caller())
        return self.place(optimizer, optimizer_facts(optimizer, where))

    def place(self, optimizer: Any, facts: OptimizerFacts) -> Stepper:
        """Return the place of an optimizer that is stepped for the first time."""
        parameters = frozenset(
            id(parameter) for group in optimizer.param_groups for parameter in group["params"]
        )
        stepper = self._find_replaced(parameters, facts.where)
        if stepper is None:
            stepper = Stepper(len(self.all), facts, parameters)
            self.all.append(stepper)
        stepper.parameters = parameters
        self._known.put(optimizer, stepper)
        return stepper

    def _find_replaced(self, parameters: frozenset[int], where: str) -> Stepper | None:
        """Return whom a newcomer replaces: it has its tensors, or, with a model that is new too as
        in cross-validation, its line; and where only one of the two holds, the loop went round
        without the newcomer."""
        for stepper in self.all:
            has_tensors = bool(stepper.parameters & parameters)
            has_line = bool(where) and stepper.facts.where == where
            was_alone = stepper.steps >= _ROUNDS_WITHOUT
            if (has_tensors and has_line) or (was_alone and (has_tensors or has_line)):
                return stepper
        return None
