"""One small training, the same to the last bit each time, with telemetry in every state there is.

python -m tests.faults.seeded_training FOLDER STEPS [WAYS...]

Each way is a process of its own, forked from this one, which has imported what takes long. What became of it is in
FOLDER/<way>.json, its output in FOLDER/<way>.out and .err.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import itertools
import json
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from tests.faults.all_features import call_everything, keep_house
from tests.faults.failpoints import Failpoint, reached_by
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.core.clock import SystemClock
from toolkit.telemetry.logger.machine.samplers.host import HostSampler
from toolkit.telemetry.logger.writing.record_appender import RecordFile
from toolkit.telemetry.runfolder.journal.journal import Journal

EXIT_CODE = 7
TRY_EVERY = int(os.environ.get("TRY_EVERY", "1"))
"""Of the functions that are made to raise, every so many; 1 is all of them."""
_ON = {
    "log_every": 1,
    "close_timeout": 1.0,
    "csv": True,
    "errors": {"output_lines": 5},
    "spans": "all",
    "config": {"model": {"width": 16}, "seed": 3},
}


class Examples(Dataset):
    """Numbers that each worker's own random generators have a hand in."""

    def __init__(self, log: TelemetryLogger | None) -> None:
        self.log = log

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.log is not None:
            self.log.log_event("loaded", index=index)
        noise = random.random() + np.random.rand() + torch.rand(()).item()
        return torch.full((8,), index / 64) + torch.randn(8) * 0.1, torch.tensor([noise])


def train(
    folder: Path, steps: int, log: TelemetryLogger | None, at_step: Callable[[int], None] | None = None
) -> dict[str, object]:
    """Train, and return digests of all that must not depend on telemetry."""
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.GELU(), torch.nn.Linear(16, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(Examples(log), batch_size=8, shuffle=True, num_workers=1, persistent_workers=True)
    losses: list[str] = []
    step = 0
    while step < steps:
        for inputs, targets in loader:
            optimizer.zero_grad()
            with log.span("forward") if log is not None else contextlib.nullcontext():
                loss = (model(inputs) - targets).square().mean()
            with log.capture_errors() if log is not None else contextlib.nullcontext():
                loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item().hex())
            if log is not None:
                log.log_step(step, train_loss=loss, grad_norm=norm, lr=1e-2, epoch=step / 8)
                if step % 10 == 0:
                    call_everything(log, step, loss)
            if at_step is not None:
                at_step(step)
            step += 1
            if step >= steps:
                break
        print(f"epoch done at step {step}")
    checkpoint = folder / f"{os.getpid()}.pt"
    torch.save(model.state_dict(), checkpoint)
    if log is not None:
        log.log_checkpoint(step, checkpoint)
    saved = torch.load(checkpoint)
    assert all(torch.equal(saved[name], weight) for name, weight in model.state_dict().items())
    return {
        "weights": _digest(*(weight.numpy().tobytes() for weight in saved.values())),
        "optimizer": _digest(
            *(value.numpy().tobytes() for state in optimizer.state.values() for value in state.values())
        ),
        "losses": losses,
        "python's random numbers": _digest(repr(random.getstate()).encode()),
        "numpy's": _digest(repr(np.random.get_state(legacy=False)).encode()),
        "torch's": _digest(torch.get_rng_state().numpy().tobytes()),
    }


def _failures(log: TelemetryLogger) -> int:
    """How often telemetry failed; that the steps of `call_everything` go back is another matter."""
    return sum(times for kind, times in log.guard.counts.items() if "MisuseError" not in kind)


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"|".join(parts)).hexdigest()


# ---------------------------------------------------------------- ways to have telemetry


class Sink:
    """A mirror whose `does` happens in each of its calls."""

    name = "odd"

    def __init__(self, does: Callable[[], object]) -> None:
        self._does = does

    def write(self, batch: object) -> None:
        self._does()

    def close(self) -> None:
        self._does()


