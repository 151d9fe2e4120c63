"""Trains an MLP, and logs every 20 steps: those take twice as long."""

import sys

import torch

torch.manual_seed(0)
layers = [torch.nn.Linear(128, 128), torch.nn.ReLU()] * 3
model = torch.nn.Sequential(*layers, torch.nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters())
images, labels = torch.randn(64, 128), torch.randint(10, (64,))
for number in range(int(sys.argv[1])):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    if number % 20 == 0:
        with torch.no_grad():
            right = sum(int((model(images).argmax(1) == labels).sum()) for _ in range(10))
        print(f"step {number}: loss {loss.item():.4f}, right {right}")
