"""Two tensors that meet in one operator lie on different devices.

What happened  torch moves no tensor on its own.
Where from     a batch that was not moved; a tensor made in `forward` (`torch.zeros(n)`, a mask,
               positions) without a device; a tensor that is an attribute of the model and not a
               buffer, which `model.to` does not move; an optimizer's state that was loaded before
               the model was moved.
What to do     `x = x.to(device)` for every part of a batch; in `forward`, `device=x.device`;
               `self.register_buffer("mask", mask)` in the model; `torch.load(...,
               map_location=...)`.
"""

import re

from hotlap.failures.record import Failure


def explain(match: "re.Match[str]") -> list[str]:
    found = re.findall(r"\b((?:cuda|xpu|mps|meta)(?::\d+)?|cpu)\b", match.group())
    if len(set(found)) < 2:
        return []
    one, other = list(dict.fromkeys(found))[:2]
    return [f"One is on {one}, the other on {other}."]


FAILURE = Failure(
    name="device_mismatch",
    patterns=(
        r"Expected all tensors to be on the same device[^\n]*",
        r"Input type \(torch\.(?:cuda\.)?\w+\) and weight type \(torch\.(?:cuda\.)?\w+\)[^\n]*",
        r"Tensor on device [\w:]+ is not on the expected device [\w:]+!",
        r"Expected a '\w+' device type for generator but found '\w+'",
    ),
    explain=explain,
)
