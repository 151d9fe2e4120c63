"""Copies of a model are found, and followed towards its weights."""

import copy
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from hotlap.lab.auxiliary_checks import check_averages
from hotlap.trial.averages import Averages


def own_class() -> type[nn.Sequential]:
    """Return a class of its own: what other tests have left is no copy of its modules."""

    class Own(nn.Sequential):
        pass

    return Own


def run(*, skip_every: int = 0, decay: float = 0.9) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    model = own_class()(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    averages = Averages()
    for step in range(1, 21):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        averages.update_begins([model], ())
        optimizer.step()
        if not skip_every or step % skip_every:
            average.update_parameters(model)
    return averages.report()


def test_an_honest_average_moves_by_the_same_share_of_its_way() -> None:
    found = run()
    assert len(found) == 1
    # The first update of an average copies the weights.
    assert found[0]["moved"][2:] == pytest.approx([0.1] * (len(found[0]["moved"]) - 2), rel=1e-3)
    assert check_averages({"averages": found}, {"averages": run()}).state == "passed"


@pytest.mark.parametrize("changes", [{"skip_every": 2}, {"skip_every": 4}, {"decay": 0.905}])
def test_an_average_that_moves_otherwise_is_a_change(changes: dict[str, Any]) -> None:
    found = check_averages({"averages": run()}, {"averages": run(**changes)})
    assert found.state == "failed" and "copy 1" in found.evidence


def run_with_buffers(
    *, scale: float = 1.0, start: float = 1.0, trains: bool = False, noise: float = 0.0
) -> list[dict[str, Any]]:
    """Train with an average of weights and of batch norm's buffers."""
    torch.manual_seed(0)
    model = own_class()(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    averages = Averages()
    with torch.no_grad():
        for weight in average.parameters():
            weight.mul_(start)
    for _ in range(20):
        optimizer.zero_grad()
        batch = torch.randn(5, 4)
        batch += noise * torch.rand_like(batch)
        model(batch).square().mean().backward()
        averages.update_begins([model], list(model.parameters()))
        optimizer.step()
        with torch.no_grad():
            for ours, theirs in zip(average.parameters(), model.parameters(), strict=True):
                ours.lerp_(theirs, 0.1)
            if trains:
                average(batch)
            else:
                for ours, theirs in zip(average.buffers(), model.buffers(), strict=True):
                    ours.copy_(theirs)
                average[1].running_var.mul_(scale)
    return averages.report()


def test_buffers_of_an_average_move_towards_those_of_the_model() -> None:
    honest = {"averages": run_with_buffers()}
    assert honest["averages"][0]["buffers"] is not None
    rounded = {"averages": run_with_buffers(noise=1e-6)}
    assert check_averages(honest, rounded).state == "passed"
    found = check_averages(honest, {"averages": run_with_buffers(scale=1.05, noise=1e-6)})
    assert found.state == "failed" and "the buffers of copy 1" in found.evidence
    # A teacher in training mode has those that its own forwards make.
    of_teacher = {"averages": run_with_buffers(trains=True)}
    rounded = {"averages": run_with_buffers(trains=True, noise=1e-6)}
    assert check_averages(of_teacher, rounded).state == "passed"


def test_an_average_starts_as_in_the_plain_run() -> None:
    found = check_averages(
        {"averages": run_with_buffers()}, {"averages": run_with_buffers(start=1.0001)}
    )
    assert found.state == "failed" and "does not start" in found.evidence


def test_copies_must_be_as_many() -> None:
    assert check_averages({"averages": run()}, {"averages": []}).state == "failed"
    # Two plain runs differed in them.
    assert check_averages({}, {}).state == "partial"


def follow(kind: str, *, skip_every: int = 0, decay: float = 0.9) -> list[dict[str, Any]]:
    """Train with an average that is no module."""
    torch.manual_seed(0)
    model = own_class()(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    named = dict(model.named_parameters())
    names = [name for name, weight in named.items() if kind != "learned" or weight.requires_grad]
    shadow: Any = {name: named[name].detach().clone() for name in names}
    if kind == "state_dict":
        shadow = {name: each.detach().clone() for name, each in model.state_dict().items()}
    if kind == "ordered":
        shadow = copy.deepcopy(model.state_dict())
    if kind in ("list", "learned"):
        shadow = [*shadow.values()]
    if kind == "gradients":
        shadow = [torch.zeros_like(each) for each in model.parameters()]
    averages = Averages()
    for step in range(1, 21):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        averages.update_begins([model], ())
        optimizer.step()
        if skip_every and step % skip_every == 0:
            continue
        places = range(len(names)) if type(shadow) is list else names
        for place, name in zip(places, names, strict=True):
            weight = named[name]
            if kind == "gradients" and weight.grad is not None:
                shadow[place] = decay * shadow[place] + weight.grad
            elif kind == "rebound":
                shadow[place] = decay * shadow[place] + (1 - decay) * weight.detach()
            elif kind not in ("best", "gradients") or step == 12:
                shadow[place].lerp_(weight.detach(), 1 - decay)
    return averages.report()


@pytest.mark.parametrize("kind", ["dict", "state_dict", "ordered", "rebound", "list", "learned"])
def test_averages_in_lists_and_dicts_are_followed(kind: str) -> None:
    found = follow(kind)
    assert len(found) == 1
    assert found[0]["moved"][2:] == pytest.approx([0.1] * (len(found[0]["moved"]) - 2), rel=1e-3)
    assert check_averages({"averages": found}, {"averages": follow(kind)}).state == "passed"
    for changes in ({"skip_every": 2}, {"decay": 0.905}):
        other = {"averages": follow(kind, **changes)}
        assert check_averages({"averages": found}, other).state == "failed"


@pytest.mark.parametrize("kind", ["gradients", "best"])
def test_what_has_the_same_shapes_is_no_average(kind: str) -> None:
    assert follow(kind) == []


def test_an_object_that_answers_for_its_class_ends_no_script() -> None:
    class Proxy:
        @property
        def __class__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("outside of its context")

    kept = [Proxy(), Proxy()]
    model = own_class()(nn.Linear(2, 2))
    assert Averages().update_begins([model], ()) == []
    assert len(kept) == 2


def test_a_container_that_the_script_drops_is_forgotten() -> None:
    model = own_class()(nn.Linear(4, 4))
    averages = Averages()
    kept = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    dropped = weakref.ref(kept["0.weight"])
    averages.update_begins([model], ())
    del kept
    averages.update_begins([model], ())
    assert dropped() is None


def test_a_models_own_parts_are_no_copies() -> None:
    model = own_class()(nn.Linear(4, 4), nn.Linear(4, 4))
    assert Averages().update_begins([model], ()) == []
    twin = copy.deepcopy(model)
    assert Averages().update_begins([model], ()) == [twin]
    # What shares a parameter with the model is the model.
    tied = copy.deepcopy(model)
    tied[0].weight = model[0].weight
    assert Averages().update_begins([model], ()) == [twin]
    # Nor is one that is trained itself.
    assert Averages().update_begins([model], [*twin.parameters()]) == []


@pytest.mark.parametrize("decay", [0.9, 0.8])
def test_parts_of_a_model_may_have_averages_in_a_wrapper_of_their_own(decay: float) -> None:
    found = _follow_wrapped(0.9)
    # The layers of the wrapper are alike: each is compared with the one that it was copied from.
    assert [each["moved"][2] for each in found] == pytest.approx([0.1, 0.1], rel=1e-3)
    other = check_averages({"averages": found}, {"averages": _follow_wrapped(decay)})
    assert other.state == ("passed" if decay == 0.9 else "failed")


def _follow_wrapped(decay: float) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    model = own_class()(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    target = nn.Sequential(*(copy.deepcopy(model[place]) for place in (0, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    averages = Averages()
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        averages.update_begins([model], [*model.parameters()], [target])
        optimizer.step()
        for own, weight in zip(target.parameters(), model.parameters(), strict=False):
            own.data.lerp_(weight.detach(), 1 - decay)
    return averages.report()


def test_layers_of_another_network_are_no_copies_of_layers_like_them() -> None:
    critic = own_class()(nn.Linear(4, 4), nn.Linear(4, 1))
    actor = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    averages = Averages()
    for _ in range(10):
        averages.update_begins([critic], [*critic.parameters()], [actor])
        actor[0].weight.data.lerp_(torch.randn(4, 4), 0.1)
    assert averages.report() == []


def test_a_copy_that_an_optimizer_trains_later_is_forgotten() -> None:
    model = own_class()(nn.Linear(4, 4), nn.Linear(4, 1))
    wrapper = nn.Sequential(copy.deepcopy(model[0]))
    averages, counts = Averages(), []
    for trained in ([], [*wrapper.parameters()]):
        for _ in range(10):
            averages.update_begins([model], [*model.parameters(), *trained], [wrapper])
            wrapper[0].weight.data.lerp_(model[0].weight.data + 1.0, 0.1)
        counts.append(len(averages.report()))
    assert counts == [1, 0]


def test_copies_that_an_optimizer_trains_are_no_averages() -> None:
    def follow(*, are_trained: bool) -> list[dict[str, Any]]:
        torch.manual_seed(0)
        model = own_class()(nn.Linear(4, 4))
        masters = [weight.detach().clone() for weight in model.parameters()]
        averages = Averages()
        for _ in range(7):
            averages.update_begins([model], masters if are_trained else ())
            for master, weight in zip(masters, model.parameters(), strict=True):
                master.add_(0.01)
                weight.data.copy_(master.bfloat16())
        return averages.report()

    assert len(follow(are_trained=False)) == 1
    assert follow(are_trained=True) == []


def test_what_cannot_be_followed_ends_no_script() -> None:
    kind = own_class()
    model = kind(nn.Linear(3, 5))
    elsewhere = copy.deepcopy(model).to("meta")
    lazy = kind(nn.LazyLinear(5))
    half = object.__new__(kind)
    averages = Averages()
    assert averages.update_begins([model], ()) == []
    del elsewhere, lazy, half
    kept = copy.deepcopy(model)
    assert averages.update_begins([model], ()) == [kept]
    # One that becomes another module, or is dropped, is forgotten.
    kept.append(nn.Linear(5, 5))
    averages.update_begins([model], ())
    assert averages.report() == []


def test_copies_are_matched_whatever_their_order() -> None:
    slow, fast = run(decay=0.99), run(decay=0.5)
    theirs, ours = {"averages": slow + fast}, {"averages": fast + slow}
    assert check_averages(theirs, ours).state == "passed"
    assert check_averages(theirs, {"averages": fast + fast}).state == "failed"
