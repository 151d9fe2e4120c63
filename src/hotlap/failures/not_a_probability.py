"""A loss that takes probabilities was given numbers that are none.

What happened  binary cross-entropy needs outputs and targets from 0 to 1. On a GPU a kernel's
               assertion fails, the error appears at a later, innocent line, and every later call
               in the process fails.
Where from     a model that returns logits, without a sigmoid; a model whose output has become NaN,
               which lies between no two numbers; labels of 1 and 2, of -1 and 1, or of 0 to 255.
Look at        `output.min(), output.max(), output.isnan().any()`, and the same of the target.
What to do     use `binary_cross_entropy_with_logits` on the model's outputs and remove the
               sigmoid: it is exact for large outputs, and works under `autocast`. For NaN see
               `torch.autograd.set_detect_anomaly`, and lower the learning rate. Targets:
               `(y > 0).float()`, or `y / 255`. After an assertion on a GPU, start a new process.
"""

import re
from typing import Any

from hotlap.failures.death import Death
from hotlap.failures.record import Failure


def explain(match: "re.Match[str]") -> list[str]:
    what = "A target" if "target" in match.group() else "An output of the model"
    return [f"{what} is below 0, above 1, or NaN."]


def locate(death: Death) -> list[str]:
    for call in reversed(death.calls):
        if call.function != "binary_cross_entropy":
            continue
        if not call.file.replace("\\", "/").endswith("/torch/nn/functional.py"):
            continue
        found: dict[str, Any] = {
            "Outputs": call.values.get("input"),
            "Targets": call.values.get("target"),
        }
        return [
            f"{name} go from {each.min().item():.4g} to {each.max().item():.4g}."
            for name, each in found.items()
            if _is_readable(each)
        ]
    return []


def _is_readable(tensor: Any) -> bool:
    """Return True if the values of a tensor can be read: a device that has failed gives none."""
    return getattr(getattr(tensor, "device", None), "type", None) == "cpu" and tensor.numel() > 0


FAILURE = Failure(
    name="not_a_probability",
    patterns=(
        r"Assertion `(?:input|target)_val >= zero && (?:input|target)_val <= one` failed",
        r"all elements of (?:input|target) should be between 0 and 1",
    ),
    explain=explain,
    locate=locate,
)
