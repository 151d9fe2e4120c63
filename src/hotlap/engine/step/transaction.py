"""`Transaction`: keeps RNG states and buffers before a step, and puts them back to repeat it."""

import random
import sys
from typing import Any

import torch

from hotlap import rng
from hotlap.engine.contents import are_equal, is_plain, sample_of
from hotlap.engine.step.step import Step

_WATCHED_STEPS = 2
"""Steps after which it is known whether the run draws from Python's and NumPy's generators, and
which tensors it writes to through `.data`."""


class CannotRestore(Exception):
    """Something that the failed step has changed was not kept."""


class Transaction:
    """Keeps what a step changes before its update: random states, and tensors of the model.

    These are buffers, and parameters that are not trained, as those of a model that follows the
    trained one. Gradients, the scaler and running statistics are the step's own, see
    `Step.roll_back`. What modules keep in plain attributes, and what a loss counts for itself, is
    not seen. What is written through `.data` is seen only if the first steps write so.

    Args:
        model: of which all buffers are kept for the first step, later what has ever changed.
        step: its own are not kept twice.
        has_cuda: draws come from the CUDA devices' generators as well.
    """

    def __init__(self, model: Any, step: Step, *, has_cuda: bool) -> None:
        self._step = step
        self._torch = [torch.default_generator]
        if has_cuda:
            self._torch += torch.cuda.default_generators
        self._others = rng.other_accelerators()
        self._other_states: dict[str, torch.Tensor] = {}
        self._states: list[torch.Tensor] = []
        self._is_kept = False
        """False while, and if, keeping itself did not come to its end."""
        self._host = [_HostGenerator(*each) for each in _HOST_GENERATORS]
        self._own = step.kept_buffers()
        self._modules = list(model.named_modules())
        self._parameters = list(model.parameters())
        self._found: tuple[int, list[bool]] | None = None
        self._tensors: dict[tuple[int, str], _Tensor] = {}
        """By the identity of what holds them in a module, and their name there."""
        self._names: set[tuple[int, str]] = set()
        """Of all buffers that there were before the step, in the same form."""

    def _find(self) -> None:
        """Find buffers and parameters anew where a forward makes some, or some are frozen."""
        trained = [parameter.requires_grad for parameter in self._parameters]
        found = sum(len(module._buffers) for _, module in self._modules), trained
        if found == self._found:
            return
        self._found, known, self._tensors = found, self._tensors, {}
        self._names = {(id(m._buffers), key) for _, m in self._modules for key in m._buffers}
        for name, module in self._modules:
            for holder, what in ((module._buffers, "buffer"), (module._parameters, "parameter")):
                for key, tensor in holder.items():
                    if id(tensor) in self._own or (what == "parameter" and _is_trained(tensor)):
                        continue
                    path, at = f"{name}.{key}" if name else key, (id(holder), key)
                    self._tensors[at] = known.get(at) or _Tensor(path, what, holder, key)

    def keep(self) -> None:
        """Remember everything, before a step."""
        self._is_kept = self._step.update.has_begun = False
        self._states = [generator.get_state() for generator in self._torch]
        if self._others:
            self._other_states = rng.device_states(self._others)
        for host in self._host:
            host.keep()
        self._find()
        for tensor in self._tensors.values():
            tensor.keep()
        self._is_kept = True

    def put_back(self) -> tuple[str, ...]:
        """Make everything what it was before the step.

        Returns:
            What may have changed, and was not kept, but does not matter to what is learned on
            average: names of random generators.

        Raises:
            CannotRestore: a tensor was changed that no step before had changed.
        """
        if not self._is_kept:
            # The step itself has not begun. What was kept before is that of an earlier step.
            return ()
        self._step.roll_back()
        for _, module in self._modules:
            for key in list(module._buffers):
                if (id(module._buffers), key) not in self._names:
                    del module._buffers[key]
        for tensor in self._tensors.values():
            tensor.put_back()
        for generator, state in zip(self._torch, self._states, strict=True):
            generator.set_state(state)
        if self._others:
            rng.set_device_states(self._other_states)
        return tuple(host.name for host in self._host if not host.put_back())


def _is_trained(parameter: Any) -> bool:
    return parameter is None or parameter.requires_grad


