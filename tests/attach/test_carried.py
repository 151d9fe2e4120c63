"""Inputs that a model has returned before, such as a hidden state, are known as such."""

import torch
from torch import nn

from hotlap.attach.roles.carried import Carried


def test_what_the_last_forward_has_returned_is_carried() -> None:
    model, carried = nn.LSTM(4, 8), Carried()
    x = torch.randn(3, 2, 4)
    assert not carried.holds(x)
    output, (hidden, cell) = model(x)
    carried.note((output, (hidden, cell)))
    assert carried.holds(hidden.detach()) and carried.holds(cell) and carried.holds(output[1:])
    # What is computed from it is something else, and so are the data.
    assert not carried.holds(x) and not carried.holds(hidden.detach().clone())
    carried.note(model(x))
    assert not carried.holds(hidden)


def test_what_is_gone_is_no_longer_known() -> None:
    carried = Carried()
    kept = torch.ones(1000)
    address = kept.data_ptr()
    carried.note(kept)
    del kept
    others = [torch.ones(1000) for _ in range(20)]
    # Memory is used again: not even what lies in the same place is carried.
    assert any(other.data_ptr() == address for other in others)
    assert not any(map(carried.holds, others))
