"""`Applied`: calls the `apply` of a plan's techniques; keeps targets, refusals and proofs."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from hotlap.errors import DIFFERS, PlanError
from hotlap.plan import Plan
from hotlap.techniques import techniques_of
from hotlap.techniques.record import (
    FeedTarget,
    Numerics,
    ProcessTarget,
    Proof,
    Refusal,
    Technique,
)

log = logging.getLogger("hotlap")


class Applied:
    """A plan while it is applied to one process.

    Args:
        plan: what to apply; checked before.
        extra: techniques from outside, as `module:NAME`.
        on_ranks: the process is one of several ranks.
        why_not: returns why a technique with its options is not applied here, None if it is;
            all are if None.
    """

    def __init__(
        self,
        plan: Plan,
        extra: tuple[str, ...] = (),
        *,
        on_ranks: bool = False,
        why_not: Callable[[Technique, Any], str | None] | None = None,
    ) -> None:
        self._on_ranks, self._why_not = on_ranks, why_not
        self.chosen = techniques_of(plan, extra)
        self._targets: dict[str, list[Any]] = {technique.name: [] for technique, _ in self.chosen}
        self._refused: dict[str, list[str]] = {technique.name: [] for technique, _ in self.chosen}
        self._dropped: dict[str, dict[tuple[str, bool], tuple[int, Proof]]] = {
            technique.name: {} for technique, _ in self.chosen
        }
        """Sizes and proofs of targets that are gone: of each state, the largest target's."""

    def wants(self, seam: str) -> bool:
        """True if a technique of the plan acts at that seam."""
        return any(technique.seam_of(options) == seam for technique, options in self.chosen)

    def apply(self, seam: str, target: Any) -> None:
        """Let every technique of that seam act on the target, in their order."""
        for technique, options in self.chosen:
            if technique.seam_of(options) == seam:
                self._apply(technique, options, target)

    def start(self, device: str) -> "Switched":
        """Let the techniques of the process set their switches, now that torch is imported.

        Args:
            device: kind of the device that trains.
        """
        switched = Switched()
        for technique, options in self.chosen:
            if technique.seam_of(options) == "process":
                # The environment comes too late here: what is put there is for nobody.
                target = ProcessTarget({}, device)
                self._apply(technique, options, target, switched)
        return switched

    def _apply(
        self, technique: Technique, options: Any, target: Any, switched: "Switched | None" = None
    ) -> None:
        try:
            if self._on_ranks and not technique.on_ranks:
                raise Refusal(
                    f"`{technique.name}` cannot be used on several devices yet. Use a plan without "
                    f"`{technique.name}`, or train on one device, without --devices, torchrun or "
                    "Slurm."
                )
            why = None if self._why_not is None else self._why_not(technique, options)
            if why is not None:
                raise Refusal(why)
            technique.apply(target, options)
            if switched is not None:
                switched.take(target)
        except Refusal as refusal:
            self._refuse(technique, str(refusal))
            log.info("%s refused: %s", technique.name, refusal)
        except PlanError:
            raise
        except Exception as error:
            # The user's own data set or model did something that nobody thought of: it is the run
            # that must go on, and the proof that says why it goes on plain.
            self._refuse(technique, f"{type(error).__name__}: {error}")
            log.warning("%s refused", technique.name, exc_info=True)
        else:
            self._targets[technique.name].append(target)

    def _refuse(self, technique: Technique, why: str) -> None:
        # A script may make an optimizer for each of its steps.
        if why not in self._refused[technique.name]:
            self._refused[technique.name].append(why)

    def targets(self) -> list[tuple[Technique, Any, Any]]:
        """Return (technique, options, target) of all that was applied so far."""
        return [
            (technique, options, target)
            for technique, options in self.chosen
            for target in self._targets[technique.name]
        ]

    def refused(self) -> list[str]:
        """Return the names of techniques that are not exact and were refused."""
        return [
            technique.name
            for technique, options in self.chosen
            if self._refused[technique.name] and technique.numerics(options) is not Numerics.EXACT
        ]

    def drop(self, target: Any) -> None:
        """Keep no more of a target than its proofs: what it was applied to has gone."""
        for technique, options in self.chosen:
            targets = self._targets[technique.name]
            left = [each for each in targets if each is not target]
            if len(left) == len(targets):
                continue
            self._targets[technique.name] = left
            proof, kept = technique.proof(target, options), self._dropped[technique.name]
            kind = proof.state, DIFFERS in proof.why
            if kind not in kept or kept[kind][0] < _size_of(target):
                kept[kind] = _size_of(target), proof

    def proofs(self) -> list[dict[str, str]]:
        """Return {name, state, why} of every technique of the plan."""
        rows = []
        for technique, options in self.chosen:
            proof = self._proof(technique, options)
            row = {"name": technique.name, "state": proof.state, "why": proof.why}
            rows.append({**row, "on_ranks": proof.on_ranks} if proof.on_ranks else row)
        return rows

    def _proof(self, technique: Technique, options: Any) -> Proof:
        sized = [
            (_size_of(target), technique.proof(target, options))
            for target in self._targets[technique.name]
        ]
        sized += self._dropped[technique.name].values()
        found = [proof for _, proof in sorted(sized, key=lambda each: each[0], reverse=True)]
        found += [Proof("refused", reason) for reason in self._refused[technique.name]]
        if not found:
            why = f"the run had no {technique.seam_of(options)} to apply it to"
            return Proof("no_effect", why)
        # The largest target, the training data as a rule, decides; what differs elsewhere is said.
        main = next((proof for proof in found if DIFFERS in proof.why), found[0])
        others = [proof for proof in found if proof is not main and proof.state != main.state]
        also = "".join(f"; elsewhere in the script: {_said(proof)}" for proof in others)
        return Proof(main.state, main.why + also, main.on_ranks)


def _said(proof: Proof) -> str:
    return f"{proof.state.replace('_', ' ')}, {proof.why}"


def _size_of(target: Any) -> int:
    return target.size if isinstance(target, FeedTarget) else 0


class Switched:
    """The switches of one process that are set, and how they are undone."""

    def __init__(self) -> None:
        self.after_step: list[Callable[[], None]] = []
        """Called after every step of an optimizer."""
        self._undo: list[Callable[[], None]] = []

    def take(self, target: ProcessTarget) -> None:
        """Set a target's switch."""
        if target.switch is not None:
            self._undo.append(target.switch())
        self.after_step += target.after_step

    @property
    def is_set(self) -> bool:
        """True if there is something to undo."""
        return bool(self._undo)

    def undo(self) -> None:
        """Put every switch back, the last one first; a second call does nothing."""
        self.after_step.clear()
        while self._undo:
            self._undo.pop()()


def recorded_operators(names: set[str]) -> Any:
    """Return a context manager that adds the name of every torch operator that runs in it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self,
            func: Any,
            types: Any,
            args: tuple[Any, ...] = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:
            del types
            names.add(str(func))
            return func(*args, **(kwargs or {}))

    return Recorder()
