"""One rank of a training: the gradients averaged over gloo, our logger on every rank, and perhaps a fault."""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
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
FOREVER_S = 600.0


def main(case: dict[str, Any], rank: int, place: Path) -> None:
    """Train as `case` says, in the run of `place`."""
    world, fault = case["world"], case["fault"]
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{place}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=FOREVER_S if case["hang_after"] else 90),
    )
    pids: list[Any] = [None] * world
    distributed.all_gather_object(pids, os.getpid())
    torch.manual_seed(case["seed"])
    random.seed(1000 * case["seed"] + rank)
    options: dict[str, Any] = {"log_every": 1, "ranks": "all", "csv": False, "close_timeout": 20.0}
    if case["hang_after"]:
        options |= {"code": False, "output": False, "errors": {"hang_after": case["hang_after"]}}
    with TelemetryLogger("run", log_dir=str(place / "logs"), **options) as log:
        log.log_start(config={"data_path": "data", "learning_rate": 0.01, "max_steps": case["steps"]})
        training = Training(case, rank, log)
        distributed.barrier()
        note(place, rank, "began")
        try:
            with log.training.training_loop(train_iterations_start=0, train_iterations_target=case["steps"]):
                for step in range(1, case["steps"] + 1):
                    is_on = rank in case["ranks"] and step >= case["step"]
                    if is_on and step == case["step"]:
                        note(place, rank, "fault")
                        strike(fault, rank, case, pids)
                        if fault == "ends early":
                            break
                    training.step(step, is_on=is_on)
        except RuntimeError:
            # gloo says at once that a rank is gone; NCCL waits for it for minutes.
            if case["waits"]:
                time.sleep(FOREVER_S)
            raise
    if case["hang_after"] and case["ranks"]:
        time.sleep(FOREVER_S)
    distributed.destroy_process_group()


