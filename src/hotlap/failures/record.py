"""`Failure`, the record of each kind: patterns, explanation, advice; `Recognized`, one found."""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hotlap.failures.death import Death


def _nothing(death: Death) -> Sequence[str]:
    del death
    return []


def _no_advice(match: "re.Match[str]", death: Death) -> Sequence[str]:
    del match, death
    return []


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A way in which training dies, recognised by what was printed.

    The docstring of the module that `explain` is defined in is the failure's page.
    """

    name: str
    patterns: Sequence[str]
    """Regular expressions, of which one is found in what was printed; the ones that say most come
    first."""
    explain: Callable[["re.Match[str]"], Sequence[str]]
    """Says what this message means with its own numbers, a sentence each; may say nothing."""
    advise: Callable[["re.Match[str]", Death], Sequence[str]] = _no_advice
    """Says what to do, by this message and its traceback; not said to who knows better."""
    locate: Callable[[Death], Sequence[str]] = _nothing
    """Says what the traceback adds, a sentence each; asked in the process that died, or on its
    host right after it."""

    def find(self, text: str) -> "re.Match[str] | None":
        """Return the last place of the first pattern that is found, None if none is."""
        for pattern in self.patterns:
            found = list(re.finditer(pattern, text))
            if found:
                return found[-1]
        return None

    @property
    def page(self) -> str:
        """What `hotlap explain` prints."""
        return inspect.getdoc(inspect.getmodule(self.explain)) or ""


@dataclass(frozen=True)
class Recognized:
    """What a text was recognised as."""

    failure: Failure
    words: str
    """The part of the text that it was recognised by."""
    sentences: Sequence[str]
    """What this message means."""
    advice: Sequence[str] = ()
    """What to do about it, sentences as well; the page says more."""

    @property
    def line(self) -> str:
        """What is said where it happened, below its traceback."""
        return self._line([*self.sentences, *self.advice])

    @property
    def facts_line(self) -> str:
        """The same without advice, for who was given another one."""
        return self._line(self.sentences)

    def _line(self, sentences: Sequence[str]) -> str:
        head = self.failure.page.splitlines()[0]
        more = f"`hotlap explain {self.failure.name}` says what to look at, and what to do."
        return " ".join([f"{self.failure.name}: {head}", *sentences, more])
