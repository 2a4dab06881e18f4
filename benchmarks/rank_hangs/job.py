"""One rank of a small training on gloo, and the way in which it hangs, or only takes long."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from toolkit.telemetry import TelemetryLogger

FOREVER_S = 600.0
STEP_S = 0.05
STEPS = 40


class Samples(Dataset[torch.Tensor]):
    """Random samples, the reading of which may hang."""

    hangs = False

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return a sample."""
        if self.hangs:
            read_sample()
        return torch.randn(8)


class Gradient(torch.autograd.Function):
    """Passes a tensor on; its gradient may never come."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, hangs: bool) -> torch.Tensor:
        """Return the tensor."""
        context.hangs = hangs
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        """Return the gradient."""
        if context.hangs:
            compute_gradient()
        return gradient, None


def read_sample() -> None:
    """Hang in the data loader."""
    time.sleep(FOREVER_S)


def compute_gradient() -> None:
    """Hang in the backward pass."""
    time.sleep(FOREVER_S)


def prepare_batch() -> None:
    """Hang before the forward pass."""
    time.sleep(FOREVER_S)


def take_lock() -> None:
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


def reduce_other_shape() -> None:
    """Exchange a tensor of another shape than the others do.

    An empty one: one that is larger or smaller ends a process on gloo, where NCCL would wait.
    """
    distributed.all_reduce(torch.ones(0))


def take_other_path() -> None:
    """Wait in another collective than the others do."""
    distributed.barrier()


INSTEAD_OF_A_STEP: dict[str, Callable[[], None]] = {
    "before forward": prepare_batch,
    "other path": take_other_path,
    "lock": take_lock,
    "holds the interpreter": hold_interpreter,
    "computes for ever": spin,
}
LINE = {name: do.__name__ for name, do in INSTEAD_OF_A_STEP.items()} | {
    "data loader": "read_sample",
    "backward": "compute_gradient",
}
"""The function that has the line to name."""


class Training:
    """The training of one rank."""

    def __init__(self, case: dict[str, Any], rank: int, log: TelemetryLogger) -> None:
        self.case, self.rank, self.log = case, rank, log
        self.network = nn.Linear(8, 8)
        self.is_parallel = case["style"] == "DDP"
        self.model = DistributedDataParallel(self.network) if self.is_parallel else self.network
        self.samples = Samples()
        self.batches = iter(DataLoader(self.samples, batch_size=4))
        self.group = distributed.new_group(list(range(case["world"]))) if case["style"] == "group" else None

    def step(self, hangs: str) -> float:
        """Do one step, which may hang."""
        self.samples.hangs = hangs == "data loader"
        batch = next(self.batches)
        if hangs in INSTEAD_OF_A_STEP:
            INSTEAD_OF_A_STEP[hangs]()
        time.sleep(STEP_S)
        inputs = Gradient.apply(  # type: ignore[no-untyped-call]  # torch annotates it on its own
            batch.requires_grad_(), hangs == "backward"
        )
        loss = self.model(inputs).pow(2).mean()
        loss.backward()
        if not self.is_parallel:
            self.exchange(hangs)
        self.network.zero_grad()
        return float(loss.detach())

    def exchange(self, hangs: str) -> None:
        """Average the gradients."""
        for number, parameter in enumerate(self.network.parameters()):
            if hangs == "other shape" and not number:
                reduce_other_shape()
                if self.case["step"] % 2:
                    # Instead of this exchange, else one more.
                    continue
            if self.case["style"] == "async":
                work = distributed.all_reduce(parameter.grad, async_op=True)
                work.wait()
            else:
                distributed.all_reduce(parameter.grad, group=self.group)

    def take_long(self, how: str, step: int) -> None:
        """Take longer than the limit, in a way that is no hang."""
        limit_s, is_zero = self.case["hang_after"], self.rank == 0
        at = step == self.case["step"]
        if how == "evaluates alone" and is_zero and at:
            end = time.monotonic() + 3 * limit_s
            while time.monotonic() < end:
                with torch.no_grad():
                    self.network(torch.randn(512, 8))
        elif how == "evaluates slow data alone" and is_zero and at:
            end = time.monotonic() + 3 * limit_s
            while time.monotonic() < end:
                time.sleep(0.05)
                with torch.no_grad():
                    self.network(torch.randn(2048, 8)).softmax(1).sort()
        elif how == "saves alone in a span" and is_zero and at:
            with self.log.training.checkpoint_save(step):
                time.sleep(4 * limit_s)
        elif how == "saves alone" and is_zero and at:
            end = time.monotonic() + 3 * limit_s
            while time.monotonic() < end:
                torch.save({"weights": torch.randn(200_000)}, os.devnull)
        elif how == "all pause" and at:
            time.sleep(3 * limit_s)
        elif how == "long batches" and step % 10 == 5 and self.rank == step // 10 % self.case["world"]:
            time.sleep(1.3 * limit_s)
        elif how == "slow first steps" and step < 3 and self.rank == self.case["rank"]:
            time.sleep(2.5 * limit_s)
        elif how == "slow rank" and self.rank == self.case["rank"]:
            time.sleep(8 * STEP_S)


def main(case: dict[str, Any], rank: int, place: Path) -> None:
    """Train as `case` says, in the run of `place`."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{place}/store",
        rank=rank,
        world_size=case["world"],
        timeout=timedelta(seconds=FOREVER_S),
    )
    options: dict[str, Any] = {"log_every": 1, "ranks": "all", "csv": False, "code": False, "output": False}
    is_hung = rank == case["rank"] and case["is_hang"]
    with TelemetryLogger(
        "run", log_dir=str(place / "logs"), errors={"hang_after": case["hang_after"]}, **options
    ) as log:
        log.log_start(config={"max_steps": STEPS})
        training = Training(case, rank, log)
        try:
            for step in range(STEPS):
                is_now = is_hung and step == case["step"]
                if is_now or (step == case["step"] and rank == 0):
                    (place / f"fault-{rank}").write_text(str(time.time()))
                if is_now and case["kind"] == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if is_now and case["kind"] == "ends early":
                    break
                if not case["is_hang"]:
                    training.take_long(case["kind"], step)
                loss = training.step(case["kind"] if is_now else "")
                log.log_step(step, train_loss=loss)
        except RuntimeError:
            # gloo says at once that a rank is gone; NCCL waits for it for minutes.
            if case["kind"] not in ("killed", "other shape"):
                raise
            time.sleep(FOREVER_S)
    if case["is_hang"]:
        time.sleep(FOREVER_S)
    distributed.destroy_process_group()
