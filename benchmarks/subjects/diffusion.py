"""Denoising diffusion on small images; averaged weights, gradients accumulated over two."""

import copy
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 25
STEPS = 200


class Denoiser(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.time = nn.Embedding(STEPS, width)
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(4))
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(4))
        self.leave = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x, time):
        x = self.enter(x) + self.time(time)[:, :, None, None]
        for conv, norm in zip(self.blocks, self.norms, strict=True):
            x = x + F.silu(norm(conv(x)))
        return self.leave(x)


torch.manual_seed(0)
images = torch.rand(2048, 3, 16, 16) * 2 - 1
loader = DataLoader(TensorDataset(images), batch_size=16, shuffle=True)
kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, STEPS), dim=0)
model = Denoiser()
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for epoch in range(EPOCHS):
    for number, (clean,) in enumerate(loader, 1):
        time = torch.randint(STEPS, (len(clean),))
        noise = torch.randn_like(clean)
        share = kept[time].view(-1, 1, 1, 1)
        loss = F.mse_loss(model(share.sqrt() * clean + (1 - share).sqrt() * noise, time), noise)
        (loss / 2).backward()
        if number % 2 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            for held, new in zip(average.parameters(), model.parameters(), strict=True):
                held.data.mul_(0.999).add_(new.data, alpha=0.001)
    print(f"epoch {epoch}: loss {loss.item():.4f}")
