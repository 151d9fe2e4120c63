"""Inputs that the model has returned before, such as a hidden state: found, and repeated."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from hotlap import nested
from hotlap.trial import digest
from hotlap.trial.repetition_ways import CARRIED_INPUT


class Carried:
    """Which inputs of a forward are what the forward before has returned, untouched since.

    What a forward returns is not kept alive for that. What it only passes on, as a batch or a view
    of one, is none of its own.
    """

    def __init__(self) -> None:
        self._given: list[StorageWeakRef] = []
        self._returned: dict[int, StorageWeakRef] = {}
        """Place among the tensors that were returned -> its memory."""
        self._digests: dict[int, tuple[torch.Size, int]] = {}
        """The same, of those whose places were carried before -> shape and digest."""
        self._places: set[int] = set()
        self.was_changed = False
        """True if what is carried to the newest forward is not what was returned."""

    def forward_begins(self, inputs: Any) -> dict[int, int]:
        """Return the place of each input that is carried -> its place among what was returned.

        Inputs are counted as `nested.flatten_into` gives them.
        """
        given = list(nested.tensors(inputs))
        self._given = [ref for each in given if (ref := memory_of(each)) is not None]
        found = {at: place for at, leaf in enumerate(given) if (place := self._find(leaf)) >= 0}
        self.was_changed = any(self._differs(given[at], place) for at, place in found.items())
        self._places |= {*found.values()}
        return found

    def forward_ends(self, output: Any) -> None:
        """A forward returns this."""
        returned = list(nested.tensors(output))
        passed_on = {each.cdata for each in self._given if not each.expired()}
        refs = {place: memory_of(tensor) for place, tensor in enumerate(returned)}
        self._returned = {
            place: ref
            for place, ref in refs.items()
            if ref is not None
            and ref.cdata not in passed_on
            and returned[place].is_floating_point()
        }
        self._digests = {
            place: (returned[place].shape, digest.of_tensor(returned[place]))
            for place in self._places & {*self._returned}
        }

    def _differs(self, given: torch.Tensor, place: int) -> bool:
        shape, known = self._digests.get(place, (None, 0))
        # Of a slice nothing is known.
        return given.shape == shape and digest.of_tensor(given) != known

    def _find(self, given: torch.Tensor) -> int:
        """Return the place of a tensor, or of what it was detached from; -1 if there is none."""
        own = memory_of(given)
        if own is None or not given.is_floating_point():
            return -1
        known = (n for n, ref in self._returned.items() if ref == own and not ref.expired())
        return next(known, -1)


class CapturedState:
    """The state that goes through the first forward of a captured step.

    Args:
        meta: of the captured step.
        tensors: of it.
    """

    def __init__(self, meta: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        self._places = {int(at): place for at, place in meta.get("states", {}).items()}
        """Input -> which of the returned tensors goes on from it."""
        self._given = {at: tensors[f"input.{at}"] for at in self._places}
        self.before = {_name(at): given for at, given in self._given.items()}
        self.after = {_name(at): tensors[f"returned.{at}"] for at in self._places}
        self.returned: dict[str, torch.Tensor] | None = None
        """What the repeated forward makes of it."""

    def put_into(self, inputs: tuple[Any, ...], carried: Mapping[int, int]) -> tuple[Any, ...]:
        """Return the inputs of a forward with the captured state.

        Args:
            inputs: as the script gives them.
            carried: which of them are state here, see `Carried.forward_begins`; what is none in
                the captured step stays as it is.
        """
        found = {id(leaf): at for at, leaf in enumerate(nested.tensors(inputs))}

        def change(leaf: torch.Tensor) -> torch.Tensor:
            at = found.get(id(leaf), -1)
            given = self._given.get(at)
            is_state = given is not None and carried.get(at) == self._places[at]
            if given is None or not is_state or given.shape != leaf.shape:
                return leaf
            return given.to(leaf.device)

        return nested.map_tensors(inputs, change)

    def note_returned(self, output: Any) -> None:
        """The first forward of the repeated step, or a later one, returns this."""
        if self.returned is None:
            returned = list(nested.tensors(output))
            self.returned = {
                _name(at): returned[place].detach().clone() for at, place in self._places.items()
            }


def _name(at: int) -> str:
    """Return the name under which a state is compared, by its place among the inputs."""
    return f"{CARRIED_INPUT} {at}"


def memory_of(tensor: torch.Tensor) -> StorageWeakRef | None:
    """Return the memory of a tensor, None if it has none of its own."""
    try:
        return StorageWeakRef(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):
        # Sparse, or inside a transformation such as `torch.func.grad`.
        return None
