"""Two shapes that meet in one operator do not fit.

What happened  a layer was given another number of features or channels than it was built for, a
               batch has samples of different lengths, or a loss was given a target of another shape
               than the output.
Look at        `x.shape` in the line above the failing one. The first number is most often the batch
               size; the one that differs is what to look at.
What to do     for a first linear layer after convolutions: `nn.Flatten()`, then the features that
               it prints; for pictures without a channel: `x.unsqueeze(1)`; for sequences: pad them
               in a `collate_fn` (`hotlap.pad`); for the last batch of an epoch: take the size from
               `x.shape[0]`, not from a constant; for a target beside an output of one column:
               `output.squeeze(1)`, or `y.unsqueeze(1)`. A loss that only warns of two shapes
               computes with every pair of both, and learns nothing right.
"""

import re

from hotlap.failures.record import Failure


def explain(match: "re.Match[str]") -> list[str]:
    text = match.group()
    product = re.search(r"\((\d+)x(\d+) and (\d+)x(\d+)\)", text)
    if product is not None:
        return [f"The input has {product[2]} features, and the layer was built for {product[3]}."]
    channels = re.search(r"to have (\d+) channels, but got (\d+) channels", text)
    if channels is not None:
        return [f"The input has {channels[2]} channels, and the layer was built for {channels[1]}."]
    batch = re.search(r"batch_size \((\d+)\) to match target batch_size \((\d+)\)", text)
    if batch is not None:
        return [f"There are {batch[1]} predictions and {batch[2]} labels."]
    sample = re.search(r"but got (\[[\d, ]*\]) at entry 0 and (\[[\d, ]*\]) at entry (\d+)", text)
    if sample is not None:
        return [
            f"The first sample of the batch has shape {sample[1]}, sample {sample[3]} has "
            f"{sample[2]}."
        ]
    sizes = re.search(r"tensor a \((\d+)\).*tensor b \((\d+)\).*dimension (\d+)", text)
    if sizes is not None:
        return [f"Dimension {sizes[3]} has size {sizes[1]} in one and {sizes[2]} in the other."]
    target = re.search(r"[Tt]arget size \(\D*(\[.*?\])\)\).*input size \(\D*(\[.*?\])\)\)", text)
    if target is not None:
        more = (
            " They are broadcast against each other, so what is learned is wrong."
            if "broadcasting" in text
            else ""
        )
        return [f"The target has shape {target[1]}, and the output {target[2]}.{more}"]
    if "multi-target" in text:
        return [
            "Labels are numbers of classes, one for each sample, of shape [samples]: from "
            "[samples, 1], `y.squeeze(1)`; from one-hot rows, `y.argmax(1)` or `y.float()`."
        ]
    return []


FAILURE = Failure(
    name="shape_mismatch",
    patterns=(
        r"mat1 and mat2 shapes cannot be multiplied \(\d+x\d+ and \d+x\d+\)",
        r"The size of tensor a \(\d+\) must match the size of tensor b \(\d+\)[^\n]*",
        r"Expected input batch_size \(\d+\) to match target batch_size \(\d+\)",
        r"stack expects each tensor to be equal size, but got [^\n]*",
        r"shape '\[[^\]]*\]' is invalid for input of size \d+",
        r"Given groups=\d+, weight of size [^\n]*",
        r"Using a target size \(torch\.Size\(\[[^\n]*\]\)\) that is different to the input size "
        r"\(torch\.Size\(\[[^\n]*?\]\)\)[^\n]*",
        r"Target size \(torch\.Size\(\[[^\n]*\]\)\) must be the same as input size "
        r"\(torch\.Size\(\[[^\n]*?\]\)\)",
        r"0D or 1D target tensor expected, multi-target not supported",
        r"Sizes of tensors must match except in dimension [^\n]*",
    ),
    explain=explain,
)
