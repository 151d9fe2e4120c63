import torch
import torch.nn as nn
from torch.nn.utils import clip_grad_norm_


class GearModel(nn.Module):
    """Wear of gears from load profiles."""

    def __init__(self, n_in=64, n_hidden=320):
        super().__init__()
        self.fc1 = nn.Linear(n_in, n_hidden)
        self.fc2 = nn.Linear(n_hidden, n_hidden)
        self.fc3 = nn.Linear(n_hidden, 1)

    def forward(self, x):
        x = torch.tanh(self.fc1(x))
        x = torch.tanh(self.fc2(x))
        return self.fc3(x)


def train(n_steps=1000, batch_size=128, max_norm=0.5):
    torch.manual_seed(33)
    loads = torch.randn(8000, 64)
    wear = (loads[:, :8].abs().pow(1.5).sum(1, keepdim=True) - 6.9) / 2
    model = GearModel()
    print(sum(p.numel() for p in model.parameters()), "parameters")
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-4)
    for step in range(n_steps):
        idx = torch.randint(0, 8000, (batch_size,))
        loss = nn.functional.mse_loss(model(loads[idx]), wear[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clip_grad_norm_(model.parameters(), max_norm)
        if step % 100 == 0:
            print("[%04d] %.4f" % (step, loss.item()))


if __name__ == "__main__":
    train()
