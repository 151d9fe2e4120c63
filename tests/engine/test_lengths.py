"""Sequences of different lengths: padding moves no gradient, and a warm-up leaves no trace."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import hotlap
from hotlap.checkpoint.read import find_newest
from hotlap.engine import largest_batch
from hotlap.engine.build import build
from hotlap.engine.step.choosing import make_step
from hotlap.plan import Plan
from hotlap.task import Task
from hotlap.techniques import StepTarget

LENGTHS = [1 + (7 * number) % 13 for number in range(26)]


class Noisy(Dataset):
    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> Any:
        noise = random.random() + np.random.random() + torch.rand(LENGTHS[index], 3)
        return noise, index % 2


class Tagger(nn.Module):
    """Has all that a forward can leave a trace in."""

    def __init__(self, rate: float = 0.3) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(3, 8), nn.Linear(8, 2)
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(rate)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.calls = 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen = self.seen + 1
        hidden = self.inner(rows).transpose(1, 2)
        return self.out(self.drop(self.norm(hidden).transpose(1, 2)))


def per_token(model: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rows, labels, real = batch
    logits = model(rows)
    targets = labels[:, None].expand(rows.shape[:2]).masked_fill(~real, -100)
    total = nn.functional.cross_entropy(
        logits.transpose(1, 2), targets, ignore_index=-100, reduction="sum"
    )
    return total, real.sum()


def task(**options: Any) -> Task:
    given = {
        "model": Tagger,
        "loss": per_token,
        "data": Noisy(),
        "optimizer": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01),
        "schedule": lambda o: torch.optim.lr_scheduler.StepLR(o, 5, gamma=0.5),
        "collate": hotlap.pad({0: 0.0}, mask=True),
        "lengths": LENGTHS,
        "tokens_per_batch": 40,
        "accumulate": 3,
        "splits_statistics": True,
        "epochs": 5,
        "clip_norm": 1.0,
    }
    return Task(**{**given, **options})


def state(run_dir: Path) -> tuple[str, str]:
    found, _ = find_newest(run_dir / "ckpt")
    assert found is not None
    tensors = {
        f"{file}/{name}": tensor.numpy().tobytes().hex()
        for file, group in found.tensors.items()
        for name, tensor in group.items()
    }
    return json.dumps(tensors, sort_keys=True), json.dumps(found.state, sort_keys=True)


def test_resumed_after_any_step_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = hotlap.train(task(), run_dir=tmp_path / "whole", save_every="1steps", keep=100)
    assert whole.steps == task().total_steps > 12
    # The last step of an epoch is a shorter one.
    assert len(task().budget.sizes) % 3 != 0
    expected = state(tmp_path / "whole")
    for done in range(1, whole.steps):
        begun = str(tmp_path / "whole" / "ckpt" / f"step-{done:012d}")
        hotlap.train(task(), run_dir=tmp_path / str(done), resume=begun)
        assert state(tmp_path / str(done)) == expected, done
    # Under another number of workers too.
    begun = str(tmp_path / "whole" / "ckpt" / f"step-{5:012d}")
    plan = Plan({"workers": {"count": 1}, "optimizer": {"implementation": "foreach"}})
    hotlap.train(task(), plan, run_dir=tmp_path / "workers", resume=begun)
    assert state(tmp_path / "workers") == expected


def test_the_comparison_sees_another_composition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hotlap.train(task(), run_dir=tmp_path / "whole")
    hotlap.train(task(epochs=None, steps=5), run_dir=tmp_path / "part")
    shifted = "hotlap.feed.sources.lengths.epoch_batches"
    from hotlap.feed.samples.order import epoch_batches

    monkeypatch.setattr(shifted, lambda budget, **k: epoch_batches(budget, **{**k, "seed": 1}))
    hotlap.train(task(), run_dir=tmp_path / "part", resume="auto")
    assert state(tmp_path / "part") != state(tmp_path / "whole")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tokens_per_batch": 41}, "budget was"),
        ({"lengths": [*LENGTHS[:-1], 2]}, "budget was"),
        ({"collate": hotlap.pad({0: 0.0}, to=(13,), mask=True)}, "was"),
        ({"tokens_per_batch": 20, "accumulate": 4}, "was"),
    ],
)
def test_a_checkpoint_of_other_batches_is_refused(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    hotlap.train(task(epochs=None, steps=3), run_dir=tmp_path)
    with pytest.raises(hotlap.UsageError, match=words):
        hotlap.train(task(**options), run_dir=tmp_path, resume="auto")


def gradients(groups: list[list[int]], to: tuple[int, ...], loss: Any) -> list[torch.Tensor]:
    """Return the gradients of one step over 12 samples in these micro-batches, in float64."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    samples = [(torch.randn(LENGTHS[n], 3, dtype=torch.float64), n % 2) for n in range(12)]
    pad = hotlap.pad({0: 0.0}, to=to, mask=True)
    step = make_step(
        model,
        loss,
        torch.optim.SGD(model.parameters(), lr=0.0),
        target=StepTarget(None, None, "cpu"),
    )
    step([(len(group), pad([samples[n] for n in group])) for group in groups])
    return [parameter.grad for parameter in model.parameters()]


