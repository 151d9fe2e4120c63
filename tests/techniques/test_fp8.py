"""Products in 8 bits: what is refused without a GPU, and what holds around the layers with one."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.host.facts import Host
from hotlap.task import TaskFacts
from hotlap.techniques import ModelTarget, NoOptions, Refusal, fp8

HOST = Host(cpu="x", cores=2)


class Model(nn.Module):
    """Layers that fit, one whose side does not, and one that shares its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.odd = nn.Linear(16, 10)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.down(self.up(self.tokens(tokens)))
        return self.head(x).sum(-1) + self.odd(x).sum(-1)


@pytest.fixture
def as_if_there(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Stand in for the GPU and the package: products of inputs rounded to e4m3."""
    made: list[Any] = []

    def linear_of(linear: Any) -> Any:
        made.append(linear)

        def forward(inputs: torch.Tensor) -> torch.Tensor:
            rounded = inputs.to(torch.float8_e4m3fn).to(inputs.dtype)
            return nn.functional.linear(rounded, linear.weight, linear.bias)

        return forward, lambda: True

    monkeypatch.setattr(fp8, "_engine_linear", linear_of)
    monkeypatch.setattr(fp8, "_cannot_multiply", lambda device: None)
    yield made


def applied(model: nn.Module) -> ModelTarget:
    target = ModelTarget(model, [])
    fp8.TECHNIQUE.apply(target, NoOptions())
    return target


def test_without_a_gpu_or_the_package_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = {"Linear": 3}
    assert "NVIDIA GPU" in (
        fp8.TECHNIQUE.why_not(TaskFacts(layers=linear), HOST, NoOptions()) or ""
    )
    on_gpu = TaskFacts(device="cuda:0", layers=linear)
    monkeypatch.setattr(fp8, "find_spec", lambda name: None)
    assert "pip install" in (fp8.TECHNIQUE.why_not(on_gpu, HOST, NoOptions()) or "")
    monkeypatch.setattr(fp8, "find_spec", lambda name: SimpleNamespace())
    assert fp8.TECHNIQUE.why_not(on_gpu, HOST, NoOptions()) is None
    with pytest.raises(Refusal, match="NVIDIA GPU"):
        applied(Model())


@pytest.mark.parametrize(
    ("capability", "allowed"), [((8, 0), False), ((8, 9), True), ((9, 0), True)]
)
def test_older_gpus_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], allowed: bool
) -> None:
    monkeypatch.setattr(fp8, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A GPU")
    reason = fp8._cannot_multiply(torch.device("cuda:0"))
    assert (
        reason is None
        if allowed
        else (reason or "").startswith("A GPU has compute capability 8.0, and fp8 needs 8.9")
    )


def test_layers_that_fit_are_taken_and_the_model_keeps_its_parameters(as_if_there: Any) -> None:
    model = Model()
    before = {name: id(p) for name, p in model.named_parameters()}
    keys = list(model.state_dict())
    target = applied(model)
    assert as_if_there == [model.up, model.down]
    model(torch.arange(8).reshape(1, 8)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert {name: id(p) for name, p in model.named_parameters()} == before
    assert list(model.state_dict()) == keys
    found = fp8.TECHNIQUE.proof(target, NoOptions())
    assert (found.state, found.why) == ("applied", "2 of 2 layers computed in 8 bits, 2 calls")


def test_rows_that_do_not_fit_are_computed_as_before(as_if_there: Any) -> None:
    model, tokens = Model(), torch.arange(7).reshape(1, 7)
    expected = model(tokens)
    target = applied(model)
    assert torch.equal(model(tokens), expected)
    assert "2 calls ran without fp8" in fp8.TECHNIQUE.proof(target, NoOptions()).why
    assert not torch.equal(model(tokens.repeat(8, 1))[0], expected[0])
    for undo in target.ended:
        undo()
    assert torch.equal(model(tokens.repeat(8, 1)), Model.forward(model, tokens.repeat(8, 1)))
    assert "forward" not in vars(model.up)


def test_a_model_without_a_layer_that_fits_is_refused(as_if_there: Any) -> None:
    with pytest.raises(Refusal, match="divisible by 16"):
        applied(nn.Linear(10, 10))


@pytest.mark.gpu
def test_transformer_engine_computes_in_8_bits() -> None:
    pytest.importorskip("transformer_engine.pytorch")
    model = Model().cuda()
    if fp8._cannot_multiply(model.up.weight.device):
        pytest.skip("this GPU does not multiply in 8 bits")
    tokens = torch.arange(32, device="cuda").repeat(4, 1)
    expected = model(tokens)
    target = applied(model)
    found = model(tokens)
    assert fp8.TECHNIQUE.proof(target, NoOptions()).state == "applied"
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=0.2, atol=0.2)