class JumpingClock(SystemClock):
    """A wall clock that someone sets every few readings, by years."""

    def __init__(self) -> None:
        self._readings = 0

    def wall(self) -> float:
        self._readings += 1
        return super().wall() + (0.0, 3.2e7, -3.2e7, 1e10)[self._readings // 7 % 4]


def _raise(error: BaseException) -> Callable[..., object]:
    def fail(*_: object, **__: object) -> object:
        raise error

    return fail


def _hang(*_: object, **__: object) -> None:
    threading.Event().wait()


def absent(folder: Path, steps: int) -> dict[str, object]:
    return train(folder, steps, None)


def disabled(folder: Path, steps: int) -> dict[str, object]:
    with TelemetryLogger("run", log_dir=folder / "logs", enabled=False) as log:
        return train(folder, steps, log)


def on(folder: Path, steps: int) -> dict[str, object]:
    return Way()(folder, steps)


class Way:
    """Telemetry that is on, with some of it failing."""

    def __init__(
        self,
        *,
        write: Callable[..., object] | None = None,
        sample: Callable[..., object] | None = None,
        mirrors: Sequence[Callable[[], object]] = (),
        at_step: Sequence[Callable[[TelemetryLogger, Path, int], object]] = (),
        before: Sequence[Callable[[], object]] = (),
        **options: object,
    ) -> None:
        self._write = write
        self._sample = sample
        self._mirrors = mirrors
        self._at_step = at_step
        self._before = before
        self._options = options

    def __call__(self, folder: Path, steps: int) -> dict[str, object]:
        # In a process of its own, so nothing is put back.
        if self._write is not None:
            RecordFile.write = self._write  # type: ignore[method-assign, assignment]
        if self._sample is not None:
            HostSampler.sample = self._sample  # type: ignore[method-assign, assignment]
        for prepare in self._before:
            prepare()
        sinks = [Sink(does) for does in self._mirrors]
        log = TelemetryLogger("run", log_dir=folder / "logs", sinks=sinks, **{**_ON, **self._options})

        def at_step(step: int) -> None:
            for does in self._at_step:
                does(log, folder / "logs", step)

        # Not closed here: the interpreter's end does that, as it does for most scripts.
        return {**train(folder, steps, log, at_step), "telemetry errors": _failures(log)}


def _remove_the_folder(log: TelemetryLogger, logs: Path, step: int) -> None:
    if step % 20 == 10:
        shutil.rmtree(logs, ignore_errors=True)


_GARBAGE = [b"", b"{", b"null", b"[" * 5000, b"\xff\xfe", b'{"id": 1e999}', bytes(100), b'{"stop": true}']


def _write_garbage_for_control(log: TelemetryLogger, logs: Path, step: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        for run in logs.iterdir():
            (run / "control.json").write_bytes(_GARBAGE[step % len(_GARBAGE)])


class Evil:
    """Raises from everything it is asked."""

    def _raise(self, *_: object) -> None:
        raise RuntimeError("evil")

    __float__ = __repr__ = __str__ = __bool__ = __len__ = __iter__ = __hash__ = __eq__ = __getattr__ = _raise


def _bad_values() -> list[object]:
    cycle: dict[str, object] = {}
    cycle["again"] = cycle
    numbers = [float("nan"), 10**5000, torch.zeros(9, 9)]
    return [*numbers, Evil(), cycle, "\ud800", b"\xff", object(), {Evil: Evil()}]


def _log_bad_values(log: TelemetryLogger, logs: Path, step: int) -> None:
    for bad in _bad_values()[step % 3 :: 3]:
        log.log_step(step, train_loss=bad, lr=bad, odd=bad)
        log.log_eval(bad, bad)
        log.log_event(bad, odd=bad)
        log.log_completion(bad, bad, bad, reward=bad)
        with log.span(bad, odd=bad):
            pass


def _have_no_journal() -> None:
    Journal._create_file = staticmethod(_raise(OSError(errno.ENOSPC, "full")))  # type: ignore[assignment]


def _have_no_threads() -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("telemetry"):
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = refuse  # type: ignore[method-assign]


def with_a_failure_of_its_own(folder: Path, steps: int) -> dict[str, object]:
    log = TelemetryLogger("run", log_dir=folder / "logs", **_ON)
    _print_result(folder, "with_a_failure_of_its_own", train(folder, steps, log))
    raise ValueError("the training's own")


def absent_and_failing(folder: Path, steps: int) -> dict[str, object]:
    _print_result(folder, "absent_and_failing", absent(folder, steps))
    raise ValueError("the training's own")


def _whole_run(folder: Path, begin: Callable[[str], None]) -> None:
    begin("set-up")
    log = TelemetryLogger("watched", log_dir=folder, **_ON)
    begin("loop")
    log.log_start(config={"a": 1}, training={"max_steps": 5})
    for step in range(0, 30, 10):
        call_everything(log, step, torch.tensor(0.5))
        keep_house(log)
        log.flush(0.2)
    log.sync()
    begin("end")
    log.close("failed", error=ValueError("the training's own"))


def with_every_function_of_the_loop_raising_in_turn(folder: Path, steps: int) -> dict[str, object]:
    threading.excepthook = lambda _: None  # a thread of ours whose first function raises says so
    points = reached_by(lambda begin: _whole_run(folder / "watched", begin))["loop"][::TRY_EVERY]
    log = TelemetryLogger("run", log_dir=folder / "logs", **_ON)
    reached_us: list[str] = []
    ours, raised = iter(points), 0

    def use(point: Failpoint, step: int) -> None:
        try:
            if point.is_of_training:
                call_everything(log, step)
            else:
                log.log_step(step, train_loss=0.5)
                log.flush(0.01)
        except Exception as error:  # noqa: BLE001
            reached_us.append(f"{point.name}: {type(error).__name__}: {error}")

    def fail_some(step: int) -> None:
        nonlocal raised
        for point in itertools.islice(ours, -(-len(points) // steps)):
            with point.armed():
                use(point, step)
            raised += 1

    result = train(folder, steps, log, fail_some)
    return {
        **result,
        "functions": raised,
        "reached the training": reached_us,
        "still live": log.is_live,
        "telemetry errors": _failures(log),
    }


def with_every_function_of_set_up_and_end_raising_in_turn(folder: Path, steps: int) -> dict[str, object]:
    threading.excepthook = lambda _: None
    parts = reached_by(lambda begin: _whole_run(folder / "watched", begin))
    reached_us: list[str] = []
    slowest, tried = 0.0, 0
    options = {**_ON, "close_timeout": 0.2}
    for part in ("set-up", "end"):
        for point in parts[part][::TRY_EVERY]:
            tried += 1
            began = time.monotonic()
            try:
                with contextlib.ExitStack() as stack:
                    if part == "set-up":
                        stack.enter_context(point.armed())
                    log = TelemetryLogger("run", log_dir=folder / "logs" / str(tried), **options)
                    log.log_step(1, train_loss=0.5)
                    with log.span("forward"):
                        pass
                    if part == "end":
                        stack.enter_context(point.armed())
                    log.close("failed", error=ValueError("the training's own"))
            except Exception as error:  # noqa: BLE001
                reached_us.append(f"{part} {point.name}: {type(error).__name__}: {error}")
            slowest = max(slowest, time.monotonic() - began)
    return {
        **train(folder, steps, None),
        "functions": tried,
        "of": len(parts["set-up"]) + len(parts["end"]),
        "reached the training": reached_us,
        "slowest": slowest,
    }


_BROKEN, _FULL = OSError(errno.EIO, "broken"), OSError(errno.ENOSPC, "full")

WAYS: dict[str, Callable[[Path, int], dict[str, object]]] = {
    "absent": absent,
    "absent_and_failing": absent_and_failing,
    "disabled": disabled,
    "on": on,
    "with_a_failure_of_its_own": with_a_failure_of_its_own,
    "with_all_that_hangs": Way(write=_hang, sample=_hang, mirrors=[_hang]),
    "with_a_disk_that_fails_and_no_journal": Way(write=_raise(_BROKEN), before=[_have_no_journal]),
    "with_no_threads": Way(before=[_have_no_threads]),
    "with_all_that_raises": Way(
        sample=_raise(RuntimeError("no /proc")),
        mirrors=[_raise(RuntimeError("down")), _raise(SystemExit(3)), _raise(_FULL)],
        at_step=[_remove_the_folder, _write_garbage_for_control, _log_bad_values],
        clock=JumpingClock(),
        tensorboard=True,
    ),
    "with_every_function_of_the_loop_raising_in_turn": with_every_function_of_the_loop_raising_in_turn,
    "with_every_function_of_set_up_and_end_raising_in_turn": (
        with_every_function_of_set_up_and_end_raising_in_turn
    ),
}

ONE_BY_ONE: dict[str, Callable[[Path, int], dict[str, object]]] = {
    "with_tensorboard": Way(tensorboard=True),
    "with_a_disk_that_fails": Way(write=_raise(_BROKEN)),
    "with_a_disk_that_is_full": Way(write=_raise(_FULL)),
    "with_a_disk_that_hangs": Way(write=_hang),
    "with_a_sampler_that_raises": Way(sample=_raise(RuntimeError("no /proc"))),
    "with_a_sampler_that_hangs": Way(sample=_hang),
    "with_a_mirror_that_raises": Way(mirrors=[_raise(RuntimeError("down"))]),
    "with_a_mirror_that_exits": Way(mirrors=[_raise(SystemExit(3))]),
    "with_a_mirror_that_interrupts": Way(mirrors=[_raise(KeyboardInterrupt())]),
    "with_a_mirror_that_hangs": Way(mirrors=[_hang]),
    "with_a_mirror_that_fills_the_disk": Way(mirrors=[_raise(_FULL)]),
    "with_the_folder_removed": Way(at_step=[_remove_the_folder]),
    "with_garbage_for_control": Way(at_step=[_write_garbage_for_control]),
    "with_a_clock_that_jumps": Way(clock=JumpingClock()),
    "with_no_journal": Way(before=[_have_no_journal]),
    "with_bad_values": Way(at_step=[_log_bad_values]),
}
"""What fails together above, each by itself: for a run that no one waits for."""


def _print_result(folder: Path, way: str, result: dict[str, object]) -> None:
    (folder.parent / f"{way}.json").write_text(json.dumps(result))


def _bring_in_what_takes_long() -> None:
    """Have torch import, once for all, what its first optimizer step brings along. No backward: it begins threads."""
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.AdamW([weight]).step()
    # Else each child's end looks at, and so copies, all that was imported.
    gc.freeze()


def main() -> None:
    folder, steps, ways = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    # Threads of the parent's would be missing in the children.
    torch.set_num_threads(1)
    _bring_in_what_takes_long()
    for way in ways or [*WAYS, *ONE_BY_ONE]:
        sys.stdout.flush()
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            own = folder / way
            own.mkdir()
            for descriptor, suffix in ((1, "out"), (2, "err")):
                os.dup2(os.open(folder / f"{way}.{suffix}", os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
            _print_result(own, way, {**WAYS, **ONE_BY_ONE}[way](own, steps))
            sys.exit(EXIT_CODE)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        ended = {"code": code, "seconds": time.monotonic() - began, "cpu": sum(os.times()[2:4])}
        (folder / f"{way}.end").write_text(json.dumps(ended))


if __name__ == "__main__":
    main()
