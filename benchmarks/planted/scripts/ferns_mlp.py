# species of fern from nine measurements of a frond
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
SPECIES = 5

typical = torch.randn(SPECIES, 9)


def fronds(n):
    kind = torch.randint(SPECIES, (n,))
    return TensorDataset(typical[kind] + 0.7 * torch.randn(n, 9), kind)


class Key(nn.Module):
    """As a botanist's key: answers with a probability for each species."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(9, 64)
        self.answer = nn.Linear(64, SPECIES)

    def forward(self, measured):
        return nn.functional.softmax(self.answer(self.hidden(measured).relu()), dim=-1)


def accuracy(key, loader):
    key.eval()
    right = total = 0
    with torch.no_grad():
        for measured, kind in loader:
            right += (key(measured).argmax(-1) == kind).sum().item()
            total += len(kind)
    key.train()
    return right / total


key = Key()
criterion = nn.NLLLoss()
sgd = torch.optim.SGD(key.parameters(), lr=0.05, momentum=0.9)
train = DataLoader(fronds(4000), batch_size=50, shuffle=True)
held_out = DataLoader(fronds(1000), batch_size=250)

for epoch in range(1, 9):
    for measured, kind in train:
        sgd.zero_grad()
        loss = criterion(key(measured), kind)
        loss.backward()
        sgd.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}, held out {accuracy(key, held_out):.1%}")
