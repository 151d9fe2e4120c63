"""The errors that training dies of, one file each: message patterns, what they mean, advice.

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
_TRIED = "Sizes of micro-batches that were tried"
"""Of a recipe's step that was split as far as it may be."""
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

    Of several failures the one that is spoken of last: a traceback ends with its reason. White
    space may be other than it was: a terminal breaks lines.
    """
    found = _find(text) or _find(" ".join(text.split()))
    return None if found is None else _build(*found, Death([]))


def recognize_output(text: str) -> Recognized | None:
    """Return what a process of this host died of, as it has just printed it; see `recognize`."""
    text = text[-_MOST_READ:]
    # No process ends by a warning.
    found = _find(_WARNING.sub("", text))
    if found is None:
        return None
    known = _build(*found, death_in(text))
    return replace(known, advice=()) if _TRIED in text else known


def recognize_exception(error: BaseException) -> Recognized | None:
    """Return what an exception, or what it was raised from, means; None if that is not known."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    # An exception may be its own cause.
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__
    said = [(each, _words_of(each)) for each in reversed(chain)]
    found = _find("".join(text for _, text in said))
    if found is None:
        return None
    place = next((each for each, text in said if found[1].find(text) is not None), error)
    return _build(*found, death_of(place))


def _words_of(error: BaseException) -> str:
    """Return an exception's kind and message, below the functions that it was raised in where the
    message is the system's, which says nothing of them."""
    said = "".join(traceback.format_exception_only(error))
    if not isinstance(error, OSError | EOFError):
        return said
    functions = (frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__))
    return "".join(f", in {name}\n" for name in functions) + said


def _find(text: str) -> tuple["re.Match[str]", Failure] | None:
    """Return the failure that a text speaks of last, and where."""
    text = text[-_MOST_READ:]
    found = [(match, each) for each in registry().values() if (match := each.find(text))]
    if not found:
        return None
    # What is known by the functions around it only may have a cause that is spoken of elsewhere.
    sure = [pair for pair in found if not pair[0].groupdict().get("said")]
    match, failure = max(sure or found, key=lambda pair: pair[0].start())
    asserted = _ASSERTION.findall(text[: match.start()]) if _REPORT.search(match.group()) else []
    before = _find(asserted[-1]) if asserted else None
    return (match, failure) if before is None else before


def _build(match: "re.Match[str]", failure: Failure, death: Death) -> Recognized:
    where = failure.locate(death) if death.calls else []
    advice = failure.advise(match, death)
    said = list(dict.fromkeys([*failure.explain(match), *where]))
    words = match.groupdict().get("said") or match.group()
    return Recognized(failure, words.strip(), said, advice)
