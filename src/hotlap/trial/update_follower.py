"""`Follower`: for each update, RNG states, gradients beside another run's, and errors by `twin`.

Optimizers that treat each element by itself, as most do, can be repeated on a few elements of each
tensor: that is cheap enough for every update of a run, where whole steps are repeated at some only.
"""

import hashlib
import random
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy
import torch

from hotlap.trial.elements import Vector
from hotlap.trial.gradient_rows import RowReader, RowWriter
from hotlap.trial.twin import Chain

_DISTANCE_LIMIT, _TENSOR_DISTANCE_LIMIT, _SMALL = 0.02, 0.3, 1e-3
"""From which share of its length on a gradient is looked at; the same for a single tensor, and the
share of the whole gradient that such a tensor has at least."""
_JUMP = 10.0
"""How many times farther it is apart then than in the steps before it."""
_BEFORE = 8
BLOCK = 624
"""Numbers that torch's generator of the CPU, a Mersenne twister, makes at once."""
_LOOKED_AT = 4
"""Steps of a run that are looked at for their gradient, at most."""


class Follower:
    """Repeats each update on drawn elements, in float64, and compares gradients with another run's.

    Args:
        seed: which elements are drawn. A plan that knew them could be right at these alone.
        beside: the gradients of a plain run, with which they are compared.
        writer: what the gradients are written to.
        random_before: `random_digests` before anything was applied to a run that is not seeded by
            hotlap; None where all generators are.
    """

    def __init__(
        self,
        seed: int,
        beside: RowReader | None = None,
        writer: RowWriter | None = None,
        random_before: list[str] | None = None,
    ) -> None:
        self._seed = seed
        self._beside, self._writer = beside, writer
        self._random_before = random_before
        self._chains: dict[Hashable, Chain] = {}
        self.updates: list[dict[str, Any]] = []
        """Of each update: `optimizer`, the key; `gradients`, a letter for each parameter, see
        `Chain.letters`; `random`, digests of the states of the generators; `place`, see
        `_places_in_stream`; `sums` and `states`, see `Chain.compare`, None
        where it could not be repeated."""
        self.gradient_distances: list[float | None] = []
        """Of each update: how far its gradient is from the plain run's, as a share of that one."""
        self._looked_at = 0
        self._recent: deque[tuple[float, Vector]] = deque(maxlen=_BEFORE)
        self.problem = ""
        """Why updates could not be repeated, if so."""

    def update_begins(self, key: Hashable, optimizer: Any) -> None:
        """An update begins: note weights and the optimizer's state.

        Args:
            key: which optimizer it is.
            optimizer: the optimizer.
        """
        try:
            chain = self._chains.get(key)
            if chain is None or not chain.fits(optimizer):
                chain = self._chains[key] = Chain(optimizer, self._seed)
            chain.begin(optimizer)
            chain.take_state(optimizer)
        except Exception as error:
            self.problem = _line(error)

    def has_gradients(self, key: Hashable, optimizer: Any) -> bool:
        """Note the gradients of the update; return whether the step is worth a closer look.

        That is so where they were near the plain run's in the steps before, and no longer are.
        """
        row = {"optimizer": key, "gradients": "", "random": random_digests()}
        row["place"] = _places_in_stream()
        self.updates.append(row)
        try:
            chain = self._chains[key]
            chain.take_gradients(optimizer)
            scale = getattr(optimizer, "grad_scale", None)
            if scale is not None:
                chain.divide(float(scale))
        except Exception as error:
            # What cannot be read ends no script.
            self.problem = self.problem or _line(error)
            self._exchange(numpy.zeros(0))
            self.gradient_distances.append(None)
            return False
        row["gradients"] = chain.letters
        gradients = numpy.concatenate(chain.gradients) if chain.gradients else numpy.zeros(0)
        with numpy.errstate(all="ignore"):
            theirs = self._exchange(gradients)
            if theirs is None or len(theirs) != len(gradients):
                self.gradient_distances.append(None)
                return False
            return self._is_odd(chain, gradients, theirs.astype(numpy.float64))

    def _exchange(self, gradients: Vector) -> Vector | None:
        """Write those of an update, and return the other run's, None if there are none."""
        if self._writer is not None:
            self._writer.write(gradients)
        if self._beside is None:
            return None
        try:
            return self._beside.next()
        except TimeoutError as error:
            # Nothing is proven of gradients that were not compared.
            self.problem, self._beside = self.problem or _line(error), None
            return None

    def _is_odd(self, chain: "Chain", ours: Vector, theirs: Vector) -> bool:
        whole = float(numpy.linalg.norm(theirs))
        edges = chain.edges
        off = _lengths(ours - theirs, edges)
        sizes = _lengths(theirs, edges)
        apart = _share(float(numpy.linalg.norm(ours - theirs)), whole)
        each = off / numpy.maximum(sizes, _SMALL * whole + 1e-300)
        self.gradient_distances.append(apart if numpy.isfinite(apart) else None)
        before = [row for row in self._recent if len(row[1]) == len(each)]
        most = max((row[0] for row in before), default=0.0)
        most_each = numpy.max([row[1] for row in before], axis=0) if before else 0.0
        self._recent.append((apart, each))
        is_odd = not apart <= max(_DISTANCE_LIMIT, _JUMP * most) or bool(
            numpy.any(each > numpy.maximum(_TENSOR_DISTANCE_LIMIT, _JUMP * most_each))
        )
        if not is_odd or self._looked_at >= _LOOKED_AT:
            return False
        self._looked_at += 1
        return True

    @property
    def is_looking(self) -> bool:
        """True while steps may turn out to be worth a closer look."""
        last = next(
            (value for value in reversed(self.gradient_distances) if value is not None), 0.0
        )
        near = len(self.gradient_distances) < _BEFORE or last < _TENSOR_DISTANCE_LIMIT
        return self._beside is not None and self._looked_at < _LOOKED_AT and near

    def update_ends(self, key: Hashable, optimizer: Any) -> None:
        """The update has ended: repeat it, and note how far it is off."""
        found: tuple[Any, Any] = None, None
        # Once is enough to know that all updates cannot be judged.
        if not self.problem:
            try:
                with numpy.errstate(all="ignore"):
                    found = self._chains[key].compare(optimizer)
            except Exception as error:
                # Whatever an optimizer of the user's raises when it is made again, or on vectors.
                self.problem = _line(error)
        self.updates[-1]["sums"], self.updates[-1]["states"] = found

    def report(self) -> dict[str, Any]:
        """Return what was found, as `lab.updates` reads it."""
        return {
            "updates": self.updates,
            "apart": self.gradient_distances,
            "random_before": self._random_before,
            "problem": self.problem,
        }


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def follower_of(options: Mapping[str, Any], random_before: list[str] | None = None) -> Follower:
    """Return what follows a trial's updates.

    Options: `drawn_with` (the seed, 0 if there is none), `gradients` (the file that drawn elements
    of all gradients are written to, None to write none), and `beside` (that of a plain run, None to
    compare with none).

    Args:
        options: of the trial.
        random_before: see `Follower`.
    """
    beside, written = options.get("beside"), options.get("gradients")
    return Follower(
        options.get("drawn_with", 0),
        None if beside is None else RowReader(Path(beside)),
        None if written is None else RowWriter(Path(written)),
        random_before,
    )


