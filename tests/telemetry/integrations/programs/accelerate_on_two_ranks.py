"""Trains with Accelerate on two ranks, and asks for a stop at step 3."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from accelerate import Accelerator

from toolkit.telemetry.integrations.accelerate import TelemetryTracker
from toolkit.telemetry.runfolder.control import write_request

tracker = TelemetryTracker(log_dir="logs", run_name="r", system=False, csv=False)
accelerator = Accelerator(cpu=True, log_with=tracker)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
tracker.watch(accelerator, save_to="saved")
accelerator.init_trackers("project")
for step in range(1, 1000):
    with accelerator.accumulate(model):
        loss = model(torch.ones(1, 2)).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.log({"loss": loss.detach()}, step=step)
    if tracker.should_stop:
        break
    if step == 3 and accelerator.is_main_process:
        write_request(tracker.tracker.run_folder, actions=["save_and_stop"])
    time.sleep(0.05)
accelerator.end_training()
left = sorted({"log", "accumulate", "backward"} & set(vars(accelerator)))
# A file each: torchrun starts ranks with -u, and then two that print cut each other's lines.
Path(f"rank-{accelerator.process_index}.json").write_text(json.dumps({"stopped_at": step, "left": left}))
