"""`torch.compile` needs a compiler that is not there.

What happened  on a CPU it writes C++, on a GPU Triton's code, whose launcher is C. Neither is
               compiled before the first step runs.
Look at        `c++ --version`, `cc --version`; `hotlap env` says whether one was found.
What to do     install one (Debian and Ubuntu: `apt install g++`), or name it in CXX and CC.
               Python's headers are needed too (`python3-dev`).
               Without one, leave `torch.compile` out: see `compile` for what it would give.
"""

import re

from hotlap.failures.record import Failure


def explain(match: "re.Match[str]") -> list[str]:
    del match
    return []


FAILURE = Failure(
    name="no_compiler",
    patterns=(
        r"InvalidCxxCompiler[^\n]*",
        r"Failed to find C compiler[^\n]*",
        r"fatal error: Python\.h: No such file or directory",
    ),
    explain=explain,
)
