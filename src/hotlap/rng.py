"""The global random number generators of Python, NumPy and torch: their states, read and set.

As they are, to see which one a call has drawn from and to put them back; and as tensors, with those
of every device, to be kept in a file.
"""

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

_OTHER_SEED = 0x5EED
_CUDA = "cuda."
_OTHERS = ("xpu", "mps")
"""Kinds of accelerators beside CUDA."""


def global_random_states() -> tuple[Any, Any, torch.Tensor]:
    """Return the states of Python's, numpy's (if loaded) and torch's global generators."""
    return (*host_random_states(), torch.get_rng_state())


def host_random_states() -> tuple[Any, Any]:
    """Return the states of Python's and numpy's (if loaded) global generators."""
    numpy = sys.modules.get("numpy")
    numpy_state = None
    if numpy is not None and "numpy.random" in sys.modules:
        numpy_state = numpy.random.get_state(legacy=False)
    return random.getstate(), numpy_state


def generator_that_advanced(before: tuple[Any, Any, torch.Tensor]) -> str | None:
    """Name the global generator that has been drawn from since `before`, or return None."""
    drawn = host_generator_that_advanced((before[0], before[1]))
    if drawn is None and not torch.equal(torch.get_rng_state(), before[2]):
        return "torch's global RNG"
    return drawn


def host_generator_that_advanced(before: tuple[Any, Any]) -> str | None:
    """Name the one of Python's and numpy's that has been drawn from since, or return None."""
    python_state, numpy_state = host_random_states()
    if python_state != before[0]:
        return "Python's global RNG"
    if numpy_state is not None and before[1] is not None:
        old, new = before[1]["state"], numpy_state["state"]
        # Every other Gaussian number is one that was kept.
        kept = [(state["has_gauss"], state["gauss"]) for state in (before[1], numpy_state)]
        if old["pos"] != new["pos"] or kept[0] != kept[1] or not (old["key"] == new["key"]).all():
            return "numpy's global RNG"
    return None


def restore(states: tuple[Any, Any, torch.Tensor]) -> None:
    """Put the global generators back into `states`."""
    restore_host((states[0], states[1]))
    torch.set_rng_state(states[2])


def restore_host(states: tuple[Any, Any]) -> None:
    """Put Python's and numpy's global generators back into `states`."""
    random.setstate(states[0])
    if states[1] is not None:
        sys.modules["numpy"].random.set_state(states[1])


def is_own_generator(value: Any) -> bool:
    """True for a random generator that is none of the global ones, whose states are known here."""
    kinds: list[type] = [random.Random, torch.Generator]
    known: list[Any] = [getattr(random.random, "__self__", None), torch.default_generator]
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        kinds += [numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator]
        known.append(numpy.random.random.__self__)
    return isinstance(value, tuple(kinds)) and not any(value is each for each in known)


def reseed(seed: int) -> None:
    """Seed Python's, numpy's (if loaded) and torch's global generator."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if "numpy.random" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


class SeededGenerators:
    """Runs a block with the global generators seeded.

    Args:
        seed: from 0, below 2**63.
        puts_back: the generators are as they were afterwards.
    """

    def __init__(self, seed: int, *, puts_back: bool) -> None:
        self._seed, self._puts_back = seed, puts_back
        self._states: Any = None

    def __enter__(self) -> None:
        if self._puts_back:
            self._states = global_random_states()
        reseed(self._seed)

    def __exit__(self, *_: Any) -> None:
        if self._puts_back:
            restore(self._states)


@contextmanager
def other_random_states() -> Iterator[None]:
    """Run a block under other global random states, and put the old ones back."""
    states = global_random_states()
    reseed(_OTHER_SEED)
    try:
        yield
    finally:
        restore(states)


def other_accelerators() -> dict[str, Any]:
    """Return torch's modules of the accelerators beside CUDA that may be drawn from, by kind."""
    found: dict[str, Any] = {}
    for kind in _OTHERS:
        module = getattr(torch, kind)
        # What nobody has begun to use is not begun for this.
        is_begun = getattr(module, "is_initialized", module.is_available)
        if is_begun():
            found[kind] = module
    return found


def device_states(modules: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the states of the generators of such accelerators, by kind and number: `xpu.0`."""
    states: dict[str, torch.Tensor] = {}
    for kind, module in modules.items():
        # `mps` is one device.
        several = getattr(module, "get_rng_state_all", None)
        found = [module.get_rng_state()] if several is None else several()
        states |= {f"{kind}.{number}": state for number, state in enumerate(found)}
    return states


def set_device_states(states: Mapping[str, torch.Tensor]) -> None:
    """Put the generators of `device_states` back, those of devices that are there."""
    for kind, module in other_accelerators().items():
        for number in range(module.device_count()):
            state = states.get(f"{kind}.{number}")
            if state is not None:
                module.set_rng_state(state, f"{kind}:{number}")


def rng_states() -> dict[str, torch.Tensor]:
    """Return what `set_rng_states` takes to draw the same numbers again."""
    import numpy

    version, words, gauss = random.getstate()
    legacy = numpy.random.get_state(legacy=False)
    states = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor([version, *words], dtype=torch.int64),
        "python.gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy": torch.from_numpy(legacy["state"]["key"].astype("int64")),
        "numpy.position": torch.tensor([legacy["state"]["pos"], legacy["has_gauss"]]),
        "numpy.gauss": torch.tensor(legacy["gauss"], dtype=torch.float64),
    }
    if torch.cuda.is_initialized():
        for number, state in enumerate(torch.cuda.get_rng_state_all()):
            states[f"{_CUDA}{number}"] = state
    return states | device_states(other_accelerators())


def set_rng_states(states: Mapping[str, torch.Tensor]) -> None:
    """Put every generator where `rng_states` found it."""
    import numpy

    version, *words = states["python"].tolist()
    gauss = states["python.gauss"].tolist()
    random.setstate((version, tuple(words), gauss[0] if gauss else None))
    position, has_gauss = states["numpy.position"].tolist()
    key = states["numpy"].numpy().astype("uint32")
    numpy.random.set_state(("MT19937", key, position, has_gauss, float(states["numpy.gauss"])))
    torch.set_rng_state(states["torch"])
    for name, state in states.items():
        if name.startswith(_CUDA):
            torch.cuda.set_rng_state(state, int(name.removeprefix(_CUDA)))
    set_device_states(states)
