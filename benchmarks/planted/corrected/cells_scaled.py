"""Count cells per picture (regression), with a gradient scaler as on the big machine."""

import torch
from torch import nn


def pictures(n):
    count = torch.randint(1, 9, (n,))
    image = torch.zeros(n, 1, 24, 24)
    for k in range(8):
        place = torch.randint(0, 24 * 24, (n,))
        image.view(n, -1)[torch.arange(n), place] += (count > k).float() * 3
    image = nn.functional.avg_pool2d(image, 3, 1, 1) * 4
    return image + 0.05 * torch.randn_like(image), count.float() / 8


def main():
    torch.manual_seed(20)
    x, y = pictures(3000)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 144, 1), nn.Flatten(0),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for epoch in range(10):
        for rows in torch.randperm(len(x)).split(50):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                guess = model(x[rows])
            loss = nn.functional.mse_loss(guess.float(), y[rows])
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        print(f"epoch {epoch}: mse {loss.item():.4f}, scale {scaler.get_scale():.0f}")


if __name__ == "__main__":
    main()
