# Which of eight instruments plays a note? Spectrogram frames through a GRU.
import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", default=12, type=int)
parser.add_argument("--batch", default=32, type=int)
parser.add_argument("--lr", default=2e-3, type=float)
opt = parser.parse_args()

RATE, LENGTH, FRAME, HOP = 8000, 2048, 128, 64


class Notes(Dataset):
    def __init__(self, n=1600):
        rng = np.random.default_rng(3)
        self.y = rng.integers(0, 8, n)
        t = np.arange(LENGTH) / RATE
        self.waves = []
        for label in self.y:
            pitch = rng.uniform(180, 400)
            weights = 1.0 / np.arange(1, 7) ** (0.3 + 0.25 * label)
            wave = sum(w * np.sin(2 * np.pi * pitch * (k + 1) * t) for k, w in enumerate(weights))
            self.waves.append(wave.astype(np.float32))
        self.window = np.hanning(FRAME).astype(np.float32)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        wave = self.waves[i]
        # play it a little faster or slower, at another loudness, in another room
        speed = np.random.uniform(0.9, 1.1)
        at = np.arange(LENGTH) * speed
        wave = np.interp(at, np.arange(LENGTH), wave, right=0.0)
        wave = wave * np.random.uniform(0.5, 1.5) + np.random.normal(0, 0.05, LENGTH)
        echo = np.exp(-np.arange(160) / np.random.uniform(10, 60))
        wave = np.convolve(wave, echo)[:LENGTH]
        frames = np.lib.stride_tricks.sliding_window_view(wave, FRAME)[::HOP] * self.window
        spectrum = np.log1p(np.abs(np.fft.rfft(frames)))
        return torch.from_numpy(spectrum.astype(np.float32)), int(self.y[i])


class Listener(nn.Module):
    def __init__(self, bins=FRAME // 2 + 1, hidden=64):
        super().__init__()
        self.norm = nn.LayerNorm(bins)
        self.gru = nn.GRU(bins, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 8)

    def forward(self, x):
        states, _ = self.gru(self.norm(x))
        return self.out(states.mean(1))


torch.manual_seed(7)
np.random.seed(7)
loader = DataLoader(
    Notes(), batch_size=opt.batch, shuffle=True, drop_last=True,
    num_workers=2, persistent_workers=True,
)
model = Listener()
optim = torch.optim.Adam(model.parameters(), lr=opt.lr)
criterion = nn.CrossEntropyLoss()
for epoch in range(opt.epochs):
    start, hits, seen = time.time(), 0, 0
    for x, y in loader:
        logits = model(x)
        loss = criterion(logits, y)
        optim.zero_grad()
        loss.backward()
        optim.step()
        hits += (logits.argmax(1) == y).sum().item()
        seen += len(y)
    print("epoch", epoch, "acc %.3f" % (hits / seen), "%.1fs" % (time.time() - start))
