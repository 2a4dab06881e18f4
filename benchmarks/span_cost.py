"""The cost of a span on the training thread, ours and OneLogger's, in a tight loop."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.child import measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.report import Claim, Report, percentile

_MakeSpan = Callable[[], AbstractContextManager[Any]]

OURS_OFF: Final = "ours_off"
OURS_ADDED_UP: Final = "ours_added_up"
OURS_KEPT: Final = "ours_kept"
OURS_ITERATION: Final = "ours_iteration"
PROFILE_BLOCK: Final = "profile_block"
PROFILE_LOGGED: Final = "profile_logged"
PROFILE_OFF: Final = "profile_off"
ONE_LOGGER_OFF: Final = "one_logger_off"
ONE_LOGGER: Final = "one_logger"
ONE_LOGGER_EXPORTED: Final = "one_logger_exported"

_TITLES: Final = {
    OURS_OFF: "ours, switched off",
    OURS_ADDED_UP: "ours, summed on the step record (`forward`)",
    OURS_KEPT: "ours, with its own record",
    OURS_ITERATION: "ours, `training_iteration` of the vocabulary",
    PROFILE_BLOCK: "ours, `profile_block` that does not log",
    PROFILE_LOGGED: "ours, `profile_block` that logs",
    PROFILE_OFF: "ours, `profile_block` with `profiling: false`",
    ONE_LOGGER_OFF: "OneLogger, switched off",
    ONE_LOGGER: "OneLogger, `training_iteration`, not exported",
    ONE_LOGGER_EXPORTED: "OneLogger, `training_iteration`, exported to a file",
}
_LIMITS_US: Final = {OURS_OFF: 2.0, OURS_ADDED_UP: 2.0, OURS_KEPT: 30.0, PROFILE_BLOCK: 2.0}


def build(options: Options) -> Report:
    """Measure each in its own process, in turns."""
    blocks, calls, rounds = (5, 300, 1) if options.quick else (20, 1000, 3)
    has_one_logger = importlib.util.find_spec("nv_one_logger") is not None
    names = [name for name in _TITLES if has_one_logger or not name.startswith("one_logger")]
    timings: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names:
            say(f"span cost, round {number + 1} of {rounds}: {_TITLES[name]}")
            timings[name] += measure_in_child(time_spans, name, blocks, calls)
    figures = {
        name: {
            "p50_us": percentile(took, 0.5),
            "p99_us": percentile(took, 0.99),
            "spans": len(took) * _IN_ONE,
        }
        for name, took in timings.items()
    }
    rows = [
        [
            _TITLES[name],
            f"{figure['p50_us']:.2f}",
            f"{figure['p99_us']:.1f}",
            f"{figure['p50_us'] / figures[OURS_ITERATION]['p50_us']:.1f}",
        ]
        for name, figure in figures.items()
    ]
    claims = [
        Claim(text=_TITLES[name], measured=figures[name]["p50_us"], limit=limit, unit=" µs")
        for name, limit in _LIMITS_US.items()
    ]
    if has_one_logger:
        claims.append(
            Claim(
                text="an iteration of the vocabulary against OneLogger's",
                measured=figures[ONE_LOGGER]["p50_us"] / figures[OURS_ITERATION]["p50_us"],
                limit=10.0,
                unit="x",
                at_least=True,
            )
        )
    return Report(
        name="span_cost",
        title="One empty span in a tight loop, time on the caller's thread",
        columns=["span", "p50 µs", "p99 µs", "x our iteration"],
        rows=rows,
        figures=figures,
        claims=claims,
        notes=[] if has_one_logger else ["OneLogger: not measured, nv_one_logger not installed"],
    )


_IN_ONE: Final = 10
"""Spans between two clock readings: a reading costs as much as the cheapest span."""


def time_spans(folder: Path, name: str, blocks: int, calls: int) -> list[float]:
    """Return the microseconds per span, measured ten at a time."""
    # OneLogger writes files into the working directory.
    os.chdir(folder)
    with _MAKERS[name](folder) as make:
        took = []
        clock = time.perf_counter_ns
        for _ in range(blocks):
            for _ in range(calls // _IN_ONE):
                before = clock()
                for _ in range(_IN_ONE):
                    with make():
                        pass
                took.append((clock() - before) / 1e3 / _IN_ONE)
            # As between training steps: let background threads run.
            time.sleep(0.01)
    return took


@contextmanager
def _ours_off(folder: Path) -> Iterator[_MakeSpan]:
    from toolkit.telemetry import TelemetryLogger

    log = TelemetryLogger("spans", log_dir=folder, enabled=False)
    yield lambda: log.span("forward")


@contextmanager
def _ours_added_up(folder: Path) -> Iterator[_MakeSpan]:
    from toolkit.telemetry import TelemetryLogger

    with TelemetryLogger("spans", log_dir=folder, spans={"around": 0}) as log:
        yield lambda: log.span("forward")


@contextmanager
def _ours_kept(folder: Path) -> Iterator[_MakeSpan]:
    from toolkit.telemetry import TelemetryLogger

    with TelemetryLogger("spans", log_dir=folder, spans={"keep": ["encode"]}) as log:
        # As in a training: what is logged before the start record waits for it.
        log.log_start()
        yield lambda: log.span("encode")


@contextmanager
def _ours_iteration(folder: Path) -> Iterator[_MakeSpan]:
    from toolkit.telemetry import TelemetryLogger

    with TelemetryLogger("spans", log_dir=folder, spans={"around": 0}) as log:
        log.training.configure(
            global_batch_size=32, log_every_n_train_iterations=50, flops_per_sample=100, seq_length=128
        )
        with log.training.application(), log.training.training_loop(train_iterations_start=0):
            yield log.training.training_iteration


@contextmanager
def _profile_block(folder: Path, **profiling: Any) -> Iterator[_MakeSpan]:
    from toolkit.telemetry import TelemetryLogger

    with TelemetryLogger("spans", log_dir=folder, profiling=profiling or True) as log:
        yield lambda: log.profile_block("forward_pass")


@contextmanager
def _profile_logged(folder: Path) -> Iterator[_MakeSpan]:
    with _profile_block(folder, min_duration_ms=0) as make:
        yield make


@contextmanager
def _profile_off(folder: Path) -> Iterator[_MakeSpan]:
    with _profile_block(folder, enabled=False) as make:
        yield make


@contextmanager
def _one_logger(folder: Path, *, is_enabled: bool = True, is_exported: bool = False) -> Iterator[_MakeSpan]:
    from nv_one_logger.api.config import OneLoggerConfig
    from nv_one_logger.exporter.file_exporter import FileExporter
    from nv_one_logger.training_telemetry.api.config import TrainingTelemetryConfig
    from nv_one_logger.training_telemetry.api.context import application, training_iteration, training_loop
    from nv_one_logger.training_telemetry.api.training_telemetry_provider import TrainingTelemetryProvider

    base = OneLoggerConfig(
        application_name="spans",
        session_tag_or_fn="spans",
        world_size_or_fn=1,
        enable_for_current_rank=is_enabled,
    )
    provider = TrainingTelemetryProvider.instance().with_base_config(base)
    provider = provider.with_exporter(FileExporter(file_path=folder / "spans.jsonl"))
    if is_exported:
        from nv_one_logger.recorder.default_recorder import ExportCustomizationMode

        provider = provider.with_export_customization(
            ExportCustomizationMode.WHITELIST_SPANS,
            ["application", "training_loop", "training_single_iteration"],
        )
    provider.configure_provider()
    with application():
        provider.set_training_telemetry_config(
            TrainingTelemetryConfig(
                perf_tag_or_fn="spans", global_batch_size_or_fn=32, log_every_n_train_iterations=50
            )
        )
        with training_loop(train_iterations_start=0):
            yield training_iteration


@contextmanager
def _one_logger_off(folder: Path) -> Iterator[_MakeSpan]:
    with _one_logger(folder, is_enabled=False) as make:
        yield make


@contextmanager
def _one_logger_exported(folder: Path) -> Iterator[_MakeSpan]:
    with _one_logger(folder, is_exported=True) as make:
        yield make


_MAKERS: Final = {
    OURS_OFF: _ours_off,
    OURS_ADDED_UP: _ours_added_up,
    OURS_KEPT: _ours_kept,
    OURS_ITERATION: _ours_iteration,
    PROFILE_BLOCK: _profile_block,
    PROFILE_LOGGED: _profile_logged,
    PROFILE_OFF: _profile_off,
    ONE_LOGGER_OFF: _one_logger_off,
    ONE_LOGGER: _one_logger,
    ONE_LOGGER_EXPORTED: _one_logger_exported,
}


if __name__ == "__main__":
    run_alone(build)
