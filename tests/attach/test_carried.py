"""Inputs that a model has returned before, such as a hidden state, are known as such."""

from typing import Any

import torch
from torch import nn

from hotlap.attach.roles.carried import CapturedState, Carried

X = torch.randn(3, 2, 4)


def passed(carried: Carried, model: nn.Module, *inputs: Any) -> tuple[dict[int, int], Any]:
    """Return what was known to be carried at a forward, and what it returned."""
    found = carried.forward_begins(inputs)
    output = model(*inputs)
    carried.forward_ends(output)
    return found, output


def test_what_the_last_forward_has_returned_is_carried() -> None:
    model, carried = nn.LSTM(4, 8), Carried()
    found, (output, (hidden, cell)) = passed(carried, model, X)
    assert found == {}
    # Which of the inputs, and which of what was returned.
    assert carried.forward_begins((X, (hidden.detach(), cell))) == {1: 1, 2: 2}
    assert carried.forward_begins((output[1:], X)) == {0: 0}
    # What is computed from it is something else.
    assert carried.forward_begins((X, hidden.detach().clone())) == {}
    passed(carried, model, X)
    assert carried.forward_begins((X, (hidden, cell))) == {}


def test_what_a_model_only_passes_on_is_no_state() -> None:
    buffer, carried = torch.zeros(4), Carried()
    for step in range(3):
        buffer.copy_(torch.full((4,), float(step)))
        found, _ = passed(carried, nn.Sequential(nn.Identity(), nn.Flatten(0)), buffer)
        assert found == {}


def test_a_state_that_is_changed_in_between_is_seen() -> None:
    model, carried = nn.LSTM(4, 8), Carried()
    _, (_, state) = passed(carried, model, X)
    for changes in (False, False, True, False):
        given = tuple(part.detach() for part in state)
        if changes:
            given[1].data.mul_(0.999)
        _, (_, state) = passed(carried, model, X, given)
        assert carried.was_changed is changes


def test_what_is_gone_is_no_longer_known() -> None:
    """Its memory may be used again at once."""
    carried = Carried()
    carried.forward_ends(torch.ones(1000))
    assert not any(carried.forward_begins(torch.ones(1000)) for _ in range(20))


def test_only_what_is_state_here_and_there_is_given_as_captured() -> None:
    tensors = {f"input.{at}": torch.full((2,), float(at)) for at in range(3)}
    tensors |= {f"returned.{at}": torch.full((2,), 10.0 + at) for at in (1, 2)}
    state = CapturedState({"states": {"1": 1, "2": 2}}, tensors)
    x, hidden, cell = (torch.full((2,), -1.0) for _ in range(3))
    given = state.put_into((x, (hidden, cell)), {1: 1, 2: 1})
    assert given[0] is x and torch.equal(given[1][0], tensors["input.1"]) and given[1][1] is cell
    state.note_returned((x, (hidden, cell)))
    state.note_returned((x, (x, x)))
    assert state.returned is not None and {*state.returned} == {*state.before} == {*state.after}
    assert torch.equal(state.after["carried input 2"], tensors["returned.2"])


def test_what_has_no_memory_of_its_own_is_no_state() -> None:
    carried = Carried()
    sparse = torch.eye(3).to_sparse()
    carried.forward_ends((sparse, torch.ones(2)))
    assert carried.forward_begins(sparse) == {}

    def loss(x: torch.Tensor) -> torch.Tensor:
        assert carried.forward_begins(x) == {}
        carried.forward_ends(x * 2)
        return (x * 2).sum()

    torch.func.grad(loss)(torch.ones(2))
    torch.func.vmap(loss)(torch.ones(2, 2))
