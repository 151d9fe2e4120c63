"""Training loops with habits that a proof must not take for changes: `truths_kinds.py KIND`."""

import copy
import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

EPOCHS = 60
OUT = 4


def network(*, drop: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(drop), nn.Linear(32, OUT))


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x), y)


def wgan(loader: DataLoader) -> None:
    """The critic's weights are clamped after each of its updates."""
    maker = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16))
    critic = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    of_critic = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
    of_maker = torch.optim.RMSprop(maker.parameters(), lr=5e-4)
    for _ in range(EPOCHS):
        for number, (x, _y) in enumerate(loader):
            of_critic.zero_grad()
            made = maker(torch.randn(len(x), 4)).detach()
            (critic(made).mean() - critic(x).mean()).backward()
            of_critic.step()
            with torch.no_grad():
                for parameter in critic.parameters():
                    parameter.clamp_(-0.05, 0.05)
            if number % 2:
                of_maker.zero_grad()
                (-critic(maker(torch.randn(len(x), 4))).mean()).backward()
                of_maker.step()


def two_optimizers(loader: DataLoader) -> None:
    """One for the features, one for the head, stepped after one backward."""
    features, head = nn.Sequential(nn.Linear(16, 32), nn.Tanh()), nn.Linear(32, OUT)
    first = torch.optim.SGD(features.parameters(), lr=0.05, momentum=0.9)
    second = torch.optim.AdamW(head.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        for x, y in loader:
            first.zero_grad()
            second.zero_grad()
            nn.functional.cross_entropy(head(features(x)), y).backward()
            first.step()
            second.step()


def ema_swap(loader: DataLoader) -> None:
    """Averaged weights are swapped in for evaluation, and out again."""
    model = network(drop=0.1)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(EPOCHS):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            with torch.no_grad():
                for held, new in zip(average.parameters(), model.parameters(), strict=True):
                    held.mul_(0.95).add_(new, alpha=0.05)
        kept = copy.deepcopy(model.state_dict())
        model.load_state_dict(average.state_dict())
        model.eval()
        with torch.no_grad():
            for x, _ in loader:
                model(x)
        model.load_state_dict(kept)


def lbfgs(loader: DataLoader) -> None:
    """Takes a closure, and evaluates it several times a step."""
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    for _ in range(EPOCHS):
        for x, y in loader:

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, x, y)
                loss.backward()
                return loss

            optimizer.step(closure)


def accumulation(loader: DataLoader) -> None:
    """Two batches a step, clipped, with a schedule."""
    model = network(drop=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(loader):
            (loss_of(model, x, y) / 2).backward()
            if number % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()


def scaler(loader: DataLoader) -> None:
    """A GradScaler, as scripts keep it where nothing is narrow."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaling = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=20)
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            scaling.scale(loss_of(model, x, y)).backward()
            scaling.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaling.step(optimizer)
            scaling.update()


def frozen(loader: DataLoader) -> None:
    """The first layer is frozen by the script itself, and let go after some epochs."""
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(EPOCHS):
        if epoch == 6:
            model[0].requires_grad_(True)
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()


class Tied(nn.Module):
    """An embedding whose table is the last layer's weight as well."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(OUT, 16)
        self.middle = nn.Linear(16, 16)
        self.out = nn.Linear(16, OUT, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.middle(self.table(x.argmax(1) % OUT) + x)))