class Training:
    """The training of one rank."""

    def __init__(self, case: dict[str, Any], rank: int, log: TelemetryLogger) -> None:
        self.case, self.rank, self.log = case, rank, log
        self.network = network.Network()
        self.is_parallel = case["exchange"] == "DDP"
        self.model = DistributedDataParallel(self.network) if self.is_parallel else self.network
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01)
        self.inputs, self.targets = read_data(Path("data/train.npy"))
        gets_others = rank in case["ranks"] and case["fault"] == "other data" and case["variant"] == 0
        self.batches = order_of(case["seed"], (rank + gets_others) % case["world"], case)

    def span(self, name: str) -> Any:
        """Return a span of a part of the step; runs that hang have none."""
        return nullcontext() if self.case["hang_after"] else getattr(self.log.training, name)()

    def step(self, step: int, *, is_on: bool) -> None:
        """Do one step, log it, and save now and then."""
        case, log = self.case, self.log
        fault = case["fault"] if is_on else ""
        if case["hang_after"]:
            self.take_long(case["fault"], step)
        with self.span("training_iteration"):
            loss = self.train(step, fault)
            if case["fault"] == "slow disk" and case["variant"] == 1:
                with log.span("write_predictions"):
                    write(Path(f"../predictions-{self.rank}"), 0.02 if is_on else 0.002)
        log.log_step(step, train_loss=loss)
        if step % SAVE_EVERY == 0 and (case["style"] != "rank 0 saves" or self.rank == 0):
            is_slow = fault == "slow disk" and case["variant"] == 0
            shard = Path(f"../shard-{self.rank}")
            with log.training.checkpoint_save(step, path=str(shard)):
                write(shard, SAVE_S * (10 if is_slow else 1))
        if case["style"] == "rank 0 saves" and self.rank == 0 and step % 100 == 0:
            time.sleep(0.3)
            log.log_eval(step, val_loss=loss)

    def train(self, step: int, fault: str) -> float:
        """Train on one batch, and return its loss."""
        slower = 1.0 + (self.case["slow_by"] if fault else 0.0)
        with self.span("data_loading"):
            wait_s = STEP_S["data"] * jitter(self.case["style"])
            if fault == "slow data loader":
                wait_s += 0.4 * sum(STEP_S.values()) * jitter("slow loader")
            time.sleep(wait_s)
            if fault == "data loader":
                read_sample()
            ids = next(self.batches)
            self.log.batch(ids)
            batch, wanted = self.inputs[ids], self.targets[ids]
            if fault == "NaN" and step == self.case["step"]:
                batch = batch * float("nan")
        if fault in INSTEAD_OF_A_STEP:
            INSTEAD_OF_A_STEP[fault]()
        with self.span("forward"):
            waits = slower * STEP_S["forward"] * jitter(), slower * STEP_S["backward"] * jitter()
            loss = network.loss_of(self.model(batch, *waits), wanted)
        if fault == "backward":
            loss.register_hook(compute_gradient)
        with self.span("backward"):
            loss.backward()
            if not self.is_parallel:
                self.exchange(fault)
        with self.span("optimizer_update"):
            time.sleep(STEP_S["optimizer"])
            self.optimizer.step()
            self.optimizer.zero_grad()
        return float(loss.detach())

    def exchange(self, fault: str) -> None:
        """Average the gradients."""
        for number, parameter in enumerate(self.network.parameters()):
            if fault == "other shape" and not number:
                # An empty one: one that is larger or smaller ends a process on gloo, where NCCL would wait.
                distributed.all_reduce(torch.ones(0))
                if self.case["variant"]:
                    # Instead of this exchange, else one more.
                    continue
            if self.case["exchange"] == "async":
                distributed.all_reduce(parameter.grad, async_op=True).wait()
            else:
                distributed.all_reduce(parameter.grad)

    def take_long(self, how: str, step: int) -> None:
        """Take longer than the limit, in a way that is no hang."""
        limit_s, chosen = self.case["hang_after"], self.rank == self.case["seed"]
        at = step == self.case["step"]
        end = time.monotonic() + 3 * limit_s
        if how == "evaluates alone" and at and not self.rank:
            while time.monotonic() < end:
                with torch.no_grad():
                    self.network(torch.randn(512, 32), 0.0, 0.0)
        elif how == "evaluates slow data alone" and at and not self.rank:
            while time.monotonic() < end:
                time.sleep(0.05)
                with torch.no_grad():
                    self.network(torch.randn(2048, 32), 0.0, 0.0).softmax(1).sort()
        elif how == "saves alone in a span" and at and not self.rank:
            with self.log.training.checkpoint_save(step):
                time.sleep(4 * limit_s)
        elif how == "saves alone" and at and not self.rank:
            while time.monotonic() < end:
                torch.save({"weights": torch.randn(200_000)}, os.devnull)
        elif how == "all pause" and at:
            time.sleep(3 * limit_s)
        elif how == "long batches" and step % 10 == 5 and self.rank == step // 10 % self.case["world"]:
            time.sleep(1.3 * limit_s)
        elif how == "slow first steps" and step < 4 and chosen:
            time.sleep(2.5 * limit_s)
        elif how == "slow rank" and chosen:
            time.sleep(0.4)


def read_sample() -> None:
    """Hang in the data loader."""
    time.sleep(FOREVER_S)


def compute_gradient(gradient: torch.Tensor) -> torch.Tensor:
    """Hang in the backward pass."""
    time.sleep(FOREVER_S)
    return gradient


def prepare_batch() -> None:
    """Hang before the forward pass."""
    time.sleep(FOREVER_S)


def wait_for_lock() -> None:
    """Wait for a lock that is never released."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def hold_interpreter() -> None:
    """Hang in a C call that holds the interpreter, so that no thread of this process does anything."""
    ctypes.PyDLL(None).sleep(int(FOREVER_S))


def spin() -> None:
    """Compute for ever."""
    while True:
        random.random()


def follow_other_path() -> None:
    """Wait in another collective than the others do."""
    distributed.barrier()


INSTEAD_OF_A_STEP: dict[str, Callable[[], None]] = {
    "before forward": prepare_batch,
    "other path": follow_other_path,
    "lock": wait_for_lock,
    "holds the interpreter": hold_interpreter,
    "computes for ever": spin,
}


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
