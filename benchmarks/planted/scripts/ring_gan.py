import math

import torch
from torch import nn

# Gaussians on a ring, from noise. Alternating updates.
LATENT = 16
BATCH = 256


def real(n):
    k = torch.randint(0, 8, (n,)) * (math.pi / 4)
    return torch.stack([k.cos(), k.sin()], 1) * 2 + 0.05 * torch.randn(n, 2)


def net(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 256), nn.LeakyReLU(0.2),
        nn.Linear(256, 256), nn.LeakyReLU(0.2),
        nn.Linear(256, outputs),
    )


torch.manual_seed(30)
generator, critic = net(LATENT, 2), net(2, 1)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.5, 0.99), fused=True)
opt_c = torch.optim.Adam(critic.parameters(), lr=3e-4, betas=(0.5, 0.99), fused=True)
softplus = nn.functional.softplus
for step in range(1000):
    fake = generator(torch.randn(BATCH, LATENT))
    loss_c = softplus(-critic(real(BATCH))).mean() + softplus(critic(fake.detach())).mean()
    opt_c.zero_grad()
    loss_c.backward()
    opt_c.step()

    # the critic only passes gradients on here
    for p in critic.parameters():
        p.requires_grad_(False)
    loss_g = softplus(-critic(fake)).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    for p in critic.parameters():
        p.requires_grad_(True)
    if step % 200 == 0:
        spread = fake.detach().norm(dim=1).mean().item()
        print(f"step {step}: critic {loss_c.item():.3f} generator {loss_g.item():.3f} r {spread:.2f}")
