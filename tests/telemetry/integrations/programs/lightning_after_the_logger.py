"""Trains with Lightning on two ranks that begin after the logger, and asks for a stop at step 3."""

from __future__ import annotations

import lightning.pytorch as pl
import torch

from toolkit.telemetry.integrations.lightning import TelemetryCallback
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.runfolder.control import write_request


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        if self.global_rank == 0 and self.global_step == 3:
            write_request(log.run_folder, actions=["save_and_stop"])
            log._run.rank_control.poller.poll()
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


log = TelemetryLogger("r", log_dir="logs", log_every=1, system=False)
log.declare_action("stop")
trainer = pl.Trainer(
    max_epochs=1,
    devices=2,
    strategy="ddp",
    accelerator="cpu",
    enable_progress_bar=False,
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
    callbacks=[TelemetryCallback(log)],
)
trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(40, 2), batch_size=2))
print("rank", trainer.global_rank, "ended at", trainer.global_step, flush=True)
log.close()
