"""What a watched script does is told with its step and its line, each thing once."""

from pathlib import Path

from hotlap.attach.entry import Script
from hotlap.lab.observing import watch
from hotlap.lab.trial import Lab

SCRIPT = """
import io
import torch
from torch.nn.utils import (
    clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
)
from torch.optim.lr_scheduler import LambdaLR, LinearLR, ReduceLROnPlateau, SequentialLR, StepLR
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

class Mine(StepLR):
    def step(self, epoch=None):
        super().step()

data = TensorDataset(torch.ones(8, 4), torch.ones(8, 1))
sampler = DistributedSampler(data, num_replicas=1, rank=0)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", enabled=True)  # scaler_made
mine = Mine(optimizer, 10)
chain = SequentialLR(optimizer, [LinearLR(optimizer), LambdaLR(optimizer, float)], [5])
plateau = ReduceLROnPlateau(optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)  # set_epoch
    model.train()  # train
    for x, y in loader:  # loader_begun
        optimizer.zero_grad()  # zero_grad
        loss = (model(x) - y).square().mean()
        scaler.scale(loss).backward()  # backward
        scaler.unscale_(optimizer)  # unscale
        clip_grad_norm_(model.parameters(), 9.0)  # clip
        clip_grad_norm_(model.parameters(), float("inf"))
        clip_grad_value_(model.parameters(), clip_value=9.0)  # clip
        norm = get_total_norm([each.grad for each in model.parameters()])
        clip_grads_with_norm_(model.parameters(), 9.0, norm)  # clip
        scaler.step(optimizer)  # optimizer_step
        scaler.update()  # scaler_update
        mine.step()  # scheduler_step
    chain.step()  # scheduler_step
    plateau.step(1.0)  # scheduler_step
    model.eval()  # eval
    file = io.BytesIO()
    torch.save(model.state_dict(), file)  # save
    file.seek(0)
    state = torch.load(file)  # load
    model.load_state_dict(state)  # load_state_dict
    model.zero_grad()  # zero_grad
    copied = torch.nn.Linear(4, 1)
    copied.zero_grad()
"""


def test_each_line_tells_what_it_does_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with Lab(Script(path="train.py", cwd=str(tmp_path))) as lab:
        trace = watch(lab, seconds=30, epochs=9).trace
    expected = {
        (f"train.py:{number}", line.partition("# ")[2])
        for number, line in enumerate(SCRIPT.splitlines(), 1)
        if "# " in line
    }
    assert {(event.where, event.kind) for event in trace.events} == expected
    steps: dict[str, list[int]] = {}
    for event in trace.events:
        steps.setdefault(event.kind, []).append(event.step)
    assert steps["backward"] == steps["optimizer_step"] == list(range(6))
    assert steps["zero_grad"] == [0, 1, 2, 2, 3, 4, 4, 5, 6]
    assert steps["train"] == steps["set_epoch"] == [0, 2, 4]
    assert steps["eval"] == steps["save"] == steps["load"] == [2, 4, 6]
    assert len(steps["clip"]) == 6 * 3
    assert len(steps["scheduler_step"]) == 6 + 3 + 3
    assert len(steps["scaler_made"]) == 1
