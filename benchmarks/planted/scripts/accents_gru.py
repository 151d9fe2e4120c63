"""Accent of a speaker from pitch contours."""
import numpy as np
import torch
from torch import nn


class AccentNet(nn.Module):
    def __init__(self, accents):
        super().__init__()
        self.rnn = nn.GRU(3, 40, batch_first=True)
        self.fc = nn.Linear(40, accents)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        _, h = self.rnn(x)
        return self.softmax(self.fc(h[0]))


def contours(n, accents, rng):
    which = rng.integers(0, accents, n)
    t = np.linspace(0, 1, 36)
    f = 1 + which[:, None]
    pitch = np.sin(2 * np.pi * f * t + rng.uniform(0, 6.28, (n, 1))) + rng.normal(0, 0.3, (n, 36))
    slope = np.gradient(pitch, axis=1)
    loud = rng.normal(0, 1, (n, 36))
    x = np.stack([pitch, slope * 2, loud], 2).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy(which)


if __name__ == "__main__":
    torch.manual_seed(12)
    x, y = contours(3200, 6, np.random.default_rng(12))
    model = AccentNet(6)
    loss_function = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(10):
        hits = 0
        for rows in torch.randperm(len(x)).split(64):
            output = model(x[rows])
            loss = loss_function(output, y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hits += (output.argmax(1) == y[rows]).sum().item()
        print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {hits / len(x):.3f}")
