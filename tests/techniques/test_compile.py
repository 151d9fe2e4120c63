"""What is compiled, how often, and what becomes of it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import hotlap
from hotlap.plan import Plan
from hotlap.techniques import Numerics, Refusal, StepTarget, get
from hotlap.techniques.attending import FirstForward, intercept_attention, replacement
from hotlap.techniques.compile import find_repeated_blocks
from tests.engine.test_conformance import Images

# Inductor imports modules of torch that warn of themselves.
pytestmark = pytest.mark.filterwarnings("ignore")


class Block(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.scale = 1.0

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + torch.relu(self.inner(values)) * self.scale


class Restless(Block):
    """Multiplies by another Python number in each forward: each is compiled anew."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.scale += 0.5
        return super().forward(values)


def network(kind: type[Block] = Block) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *[kind() for _ in range(4)], nn.Linear(64, 3))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def train(
    options: dict[str, Any] | None, make: Callable[[], nn.Module] = network, **beside: Any
) -> Any:
    task = hotlap.Task(
        model=make,
        loss=loss,
        data=Images(),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
        batch_size=10,
        epochs=3,
    )
    return hotlap.train(task, Plan(beside if options is None else {**beside, "compile": options}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "graphs"),
    [
        ({}, "1 graph "),
        ({"region": "loss"}, "1 graph "),
        # The first block's input needs no gradient, the others' do.
        ({"region": "blocks"}, "2 graphs "),
        ({"fullgraph": True, "dynamic": True}, "1 graph "),
    ],
)
def test_every_region_learns_what_the_plain_run_learns(options: Any, graphs: str) -> None:
    plain, done = train(None), train(options)
    (row,) = done.techniques
    assert row["state"] == "applied"
    assert row["why"].startswith(graphs)
    assert list(done.model.state_dict()) == list(plain.model.state_dict())
    for left, right in zip(done.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-4)
    assert "forward" not in vars(done.model)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "is_equal"), [("eager", True), ("inductor", False)])
def test_compiled_dropout_draws_what_the_plain_run_draws(source: str, is_equal: bool) -> None:
    def dropping() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 3))

    technique = get("compile")
    claim = Numerics.ROUNDING if is_equal else Numerics.STREAM
    assert technique.numerics(technique.options({"random": source})) == claim
    plain, done = train(None, dropping), train({"random": source}, dropping)
    pairs = zip(done.model.parameters(), plain.model.parameters(), strict=True)
    near = [torch.allclose(left, right, rtol=1e-3, atol=1e-4) for left, right in pairs]
    assert all(near) == is_equal


@pytest.mark.slow
def test_who_compiles_again_and_again_is_refused() -> None:
    (row,) = train({}, lambda: network(Restless)).techniques
    assert row["state"] == "refused"
    assert "it recompiles repeatedly" in row["why"]


def test_the_largest_layer_that_repeats_is_found() -> None:
    assert len(find_repeated_blocks(network())) == 4
    nested = nn.Sequential(*[nn.Sequential(Block(), Block()) for _ in range(3)])
    assert [type(part) for part in find_repeated_blocks(nested)] == [nn.Sequential] * 3
    assert find_repeated_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []


def test_what_cannot_be_compiled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    technique = get("compile")

    def apply(module: nn.Module, device: str = "cpu", **options: Any) -> None:
        technique.apply(StepTarget(module, None, device), technique.options(options))

    with pytest.raises(Refusal, match="no repeated module"):
        apply(nn.Sequential(nn.Linear(2, 2)), region="blocks")
    compiled = network()
    compiled[1].compile()
    with pytest.raises(Refusal, match="module '1' is already compiled"):
        apply(compiled)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Refusal, match="pip install triton"):
        apply(network(), "cuda")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(Refusal, match=r"no C\+\+ compiler"):
        apply(network())


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(64, 64), nn.Linear(64, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        parts = self.inner(images.flatten(1)).view(-1, 4, 2, 8)
        return self.last(nn.functional.scaled_dot_product_attention(parts, parts, parts).flatten(1))


def test_who_records_the_first_forward_does_not_keep_it_from_being_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What the back end makes of the graph is not what this is about.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    done = train({}, Attending, attention={"kernel": "products"})
    states = {row["name"]: row["state"] for row in done.techniques}
    assert states == {"attention": "applied", "compile": "applied"}, done.techniques


@pytest.mark.slow
def test_code_of_another_attention_is_not_taken_from_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from torch._dynamo.utils import counters

    def hits(**beside: Any) -> int:
        before = counters["aot_autograd"]["autograd_cache_hit"]
        train({}, Attending, **beside)
        return counters["aot_autograd"]["autograd_cache_hit"] - before

    # A cache with nothing in it.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    products = {"attention": {"kernel": "products"}}
    assert [hits(**products), hits(), hits(), hits(**products)] == [0, 0, 1, 1]
    assert torch.compiler.config.cache_key_tag == ""


def test_gradients_reach_every_layer_after_a_run_with_another_attention() -> None:
    def gradient() -> Any:
        model = Attending()
        compiled = torch.compile(lambda x: model(x), backend="aot_eager")
        compiled(torch.randn(2, 1, 8, 8)).sum().backward()
        torch._dynamo.reset()
        return model.inner.weight.grad

    seen = FirstForward("products")
    undo = intercept_attention("cpu", replacement("products", seen))
    assert gradient() is not None and seen.served
    undo()
    served = seen.served
    assert gradient() is not None and seen.served == served


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", "default"])
def test_a_loss_is_still_that_of_its_step_when_the_next_one_was_taken(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[torch.Tensor] = []

    def compiled(function: Any, **_: Any) -> Any:
        """As CUDA graphs do, give back memory that the next call writes to."""

        def call(*args: Any) -> Any:
            total, count = function(*args)
            held.append(total.detach().clone()) if not held else held[0].copy_(total)
            return held[0], count

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr("hotlap.techniques.compile._no_back_end", lambda device: None)
    target = StepTarget(nn.Linear(1, 1), None, "cuda")
    options = get("compile").options({"region": "loss", "mode": mode})
    get("compile").apply(target, options)
    loss = target.losses[0](lambda model, batch: (torch.tensor(float(batch)), 3))
    (first, count), _ = loss(target.module, 1), loss(target.module, 2)
    assert count == 3
    # Without graphs nothing is written over, and nothing has to be copied.
    assert float(first) == (2.0 if mode == "default" else 1.0)


@pytest.mark.parametrize(
    "name", ["autocast", pytest.param("master_weights", marks=pytest.mark.slow)]
)
def test_what_looks_at_a_forward_neither_breaks_nor_repeats_its_compilation(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    counters.clear()
    # The tracing is torch's own; what it would compile is no matter here.
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **_: compiler(function, backend="eager"))
    monkeypatch.setattr("hotlap.techniques.compile._no_back_end", lambda device: None)
    done = train({"region": "loss"}, **{name: {}})
    rows = {row["name"]: row for row in done.techniques}
    assert rows[name]["state"] == "applied" and "bfloat16" in rows[name]["why"], rows
    assert rows["compile"]["why"].startswith("1 graph compiled"), rows
    assert not counters["graph_break"]
