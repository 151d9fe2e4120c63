"""`BlockOrder`: all ranks call the blocks of a sharded model in one order, or the run ends.

Every rank takes part in gathering a block. One that calls another block than the others would give
them wrong numbers, or wait for ever.
"""

from collections.abc import Mapping
from typing import Any

import torch

from hotlap.distributed.reduce import Reduce
from hotlap.errors import RunError

_END = -1


class BlockOrder:
    """Compares the order of blocks: on all ranks the first time, later with that time.

    Training and evaluation may go through a model in two ways, each always the same.

    Args:
        model: what is called as a whole.
        blocks: its parts that are gathered by themselves, by name.
        reduce: the ranks.
    """

    def __init__(self, model: Any, blocks: Mapping[str, Any], reduce: Reduce) -> None:
        self._model, self._names, self._reduce = model, [*blocks], reduce
        self._known: dict[bool, list[int]] = {}
        """Whether the model trains -> the numbers of the blocks in their order."""
        self._now: list[int] | None = None
        """Blocks that the call of the model has called so far, None outside of one."""
        # First of all hooks: torch's own wait for the other ranks.
        self._handles = [
            model.register_forward_pre_hook(self._begin, prepend=True),
            model.register_forward_hook(self._end),
        ]
        for number, block in enumerate(blocks.values()):
            hook = self._hook_of(number)
            self._handles.append(block.register_forward_pre_hook(hook, prepend=True))

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def _begin(self, *_: Any) -> None:
        self._now = []

    def _end(self, *_: Any) -> None:
        self._check(_END)
        if self._now is not None:
            self._known.setdefault(self._model.training, self._now)
        self._now = None

    def _hook_of(self, number: int) -> Any:
        def before(*_: Any) -> None:
            if torch._C._current_graph_task_id() != -1:
                # A backward pass runs it again, in the order of the backward pass.
                return
            self._check(number)
            if self._now is not None:
                self._now.append(number)

        return before

    def _check(self, number: int) -> None:
        if self._now is None:
            raise RunError(
                f"loss() called the module '{self._name(number)}' directly, but with `sharding` "
                "its parameters are complete only while `model` is called. Call the `model` that "
                "is passed to loss(model, batch), or set only level = 'optimizer' in the plan's "
                "[techniques.sharding]."
            )
        known = self._known.get(self._model.training)
        if known is None:
            most, least = self._reduce.most([float(number), -float(number)])
            if most != -least:
                self._refuse(number, "other ranks call another block")
            return
        place = len(self._now)
        expected = known[place] if place < len(known) else _END
        if number != expected:
            self._refuse(number, f"the first batch reached '{self._name(expected)}'")

    def _name(self, number: int) -> str:
        return "the end of the model" if number == _END else self._names[number]

    def _refuse(self, number: int, why: str) -> None:
        raise RunError(
            f"the forward pass reached '{self._name(number)}', but {why} at this point. With "
            "`sharding`, every batch must go through the same blocks in the same order on all "
            "ranks. Make the model's forward do so, or set only level = 'optimizer' in the plan's "
            "[techniques.sharding]."
        )
