"""Trains an MLP, and naps for half of each step: what is planted takes a part of the nap away."""

import os
import sys
import time
from statistics import median

import torch

torch.manual_seed(0)
layers = [torch.nn.Linear(256, 256), torch.nn.ReLU()] * 3
model = torch.nn.Sequential(*layers, torch.nn.Linear(256, 10))
optimizer = torch.optim.Adam(model.parameters())
images, labels = torch.randn(64, 256), torch.randint(10, (64,))


def step() -> None:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()


def timed() -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


nap = median(timed() for _ in range(50))
os.environ["PLANTED_STEP_S"] = str(2 * nap)
os.environ["PLANTED_SAVED_S"] = "0"
for _ in range(int(sys.argv[1])):
    time.sleep(max(0.0, nap - float(os.environ["PLANTED_SAVED_S"])))
    step()
