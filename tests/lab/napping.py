"""Trains, and naps 4 ms in each step, and as much longer as `nap_techniques` say."""

import os
import sys
import time

import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(int(sys.argv[1])):
    longer = [float(os.environ.get(f"NAP_{name}", "0")) for name in ("SHORT", "IDLE", "LONG")]
    time.sleep((4 + sum(longer)) / 1000)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
