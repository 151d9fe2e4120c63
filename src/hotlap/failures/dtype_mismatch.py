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

from hotlap.failures.death import Death
from hotlap.failures.record import Failure

_CALLS = {"double": "float64", "float": "float32", "half": "float16", "long": "int64"}
_CALLS |= {"bfloat16": "bfloat16", "int": "int32", "byte": "uint8", "char": "int8"}
_CALLS |= {"long int": "int64", "short": "int16", "bool": "bool"}


def explain(match: "re.Match[str]") -> list[str]:
    if match.lastgroup == "labels":
        return [f"The labels are {_plain(match['labels'])}: numbers of classes must be int64."]
    if match.lastgroup == "probabilities":
        return [
            f"The target has the outputs' shape, so that it is taken for probabilities, and is "
            f"{_plain(match['probabilities'])}: use `.float()`, or give numbers of classes, one "
            "for each sample."
        ]
    if match.lastgroup == "ids":
        return [f"Ids are {_plain(match['ids'])}: an embedding takes int64 or int32, `.long()`."]
    names = [each for each in match.groups() if each]
    if len(names) != 2:
        return []
    one, other = map(_plain, names)
    return [f"One is {one}, the other {other}."]


def advise(match: "re.Match[str]", death: Death) -> list[str]:
    # torch 2.11 says the same of labels as of any other operand; only the traceback tells.
    in_loss = bool(death.calls) and death.calls[-1].function in ("cross_entropy", "nll_loss")
    if in_loss and match.group().startswith("expected scalar type Long"):
        return ["Labels that are numbers of classes must be int64: use `.long()`."]
    return []


def _plain(dtype: str) -> str:
    return _CALLS.get(dtype.lower().removeprefix("c10::"), dtype)


FAILURE = Failure(
    name="dtype_mismatch",
    patterns=(
        r"expected scalar type (\w+) but found (\w+)",
        r"mat1 and mat2 must have the same dtype, but got (\w+) and (\w+)",
        r"expected m1 and m2 to have the same dtype, but got: ([\w:]+) != ([\w:]+)",
        r"Input type \(([\w:]+(?: int)?)\) and (?:bias|weight) type \(([\w:]+(?: int)?)\) should "
        r"be the same",
        r"Found dtype (\w+) but expected (\w+)",
        r"result type (\w+) can't be cast to the desired output type (\w+)",
        r"expected target dtype to be Long or Byte, but got (?P<labels>\w+)",
        r"Expected floating point type for target with class probabilities, got "
        r"(?P<probabilities>\w+)",
        r"Expected tensor for argument #1 'indices' to have one of the following scalar types: "
        r"Long, Int; but got torch\.(?:cuda\.)?(?P<ids>\w+?)Tensor",
    ),
    explain=explain,
    advise=advise,
)
