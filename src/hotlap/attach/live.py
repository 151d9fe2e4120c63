"""`LivePlans`: plans that are switched between two steps of a process that trains."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from hotlap.attach import seams
from hotlap.device import switches
from hotlap.techniques import OptimizerTarget, ProcessTarget, Refusal, Technique, registry

log = logging.getLogger("hotlap")


class LivePlans:
    """Plans of techniques that say how they are switched (`Technique.live`).

    Args:
        plans: technique -> options, for each plan.
        extra: techniques from outside, as `module:NAME`.
    """

    def __init__(
        self, plans: Sequence[Mapping[str, Mapping[str, Any]]], extra: tuple[str, ...] = ()
    ) -> None:
        known = registry(extra)
        self._plans = [
            [(known[name], known[name].options(values)) for name, values in plan.items()]
            for plan in plans
        ]
        self._targets: list[list[tuple[Technique, Any, Any]]] = [[] for _ in plans]
        self._on: int | None = None
        self.failed: dict[int, str] = {}
        """Number of a plan -> why it cannot be switched here."""

    def prepare(self) -> None:
        """Let every technique act on its targets, and switch it off again."""
        for number, plan in enumerate(self._plans):
            try:
                for technique, options in plan:
                    self._prepare(number, technique, options)
            except Exception as error:
                # The script's own optimizer may do anything; the other plans can still be raced.
                words = str(error) if isinstance(error, Refusal) else repr(error)
                self.failed[number] = words.splitlines()[0]
                log.info("plan %d is not raced: %s", number, words)
            self._switch_off(number)

    def _prepare(self, number: int, technique: Technique, options: Any) -> None:
        for target in _targets(technique.seam_of(options)):
            technique.apply(target, options)
            switch = getattr(target, "switch", None)
            if switch is not None:
                switch()
            self._targets[number].append((technique, target, options))

    def use(self, number: int | None) -> None:
        """Switch to a plan; None is the plain script. Called between two steps."""
        if number == self._on:
            return
        if self._on is not None:
            self._switch_off(self._on)
        self._on = number
        for technique, target, options in self._targets[number] if number is not None else ():
            assert technique.live is not None
            technique.live.on(target, options)

    def _switch_off(self, number: int) -> None:
        for technique, target, options in reversed(self._targets[number]):
            assert technique.live is not None
            technique.live.off(target, options)


def _targets(seam: str) -> list[Any]:
    if seam == "process":
        return [ProcessTarget({}, "cuda" if switches.has_cuda() else "cpu")]
    if seam == "optimizer":
        return [OptimizerTarget(optimizer) for optimizer in seams.known_optimizers()]
    raise Refusal(f"the seam {seam} cannot be switched in a live process. Use a race of processes")
