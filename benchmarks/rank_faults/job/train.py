"""One rank of a training: DistributedDataParallel on gloo, our logger on every rank, and perhaps a fault."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import model as network  # type: ignore[import-not-found]  # the copy next to this one
import numpy as np
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from toolkit.telemetry import TelemetryLogger

STEP_S = {"data": 0.005, "forward": 0.010, "backward": 0.018, "optimizer": 0.001}
"""What the parts of a step take; the arithmetic, the exchange and the logger come on top of it."""
SAVE_EVERY, SAVE_S = 20, 0.03
ROWS, SAMPLES = 20_000, 4


def main(case: dict[str, Any], rank: int, place: Path) -> None:
    """Train as `case` says, in the run of `place`."""
    world, fault = case["world"], case["fault"]
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{place}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=90),
    )
    pids: list[Any] = [None] * world
    distributed.all_gather_object(pids, os.getpid())
    is_faulty = rank in case["ranks"]
    torch.manual_seed(case["seed"])
    random.seed(1000 * case["seed"] + rank)
    parallel = DistributedDataParallel(network.Network())
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    inputs, targets = read_data(Path("data/train.npy"))
    shards = [order_of(case["seed"], each, case) for each in range(world)]
    other = (rank + 1) % world
    samples = shards[other if is_faulty and fault == "other data" and case["variant"] == 0 else rank]
    options: dict[str, Any] = {"log_every": 1, "ranks": "all", "csv": False, "close_timeout": 20.0}
    with TelemetryLogger("run", log_dir=str(place / "logs"), **options) as log:
        log.log_start(config={"data_path": "data", "learning_rate": 0.01, "max_steps": case["steps"]})
        distributed.barrier()
        note(place, rank, "began")
        try:
            with log.training.training_loop(train_iterations_start=0, train_iterations_target=case["steps"]):
                for step in range(1, case["steps"] + 1):
                    is_on = is_faulty and step >= case["step"]
                    if is_on and step == case["step"]:
                        note(place, rank, "fault")
                        strike(fault, rank, case, pids)
                    with log.training.training_iteration():
                        loss = train_one(
                            log,
                            parallel,
                            optimizer,
                            inputs,
                            targets,
                            next(samples),
                            case,
                            is_on=is_on,
                            step=step,
                        )
                        if fault == "slow disk" and case["variant"] == 1:
                            with log.span("write_predictions"):
                                write(place / f"predictions-{rank}", 0.02 if is_on else 0.002)
                    log.log_step(step, train_loss=loss)
                    if step % SAVE_EVERY == 0 and (case["style"] != "rank 0 saves" or rank == 0):
                        is_slow = is_on and fault == "slow disk" and case["variant"] == 0
                        with log.training.checkpoint_save(step, path=str(place / f"shard-{rank}")):
                            write(place / f"shard-{rank}", SAVE_S * (10 if is_slow else 1))
                    if case["style"] == "rank 0 saves" and rank == 0 and step % 100 == 0:
                        time.sleep(0.3)
                        log.log_eval(step, val_loss=loss)
        except RuntimeError:
            # gloo says at once that a rank is gone; NCCL waits for it for minutes.
            if case["waits"]:
                time.sleep(600)
            raise
    distributed.destroy_process_group()


def train_one(
    log: TelemetryLogger,
    parallel: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    ids: list[int],
    case: dict[str, Any],
    *,
    is_on: bool,
    step: int,
) -> float:
    """Do one step and return its loss."""
    fault = case["fault"]
    slower = 1.0 + (case["slow_by"] if is_on else 0.0)
    with log.training.data_loading():
        wait_s = STEP_S["data"] * jitter(case["style"])
        if is_on and fault == "slow data loader":
            wait_s += 0.4 * sum(STEP_S.values()) * jitter("slow loader")
        time.sleep(wait_s)
        log.batch(ids)
        batch, wanted = inputs[ids], targets[ids]
        if is_on and fault == "NaN" and step == case["step"]:
            batch = batch * float("nan")
    with log.training.forward():
        logits = parallel(
            batch, slower * STEP_S["forward"] * jitter(), slower * STEP_S["backward"] * jitter()
        )
        loss = network.loss_of(logits, wanted)
    with log.training.backward():
        loss.backward()
    with log.training.optimizer_update():
        time.sleep(STEP_S["optimizer"])
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.detach())


def strike(fault: str, rank: int, case: dict[str, Any], pids: list[int]) -> None:
    """End or stop this process, or all of its node."""
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "node dies" and rank == case["ranks"][0]:
        for each in case["ranks"][1:]:
            os.kill(pids[each], signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def jitter(style: str = "") -> float:
    """Return a factor around 1; data loading has a long tail in some runs."""
    if style == "long tail":
        return random.lognormvariate(0.0, 0.5) + (4.0 if random.random() < 0.05 else 0.0)
    if style == "slow loader":
        return random.uniform(0.6, 1.4)
    return max(0.5, random.gauss(1.0, 0.04))


def order_of(seed: int, rank: int, case: dict[str, Any]) -> Iterator[list[int]]:
    """Yield the ids of each batch of a rank; ranks in pairs get the same ones where a model is split over two."""
    groups = case["world"]
    if case["style"] == "pairs":
        groups, rank = groups // 2, rank // 2
    epoch = 0
    while True:
        order = list(range(ROWS))
        random.Random(100 * seed + epoch).shuffle(order)
        mine = order[rank::groups]
        yield from (mine[at : at + SAMPLES] for at in range(0, len(mine) - SAMPLES + 1, SAMPLES))
        epoch += 1


def read_data(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the samples and their classes."""
    rows = torch.from_numpy(np.load(path).astype(np.float32))
    return rows, (rows[:, :4] + 0.5 * rows[:, 4:8]).argmax(1)


def write(path: Path, seconds: float) -> None:
    """Write some bytes in that many seconds, as a disk of that speed would."""
    path.write_bytes(bytes(16_384))
    time.sleep(seconds)


def note(place: Path, rank: int, what: str) -> None:
    """Note the time of an event."""
    with (place / f"{what}-{rank}").open("w") as file:
        json.dump({"time": time.time()}, file)