def _lengths(values: Vector, edges: Sequence[int]) -> Vector:
    squares = numpy.concatenate([[0.0], numpy.cumsum(values**2)])
    return numpy.sqrt(numpy.maximum(numpy.diff(squares[list(edges)]), 0.0))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else (0.0 if part == 0 else float("inf"))


def _places_in_stream() -> list[int]:
    """Return how far torch's generators have been drawn from: the CPU's within its block of
    `BLOCK` numbers, and that of the current GPU; none where their states are laid out otherwise."""
    if not _is_layout_known():
        return []
    places = [-_numbers_left(torch.get_rng_state()) % BLOCK]
    if torch.cuda.is_initialized():
        places.append(_number_at(torch.cuda.get_rng_state(), 8, 8))
    return places


def _numbers_left(state: torch.Tensor) -> int:
    """Return how many numbers of its block a generator of the CPU has not given yet."""
    return _number_at(state, 8, 4)


def _number_at(state: torch.Tensor, begin: int, size: int) -> int:
    return int.from_bytes(state[begin : begin + size].numpy().tobytes(), "little")


@lru_cache
def _is_layout_known() -> bool:
    """Draw from a generator of ours, and look whether its state shows how much."""
    generator = torch.Generator().manual_seed(0)
    before = _numbers_left(generator.get_state())
    torch.rand(BLOCK + 7, generator=generator, device="cpu")
    return (before - _numbers_left(generator.get_state())) % BLOCK == 7


def random_digests() -> list[str]:
    """Return digests of the states of torch's generators together, of Python's and of NumPy's."""
    states = [torch.get_rng_state().numpy().tobytes()]
    if torch.cuda.is_initialized():
        states += [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()]
    legacy: Any = numpy.random.get_state()
    version, words, gauss = random.getstate()
    python = numpy.array(words, dtype=numpy.int64).tobytes() + repr((version, gauss)).encode()
    theirs = legacy[1].tobytes() + repr(legacy[2:]).encode()
    parts = (b"".join(states), python, theirs)
    return [hashlib.blake2b(part, digest_size=8).hexdigest() for part in parts]
