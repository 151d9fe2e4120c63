"""What looks at a script on one rank only starts no collective, which would wait for the others."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn

from hotlap.attach.learning.inputs import Inputs
from hotlap.trace.denormals import count_denormals
from hotlap.trace.recorder import Limits, Recorder
from hotlap.trace.safe_calls import SafeCalls
from hotlap.trial import digest
from hotlap.trial.averages import Averages
from hotlap.trial.elements import Elements


@pytest.fixture
def model() -> Iterator[nn.Module]:
    """A model of which this process has one of two shares; collectives do nothing."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        yield model
    finally:
        distributed.destroy_process_group()


def collectives(of: Any) -> int:
    from torch.distributed.tensor.debug import CommDebugMode

    with CommDebugMode() as mode:
        of()
    return mode.get_total_counts()


def give_gradients(model: nn.Module) -> None:
    # Collectives that do nothing leave gradients that nobody has written.
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)


def test_gradients_losses_and_state_are_looked_at_without_a_collective(model: nn.Module) -> None:
    inputs = Inputs(SafeCalls())
    inputs.follow(model)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.full((3, 8), 100.0)).sum().backward()
    # The guard's control.
    gradients: Any = [parameter.grad for parameter in model.parameters()]
    assert collectives(lambda: torch.stack([each.norm() for each in gradients]).norm())
    assert not collectives(lambda: inputs.step_begins(optimizer))
    (found,) = inputs.facts()
    assert (found.most, found.gradient_norm, inputs.is_open) == (100.0, None, False)
    give_gradients(model)
    optimizer.step()
    next(iter(optimizer.state.values()))["exp_avg"].fill_(1e-40)
    # Of 4 rows of 8 this rank has two.
    found = []
    assert not collectives(lambda: found.append(count_denormals([optimizer])))
    assert found == [16]
    recorder = Recorder(Limits(), started=0.0, tell_step_s=lambda seconds: None)
    loss = next(model.parameters()).detach().sum()
    assert not collectives(lambda: recorder.note_loss(loss))
    assert not collectives(recorder.losses)
    assert recorder.losses() == []


def test_a_share_is_digested_and_followed_as_this_rank_holds_it(model: nn.Module) -> None:
    share: Any = next(model.parameters())
    before = digest.of_tensor(share)
    elements = Elements(share, 1000, torch.Generator().manual_seed(0))
    assert digest.of_tensor(share) == before
    assert elements.of(share).tolist() == share.to_local().double().flatten().tolist()
    optimizer, averages = torch.optim.SGD(model.parameters(), lr=1.0), Averages()
    give_gradients(model)
    averages.update_begins([model], list(model.parameters()))
    optimizer.step()
    assert digest.of_tensor(share) != before
