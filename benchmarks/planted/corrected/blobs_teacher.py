"""Semi-supervised blobs: a student learns from few labels and from its slowly moving teacher."""

import copy

import torch
from torch import nn

DECAY = 0.995


def blobs(n, classes=10, dim=32):
    centers = torch.randn(classes, dim) * 1.5
    y = torch.randint(0, classes, (n,))
    return centers[y] + torch.randn(n, dim), y


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc = nn.Linear(dim, dim)

    def forward(self, x):
        return x + torch.relu(self.fc(self.norm(x)))


class DeepNet(nn.Module):
    def __init__(self, dim=32, hidden=64, depth=24, classes=10):
        super().__init__()
        self.inp = nn.Linear(dim, hidden)
        self.layers = nn.Sequential(*[Layer(hidden) for _ in range(depth)])
        self.out = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.out(self.layers(self.inp(x)))


def follow(teacher, student):
    with torch.no_grad():
        slow, fast = list(teacher.parameters()), list(student.parameters())
        torch._foreach_lerp_(slow, fast, 1 - DECAY)


torch.manual_seed(6)
x, y = blobs(6400)
has_label = torch.rand(len(x)) < 0.1
student = DeepNet()
teacher = copy.deepcopy(student)
for p in teacher.parameters():
    p.requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.02, momentum=0.9, fused=True)
for epoch in range(12):
    for idx in torch.randperm(len(x)).split(64):
        clean = x[idx]
        with torch.no_grad():
            belief = teacher(clean).softmax(1)
        guess = student(clean + 0.3 * torch.randn_like(clean))
        loss = nn.functional.cross_entropy(guess, belief) * min(1.0, epoch / 4)
        known = has_label[idx]
        if known.any():
            loss = loss + nn.functional.cross_entropy(guess[known], y[idx][known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        follow(teacher, student)
    with torch.no_grad():
        accuracy = (teacher(x).argmax(1) == y).float().mean().item()
    print(f"epoch {epoch}: loss {loss.item():.3f} teacher {accuracy:.3f}")
