"""A label or an index is larger than what it chooses from.

What happened  a class number is not smaller than the number of the model's outputs, or an id is not
               smaller than the rows of an embedding. On a GPU a kernel's assertion fails, and the
               error appears at a later, innocent line; every later call in the process fails.
Look at        `labels.min(), labels.max()` against the last layer's `out_features`: labels of 1 to
               10 need to become 0 to 9, and -1 must be given as `ignore_index=-1`; `ids.max()`
               against `num_embeddings`, after the tokenizer was given new tokens too; positions
               against the longest sequence that the model knows.
What to do     on a GPU, run again with CUDA_LAUNCH_BLOCKING=1, whose traceback has the right line,
               or on the CPU, which names the value. A device that has failed is usable again only
               in a new process: restart the notebook's kernel.
"""

import re

from hotlap.failures.record import Failure


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
        return ["The message names no line: run again with CUDA_LAUNCH_BLOCKING=1."]
    return []


FAILURE = Failure(
    name="index_out_of_range",
    patterns=(
        r"CUDA error: device-side assert triggered",
        r"Assertion `[^`\n]*(?:n_classes|srcSelectDimSize|index out of bounds)[^`\n]*` failed",
        r"IndexError: Target -?\d+ is out of bounds",
        r"IndexError: index out of range in self",
        r"index -?\d+ is out of bounds for (?:dimension|axis) \d+ with size \d+",
    ),
    explain=explain,
)
