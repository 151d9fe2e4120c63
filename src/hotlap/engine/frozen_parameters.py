"""`kept_frozen`: puts parameters back that are not trained, and that an evaluation changes."""

import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from hotlap.distributed.shares import is_share
from hotlap.engine.contents import are_equal, is_plain, sample_of

log = logging.getLogger("hotlap")

_MOST = 2
"""Times the bytes of what is trained that are copied at most where nothing is known: an optimizer
may keep as much."""
_changing: "weakref.WeakKeyDictionary[Any, set[str]]" = weakref.WeakKeyDictionary()
"""A model that was evaluated -> the names of frozen parameters that an evaluation has changed."""


@dataclass(frozen=True)
class _Frozen:
    """A parameter that is not trained, where it is, and what was in it."""

    name: str
    holder: dict[str, Any]
    key: str
    parameter: Any
    version: int
    copy: torch.Tensor | None
    sample: torch.Tensor | None

    @torch.no_grad()
    def put_back(self) -> bool:
        """Make it what it was, as far as that was kept; return whether it had been changed."""
        now = self.holder.get(self.key)
        if is_share(now) or not is_plain(self.parameter):
            # Ranks share it between their forwards.
            return False
        is_replaced = now is not self.parameter
        if is_replaced:
            self.holder[self.key] = self.parameter
        if not self._is_written():
            return is_replaced
        if self.copy is None:
            log.warning(
                "an evaluation has changed the parameter '%s', which is not trained, and its "
                "values from before were not kept. They are kept at later evaluations",
                self.name,
            )
        else:
            self.parameter.copy_(self.copy)
        return True

    def _is_written(self) -> bool:
        if self.parameter._version != self.version:
            return True
        if self.copy is not None:
            return not are_equal(self.parameter.detach(), self.copy)
        return self.sample is not None and not are_equal(sample_of(self.parameter), self.sample)


@contextmanager
def kept_frozen(model: Any) -> Iterator[None]:
    """Put parameters back that are not trained, as a momentum encoder's, which may follow the
    trained one in every forward.

    Copied are all of them for the first evaluation of a model, unless they are much larger than
    what is trained, as a large frozen model is that is adapted. Later those are copied that an
    evaluation has changed. Of the others, changes of a sample of their elements are seen.
    """
    held = [
        (f"{path}.{key}" if path else key, module._parameters, key, parameter)
        for path, module in model.named_modules()
        for key, parameter in module._parameters.items()
        if parameter is not None and not parameter.requires_grad
        if is_plain(parameter) and not parameter.is_inference()
    ]
    if not held:
        yield
        return
    known = _changing.get(model)
    if known is None:
        trained = [each for each in model.parameters() if each.requires_grad]
        is_small = sum(each.nbytes for *_, each in held) <= _MOST * sum(x.nbytes for x in trained)
        copied = {name for name, *_ in held} if is_small else set()
    else:
        copied = known
    kept = [
        _Frozen(
            *each,
            each[3]._version,
            each[3].detach().clone() if each[0] in copied else None,
            None if each[0] in copied else sample_of(each[3]),
        )
        for each in held
    ]
    is_done = False
    try:
        yield
        is_done = True
    finally:
        changed = {each.name for each in kept if each.put_back()}
        # What was interrupted may not have come to the model's forward.
        if is_done or known is not None:
            _changing[model] = changed | (known or set())