class _HostGenerator:
    """Python's or NumPy's generator: to keep its state takes 7 to 24 us, so that is done every
    step only where something draws from it.

    Args:
        name: in words.
        get: returns its state, None if it is not there.
        put: takes one.
    """

    def __init__(self, name: str, get: Any, put: Any) -> None:
        self.name = name
        self._get, self._put = get, put
        self._kept = get()
        self._is_drawn_from = False
        self._watched = 0

    def keep(self) -> None:
        if self._is_drawn_from:
            self._kept = self._get()
        elif self._watched <= _WATCHED_STEPS:
            self._watched += 1
            state = self._get()
            self._is_drawn_from = not _same(state, self._kept)
            self._kept = state

    def put_back(self) -> bool:
        """Put the generator back; return False if it is not known where it was."""
        if self._is_drawn_from or self._watched <= _WATCHED_STEPS:
            if self._kept is not None:
                self._put(self._kept)
            return True
        now = self._get()
        is_known = _same(now, self._kept)
        if not is_known:
            # From here on it is.
            self._is_drawn_from, self._kept = True, now
        return is_known


def _numpy_state() -> Any:
    numpy = sys.modules.get("numpy.random")
    return None if numpy is None else numpy.get_state()


def _set_numpy_state(state: Any) -> None:
    sys.modules["numpy.random"].set_state(state)


_HOST_GENERATORS = (
    ("Python's global RNG", random.getstate, random.setstate),
    ("NumPy's global RNG", _numpy_state, _set_numpy_state),
)


def _same(one: Any, other: Any) -> bool:
    if one is None or other is None or len(one) == 3:
        return bool(one == other)
    return bool(one[2:] == other[2:] and (one[1] == other[1]).all())


class _Tensor:
    """One tensor of a module.

    Args:
        path: its name in the model.
        what: `buffer` or `parameter`. Of parameters, which may be many and large, those are kept
            that a step before has changed.
        holder: the module's buffers, or its parameters.
        key: its name there.
    """

    def __init__(self, path: str, what: str, holder: dict[str, Any], key: str) -> None:
        self.path, self._what = path, what
        self._holder, self._key = holder, key
        self._before: Any = None
        """The tensor before the step, and that one's version."""
        self._version = -1
        self._copy: torch.Tensor | None = None
        self._sample: torch.Tensor | None = None
        """Some of its elements, in the first steps of one that is not copied."""
        self._watched = 0
        self._is_changing, self._is_first = False, what == "buffer"
        self._is_known = False
        """False until it was seen once, and while it is trained after all."""

    def keep(self) -> None:
        tensor = self._holder.get(self._key)
        was_known, self._is_known = self._is_known, True
        if self._what == "parameter" and _is_trained(tensor):
            self._is_known = False
            return
        if tensor is None or tensor.is_inference():
            # Nothing that trains can write to a tensor of inference mode.
            self._before, self._copy = tensor, None
            return
        if not self._is_changing and was_known:
            self._is_changing = tensor is not self._before or self._is_written()
        is_watched = self._watched < _WATCHED_STEPS
        self._watched += is_watched
        is_kept = self._is_first or self._is_changing or (is_watched and self._what == "buffer")
        self._copy = tensor.detach().clone() if is_kept else None
        self._sample = sample_of(tensor) if is_watched and not is_kept else None
        self._is_first = False
        self._before, self._version = tensor, tensor._version

    def _is_written(self) -> bool:
        """True if the tensor is not what it was when it was kept, as far as that was kept."""
        if self._before._version != self._version:
            return True
        # What is written through `.data` does not count as a version.
        if self._copy is not None:
            return is_plain(self._before) and not are_equal(self._before.detach(), self._copy)
        return self._sample is not None and not are_equal(sample_of(self._before), self._sample)

    def put_back(self) -> None:
        if not self._is_known:
            return
        before = self._before
        if before is not None and not before.is_inference() and self._is_written():
            if self._copy is None:
                raise CannotRestore(
                    f"the step has changed the model's {self._what} '{self.path}', which no step "
                    "before had changed, so it was not kept"
                )
            with torch.no_grad():
                before.copy_(self._copy)
            self._is_changing = True
        # The first attempt in parts checks the loss, which writes to all of them.
        self._is_first = self._what == "buffer" or self._is_changing
        if before is not None or self._key in self._holder:
            self._holder[self._key] = before
