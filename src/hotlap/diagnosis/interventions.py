"""Interventions `replay` (one batch again and again) and `free_step` (no update); pages of all."""

from typing import Any

from hotlap.diagnosis.cut_batches import PAGES as ON_BATCHES
from hotlap.diagnosis.interventions_on_ranks import PAGES as ON_RANKS
from hotlap.diagnosis.interventions_on_steps import BY_NOTE
from hotlap.diagnosis.interventions_on_steps import PAGES as ON_STEPS
from hotlap.techniques import FeedTarget, Numerics, OptimizerTarget, Proof, Refusal, Technique


def _serve_one_batch(target: FeedTarget) -> FeedTarget:
    kept: dict[int, Any] = {}
    target.notes.update(replay=kept, is_on=True)

    def wrap(dataset: Any, read: Any) -> Any:
        del dataset

        def fetch(indices: Any) -> Any:
            if not target.notes["is_on"]:
                return read(indices)
            # The last batch of an epoch is smaller: one is kept for each size.
            if len(indices) not in kept:
                kept[len(indices)] = read(indices)
            return kept[len(indices)]

        return fetch

    target.fetchers.append(wrap)
    return target


def _proof(target: FeedTarget) -> Proof:
    if not target.notes.get("replay"):
        return Proof("no_effect", "no batch was read")
    return Proof("applied", "one batch served again and again")


REPLAY = Technique(
    name="replay",
    seam="feed",
    numerics=lambda: Numerics.CHANGES,
    why_not=lambda: "it feeds the same batch again and again, which is no training",
    apply=_serve_one_batch,
    proof=_proof,
    candidates=lambda: (),
    live=BY_NOTE,
    on_ranks=True,
)


def _hide_gradients(target: OptimizerTarget) -> OptimizerTarget:
    """Let the optimizer find no gradients: it does nothing, and the script finds them as before."""
    if target.taken_by is not None:
        raise Refusal(
            f"technique '{target.taken_by}' of the plan replaces the optimizer's step, so the time "
            "of the optimizer cannot be measured by skipping that step. Remove "
            f"[techniques.{target.taken_by}] from the plan to measure this time."
        )
    notes = target.notes
    notes["is_on"] = True
    hidden: list[tuple[Any, Any]] = []

    def hide(optimizer: Any, args: Any, kwargs: Any) -> None:
        # A closure computes the gradients inside the step.
        has_closure = any(value is not None for value in (*args[1:], *kwargs.values()))
        if not notes["is_on"] or has_closure:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    hidden.append((parameter, parameter.grad))
                    parameter.grad = None
        notes["free_steps"] = notes.get("free_steps", 0) + bool(hidden)

    def show(optimizer: Any, args: Any, kwargs: Any) -> None:
        del optimizer, args, kwargs
        while hidden:
            parameter, gradient = hidden.pop()
            parameter.grad = gradient

    target.optimizer.register_step_pre_hook(hide)
    target.optimizer.register_step_post_hook(show)
    return target


def _proof_of_hiding(target: OptimizerTarget) -> Proof:
    steps = target.notes.get("free_steps", 0)
    if not steps:
        return Proof("no_effect", "no step had gradients")
    return Proof("applied", f"{steps} steps without an update")


FREE_STEP = Technique(
    name="free_step",
    seam="optimizer",
    numerics=lambda: Numerics.CHANGES,
    why_not=lambda: "it takes no step at all, which is no training",
    apply=_hide_gradients,
    proof=_proof_of_hiding,
    candidates=lambda: (),
    live=BY_NOTE,
    on_ranks=True,
)
"""Shows what a step would take with an optimizer that costs nothing."""


PAGES = {
    REPLAY.name: "Serves the first batch of each size again and again, so that reading data costs "
    "nothing. A diagnosis races it against the plain script to measure what waiting for data "
    "costs. No plan can hold it: it would change what is learned.",
    FREE_STEP.name: "Lets the optimizer find no gradients, so that its update costs nothing. A "
    "diagnosis races it against the plain script to measure what the update costs. No plan can "
    "hold it: nothing would be learned.",
    **ON_BATCHES,
    **ON_RANKS,
    **ON_STEPS,
}
"""Name of an intervention -> what `hotlap explain` says of it."""
