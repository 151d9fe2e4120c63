"""The ways in which training dies, recognised by what torch and the system print.

One file, one kind: a module with a docstring, and a `Failure` named `FAILURE`. Every such file in
this package is found. No torch in here.
"""

import functools
import importlib
import pkgutil
import re
import traceback
from dataclasses import replace

from hotlap.failures.death import Death, death_in, death_of
from hotlap.failures.ended_by_signal import recognize_signal
from hotlap.failures.record import Failure, Recognized

__all__ = [
    "Failure",
    "Recognized",
    "recognize",
    "recognize_exception",
    "recognize_output",
    "recognize_signal",
    "registry",
]

_NO_FAILURES = ("death", "record", "sizes", "memory_words")
_MOST_READ = 100_000
"""Characters of a text, from its end, that are looked at: a log may be long."""
_ASSERTION = re.compile(r"Assertion `[^`\n]*` failed")
"""What a kernel prints on a GPU before it fails."""
_REPORT = re.compile(r"device-side assert triggered")
"""What is raised after every assertion, whichever it was."""
_WARNING = re.compile(r"(?m)^\S.*:\d+: \w*Warning: \S.*$")
"""What Python's `warnings` print."""


@functools.cache
def registry() -> dict[str, Failure]:
    """Return name -> failure."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    found = [
        importlib.import_module(f"{__name__}.{name}").FAILURE
        for name in names
        if name not in _NO_FAILURES
    ]
    return {failure.name: failure for failure in found}


def recognize(text: str) -> Recognized | None:
    """Return what a message, a traceback or a log died of, None if that is not known.

    Of several failures the one that is spoken of last: a traceback ends with its reason.
    """
    text = text[-_MOST_READ:]
    found = [(match, each) for each in registry().values() if (match := each.find(text))]
    if not found:
        return None
    match, failure = max(found, key=lambda pair: pair[0].start())
    asserted = _ASSERTION.findall(text[: match.start()]) if _REPORT.search(match.group()) else []
    known = recognize(asserted[-1]) if asserted else None
    if known is not None:
        return known
    return Recognized(failure, match.group().strip(), failure.explain(match))


def recognize_output(text: str) -> Recognized | None:
    """Return what a process of this host died of, as it has just printed it; see `recognize`."""
    # No process ends by a warning.
    known = recognize(_WARNING.sub("", text))
    return None if known is None else _locate(known, death_in(text[-_MOST_READ:]))


def recognize_exception(error: BaseException) -> Recognized | None:
    """Return what an exception, or what it was raised from, means; None if that is not known."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    # An exception may be its own cause.
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__
    said = [(each, "".join(traceback.format_exception_only(each))) for each in reversed(chain)]
    known = recognize("".join(text for _, text in said))
    if known is None:
        return None
    place = next((each for each, text in said if known.failure.find(text) is not None), error)
    return _locate(known, death_of(place))


def _locate(known: Recognized, death: Death) -> Recognized:
    more = known.failure.locate(death) if death.calls else []
    return replace(known, sentences=[*known.sentences, *more])