def unpadded() -> list[torch.Tensor]:
    """Return the gradient of the mean over all tokens, sample by sample, no padding anywhere."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    samples = [(torch.randn(LENGTHS[n], 3, dtype=torch.float64), n % 2) for n in range(12)]
    logits = torch.cat([model(rows) for rows, _ in samples])
    targets = torch.cat([torch.full((len(rows),), label) for rows, label in samples])
    nn.functional.cross_entropy(logits, targets).backward()
    return [parameter.grad for parameter in model.parameters()]


GROUPS = [
    [list(range(12))],
    [list(range(5)), list(range(5, 12))],
    [[n] for n in range(12)],
    [sorted(range(12), key=lambda n: LENGTHS[n])[k : k + 3] for k in range(0, 12, 3)],
]


@pytest.mark.parametrize("to", [(), (4, 8, 16)])
@pytest.mark.parametrize("groups", GROUPS, ids=["one", "two", "singly", "by length"])
def test_padding_and_splits_leave_the_gradient_of_the_unpadded_tokens(
    groups: list[list[int]], to: tuple[int, ...]
) -> None:
    for padded, plain in zip(gradients(groups, to, per_token), unpadded(), strict=True):
        torch.testing.assert_close(padded, plain, rtol=1e-12, atol=1e-14)


def test_a_mean_over_padded_tokens_is_another_gradient() -> None:
    """The comparison can fail: this is what many scripts do."""

    def over_padding(model: nn.Module, batch: Any) -> torch.Tensor:
        rows, labels, _ = batch
        targets = labels[:, None].expand(rows.shape[:2])
        return nn.functional.cross_entropy(model(rows).transpose(1, 2), targets)

    wrong = gradients(GROUPS[0], (), over_padding)
    assert not torch.allclose(wrong[0], unpadded()[0], rtol=1e-2)


def test_a_mean_over_tokens_is_refused_where_a_step_is_split() -> None:
    def mean(model: nn.Module, batch: Any) -> torch.Tensor:
        total, count = per_token(model, batch)
        return total / count

    def over_padding(model: nn.Module, batch: Any) -> torch.Tensor:
        rows, labels, _ = batch
        targets = labels[:, None].expand(rows.shape[:2])
        return nn.functional.cross_entropy(model(rows).transpose(1, 2), targets)

    for loss in (mean, over_padding):
        with pytest.raises(hotlap.UsageError, match="the loss is not a mean over samples"):
            build(task(loss=loss), Plan())
        with pytest.raises(hotlap.UsageError, match="the loss is not a mean over samples"):
            build(task(loss=loss, tokens_per_batch=None, batch_size=3), Plan())
        build(task(loss=loss, accumulate=1), Plan())


def test_a_mean_over_samples_may_be_split() -> None:
    def of_samples(model: nn.Module, batch: Any) -> torch.Tensor:
        rows, labels, real = batch
        logits = (model(rows) * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True)
        return nn.functional.cross_entropy(logits, labels)

    for plan in ({}, {"autocast": {"dtype": "bf16"}}):
        hotlap.train(task(loss=of_samples, epochs=1), Plan(plan))


def test_a_mean_over_samples_that_draws_may_be_split() -> None:
    def noisy(model: nn.Module, batch: Any) -> torch.Tensor:
        rows, labels, real = batch
        logits = (model(rows) * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True)
        return nn.functional.cross_entropy(logits + torch.randn_like(logits), labels)

    hotlap.train(task(loss=noisy, epochs=1), Plan())


def everything(built: Any) -> str:
    model = built.model
    return repr(
        [
            {name: tensor.tolist() for name, tensor in model.state_dict().items()},
            [parameter.grad for parameter in model.parameters()],
            model.calls,
            model.training,
            built.optimizer.state_dict()["state"],
            random.getstate(),
            np.random.get_state(),
            torch.get_rng_state().tolist(),
        ]
    )


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"autocast": {"dtype": "fp16"}},
        {"optimizer": {"implementation": "foreach"}},
        {"autocast": {"dtype": "bf16"}},
    ],
    ids=str,
)
def test_the_warm_up_leaves_no_trace(
    plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_it = build(task(), Plan(plan))
    assert with_it.warmed
    hotlap.train(task(), Plan(plan), run_dir=tmp_path / "with")
    tried = everything(build(task(), Plan(plan)))
    monkeypatch.setattr("hotlap.engine.build.warm_up", lambda *_: ())
    assert everything(build(task(), Plan(plan))) == tried
    hotlap.train(task(), Plan(plan), run_dir=tmp_path / "without")
    assert state(tmp_path / "with")[0] == state(tmp_path / "without")[0]


def test_masters_weights_do_not_notice_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 2))

    def losses() -> list[float]:
        plan = Plan({"master_weights": {}})
        return [float(step.loss) for step in hotlap.steps(task(model=network), plan)]

    tried = losses()
    monkeypatch.setattr("hotlap.engine.build.warm_up", lambda *_: ())
    assert losses() == tried


def test_without_the_clean_up_the_traces_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    clean = everything(build(task(), Plan()))
    monkeypatch.setattr(largest_batch, "_no_trace", lambda *_: nullcontext())
    assert everything(build(task(), Plan())) != clean


def test_it_tries_the_most_tokens_and_the_longest_sample() -> None:
    built = build(task(), Plan())
    source: Any = built.source
    shapes = [
        (len(positions), max(LENGTHS[position] for position in positions.tolist()))
        for step in source.steps(0)
        for positions in step
    ]
    most = max(samples * length for samples, length in shapes)
    assert built.warmed[0].samples * built.warmed[0].length == most
    assert max(batch.length for batch in built.warmed) == 13
    assert hotlap.train(task(), Plan()).to_json()["warmed"][0]["samples"] == built.warmed[0].samples
    assert build(task(lengths=None, tokens_per_batch=None, batch_size=3), Plan()).warmed == ()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        None,
        RuntimeError("something other"),
    ],
    ids=["device", "host", "other"],
)
def test_too_large_a_batch_is_said_before_the_first_step(error: Any) -> None:
    class Large(Tagger):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            if rows.shape[1] == 13:
                if error is not None:
                    raise error
                torch.empty(2**60)
            return super().forward(rows)

    if type(error) is RuntimeError:
        with pytest.raises(RuntimeError, match="something other"):
            build(task(model=Large), Plan())
        return
    with pytest.raises(hotlap.RunError, match="padded to 13 tokens, does not fit into the memory"):
        build(task(model=Large), Plan())


def test_a_forward_that_writes_to_its_parameters_is_refused() -> None:
    class Writing(Tagger):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.out.bias.clamp_(-1, 1)
            return super().forward(rows)

    with pytest.raises(hotlap.UsageError, match=r"writes to its parameter 'out\.bias'"):
        build(task(model=Writing), Plan())


def test_the_largest_batch_is_tried_as_the_transforms_make_it() -> None:
    seen = []

    def loss(model: nn.Module, batch: Any) -> Any:
        seen.append(float(batch[0].min()))
        return per_token(model, batch)

    made = build(
        task(
            loss=loss,
            transform=lambda sample, _: (sample[0] + 1000, sample[1]),
            batch_transform=lambda batch, _: [-batch[0], *batch[1:]],
        ),
        Plan(),
        device="cpu",
    )
    assert made.warmed
    assert max(seen) < -1000
