"""A signal ended the process, so Python printed no traceback.

What happened  SIGKILL (9, exit code 137): the system ended it because memory ran out, or a
               scheduler, a container or a user did. SIGSEGV (11, 139): native code used memory that
               is not its own. SIGBUS (7, 135): a mapped file could not be read or written, most
               often as /dev/shm is full. SIGABRT (6, 134): native code ended itself, and printed
               why. SIGILL (4, 132): the CPU lacks an instruction that a library was built for.
Look at        the lines that were printed last. SIGKILL: `dmesg`, the scheduler's log, and
               `oom_kill` in the control group's memory.events. SIGBUS: `df -h /dev/shm`.
What to do     SIGKILL: fewer workers, smaller batches, data that is not held whole (see
               `host_out_of_memory`). SIGSEGV, SIGABRT, SIGILL: run again with PYTHONFAULTHANDLER=1,
               which prints the Python line; suspect compiled packages that were built for another
               version of torch or another CPU. SIGBUS: see `shared_memory_full`.
"""

import re
import shutil
import signal

from hotlap.failures.record import Failure, Recognized
from hotlap.failures.sizes import in_words

_NUMBERS = {
    "Killed": signal.SIGKILL,
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Aborted": signal.SIGABRT,
    "Illegal instruction": signal.SIGILL,
}
_HERE = {
    signal.SIGSEGV: (
        "Native code used memory that is not its own: run again with PYTHONFAULTHANDLER=1 for the "
        "Python line."
    ),
    signal.SIGBUS: (
        "A mapped file could not be read or written, most often as /dev/shm is full: use fewer "
        "workers or a larger /dev/shm."
    ),
    signal.SIGABRT: (
        "Native code ended itself: it printed why before; PYTHONFAULTHANDLER=1 shows the Python "
        "line."
    ),
    signal.SIGILL: (
        "The CPU lacks an instruction that a library was built for: install one for this CPU."
    ),
    signal.SIGFPE: (
        "Native code divided an integer by zero: run again with PYTHONFAULTHANDLER=1 for the "
        "Python line."
    ),
    signal.SIGKILL: (
        "The system ended it because memory ran out, or a scheduler or a user did: see `dmesg`. "
        "For memory: use fewer workers or smaller batches."
    ),
}
"""Signal -> what it means, and what to do."""
_BY_OOM_KILLER = (
    "The system's out-of-memory killer ended it: memory ran out, the machine's or its control "
    "group's. Use fewer workers or smaller batches, or raise the limit."
)
_WORDS = "Killed|Segmentation fault|Bus error|Aborted|Illegal instruction"
_NAMES = "SIG(?:ILL|ABRT|BUS|FPE|KILL|SEGV)"
_CODES = "132|134|135|136|137|139"


def explain(match: "re.Match[str]") -> list[str]:
    text = match.group()
    named = re.search(r"SIG[A-Z]+", text)
    if named is not None:
        number = getattr(signal, named[0], None)
        return [] if number is None else _say(number)
    if "oom" in text.lower() or "Out of memory" in text:
        return [_BY_OOM_KILLER]
    number = re.search(r"(?:[Ss]ignal|code|status)[\s:]*-?(\d+)", text)
    if number is not None:
        code = int(number[1])
        return _say(code - 128 if code > 128 else code)
    words = text.lower()
    return next((_say(each) for word, each in _NUMBERS.items() if word.lower() in words), [])


def recognize_signal(number: int) -> Recognized | None:
    """Return what a signal means that has just ended a process on this host.

    Args:
        number: of the signal.

    Returns:
        None for a signal that only others send, such as SIGTERM.
    """
    said = _say(number)
    if not said:
        return None
    if number == signal.SIGBUS:
        said += _shared_memory()
    name = signal.Signals(number).name
    return Recognized(FAILURE, name, [f"{name}, signal {number}.", *said])


def _say(number: int) -> list[str]:
    return [_HERE[signal.Signals(number)]] if number in _HERE else []


def _shared_memory() -> list[str]:
    try:
        size, _, free = shutil.disk_usage("/dev/shm")
    except OSError:
        return []
    return [f"/dev/shm has {in_words(size)}, of which {in_words(free)} are free after it."]


FAILURE = Failure(
    name="ended_by_signal",
    patterns=(
        r"Fatal Python error: (?:Segmentation fault|Bus error|Aborted|Illegal instruction)",
        r"(?:Segmentation fault|Bus error|Aborted|Illegal instruction) +\(core dumped\)",
        r"Signal (?:4|6|7|8|9|11) \(SIG[A-Z]+\) received by PID \d+",
        r"(?m)^exitcode *: -(?:4|6|7|8|9|11)\b",
        r"\(exitcode: -(?:4|6|7|8|9|11)\)",
        rf"process \d+ terminated with signal {_NAMES}\b",
        rf"died with <Signals\.{_NAMES}: \d+>",
        r"Out of memory: Killed process \d+|\bOOMKilled\b|Detected \d+ oom[-_]kill event",
        rf"(?i:exit(?:ed with)? ?(?:code|status)):? ?(?:{_CODES})\b",
        rf"(?m)^(?:{_WORDS})(?:: \d+)?$",
        # As shells say of what they started.
        rf"(?m)(?:^\[\d+\][-+ ]+(?:\d+ +)?|line \d+: +\d+ +|^zsh: )(?i:{_WORDS})"
        r"(?: {2,}| +\(core dumped\)).*",
    ),
    explain=explain,
)
