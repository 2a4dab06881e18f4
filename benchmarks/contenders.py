"""The measured loggers, all with the same two-call interface."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import random
from typing import Any, Protocol

VALUES: dict[str, Any] = {
    "train_loss": 0.123456,
    "lr": 1e-4,
    "grad_norm": 1.25,
    "samples_per_sec": 12.3,
    "sec_per_step": 0.08,
    "gpu_mem_allocated": 12.3,
    "gpu_mem_reserved": 14.0,
    "cpu_mem_rss_mb": 1234.5,
    "nan_inf_detected": False,
    "epoch": 1,
}
"""The ten scalars of one step; `vary` changes some of them."""


def vary() -> None:
    """Give the loss and other scalars new values, as each step of a training does; called between two calls.

    A loss that never changes is a finding, and takes detectors and encoders other ways than most runs do.
    """
    noise = random()
    VALUES["train_loss"] = 0.12 + 0.02 * noise
    VALUES["grad_norm"] = 1.0 + 0.5 * random()
    VALUES["samples_per_sec"] = 12.0 + 0.5 * noise
    VALUES["sec_per_step"] = 1.0 / VALUES["samples_per_sec"]


class Logger(Protocol):
    """An open logger, ready for steps."""

    def log(self, step: int) -> None:
        """Log `VALUES` as step `step`, as in the logger's own documentation."""
        ...

    def close(self) -> None:
        """Finish the run as a training script would."""
        ...


@dataclass(frozen=True, slots=True)
class Contender:
    """A logger to compare: its name, how to open it, what it requires."""

    name: str
    title: str
    open: Callable[[Path], Logger]
    needs: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """Required packages that are not installed."""
        return [package for package in self.needs if importlib.util.find_spec(package) is None]


class _Nothing:
    """Logs nothing: shows the noise between two equal loops."""

    def __init__(self, folder: Path) -> None:
        del folder

    def log(self, step: int) -> None:
        pass

    def close(self) -> None:
        pass


