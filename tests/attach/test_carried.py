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
    """Its memory may be used again at once."""
    carried = Carried()
    carried.note(torch.ones(1000))
    assert not any(carried.holds(torch.ones(1000)) for _ in range(20))
