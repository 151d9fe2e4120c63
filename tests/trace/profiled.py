"""Some steps of a small network under torch.profiler, as a script of anybody's may record them."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerAction, ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset

STEPS = 4
NAP_S = 0.02


class Items(Dataset):
    """Samples, one of which takes a while to read."""

    def __len__(self) -> int:
        return 8 * (STEPS + 2)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 8 * 2 + 3:
            time.sleep(NAP_S)
        return torch.full((32,), float(index)), index % 4


def network() -> nn.Module:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    return nn.Sequential(nn.Linear(32, 64), block, nn.Linear(64, 4))


def record(
    path: Path,
    model: nn.Module,
    *,
    marks_steps: bool = True,
    changed: Callable[[Any], None] = lambda _: None,
    **options: Any,
) -> Any:
    """Train for some steps, export their trace, and return the profiler that has recorded them."""
    optimizer = torch.optim.Adam(model.parameters())

    def schedule(step: int) -> ProfilerAction:
        return ProfilerAction.WARMUP if step == 0 else ProfilerAction.RECORD

    recorder = profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule if marks_steps else None,
        on_trace_ready=None if not marks_steps else lambda _: None,
        **options,
    )
    recorder.start()
    for number, (inputs, labels) in enumerate(DataLoader(Items(), batch_size=8)):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == STEPS:
            break
        recorder.step()
    recorder.stop()
    recorder.export_chrome_trace(str(path))
    data = json.loads(path.read_text())
    changed(data)
    path.write_text(json.dumps(data))
    return recorder
