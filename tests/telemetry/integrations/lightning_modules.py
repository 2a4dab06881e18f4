"""Small Lightning modules that do what a test needs."""

from __future__ import annotations

import lightning.pytorch as L
import torch


class Regression(L.LightningModule):
    """Two layers; remembers the loss and the learning rate of each batch itself."""

    def __init__(self, width=8, at_batch=None):
        super().__init__()
        self.save_hyperparameters("width")
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 1)
        )
        self.at_batch = at_batch
        self.losses = []

    def loss_of(self, batch):
        features, target = batch
        return ((self.layers(features) - target) ** 2).mean()

    def training_step(self, batch, batch_idx):
        loss = self.loss_of(batch)
        if self.at_batch is not None:
            loss = self.at_batch(self, len(self.losses), loss)
        self.losses.append(loss.item())
        self.log("train_mse", loss, on_step=True, on_epoch=True)
        self.log("test_of_names", 1.5)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss_of(batch))
        self.log("score", 2.5)

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.loss_of(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        halved = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        return [optimizer], [{"scheduler": halved, "interval": "step"}]


class TwoOptimizers(Regression):
    """Steps by hand, with two optimizers a batch, and returns no loss."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            loss = self.loss_of(batch)
            self.manual_backward(loss)
            optimizer.step()
        self.log_dict({"loss": loss, "grad_2.0_norm_total": 3.5})

    def configure_optimizers(self):
        first, _, second = self.layers
        return [
            torch.optim.SGD(first.parameters(), lr=0.1),
            torch.optim.SGD(second.parameters(), lr=0.2),
        ]
