"""Asks W&B what people ask of it, besides logging, and prints each answer."""

import multiprocessing
import typing

import numpy
import torch

import toolkit.telemetry.compat.wandb as wandb


def hinted(run: wandb.sdk.wandb_run.Run | None, table: typing.Optional[wandb.Table] = None): ...  # noqa: UP045


def in_a_child(queue):
    run = wandb.init(project="p", name="child")
    run.log({"loss": 1.0})
    queue.put((run.name, run.step))


print(wandb.run, wandb.__version__.count("."))
for name in ("Error", "CommError", "UsageError", "AuthenticationError", "UnsupportedError"):
    print(name, issubclass(getattr(wandb.errors, name), wandb.Error))
with wandb.init(project="p", name="asking", config={"lr": 0.1, "nested": {"a": [1, 2]}}, tags=["a"]) as run:
    print(isinstance(run, wandb.sdk.wandb_run.Run), isinstance(wandb.run, wandb.Run), run is wandb.run)
    print(run.config.nested["a"], "lr" in wandb.config, wandb.config.get("none", 3), dict(wandb.config))
    run.name, run.notes = "renamed", "noted"
    run.tags = run.tags + ("b",)  # noqa: RUF005
    run.tags += ("c",)
    print(run.name, run.notes, run.tags)
    run.log({"outer": {"inner": {"x": 1}}, "list": [1, 2], "array": numpy.arange(3)})
    run.log({"tensor": torch.arange(4), "one": torch.tensor([3.5]), "text": "t", "yes": True}, commit=False)
    run.log({"q": 1}, step=numpy.int64(31))
    run.log({"q": 2}, step=torch.tensor(32))
    wandb.log({})
    seen = ("list", "array", "tensor", "one", "text", "yes", "q", "missing")
    print([run.summary.get(name) for name in seen], run.step)
    child = multiprocessing.get_context("fork")
    queue = child.Queue()
    process = child.Process(target=in_a_child, args=(queue,))
    process.start()
    print(queue.get(timeout=60))
    process.join(60)
    print(process.exitcode)
print(wandb.run)
made = wandb.sdk.lib.runid.generate_id()
print(type(made).__name__, len(made), made.isalnum())
first = wandb.init(project="p", id=made, resume="allow")
print(first.id == made, wandb.init(project="p") is first, wandb.init(project="p", reinit=True) is first)
wandb.finish()
with wandb.init(project="p", mode="disabled") as run:
    wandb.log({"a": 1})
    print(run is wandb.run, run.disabled, run.url, run.project)
