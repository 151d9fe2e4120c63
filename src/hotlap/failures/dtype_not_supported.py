"""An operator does not exist for tensors of this dtype on this device.

What happened  every operator has a kernel for some dtypes only. Integers and booleans have no mean,
               no softmax, no random numbers and no gradients; float16 lacks some kernels on the
               CPU; bit operators exist for integers and booleans only.
Where from     a batch that is still `uint8` pixels or integer counts; labels of a float dtype in
               a loss that needs class numbers; a model in float16 that is run on a CPU; a
               comparison that gave a mask of booleans.
What to do     integers and booleans: `x.float()` where the data set makes the tensor; labels of
               classes: `y.long()`; float16 on a CPU: use bfloat16 (`autocast`) or float32; a mask:
               `~mask` instead of `1 - mask`, and `mask.float().mean()`. If the dtype is the right
               one, the operator is missing in this version of torch: convert around it.
"""

import re

from hotlap.failures.record import Failure

_INTEGERS = ("Byte", "Char", "Short", "Int", "Long", "UInt16", "UInt32", "UInt64")
_FLOATS = ("Float", "Double")
_CLASS_NUMBERS = re.compile(r"nll_loss\w*_index")
"""Operators that take labels as numbers of classes."""


def explain(match: "re.Match[str]") -> list[str]:
    operator, dtype = match.groupdict().get("operator") or "", match["dtype"]
    named = f"`{operator}`" if operator else "This operator"
    if _CLASS_NUMBERS.search(operator):
        return [f"The labels are {dtype}: numbers of classes must be int64, `y.long()`."]
    if dtype in _INTEGERS or dtype == "Bool":
        kind = "booleans" if dtype == "Bool" else "integers"
        return [f"{named} has no kernel for {kind} ({dtype}): convert them, as with `x.float()`."]
    if dtype == "Half":
        return [
            f"{named} has no kernel for float16 on this device: use bfloat16 or float32 there, or "
            "a GPU."
        ]
    if dtype in _FLOATS:
        return [f"{named} has no kernel for {dtype}: it is one for integers or booleans."]
    return [f"{named} has no kernel for {dtype} on this device."]


FAILURE = Failure(
    name="dtype_not_supported",
    patterns=(
        r"\"(?P<operator>[\w.:]+)\" not implemented for '(?P<dtype>\w+)'",
        r"(?P<operator>\w+)\(\): could not infer output dtype\. Input dtype must be either a "
        r"floating point or complex dtype\. Got: (?P<dtype>\w+)",
        r"(?P<operator>linalg\.\w+): Low precision dtypes not supported\. Got (?P<dtype>\w+)",
    ),
    explain=explain,
)
