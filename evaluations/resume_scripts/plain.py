"""A plain loop that saves all it needs, and loads what it finds."""

from __future__ import annotations

from typing import Any

import torch

from evaluations.resume_scripts import task
from toolkit.telemetry import TelemetryLogger

settings, job, options = task.read_job()
model = task.TinyModel(settings, job)
optimizer, scheduler = task.optimizer_for(model, settings)
scaler = task.scaler_for(settings)
rows, order = task.Windows(0, task.ROWS), task.Order(settings["data_seed"])
others = task.Windows(task.ROWS, task.EVALUATED)
evaluation = torch.utils.data.default_collate([others[at] for at in range(len(others))])
size, parts = settings["batch_size"], settings["accumulation"]
states: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
step, epoch, position, done = 0, 0, 0, False
if job["resume_from"]:
    saved = torch.load(job["resume_from"], weights_only=False)
    step, epoch, position = saved["step"], saved["epoch"], saved["position"]
    for name, one in states.items():
        if name in saved:
            one.load_state_dict(saved[name])
    if "rng" in saved and settings["seed"] == saved["seed"]:
        torch.set_rng_state(saved["rng"])

with TelemetryLogger("run", **options) as log:
    training = {"batch_size": size, "gradient_accumulation_steps": parts, "max_steps": settings["max_steps"]}
    log.log_start(config=settings, training=training, resumed_from_step=step or None)
    if job["resume_from"]:
        log.state("load", step, checkpoint=job["resume_from"], epoch=epoch, data_position=position, **states)
    while not done:
        ids = order.of_epoch(epoch)
        while not done and (position + parts) * size <= len(ids):
            total = torch.zeros(())
            for _ in range(parts):
                batch_ids = ids[position * size : (position + 1) * size]
                batch = torch.utils.data.default_collate([rows[at] for at in batch_ids])
                log.batch(batch_ids)
                logits = model(batch["input_ids"])["logits"]
                loss = task.loss_of(logits, batch["labels"], settings["label_smoothing"]) / parts
                scaler.scale(loss).backward()
                total += loss.detach()
                position += 1
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings["max_grad_norm"])
            rate = scheduler.get_last_lr()[0]
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            log.log_step(step, train_loss=total, lr=rate, epoch=epoch)
            if step % settings["eval_every"] == 0:
                model.eval()
                with torch.no_grad():
                    log.log_eval(step, val_loss=model(**evaluation)["loss"])
                model.train()
            if step % settings["save_every"] == 0:
                progress = {"step": step, "epoch": epoch, "position": position, "seed": settings["seed"]}
                path = task.save(states, progress)
                log.log_checkpoint(step, path)
                log.state("save", step, checkpoint=path, epoch=epoch, data_position=position, **states)
            done = task.end_step(step, job)
        epoch, position = epoch + 1, 0
