"""Scripts whose steps draw noise, draw their own batches, or train two networks: `noisy.py KIND`,
with a kind of `vae`, `diffusion`, `annealed`, `objects`, `drawing`, `ahead`, `carrying`,
`carrying_loaded`, `scaled`, `gan`."""

import random
import sys
from collections.abc import Iterable
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 40


class VAE(nn.Module):
    """An autoencoder that draws its code, and drops out parts of it."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(16, 32)
        self.mean, self.log_variance = nn.Linear(32, 4), nn.Linear(32, 4)
        self.decode = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = torch.relu(self.encode(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decode(code), mean, log_variance


def vae(loader: DataLoader) -> None:
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        for (x,) in loader:
            optimizer.zero_grad()
            decoded, mean, log_variance = model(x)
            kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).mean()
            loss = nn.functional.mse_loss(decoded, x) + 0.1 * kl
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            model.decode(torch.randn(3, 4))


def diffusion(loader: DataLoader) -> None:
    """Draws between batch and forward, from each generator there is."""
    model = nn.Sequential(nn.Linear(17, 32), nn.SiLU(), nn.Linear(32, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        for (x,) in loader:
            noise = torch.randn_like(x) * (0.9 + 0.1 * random.random())
            time = torch.rand(len(x), 1, dtype=x.dtype) * float(0.9 + 0.1 * numpy.random.rand())
            noisy = x * (1 - time) + noise * time
            loss = nn.functional.mse_loss(model(torch.cat([noisy, time], 1)), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def annealed(loader: DataLoader) -> None:
    """Weighs a part of its loss by how many steps it has taken."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    taken = 0
    for _ in range(EPOCHS):
        for (x,) in loader:
            taken += 1
            made = model(x)
            loss = nn.functional.mse_loss(made, x) + taken / 50 * made.abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


class Sample:
    """A batch that nobody but its model can take apart."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


class OfSamples(nn.Sequential):
    def forward(self, sample: Sample) -> torch.Tensor:
        return super().forward(sample.x)


def _sample(items: list[tuple[torch.Tensor]]) -> Sample:
    return Sample(torch.stack([x for (x,) in items]))


def objects(loader: DataLoader) -> None:
    """Hands its model objects of its own, which its loader makes."""
    samples = DataLoader(loader.dataset, batch_size=16, shuffle=True, collate_fn=_sample)
    model = OfSamples(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        for sample in samples:
            loss = nn.functional.mse_loss(model(sample), sample.x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def drawing(loader: DataLoader) -> None:
    """Draws its batches itself, by chance and by where it is, and measures in between."""
    data = loader.dataset.tensors[0]
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(EPOCHS * len(loader)):
        if step % 10 == 0:
            model.eval()
            with torch.no_grad():
                model(data[torch.randint(len(data), (8,))])
            model.train()
        for part in range(2):
            first = (step * 2 + part) * 4 % (len(data) - 4)
            x = torch.cat([data[first : first + 4], data[torch.randint(len(data), (4,))]])
            loss = nn.functional.mse_loss(model(x), x) / 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def ahead(loader: DataLoader) -> None:
    """Reads each batch before the step of the one before."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        batches = iter(loader)
        batch = next(batches)
        while batch is not None:
            (x,), batch = batch, next(batches, None)
            loss = nn.functional.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


class OfSequences(nn.Module):
    """Carries its hidden state from batch to batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        found, state = self.body(x, state)
        return self.out(found), state


def _carry_on(batches: Iterable[torch.Tensor]) -> None:
    model = OfSequences()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    state = (torch.zeros(1, 4, 32), torch.zeros(1, 4, 32))
    for x in batches:
        state = tuple(part.detach() for part in state)
        output, state = model(x[:, :-1], state)
        optimizer.zero_grad()
        nn.functional.mse_loss(output, x[:, 1:]).backward()
        optimizer.step()


def carrying(loader: DataLoader) -> None:
    """Carries a hidden state over slices of its data, as language models do."""
    data = loader.dataset.tensors[0].reshape(4, -1, 16)
    starts = range(0, data.shape[1] - 8, 7)
    _carry_on(data[:, at : at + 8] for _ in range(EPOCHS) for at in starts)


def carrying_loaded(loader: DataLoader) -> None:
    """The same with batches of a DataLoader."""
    parts = loader.dataset.tensors[0].reshape(-1, 8, 16)
    batches = DataLoader(TensorDataset(parts), batch_size=4)
    _carry_on(x for _ in range(2 * EPOCHS) for (x,) in batches)


def scaled(loader: DataLoader) -> None:
    """A scaler, whose scale grows, and clipping of what it has divided by it."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1000.0, growth_interval=20)
    for _ in range(EPOCHS):
        for (x,) in loader:
            optimizer.zero_grad()
            scaler.scale(nn.functional.mse_loss(model(x), x)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            scaler.step(optimizer)
            scaler.update()


def gan(loader: DataLoader) -> None:
    """What one network computes is fed to the other, detached and not."""
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16))
    critic = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
    of_generator = torch.optim.Adam(generator.parameters(), lr=2e-3)
    loss_of = nn.BCEWithLogitsLoss()
    for _ in range(EPOCHS):
        for (x,) in loader:
            one, zero = torch.ones(len(x), 1), torch.zeros(len(x), 1)
            of_critic.zero_grad()
            made = generator(torch.randn(len(x), 4))
            loss = loss_of(critic(x), one) + loss_of(critic(made.detach() * 1.0), zero)
            loss.backward()
            of_critic.step()
            of_generator.zero_grad()
            loss_of(critic(made), one).backward()
            of_generator.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    data = TensorDataset(torch.randn(64, 16))
    globals()[sys.argv[1]](DataLoader(data, batch_size=16, shuffle=True))
