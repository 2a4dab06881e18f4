"""Trains with Lightning on two ranks, and asks for a stop at step 3."""

from __future__ import annotations

import time

import lightning.pytorch as pl
import torch

from toolkit.telemetry.integrations.lightning import TelemetryCallback
from toolkit.telemetry.runfolder.control import write_request


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        if self.global_rank == 0 and self.global_step == 3:
            write_request(callback.telemetry.run_folder, actions=["save_and_stop"])
        time.sleep(0.05)
        loss = self.layer(batch).mean()
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layer(batch).mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


callback = TelemetryCallback(log_dir="logs", run_name="r", log_every=1, system=False)
trainer = pl.Trainer(
    max_epochs=100,
    devices=2,
    strategy="ddp",
    accelerator="cpu",
    enable_progress_bar=False,
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
    callbacks=[callback],
)
batches = torch.utils.data.DataLoader(torch.ones(40, 2), batch_size=2)
trainer.fit(Module(), batches, batches)
print("rank", trainer.global_rank, "stopped at", trainer.global_step, callback.guard.counts, flush=True)
