"""Saved weights, or the saved state of an optimizer, are of another model.

What happened  a state dict has a tensor for each parameter and buffer, by name. Names are missing,
               there are others, or a shape differs. The state of an optimizer has no names: its
               groups must have as many parameters as those of the new one.
Where from     wrappers put a word before every name: `module.` (DataParallel, DDP), `_orig_mod.`
               (torch.compile), `model.` (Lightning). Else the model was built with other sizes, as
               another number of classes or of tokens; or the file holds the state dict under a key
               (`checkpoint["model"]`).
Look at        `list(state)[:5]` beside `list(model.state_dict())[:5]`.
What to do     remove the word: `{k.removeprefix("module."): v for k, v in state.items()}`, and save
               `model.module.state_dict()` from now on; build the model as it was; to exchange the
               last layer, delete its entries and load with `strict=False`, and look at what that
               returns. `hotlap train --weights FILE` and `--continue FILE` remove such words.
"""

import re
from collections.abc import Sequence

from hotlap.failures.record import Failure

_LINES = r"(?:\s+(?:Missing key|Unexpected key|size mismatch for|While copying)[^\n]*)*"
_MOST_SHOWN = 2


def explain(match: "re.Match[str]") -> list[str]:
    text = match.group()
    if "optimizer" in text or "parameter groups" in text:
        return ["The optimizer was made for other parameters, or for other groups of them."]
    missing, more = _names("Missing", text), _names("Unexpected", text)
    said = []
    prefix = _prefix(missing, more)
    if prefix is not None:
        front, whose = prefix
        said.append(f"{whose} names begin with `{front}`, and are the same otherwise.")
    elif missing or more:
        said += [f"The file lacks {_some(missing)}."] if missing else []
        said += [f"The model has no {_some(more)}."] if more else []
    shapes = re.findall(
        r"size mismatch for ([\w.]+): copying a param with shape torch\.Size\((\[[^\]]*\])\)"
        r"[^\n]*?current model is torch\.Size\((\[[^\]]*\])\)",
        text,
    )
    for name, saved, own in shapes[:_MOST_SHOWN]:
        said.append(f"`{name}` has shape {saved} in the file, and {own} in the model.")
    return said


def _names(which: str, text: str) -> list[str]:
    found = re.search(rf"{which} key\(s\) in state_dict: ([^\n]*)", text)
    return [] if found is None else re.findall(r'"([^"]+)"', found[1])


def _prefix(missing: Sequence[str], more: Sequence[str]) -> tuple[str, str] | None:
    """Return the word before all names of one side, and whose they are; None if there is none."""
    if not missing or len(missing) != len(more):
        return None
    for bare, longer, whose in ((missing, more, "The file's"), (more, missing, "The model's")):
        first, front = min(bare), min(longer)
        front = front.removesuffix(first) if front.endswith(first) else ""
        if front and {f"{front}{name}" for name in bare} == set(longer):
            return front, whose
    return None


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:_MOST_SHOWN])
    return shown + (f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else "")


FAILURE = Failure(
    name="state_dict_mismatch",
    patterns=(
        rf"Error\(s\) in loading state_dict for [\w.]+:{_LINES}",
        rf"(?:Missing|Unexpected) key\(s\) in state_dict: [^\n]*{_LINES}",
        r"size mismatch for [\w.]+: copying a param[^\n]*",
        r"loaded state dict (?:contains a parameter group that doesn't match the size of optimizer"
        r"|has a different number of parameter groups)[^\n]*",
    ),
    explain=explain,
)
