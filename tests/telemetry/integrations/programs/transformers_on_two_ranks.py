"""Trains with transformers on two ranks, and asks for a stop at step 3.

torchrun transformers_on_two_ranks.py FOLDER
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from transformers import TrainerCallback

from tests.telemetry.integrations.test_transformers import make_trainer
from toolkit.telemetry.integrations.transformers import TelemetryCallback
from toolkit.telemetry.runfolder.control import write_request

folder = Path(sys.argv[1])
telemetry = TelemetryCallback(log_dir=folder / "logs", system=False, csv=False)


class Ask(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        time.sleep(0.1)
        if state.global_step == 3 and telemetry.log.is_live:
            write_request(telemetry.log.run_folder, actions=["save_and_stop"])


trainer = make_trainer(folder, telemetry, Ask(), num_train_epochs=500, ddp_backend="gloo")
trainer.train()
(folder / f"ended-{os.environ['RANK']}").write_text(str(trainer.state.global_step))