def tied(loader: DataLoader) -> None:
    """Two layers share their weight."""
    model = Tied()
    _plainly(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loader)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(4, 16), nn.Linear(16, OUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x.new_zeros(len(x), 16)
        for part in x.split(4, dim=1):
            hidden = self.cell(part, hidden)
        return self.out(hidden)


def recurrent(loader: DataLoader) -> None:
    """The same weights at several places of a step."""
    model = Recurrent()
    _plainly(model, torch.optim.Adagrad(model.parameters(), lr=0.05), loader)


def noise_on_weights(loader: DataLoader) -> None:
    """Noise is added to the weights after each update, as Langevin dynamics does."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=1e-4)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2)
        )
        self.out = nn.Linear(32, OUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.body(x.reshape(-1, 1, 4, 4)).flatten(1))


def batch_norm(loader: DataLoader) -> None:
    """Buffers that each step moves, and evaluation after each epoch."""
    model = Normed()
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    for _ in range(EPOCHS):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, _ in loader:
                model(x)


def _plainly(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader) -> None:
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()


def target_network(loader: DataLoader) -> None:
    """Deep Q-learning: a copy that is synchronized now and then gives the targets."""
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    target = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    state, seen, updates = torch.randn(4), [], 0
    while updates < EPOCHS * len(loader):
        drawn = random.random() < 0.2
        action = random.randrange(2) if drawn else int(model(state).argmax())
        after = 0.8 * state + 0.3 * torch.randn(4)
        seen.append((state, action, float((state[0] > 0) == bool(action)), after))
        state = after
        if len(seen) < 64:
            continue
        before, actions, gains, later = zip(*random.sample(seen, 16), strict=True)
        with torch.no_grad():
            wanted = torch.tensor(gains) + 0.9 * target(torch.stack(later)).max(1).values
        found = model(torch.stack(before)).gather(1, torch.tensor(actions)[:, None])[:, 0]
        optimizer.zero_grad()
        nn.functional.smooth_l1_loss(found, wanted).backward()
        optimizer.step()
        updates += 1
        if updates % 20 == 0:
            target.load_state_dict(model.state_dict())


def mean_teacher(loader: DataLoader) -> None:
    """A teacher follows its student's weights, and normalizes batches itself."""
    layers = [nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, OUT)]
    student = nn.Sequential(*layers)
    teacher = copy.deepcopy(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for _ in range(EPOCHS):
        teacher.train()
        for x, y in loader:
            found = student(x + 0.1 * torch.randn_like(x))
            with torch.no_grad():
                taught = teacher(x + 0.1 * torch.randn_like(x)).softmax(1)
            loss = nn.functional.cross_entropy(found, y)
            loss = loss + nn.functional.mse_loss(found.softmax(1), taught)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for theirs, own in zip(teacher.parameters(), student.parameters(), strict=True):
                    theirs.mul_(0.95).add_(own, alpha=0.05)
        teacher.eval()
        with torch.no_grad():
            print(sum(int((teacher(x).argmax(1) == y).sum()) for x, y in loader))


def momentum_encoder(loader: DataLoader) -> None:
    """Contrastive learning against an encoder that follows within the step."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    follower = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        for x, _y in loader:
            found = nn.functional.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1)
            with torch.no_grad():
                for theirs, own in zip(follower.parameters(), model.parameters(), strict=True):
                    theirs.data = theirs.data * 0.99 + own.data * 0.01
                keys = nn.functional.normalize(follower(x + 0.1 * torch.randn_like(x)), dim=1)
            optimizer.zero_grad()
            nn.functional.cross_entropy(found @ keys.T / 0.2, torch.arange(len(x))).backward()
            optimizer.step()


def new_data_sets(loader: DataLoader) -> None:
    """Data are split again in each epoch: some to train on, others to evaluate."""
    model = network(drop=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(EPOCHS):
        trained, held = random_split(loader.dataset, [96, 32])
        model.train()
        for x, y in DataLoader(trained, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, _ in DataLoader(held, batch_size=16):
                model(x)


def drawn_batches(loader: DataLoader) -> None:
    """Batches are drawn from tensors, and only what is evaluated comes from a loader."""
    model = network(drop=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    samples, labels = loader.dataset.tensors
    for step in range(EPOCHS * len(loader)):
        if step % 10 == 0:
            model.eval()
            with torch.no_grad():
                for x, _ in loader:
                    model(x)
            model.train()
        drawn = torch.randint(0, len(labels), (16,))
        optimizer.zero_grad()
        loss_of(model, samples[drawn], labels[drawn]).backward()
        optimizer.step()


KINDS = (
    wgan,
    two_optimizers,
    ema_swap,
    lbfgs,
    accumulation,
    scaler,
    frozen,
    tied,
    recurrent,
    noise_on_weights,
    batch_norm,
    target_network,
    mean_teacher,
    momentum_encoder,
    new_data_sets,
    drawn_batches,
)

if __name__ == "__main__":
    torch.manual_seed(0)
    random.seed(0)
    labels = torch.randint(0, OUT, (128,))
    samples = TensorDataset(torch.randn(OUT, 16)[labels] + torch.randn(128, 16), labels)
    kind = next(kind for kind in KINDS if kind.__name__ == sys.argv[1])
    kind(DataLoader(samples, batch_size=16, shuffle=True))
