"""The same training by Accelerate: `save_state`, `load_state` and `skip_first_batches`."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from evaluations.resume_scripts import task
from toolkit.telemetry.integrations.accelerate import TelemetryTracker

settings, job, options = task.read_job()
model = task.TinyModel(settings, job)
optimizer, scheduler = task.optimizer_for(model, settings)
at = {"step": 0, "epoch": 0, "position": 0}
if job["resume_from"]:
    at = json.loads((Path(job["resume_from"]) / "progress.json").read_text())
tracker = TelemetryTracker(
    phases=True,
    run_name="run",
    resume_from=job["resume_from"],
    resumed_from_step=at["step"] or None,
    **options,
)
accelerator = Accelerator(cpu=True, log_with=[tracker], gradient_accumulation_steps=settings["accumulation"])
if settings["loss_scaling"]:
    # Without a GPU Accelerate makes none, but it uses, saves and loads this one.
    accelerator.scaler = task.scaler_for(settings)
# With a generator of its own, a new pass over the data takes nothing from the random numbers of dropout.
loader = DataLoader(
    task.Windows(0, task.ROWS),
    settings["batch_size"],
    sampler=task.Order(settings["data_seed"]),
    generator=torch.Generator(),
)
evaluation = DataLoader(task.Windows(task.ROWS, task.EVALUATED), task.EVALUATED)
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
tracker.watch(accelerator)
accelerator.init_trackers("run", config=settings)
if job["resume_from"]:
    random_state = torch.get_rng_state()
    accelerator.load_state(job["resume_from"])
    if settings["seed"] != at["seed"]:
        torch.set_rng_state(random_state)

step, epoch, skipped, done = at["step"], at["epoch"], at["position"], False
while not done:
    loader.set_epoch(epoch)
    for position, batch in enumerate(accelerator.skip_first_batches(loader, skipped), skipped + 1):
        with accelerator.accumulate(model):
            logits = model(batch["input_ids"])["logits"]
            loss = task.loss_of(logits, batch["labels"], settings["label_smoothing"])
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                if settings["loss_scaling"]:
                    accelerator.scaler.unscale_(optimizer.optimizer)
                accelerator.clip_grad_norm_(model.parameters(), settings["max_grad_norm"])
            rate = scheduler.get_last_lr()[0]
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if not accelerator.sync_gradients:
            continue
        step += 1
        accelerator.log({"train_loss": loss.detach(), "lr": rate, "epoch": epoch}, step=step)
        if step % settings["eval_every"] == 0:
            model.eval()
            with torch.no_grad():
                losses = [model(**rows)["loss"] for rows in evaluation]
            model.train()
            accelerator.log({"eval_loss": losses[0]}, step=step)
        if step % settings["save_every"] == 0:
            folder = accelerator.save_state(f"saved/step-{step}")
            progress = {"step": step, "epoch": epoch, "position": position, "seed": settings["seed"]}
            (Path(folder) / "progress.json").write_text(json.dumps(progress))
        done = task.end_step(step, job)
        if done:
            break
    epoch, skipped = epoch + 1, 0
accelerator.end_training()
