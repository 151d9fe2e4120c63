"""Scripts that are right although they look like a mistake, and the same with the mistake."""

from pathlib import Path

import pytest

from hotlap.attach.entry import Script
from hotlap.lab.observing import watch
from hotlap.lab.trial import Lab
from hotlap.rules import nominate, registry

GAN = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GOOD = len(sys.argv) > 1
real = DataLoader(TensorDataset(torch.randn(120, 4)), batch_size=4)
held_out = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=4)
maker = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
judge = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
of_maker, of_judge = (torch.optim.Adam(each.parameters()) for each in (maker, judge))
scaler = torch.amp.GradScaler("cpu")
fixed_noise = torch.randn(4, 2)
for epoch in range(9):
    for (x,) in real:
        of_maker.zero_grad()
        of_judge.zero_grad()
        fake = maker(torch.randn(4, 2))
        loss = (judge(x) - 1).square().mean() + judge(fake.detach()).square().mean()
        scaler.scale(loss).backward()
        scaler.scale((judge(fake) - 1).square().mean()).backward(inputs=list(maker.parameters()))
        if GOOD:
            scaler.unscale_(of_maker)
            scaler.unscale_(of_judge)
        nn.utils.clip_grad_norm_(maker.parameters(), 1.0)
        scaler.step(of_maker)
        nn.utils.clip_grad_norm_(judge.parameters(), 1.0)
        scaler.step(of_judge)
        scaler.update()
    with torch.no_grad():
        maker(fixed_noise)
        if not GOOD:
            for (x,) in held_out:
                judge(x)
"""

ACCUMULATION = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GOOD = len(sys.argv) > 1
loader = DataLoader(TensorDataset(torch.rand(160, 3, 4, 4), torch.randn(160, 4)), batch_size=4)
norm = nn.InstanceNorm2d(4) if GOOD else nn.Identity()
model = nn.Sequential(nn.Conv2d(3, 4, 1), norm, nn.Flatten(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
waiting = done = 0
for epoch in range(9):
    for number, (x, y) in enumerate(loader, 1):
        nn.functional.mse_loss(model(x.mul(255)), y).backward()
        waiting += 1
        wanted = min(1 + done // 3, 4) if GOOD else (4 if done else 1)
        if waiting >= wanted or number == len(loader):
            if GOOD:
                for parameter in model.parameters():
                    parameter.grad.data /= waiting
            optimizer.step()
            optimizer.zero_grad()
            waiting, done = 0, done + 1
"""

EVALUATION = """
import sys, torch
from torch import nn

GOOD = len(sys.argv) > 1
data, held_out = torch.randn(160, 4), torch.randn(40, 4)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters())


def loss_of(x):
    return nn.functional.mse_loss(model(x), x)


def score():
    model.train(not GOOD)
    with torch.set_grad_enabled(not GOOD):
        return sum(nn.functional.mse_loss(model(x), x).item() for x in held_out.split(4))


for epoch in range(9):
    model.train()
    for x in data.split(8):
        optimizer.zero_grad()
        views = [model(x + torch.randn_like(x)) for _ in range(2)]
        target = model(x).detach()
        (sum((view - target).square().mean() for view in views) + loss_of(x)).backward()
        optimizer.step()
    score()
"""

PRETRAINED = """
import sys, torch
from torch import nn

GOOD = len(sys.argv) > 1
body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
head = nn.Linear(8, 4)
body.eval()
head.train(GOOD)
data = torch.randn(160, 4)
optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()])
whole = body if GOOD else nn.Sequential(body, head).eval()
for epoch in range(9):
    for x in data.split(8):
        optimizer.zero_grad()
        nn.functional.mse_loss(head(body(x)) if GOOD else whole(x), x).backward()
        optimizer.step()
"""

PROBE = """
import sys, torch
from torch import nn

GOOD = len(sys.argv) > 1
body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1))
body.requires_grad_(not GOOD)
model = nn.Sequential(body, nn.Linear(8, 4)).eval()
data = torch.randn(160, 4)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
for epoch in range(9):
    for x in data.split(8):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "mistakes"),
    [
        (GAN, {"clip_before_unscale", "evaluated_in_training_mode"}),
        (
            ACCUMULATION,
            {"single_first_micro_batch", "summed_micro_batches", "unscaled_input"},
        ),
        (EVALUATION, {"evaluated_in_training_mode", "evaluated_with_gradients"}),
        (PRETRAINED, {"trained_in_evaluation_mode"}),
        (PROBE, {"trained_in_evaluation_mode"}),
    ],
    ids=["gan", "accumulation", "evaluation", "pretrained", "probe"],
)
@pytest.mark.parametrize("is_good", [True, False], ids=["good", "bad"])
def test_what_only_looks_like_a_mistake_is_none(
    script: str, mistakes: set[str], is_good: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(script)
    arguments = ("good",) if is_good else ()
    with Lab(Script(path="train.py", args=arguments, cwd=str(tmp_path))) as lab:
        trace = watch(lab, seconds=30, epochs=4).trace
    rules = [rule for rule in registry().values() if rule.kind == "mistake"]
    assert not trace.learning.problems
    assert {each.rule for each in nominate(trace, rules)} == (set() if is_good else mistakes)
