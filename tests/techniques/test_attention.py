"""The kernel of attention: which one ran, what it computes, and why one cannot serve."""

import gc
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import hotlap
from hotlap.attach.entry import Script
from hotlap.attach.runner import run
from hotlap.host.facts import Host
from hotlap.plan import Plan
from hotlap.task import TaskFacts
from hotlap.techniques import ModelTarget, Refusal, attention
from hotlap.techniques.attending import _backends, products


class Model(nn.Module):
    """Attention as the call in its middle wants it, between two layers."""

    def __init__(self, attend: Callable[..., Any]) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(8, 24), nn.Linear(8, 3)
        self.attend = attend

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.before(x).chunk(3, -1)
        )
        return self.after(self.attend(q, k, v).transpose(1, 2).flatten(2)).mean(dim=1)


def causal(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def by_hand(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.transpose(-1, -2)).softmax(-1) @ v


def with_dropout(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)


def masked(q: Any, k: Any, v: Any) -> Any:
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def train(kernel: str, attend: Callable[..., Any] = causal, **more: Any) -> tuple[Any, str, str]:
    """Return the run, and the state and reason of its attention."""
    inputs = torch.arange(16.0 * 6 * 8).sin().reshape(16, 6, 8)
    task = hotlap.Task(
        model=lambda: Model(attend),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        data=TensorDataset(inputs, torch.arange(16) % 3),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
        batch_size=4,
        epochs=2,
    )
    done = hotlap.train(task, Plan({"attention": {"kernel": kernel}, **more}))
    row = next(row for row in done.techniques if row["name"] == "attention")
    return done, row["state"], row["why"]


def test_flash_is_proven_by_its_operator_and_math_by_its_absence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flash, state, why = train("flash")
    # On a CPU torch takes it anyway.
    assert state == "no_effect"
    assert why.startswith("torch chooses flash by itself; the first forward ran aten._scaled_dot")
    monkeypatch.setattr("hotlap.techniques.attending._torchs_choice", lambda *_: "math")
    _, state, why = train("flash")
    assert (state, "_scaled_dot_product_flash_attention_for_cpu" in why) == ("applied", True)
    math, state, why = train("math")
    assert (state, "none of which ran a fused kernel" in why) == ("applied", True)
    assert math.epochs[-1].loss == pytest.approx(flash.epochs[-1].loss, rel=1e-5)


def test_products_compute_what_torch_computes() -> None:
    plain, _, _ = train("flash")
    ours, state, why = train("products")
    assert (state, why) == ("applied", "products computed 8 calls made from Python")
    assert ours.epochs[-1].loss == pytest.approx(plain.epochs[-1].loss, rel=1e-5)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("keys", [5, 7])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_products_agree_with_torch_in_value_and_gradient(
    is_causal: bool, keys: int, scale: float | None
) -> None:
    shapes = ((2, 3, 5, 4), (2, 3, keys, 4), (2, 3, keys, 4))
    tensors = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    expected = F.scaled_dot_product_attention(*tensors, is_causal=is_causal, scale=scale)
    found = products(*tensors, is_causal, scale)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad(found, tensors, weights),
        torch.autograd.grad(expected, tensors, weights),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kernel", ["flash", "math", "products"])
def test_a_model_that_asks_torch_for_no_attention_is_said_to_be_unaffected(kernel: str) -> None:
    _, state, why = train(kernel, by_hand)
    assert (state, "never called `scaled_dot_product_attention`" in why) == ("no_effect", True)


def test_torchs_own_reason_is_given_where_the_kernel_cannot_serve() -> None:
    _, state, why = train("flash", with_dropout)
    assert state == "refused"
    assert "dropout" in why and "the math kernel ran" in why


@pytest.mark.parametrize(("attend", "reason"), [(with_dropout, "dropout"), (masked, "attn_mask")])
def test_what_products_cannot_serve_is_left_to_torch(attend: Any, reason: str) -> None:
    plain, _, _ = train("math", attend)
    done, state, why = train("products", attend)
    assert state == "refused" and reason in why
    assert done.epochs[-1].loss == pytest.approx(plain.epochs[-1].loss, rel=1e-5)


def test_attention_that_is_computed_again_in_the_backward_uses_the_same_kernel() -> None:
    from torch.utils.checkpoint import checkpoint

    def again(q: Any, k: Any, v: Any) -> Any:
        return checkpoint(causal, q, k, v, use_reentrant=False)

    _, state, why = train("products", again)
    assert (state, why) == ("applied", "products computed 16 calls made from Python")
    assert train("math", again)[1] == "applied"


def test_everything_is_as_before_when_a_run_has_ended_or_was_broken_off() -> None:
    q = torch.randn(1, 2, 4, 4)
    before = torch._fused_sdp_choice(q, q, q)
    train("math")
    assert torch._fused_sdp_choice(q, q, q) == before
    model = Model(causal)
    target = ModelTarget(model, [])
    attention.apply(target, attention.Options("products"))
    attention_of = target.notes["attention"]
    F.scaled_dot_product_attention(q, q, q)
    assert attention_of.served == 1
    del model, target.module
    target.ended.clear()
    gc.collect()
    F.scaled_dot_product_attention(q, q, q)
    assert attention_of.served == 1


@pytest.mark.parametrize("kernel", ["efficient", "cudnn", "xformers"])
def test_kernels_of_gpus_are_refused_on_a_cpu(kernel: Any) -> None:
    facts, host = TaskFacts(layers={"Linear": 2}), Host(cpu="x", cores=2)
    reason = attention.TECHNIQUE.why_not(facts, host, attention.Options(kernel))
    assert reason is not None and "flash, math, products" in reason
    with pytest.raises(Refusal, match="needs a GPU"):
        attention.apply(ModelTarget(Model(causal), []), attention.Options(kernel))


@pytest.mark.skipif(importlib.util.find_spec("xformers") is not None, reason="xformers is here")
def test_an_absent_package_is_named_with_its_install_command() -> None:
    facts, host = TaskFacts(device="cuda:0", layers={"Linear": 2}), Host(cpu="x", cores=2)
    reason = attention.TECHNIQUE.why_not(facts, host, attention.Options("xformers"))
    assert reason is not None and "pip install xformers" in reason
    assert attention.TECHNIQUE.why_not(facts, host, attention.Options("cudnn")) is None


def test_tuning_tries_it_only_where_a_layer_is_named_so() -> None:
    host = Host(cpu="x", cores=2)
    assert attention.TECHNIQUE.candidates(TaskFacts(layers={"Linear": 2}), host) == ()
    facts = TaskFacts(layers={"Linear": 2, "SelfAttention": 1})
    assert attention.TECHNIQUE.candidates(facts, host) == ({"kernel": "products"},)


def test_a_script_that_nobody_edited_gets_the_kernel_too(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    chosen = Plan({"attention": {"kernel": "products"}})
    with (tmp_path / "out").open("w") as stream:
        outcome = run(Script(path=str(script), cwd=str(tmp_path)), chosen, stdout=stream.fileno())
    assert outcome.exit_code == 0
    (row,) = outcome.techniques
    assert (row["state"], row["why"]) == ("applied", "products computed 5 calls made from Python")


SCRIPT = """
import torch
from torch.nn.functional import scaled_dot_product_attention as attend
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = layer
    def forward(self, x):
        x = self.layer(x)
        return attend(x, x, x, is_causal=True)
model = Model()
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(2, 2, 3, 4)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn", "math", "products"])
def test_kernels_on_a_gpu_are_proven_by_their_operator(kernel: str) -> None:
    def wide(q: Any, k: Any, v: Any) -> Any:
        return causal(*(x.repeat(1, 1, 1, 16).to(torch.bfloat16) for x in (q, k, v)))[
            ..., :4
        ].float()

    # Before anything is preferred.
    q = torch.randn(4, 2, 6, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    choice = torch._fused_sdp_choice(q, q, q, is_causal=True)
    by_itself = {int(each): name for name, each in _backends().items()}[choice]
    _, state, why = train(kernel, wide)
    assert state == ("no_effect" if kernel == by_itself else "applied"), why


@pytest.mark.parametrize("in_place", [True, False])
def test_a_model_that_the_script_compiles_is_left_alone(in_place: bool) -> None:
    module = nn.Linear(4, 4)
    if in_place:
        module.compile(backend="eager")
    target = ModelTarget(module if in_place else torch.compile(module, backend="eager"), [])
    with pytest.raises(Refusal, match="the model is already compiled by `torch"):
        attention.apply(target, attention.Options(kernel="products"))
    assert not module._forward_hooks
