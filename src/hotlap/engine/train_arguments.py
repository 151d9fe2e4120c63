"""Checks arguments of `hotlap.train`: `resume`, `weights`, `continue_from`, and a rank timeout."""

from collections.abc import Mapping
from pathlib import Path

from hotlap.checkpoint.files import check_path
from hotlap.errors import UsageError


def check_timeout(rank_timeout_s: float) -> None:
    """Refuse a time that no rank can wait."""
    if not 0 < rank_timeout_s < 1e9:
        raise UsageError(
            f"rank_timeout_s={rank_timeout_s!r} is not valid. Expected: a number of seconds above "
            "0 and below 1e9."
        )


def check_beginnings(
    resume: str | None,
    weights: str | Path | None,
    continue_from: str | Path | None,
    keys: Mapping[str, str] | str | None,
    epochs_done: int | None,
) -> None:
    """Refuse several beginnings of one run, and options of one that was not given."""
    for path in (weights, continue_from, None if resume == "auto" else resume):
        if path is not None:
            check_path(Path(path))
    if weights is not None and resume not in (None, "auto"):
        raise UsageError(
            f"resume={resume!r} and weights='{weights}' were both given. Pass only one of them, or "
            "set resume='auto': then the weights are used if nothing was saved yet."
        )
    if continue_from is not None and resume not in (None, "auto"):
        raise UsageError(
            f"resume={resume!r} and continue_from='{continue_from}' (the option --continue) were "
            "both given. Pass only one of them, or set resume='auto': then continue_from is used "
            "if nothing was saved yet."
        )
    if continue_from is not None and weights is not None:
        raise UsageError(
            f"weights='{weights}' and continue_from='{continue_from}' (the option --continue) were "
            "both given. Remove weights: continue_from loads the model's weights, too."
        )
    for name, value in (("keys", keys), ("epochs_done", epochs_done)):
        if value is not None and continue_from is None:
            raise UsageError(
                f"{name}={value!r} was given without continue_from (the option --continue). Pass "
                f"the checkpoint file of a PyTorch script there, or remove {name}."
            )
    if epochs_done is not None and (type(epochs_done) is not int or epochs_done < 0):
        raise UsageError(
            f"epochs_done={epochs_done!r} is not valid. Expected: an integer of 0 or more, the "
            "epochs that the run in `continue_from` has done."
        )
