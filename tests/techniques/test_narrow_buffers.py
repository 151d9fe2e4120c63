"""The bfloat16 copies of float32 buffers: when they are made anew."""

import pytest
import torch

from hotlap.techniques import narrow_buffers
from hotlap.techniques.narrow_buffers import Buffers


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Buffer(torch.ones(2))


def test_a_graph_makes_the_copy_itself_and_nobody_else_uses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Scaled()
    buffers = Buffers(model)

    def copy_in_a_step(*, captured: bool) -> torch.Tensor:
        monkeypatch.setattr(narrow_buffers, "_is_captured", lambda _: captured)
        with buffers._narrow_in_training():
            made = model.scale
        buffers._use_own()
        assert made.dtype == torch.bfloat16 and model.scale.dtype == torch.float32
        return made

    before = copy_in_a_step(captured=False)
    assert copy_in_a_step(captured=False) is before
    # A replay must see what a buffer is then.
    of_graph = copy_in_a_step(captured=True)
    assert of_graph is not before
    after = copy_in_a_step(captured=False)
    assert after is not of_graph
    assert copy_in_a_step(captured=False) is after
