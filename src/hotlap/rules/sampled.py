"""What rules share that read where the time of a step was sampled."""

import math
from collections.abc import Callable

from hotlap.rules.nomination import Nomination
from hotlap.trace.schema import Spot, Trace

WORTH_SAYING = 0.05
"""Share of the step below which nothing is said of what is known to be avoidable."""
WORTH_NAMING = 0.15
"""The same of a statement of which nothing is known but its time."""
WORTH_NAMING_ONE_CALL = 0.3
"""The same where it is no function of the user's: making a batch by one call of a library may take
a quarter of a small model's step."""
_FEW = 4
"""Samples below which a share says nothing."""
_Z = 1.96

_SAVING = ("torch.serialization.", "pickle.", "numpy.save", "joblib.", "safetensors.", "shutil.")
_PRINTING = ("torch._tensor_str.", "torch._tensor.Tensor.__repr__", "logging.", "tqdm.")


def is_saving(spot: Spot) -> bool:
    """True where something is written to a file."""
    return spot.library.startswith(_SAVING)


def is_printing(spot: Spot) -> bool:
    """True where something is printed or logged."""
    return spot.library.startswith(_PRINTING) or spot.text.startswith("print(")


def is_collecting(spot: Spot) -> bool:
    """True where the garbage collector is called, or asked what lives."""
    return "gc.collect(" in spot.text or "gc.get_objects(" in spot.text


def is_copying(spot: Spot) -> bool:
    """True where objects are copied whole."""
    return spot.library.startswith("copy.")


def is_over_parameters(spot: Spot) -> bool:
    """True in a loop of Python over the parameters of a model."""
    return spot.over_parameters


_UPDATE = ("torch.nn.utils.clip_grad.", "torch.amp.", "torch.cuda.amp.", "torch.optim.")
"""What belongs to an update, although it is no optimizer's step."""
_KINDS = (is_saving, is_printing, is_collecting, is_copying, is_over_parameters)


def is_of_no_kind(spot: Spot) -> bool:
    """True if no rule of its own names what is done there, and it takes much time."""
    is_update = spot.library.startswith(_UPDATE)
    least = WORTH_NAMING_ONE_CALL if spot.in_own_line else WORTH_NAMING
    if is_update or spot.runs_layers:
        return False
    return spot.share >= least and not any(is_kind(spot) for is_kind in _KINDS)


def beside_the_step(trace: Trace, is_kind: Callable[[Spot], bool]) -> list[Spot]:
    """Return the statements outside of forward, backward, update and evaluation that cost enough.

    Args:
        trace: what was watched.
        is_kind: which of them are meant.
    """
    # What a loader does before its first batch is its own rules' to say.
    loaders = {loader.where for loader in trace.facts.loaders}
    return [
        spot
        for spot in trace.spots
        if spot.phase == "other" and not spot.evaluates and is_costly(spot) and is_kind(spot)
        if spot.statement not in loaders
    ]


def nominate_beside(
    trace: Trace, is_kind: Callable[[Spot], bool], what: str, by_hand: str
) -> list[Nomination]:
    """Nominate each statement that `beside_the_step` finds.

    Args:
        trace: what was watched.
        is_kind: which statements are meant.
        what: what is done there; `{spot.library}` and the like stand for what is known of it.
        by_hand: the edit, with the same.
    """
    return [
        nominate_spot(trace, spot, what.format(spot=spot), by_hand.format(spot=spot))
        for spot in beside_the_step(trace, is_kind)
    ]


def is_costly(spot: Spot) -> bool:
    """True if enough time was sampled there to speak of it."""
    return spot.share >= WORTH_SAYING and spot.samples >= _FEW


def share_with_backward(trace: Trace, spot: Spot) -> float:
    """Return the share of the step that a statement takes, a part of the forward its backward too.

    What is computed in small parts forward is computed in small parts backward.
    """
    if spot.phase != "forward":
        return spot.share
    means = trace.phase_means()
    share = spot.share * (1 + means["backward"] / max(means["forward"], 1e-9))
    return min(share, 1 - means["optimizer"] / sum(means.values()))


def nominate_spot(
    trace: Trace, spot: Spot, what: str, by_hand: str, *, share: float | None = None
) -> Nomination:
    """Return the nomination of a statement whose time was sampled.

    Args:
        trace: what was watched.
        spot: the statement.
        what: what is done there, as in `a checkpoint is written`.
        by_hand: the edit.
        share: of the step, where more than the statement itself belongs to it.
    """
    mean, of_phase = trace.step_ms()["mean"], trace.phase_means()[spot.phase]
    part = spot.share if share is None else share
    if share is None and of_phase:
        # Lines are sampled beside steps that are timed, which may be faster.
        part = min(part, of_phase / mean)
    # Samples are taken one by one, each at some moment of the run.
    error = _Z * math.sqrt(spot.share * (1 - spot.share) / (spot.samples / spot.share))
    cost = part * mean
    low, high = (cost * max(0.0, 1 + sign * error / spot.share) for sign in (-1, 1))
    below = "" if spot.where == spot.statement else f", most of it at `{spot.text}`"
    return Nomination(
        where=spot.where,
        evidence=(
            f"{what}: {cost:.2f} of {mean:.2f} ms a step ({part:.0%}), sampled {spot.samples} "
            f"times below {spot.statement}{below}"
        ),
        remedies=(),
        advice={},
        at_most_ms=cost,
        by_hand=by_hand,
        sampled_ms=(cost, low, high),
    )
