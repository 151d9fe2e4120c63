"""A label or an index is larger than what it chooses from.

What happened  a class number is not smaller than the number of the model's outputs, or an id is not
               smaller than the rows of an embedding. On a GPU a kernel's assertion fails, and the
               error appears at a later, innocent line; every later call in the process fails.
Look at        `labels.min(), labels.max()` against the last layer's `out_features`: labels of 1 to
               10 need to become 0 to 9, and -1 must be given as `ignore_index=-1`; `ids.max()`
               against `num_embeddings`, after the tokenizer was given new tokens too; positions
               against the longest sequence that the model knows.
               Another assertion that is printed (`input_val >= zero`) is no index: see
               `not_a_probability`.
What to do     on a GPU, run again with CUDA_LAUNCH_BLOCKING=1 (`hotlap run --synchronous SCRIPT`),
               whose traceback has the right line, or on the CPU, which names the value. A
               device that has failed is usable again only in a new process: restart the notebook's
               kernel.
"""

import os
import re
from typing import Any

from hotlap.failures.death import Death
from hotlap.failures.record import Failure

_LOSSES = ("cross_entropy", "nll_loss")
"""Functions of torch.nn.functional with `input`, `target` and `ignore_index`."""


def explain(match: "re.Match[str]") -> list[str]:
    text = match.group()
    target = re.search(r"Target (-?\d+) is out of bounds", text)
    if target is not None:
        return [
            f"A label is {target[1]}: the model has too few outputs for it, or labels do not "
            "begin at 0."
        ]
    index = re.search(r"index (-?\d+) is out of bounds for \w+ (\d+) with size (\d+)", text)
    if index is not None:
        return [f"The index is {index[1]}, and dimension {index[2]} has {index[3]} entries."]
    if "n_classes" in text:
        return ["A label is negative, or not smaller than the number of the model's outputs."]
    if "srcSelectDimSize" in text or "in self" in text:
        return ["An id is negative, or not smaller than the number of rows of an embedding."]
    if "device-side assert" in text:
        return [
            "The assertion that was printed before it says which index, if it is one. Unless "
            "CUDA_LAUNCH_BLOCKING=1 was set, the line in the traceback may be an innocent one: run "
            "again with it, as `hotlap run --synchronous SCRIPT` does."
        ]
    return []


def locate(death: Death) -> list[str]:
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0") and death.place is not None:
        return [f"Launches were synchronous, so the line is the right one: {death.place}."]
    for call in reversed(death.calls):
        if not call.file.replace("\\", "/").endswith("/torch/nn/functional.py"):
            continue
        values = call.values
        if call.function in _LOSSES and _are_readable(values.get("input"), values.get("target")):
            return _say_labels(values["input"], values["target"], values.get("ignore_index"))
        if call.function == "embedding" and _are_readable(values.get("input")):
            ids, rows = values["input"], len(values["weight"])
            return [
                f"Ids go from {int(ids.min())} to {int(ids.max())}; the embedding has {rows} rows, "
                f"for ids from 0 to {rows - 1}."
            ]
    return []


def _are_readable(*tensors: Any) -> bool:
    """Return True if the values of tensors can be read: a device that has failed gives none."""
    return all(
        getattr(getattr(each, "device", None), "type", None) == "cpu" and each.numel()
        for each in tensors
    )


def _say_labels(output: Any, labels: Any, ignored: Any) -> list[str]:
    classes = output.shape[1 if output.dim() > 1 else 0]
    counted = labels if ignored is None else labels[labels != ignored]
    if labels.is_floating_point() or not counted.numel():
        return []
    return [
        f"Labels go from {int(counted.min())} to {int(counted.max())}; the model has {classes} "
        f"outputs, for labels from 0 to {classes - 1}."
    ]


FAILURE = Failure(
    name="index_out_of_range",
    patterns=(
        r"CUDA error: device-side assert triggered",
        r"Assertion `[^`\n]*(?:n_classes|srcSelectDimSize|index out of bounds)[^`\n]*` failed",
        r"\bTarget -?\d+ is out of bounds",
        r"\bindex out of range in self\b",
        r"index -?\d+ is out of bounds for (?:dimension|axis) \d+ with size \d+",
    ),
    explain=explain,
    locate=locate,
)
