"""A disk is full, or the share of it that this user may have.

What happened  a file could not be written to its end. What was being written, such as a checkpoint,
               is cut: use the one before it. hotlap's own are written beside the old ones, which
               stay whole.
What fills it  checkpoints of every epoch (one of Adam's has three times the size of the weights),
               caches (`~/.cache`, `/tmp/torchinductor_*`, `~/.triton`), logs and profiles of former
               runs, and files that were deleted while a process still has them open.
Look at        `df -h FOLDER` and `df -i FOLDER` (no inodes are left where there are millions of
               small files); `quota -s`; `du -xh --max-depth=2 ~ | sort -h`.
What to do     keep fewer checkpoints (`hotlap train --keep 2` is the default), write them to a
               larger disk (`--run-dir`), and empty the caches; TMPDIR, HF_HOME and
               TORCHINDUCTOR_CACHE_DIR move temporary files and caches. For /dev/shm see
               `shared_memory_full`.
"""

import re

from hotlap.failures.record import Failure


def explain(match: "re.Match[str]") -> list[str]:
    text = match.group()
    if "quota" in text.lower():
        return ["The limit is this user's quota, not the size of the disk."]
    if "No space" not in text:
        return ["torch could not write a file to its end, and does not say why: see `df -h`."]
    file = re.search(r"left on device: '([^']+)'", text)
    return [] if file is None else [f"It happened to '{file[1]}'."]


FAILURE = Failure(
    name="disk_full",
    patterns=(
        # A full /dev/shm is another failure, with another remedy.
        r"(?m)^(?!.*(?:/dev/shm|/torch_|shared memory)).*No space left on device.*",
        r"\[Errno 122\] Disk quota exceeded[^\n]*",
        r"PytorchStreamWriter failed writing file[^\n]*",
        r"inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+",
        r"basic_ios::clear: iostream error",
    ),
    explain=explain,
)
