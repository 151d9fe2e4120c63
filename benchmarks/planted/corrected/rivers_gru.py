# River level from upstream gauges
import torch
from torch import nn

torch.manual_seed(81)
SMALL_BATCHES = 4


class RiverNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(5, 48, batch_first=True)
        self.out = nn.Linear(48, 1)

    def forward(self, x):
        return self.out(self.gru(x)[0][:, -1]).squeeze(1)


rain = torch.rand(6000, 5).pow(4)
level = torch.zeros(6000)
for hour in range(30, 6000):
    delayed = rain[hour - 4, 0] + rain[hour - 9, 1] + rain[hour - 14, 2]
    level[hour] = 0.9 * level[hour - 1] + 0.1 * delayed
level = (level - level.mean()) / level.std()
inputs = (rain - rain.mean(0)) / rain.std(0)


def batch(size):
    end = torch.randint(40, 6000, (size,))
    return inputs[end[:, None] + torch.arange(-23, 1)], level[end]


model = RiverNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
for update in range(400):
    optimizer.zero_grad()
    shown = 0.0
    for _ in range(SMALL_BATCHES):
        x, y = batch(16)
        loss = nn.functional.mse_loss(model(x), y)
        (loss / SMALL_BATCHES).backward()
        shown += loss.item() / SMALL_BATCHES
    optimizer.step()
    if update % 50 == 0:
        print(f"update {update}: {shown:.4f}")
