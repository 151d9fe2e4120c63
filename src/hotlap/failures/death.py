"""`Death`: where a process died, by its traceback: lines, phase, tensors held. No torch in here.

Values of the traceback's frames are looked at only here, once the process has died: a run that does
not die pays nothing for it.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from hotlap.usercode import is_users

_LINE = re.compile(r'^ *File "(.+)", line (\d+), in (.+)\n(?! *File ")(?: *(.*))?', re.MULTILINE)
_BEGIN = "Traceback (most recent call last):"
_UPDATE = "in the optimizer's update"
_PHASES = (
    ("/torch/utils/data/", "while a batch was read"),
    ("/hotlap/feed/", "while a batch was read"),
    ("/hotlap/engine/evaluate.py", "in an evaluation"),
    ("/hotlap/checkpoint/", "while a checkpoint was saved or read"),
    ("/torch/serialization.py", "while a file was saved or read"),
    ("/torch/_tensor.py:backward", "in the backward pass"),
    ("/torch/autograd/", "in the backward pass"),
    ("/torch/optim/", _UPDATE),
    ("/torch/nn/", "in the forward pass"),
)
"""Part of `FILE:FUNCTION` -> what was being done, the ones that say most first."""
_MOST_ITEMS = 100
"""Items of a list, tuple or dictionary that are looked at for tensors."""


@dataclass(frozen=True)
class Call:
    """One line of a traceback."""

    file: str
    number: int
    function: str
    text: str
    values: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """Local variables; none where the traceback is a text."""


@dataclass(frozen=True)
class Held:
    """A tensor that a traceback's frame holds."""

    name: str
    tensor: Any

    @property
    def bytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()


@dataclass(frozen=True)
class Death:
    """Where a process died."""

    calls: Sequence[Call]
    """The lines of its traceback, the outermost first."""

    @property
    def place(self) -> str | None:
        """The user's line and what it was doing, in words; None if no line is the user's."""
        users = [call for call in self.calls if is_users(call.file)]
        if not users:
            return None
        last = users[-1]
        code = f", `{last.text}`" if last.text else ""
        phase = self.phase
        return f"{last.file}:{last.number}{code}{f', {phase}' if phase else ''}"

    @property
    def phase(self) -> str | None:
        """What was being done, in words; None if the traceback does not show it."""
        found = None
        for call in self.calls:
            # What a closure does that the optimizer calls counts, not that it was called.
            if found not in (None, _UPDATE):
                continue
            where = f"{call.file}:{call.function}".replace("\\", "/")
            found = next((phase for part, phase in _PHASES if part in where), found)
        in_recipe = any(
            "/hotlap/engine/step/" in call.file.replace("\\", "/") for call in self.calls
        )
        return "in the loss function" if found is None and in_recipe else found

    def find(self, kind: str, attribute: str) -> Any:
        """Return an attribute of an object that the user's lines hold, None if there is none.

        Args:
            kind: the class, as `module:NAME`; subclasses count.
            attribute: of the object.
        """
        wanted = _loaded(kind)
        for call in reversed(self.calls):
            if wanted is None or not is_users(call.file):
                continue
            for value in list(call.values.values()):
                # Not isinstance: it asks the object, which may be a proxy that computes.
                if issubclass(type(value), wanted):
                    return getattr(value, attribute, None)
        return None

    def tensors(self) -> list[Held]:
        """Return the tensors that the traceback's lines hold, the largest first, each once."""
        # No subclasses: asking these for a shape may run their own code.
        kinds = [_loaded("torch:Tensor"), _loaded("torch.nn:Parameter")]
        found: dict[int, Held] = {}
        for call in self.calls:
            for name, value in list(call.values.items()):
                for path, each in _leaves(name, value):
                    if type(each) in kinds:
                        found.setdefault(id(each), Held(path, each))
        return sorted(found.values(), key=lambda held: -held.bytes)


def death_of(error: BaseException) -> Death:
    """Return where an exception was raised."""
    return Death(list(_calls(error.__traceback__)))


def death_in(text: str) -> Death:
    """Return where the last traceback in a text ends; one without lines if there is none."""
    last = text.rpartition(_BEGIN)[2]
    return Death([Call(m[1], int(m[2]), m[3], (m[4] or "").strip()) for m in _LINE.finditer(last)])


def _calls(place: TracebackType | None) -> Iterator[Call]:
    import linecache

    while place is not None:
        code = place.tb_frame.f_code
        # None between the lines of a function, where a handler of a signal has raised.
        number: int | None = place.tb_lineno
        number = code.co_firstlineno if number is None else number
        text = linecache.getline(code.co_filename, number).strip()
        yield Call(code.co_filename, number, code.co_name, text, place.tb_frame.f_locals)
        place = place.tb_next


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    # Of Python's own containers only: others may compute what they are asked for.
    if type(value) in (list, tuple):
        for number, each in enumerate(value[:_MOST_ITEMS]):
            yield f"{name}[{number}]", each
    elif type(value) is dict:
        for key in list(value)[:_MOST_ITEMS]:
            yield f"{name}[{key!r}]" if type(key) is str else f"{name}[...]", value[key]
    else:
        yield name, value


def _loaded(kind: str) -> Any:
    """Return a class of a module that has been imported, None if it has not."""
    module, _, name = kind.partition(":")
    return getattr(sys.modules.get(module), name, None)
