"""Two tensors that meet in one operator have different dtypes.

What happened  torch converts numbers in sums and comparisons, and not in products of matrices,
               convolutions and losses.
Where from     NumPy's arrays are float64: `torch.from_numpy(x)` stays so; class labels must be
               int64 ("Long") for cross-entropy and float for binary cross-entropy and MSE; a model
               in half precision gets float32 inputs, or an input is cast outside of `autocast`.
What to do     convert once, where the dataset makes the tensor (`.float()`, `.long()`), not the
               model to float64: that is twice the memory, and many times slower on a GPU. With
               reduced precision, let `autocast` convert: see `autocast`.
"""

import re

from hotlap.failures.record import Failure

_CALLS = {"double": "float64", "float": "float32", "half": "float16", "long": "int64"}
_CALLS |= {"bfloat16": "bfloat16", "int": "int32", "byte": "uint8", "char": "int8"}


def explain(match: "re.Match[str]") -> list[str]:
    names = [each for each in match.groups() if each]
    if len(names) != 2:
        return []
    one, other = (_CALLS.get(each.lower().removeprefix("c10::"), each) for each in names)
    return [f"One is {one}, the other {other}."]


FAILURE = Failure(
    name="dtype_mismatch",
    patterns=(
        r"expected scalar type (\w+) but found (\w+)",
        r"mat1 and mat2 must have the same dtype, but got (\w+) and (\w+)",
        r"expected m1 and m2 to have the same dtype, but got: ([\w:]+) != ([\w:]+)",
        r"Input type \(([\w:]+)\) and (?:bias|weight) type \(([\w:]+)\) should be the same",
        r"Found dtype (\w+) but expected (\w+)",
        r"result type (\w+) can't be cast to the desired output type (\w+)",
    ),
    explain=explain,
)
