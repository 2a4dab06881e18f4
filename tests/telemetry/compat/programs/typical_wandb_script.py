"""A script in the style of W&B's own examples."""

from __future__ import annotations

import argparse
import math
import random

import toolkit.telemetry.compat.wandb as wandb

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args([])

wandb.login()
run = wandb.init(
    project="greyjacket",
    name="typical",
    config=args,
    tags=["baseline"],
    notes="a typical script",
    group="g1",
    job_type="train",
    settings=wandb.Settings(console="off", x_disable_stats=True),
)
wandb.config.update({"batch_size": 4})
config = wandb.config
wandb.define_metric("val/acc", summary="max")
wandb.define_metric("val/loss", summary="min")

random.seed(7)
table = wandb.Table(columns=["epoch", "guess", "truth"])
weight = 3.0
for epoch in range(config.epochs):
    for _ in range(config["batch_size"]):
        loss = weight**2
        weight -= config.lr * 2 * weight + random.uniform(-0.01, 0.01)
        wandb.log({"train/loss": loss, "optim": {"lr": config.lr}, "epoch": epoch})
    wandb.log({"val/loss": weight**2 + 0.1 * (epoch == 2)}, commit=False)
    run.log({"val/acc": 1 - abs(weight) / 3, "weights": wandb.Histogram([weight, 1.0, 2.0])})
    table.add_data(epoch, round(weight, 3), 0.0)
wandb.log({"late": 1.0}, step=40)
wandb.log({"later": 2.0}, step=40)
wandb.log({"latest": 3.0})
wandb.log({"after": math.nan})
wandb.log({"predictions": table})
run.summary["best"] = 0.5
run.alert(title="Low accuracy", text="it is low", level=wandb.AlertLevel.WARN)
print("STEP", run.step)
wandb.finish()
