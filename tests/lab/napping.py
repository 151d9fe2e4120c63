"""Trains, and naps NAP_MS milliseconds in each step."""

import os
import sys
import time

import torch

os.environ.setdefault("NAP_MS", "4")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(int(sys.argv[1])):
    time.sleep(float(os.environ["NAP_MS"]) / 1000)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
