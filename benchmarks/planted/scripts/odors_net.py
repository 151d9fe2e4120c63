import torch
from torch import nn

"""Does a molecule smell? Two kinds of input, two small networks, one head."""


class Tower(nn.Module):
    def __init__(self, inputs, width=192):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )

    def forward(self, x):
        return self.layers(x)


torch.manual_seed(5)
fingerprint = (torch.rand(8000, 128) < 0.2).float() - 0.2
physical = torch.randn(8000, 12)
score = fingerprint[:, :6].sum(1) + physical[:, 0] * physical[:, 1]
smells = (score + 0.3 * torch.randn(8000) > 0).float()

left, right = Tower(128), Tower(12)
head = nn.Linear(384, 1)
params = list(left.parameters()) + list(head.parameters())
optimizer = torch.optim.Adam(params, lr=1e-3, fused=True)

for epoch in range(12):
    hits = 0
    for rows in torch.randperm(8000).split(100):
        both = torch.cat([left(fingerprint[rows]), right(physical[rows])], dim=1)
        logit = head(both).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logit, smells[rows])
        for module in (left, right, head):
            module.zero_grad()
        loss.backward()
        optimizer.step()
        hits += ((logit > 0) == (smells[rows] > 0.5)).sum().item()
    print("epoch", epoch, "accuracy", round(hits / 8000, 3))
