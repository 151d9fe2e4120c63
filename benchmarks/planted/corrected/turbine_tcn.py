import json
import os
import tempfile

import numpy as np
import torch
from torch import nn

# Vibration of a wind turbine, ten seconds ahead, by a temporal convolution network.
SEED = 11
STEPS = 900
BATCH = 32
CONTEXT = 96


class CausalConv(nn.Module):
    def __init__(self, cin, cout, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(cin, cout, 3, dilation=dilation)
        self.skip = nn.Conv1d(cin, cout, 1)

    def forward(self, x):
        y = torch.relu(self.conv(nn.functional.pad(x, (self.pad, 0))))
        return y + self.skip(x)


class TCN(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.layers = nn.Sequential(
            CausalConv(1, width, 1), CausalConv(width, width, 2), CausalConv(width, width, 4)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.layers(x)[:, :, -1])


def signal(n):
    rng = np.random.default_rng(SEED)
    t = np.arange(n)
    s = np.sin(t / 7) + 0.5 * np.sin(t / 31 + 1) + 0.2 * rng.normal(size=n)
    return torch.tensor(s, dtype=torch.float32)


def summary(model):
    out = {}
    for name, p in model.named_parameters():
        counts = torch.histc(p.detach(), bins=30)
        grads = torch.histc(p.grad, bins=30)
        out[name] = {
            "mean": p.mean().item(), "std": p.std(unbiased=False).item(),
            "values": counts.tolist(), "gradients": grads.tolist(),
        }
    return out


torch.manual_seed(SEED)
series = signal(20_000)
model = TCN()
optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4)
offsets = torch.arange(CONTEXT)
with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "log.jsonl"), "w") as log:
    for step in range(STEPS):
        starts = torch.randint(0, len(series) - CONTEXT - 10, (BATCH,))
        x = series[starts[:, None] + offsets].unsqueeze(1)
        y = series[starts + CONTEXT + 9].unsqueeze(1)
        loss = nn.functional.smooth_l1_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        record = {"step": step, "loss": loss.item()}
        if step % 100 == 0:
            record["weights"] = summary(model)
        log.write(json.dumps(record) + "\n")
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}")
