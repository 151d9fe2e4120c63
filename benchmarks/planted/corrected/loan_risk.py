import torch
import torch.nn as nn

# ---------------------------------------------------------------
# loan default model, synthetic applicants
# ---------------------------------------------------------------
N, D, B = 10000, 50, 200
EPOCHS = 15

torch.manual_seed(2024)
X = torch.randn(N, D)
w = torch.randn(D) * (torch.rand(D) < 0.2)
risk = X @ w + 0.5 * X[:, 0] * X[:, 1] - 1
Y = (torch.sigmoid(risk) > torch.rand(N)).float()

model = nn.Sequential(
    nn.Linear(D, 300),
    nn.BatchNorm1d(300),
    nn.LeakyReLU(),
    nn.Linear(300, 300),
    nn.BatchNorm1d(300),
    nn.LeakyReLU(),
    nn.Linear(300, 1),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)
lossfunc = nn.BCEWithLogitsLoss()

for epoch in range(EPOCHS):
    order = torch.randperm(N)
    for b in range(N // B):
        rows = order[b * B : (b + 1) * B]
        out = model(X[rows]).view(-1)
        loss = lossfunc(out, Y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("=== epoch", epoch, "finished, loss", loss.item())
