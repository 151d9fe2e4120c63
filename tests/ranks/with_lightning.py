"""A training with Lightning, as its introduction has it: the Trainer starts the second rank."""

import argparse
import hashlib

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.layers(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--strategy", default="ddp")
    args = parser.parse_args()
    lightning.seed_everything(0)
    data = TensorDataset(torch.randn(96, 16), torch.randint(4, (96,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = Classifier()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=args.strategy,
        max_epochs=args.epochs,
        enable_progress_bar=False,
    )
    trainer.fit(model, loader)
    digest = hashlib.sha256()
    for weights in model.state_dict().values():
        digest.update(weights.numpy().tobytes())
    # In one piece: an end of line of its own may come behind another rank's line.
    print(
        f"rank {trainer.global_rank} steps {trainer.global_step} weights {digest.hexdigest()}\n",
        end="",
        flush=True,
    )


if __name__ == "__main__":
    main()