class _Bare:
    """The minimum that puts a record on disk: orjson and one append."""

    def __init__(self, folder: Path) -> None:
        import orjson

        self._dumps = orjson.dumps
        self._option = orjson.OPT_APPEND_NEWLINE
        self._descriptor = os.open(folder / "bare.jsonl", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def log(self, step: int) -> None:
        record = {"event": "step", "time": time.time(), "seq": step, "global_step": step, **VALUES}
        os.write(self._descriptor, self._dumps(record, option=self._option))

    def close(self) -> None:
        os.close(self._descriptor)


class _JsonAndCsv:
    """A hand-written logger: the standard library's json and csv, both flushed."""

    def __init__(self, folder: Path) -> None:
        self._lines = open(folder / "metrics.jsonl", "a", encoding="utf-8")  # noqa: SIM115 - closed by close()
        self._table = open(folder / "metrics.csv", "a", encoding="utf-8", newline="")  # noqa: SIM115
        self._rows = csv.DictWriter(self._table, ["event", "time", "global_step", *VALUES])
        self._rows.writeheader()

    def log(self, step: int) -> None:
        record = {"event": "step", "time": time.time(), "global_step": step, **VALUES}
        self._lines.write(json.dumps(record) + "\n")
        self._lines.flush()
        self._rows.writerow(record)
        self._table.flush()

    def close(self) -> None:
        self._lines.close()
        self._table.close()


class _Ours:
    """TelemetryLogger with every step logged, and otherwise the defaults: table, detectors, samplers and control."""

    log_every = 1

    def __init__(self, folder: Path) -> None:
        from toolkit.telemetry import TelemetryLogger

        self.telemetry = TelemetryLogger("bench", log_dir=folder, log_every=self.log_every)

    def log(self, step: int) -> None:
        self.telemetry.log_step(step, **VALUES)

    def close(self) -> None:
        self.telemetry.close()


class _OursNotDue(_Ours):
    """TelemetryLogger when nearly every step falls between two records."""

    log_every = 1000


class _Trackio:
    def __init__(self, folder: Path) -> None:
        os.environ["TRACKIO_DIR"] = str(folder)
        os.environ["HF_HUB_OFFLINE"] = "1"
        import trackio

        self._run: Any = trackio.init(project="bench", name="bench", embed=False)

    def log(self, step: int) -> None:
        self._run.log(dict(VALUES), step=step)

    def close(self) -> None:
        self._run.finish()


class _WandbOffline:
    def __init__(self, folder: Path) -> None:
        os.environ["WANDB_SILENT"] = "true"
        import wandb

        self._run: Any = wandb.init(project="bench", dir=str(folder), mode="offline")

    def log(self, step: int) -> None:
        self._run.log(dict(VALUES), step=step)

    def close(self) -> None:
        self._run.finish()


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def log(self, step: int) -> None:
        for name, value in VALUES.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Span(_Ours):
    """An empty span instead of a step: summed on the step record, or with a record of its own."""

    name = "forward"
    options: Mapping[str, Any] = {"around": 0}

    def __init__(self, folder: Path) -> None:
        from toolkit.telemetry import TelemetryLogger

        self.telemetry = TelemetryLogger("bench", log_dir=folder, spans=dict(self.options))
        # As in a training: what is logged before the start record waits for it.
        self.telemetry.log_start()

    def log(self, step: int) -> None:
        del step
        with self.telemetry.span(self.name):
            pass


class _RecordedSpan(_Span):
    name = "encode"
    options: Mapping[str, Any] = {"keep": ["encode"]}


class _Iteration:
    """An empty iteration of the vocabulary, in a loop."""

    def __init__(self, folder: Path) -> None:
        self._open = ExitStack()
        self._iteration = self._open.enter_context(self._vocabulary(folder))

    @contextmanager
    def _vocabulary(self, folder: Path) -> Iterator[Callable[[], AbstractContextManager[Any]]]:
        from toolkit.telemetry import TelemetryLogger

        with TelemetryLogger("bench", log_dir=folder, spans={"around": 0}) as log:
            log.training.configure(
                global_batch_size=32, log_every_n_train_iterations=50, flops_per_sample=100, seq_length=128
            )
            with log.training.application(), log.training.training_loop(train_iterations_start=0):
                yield log.training.training_iteration

    def log(self, step: int) -> None:
        del step
        with self._iteration():
            pass

    def close(self) -> None:
        self._open.close()


class _OneLogger(_Iteration):
    """The same by OneLogger, which does not export it."""

    @contextmanager
    def _vocabulary(self, folder: Path) -> Iterator[Callable[[], AbstractContextManager[Any]]]:
        from nv_one_logger.api.config import OneLoggerConfig
        from nv_one_logger.exporter.file_exporter import FileExporter
        from nv_one_logger.training_telemetry.api.config import TrainingTelemetryConfig
        from nv_one_logger.training_telemetry.api.context import (
            application,
            training_iteration,
            training_loop,
        )
        from nv_one_logger.training_telemetry.api.training_telemetry_provider import (
            TrainingTelemetryProvider,
        )

        # It writes files into the working directory.
        os.chdir(folder)
        base = OneLoggerConfig(
            application_name="bench",
            session_tag_or_fn="bench",
            world_size_or_fn=1,
            enable_for_current_rank=True,
        )
        provider = TrainingTelemetryProvider.instance().with_base_config(base)
        provider.with_exporter(FileExporter(file_path=folder / "spans.jsonl")).configure_provider()
        training = TrainingTelemetryConfig(
            perf_tag_or_fn="bench", global_batch_size_or_fn=32, log_every_n_train_iterations=50
        )
        with application():
            provider.set_training_telemetry_config(training)
            with training_loop(train_iterations_start=0):
                yield training_iteration


NOTHING = Contender("nothing", "nothing (the noise)", _Nothing)
BARE = Contender("bare", "orjson + os.write", _Bare, ("orjson",))
OURS = Contender("ours", "TelemetryLogger", _Ours)
NOT_DUE = Contender("not_due", "TelemetryLogger, step between two records", _OursNotDue)
JSON_AND_CSV = Contender("json_csv", "json + csv, both flushed", _JsonAndCsv)
TRACKIO = Contender("trackio", "Trackio", _Trackio, ("trackio",))
WANDB = Contender("wandb", "W&B offline", _WandbOffline, ("wandb",))
TENSORBOARD = Contender("tensorboard", "TensorBoard (torch)", _TensorBoard, ("torch", "tensorboard"))
SPAN = Contender("span", "a span, summed on the step record (`forward`)", _Span)
RECORDED_SPAN = Contender("recorded_span", "a span with its own record", _RecordedSpan)
ITERATION = Contender("iteration", "`training_iteration` of the vocabulary", _Iteration)
ONE_LOGGER = Contender("one_logger", "OneLogger, `training_iteration`", _OneLogger, ("nv_one_logger",))

SPANS = (SPAN, RECORDED_SPAN, ITERATION, ONE_LOGGER)
PEERS = (JSON_AND_CSV, TRACKIO, WANDB, TENSORBOARD)
ALL = {contender.name: contender for contender in (NOTHING, BARE, OURS, NOT_DUE, *PEERS, *SPANS)}
