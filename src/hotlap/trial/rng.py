"""The RNG state of a process as tensors: torch's on every device, Python's and NumPy's."""

import random
from collections.abc import Mapping

import numpy
import torch

_CUDA = "cuda."


def rng_states() -> dict[str, torch.Tensor]:
    """Return what `set_rng_states` takes to draw the same numbers again."""
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
    return states


def set_rng_states(states: Mapping[str, torch.Tensor]) -> None:
    """Put every generator where `rng_states` found it."""
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
