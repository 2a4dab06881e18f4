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

MakeSpan = Callable[[], AbstractContextManager[Any]]

_TITLES: Final = {
    "off": "ours, switched off",
    "summed": "ours, summed on the step record (`forward`)",
    "recorded": "ours, with its own record",
    "iteration": "ours, `training_iteration` of the vocabulary",
    "one_logger_off": "OneLogger, switched off",
    "one_logger": "OneLogger, `training_iteration`, not exported",
    "one_logger_exported": "OneLogger, `training_iteration`, exported to a file",
}
_LIMITS_US: Final = {"off": 2.0, "summed": 2.0, "recorded": 30.0}
_IN_ONE: Final = 10
"""Spans between two clock readings: a reading costs as much as the cheapest span."""


def build(options: Options) -> Report:
    """Measure each in its own process, in turns."""
    blocks, calls, rounds = (5, 300, 1) if options.quick else (20, 1000, 2)
    has_one_logger = importlib.util.find_spec("nv_one_logger") is not None
    names = [name for name in _TITLES if has_one_logger or not name.startswith("one_logger")]
    timings: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names:
            say(f"span cost, round {number + 1} of {rounds}: {_TITLES[name]}")
            timings[name] += measure_in_child(time_spans, name, blocks, calls)
    figures = {
        name: {"p50_us": percentile(took, 0.5), "p99_us": percentile(took, 0.99)}
        for name, took in timings.items()
    }
    iteration = figures["iteration"]["p50_us"]
    claims = [
        Claim(text=_TITLES[name], measured=figures[name]["p50_us"], limit=limit, unit=" µs")
        for name, limit in _LIMITS_US.items()
    ]
    if has_one_logger:
        ratio, text = figures["one_logger"]["p50_us"] / iteration, "an iteration against OneLogger's"
        claims.append(Claim(text=text, measured=ratio, limit=10.0, unit="x", at_least=True))
    return Report(
        name="span_cost",
        title="One empty span in a tight loop, time on the caller's thread",
        columns=["span", "p50 µs", "p99 µs", "x our iteration"],
        rows=[
            [
                _TITLES[name],
                f"{figure['p50_us']:.2f}",
                f"{figure['p99_us']:.1f}",
                f"{figure['p50_us'] / iteration:.1f}",
            ]
            for name, figure in figures.items()
        ],
        figures=figures,
        claims=claims,
        notes=[] if has_one_logger else ["OneLogger: not measured, nv_one_logger not installed"],
    )


def time_spans(folder: Path, name: str, blocks: int, calls: int) -> list[float]:
    """Return the microseconds per span, measured ten at a time."""
    # OneLogger writes files into the working directory.
    os.chdir(folder)
    make_spans = _one_logger if name.startswith("one_logger") else _ours
    took, clock = [], time.perf_counter_ns
    with make_spans(folder, name) as make:
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
def _ours(folder: Path, name: str) -> Iterator[MakeSpan]:
    from toolkit.telemetry import TelemetryLogger

    own: dict[str, dict[str, Any]] = {
        "off": {"enabled": False},
        "recorded": {"spans": {"keep": ["encode"]}},
    }
    options = own.get(name, {"spans": {"around": 0}})
    with TelemetryLogger("spans", log_dir=folder, **options) as log:
        if name != "iteration":
            # As in a training: what is logged before the start record waits for it.
            log.log_start()
            yield lambda: log.span("encode" if name == "recorded" else "forward")
            return
        log.training.configure(
            global_batch_size=32, log_every_n_train_iterations=50, flops_per_sample=100, seq_length=128
        )
        with log.training.application(), log.training.training_loop(train_iterations_start=0):
            yield log.training.training_iteration


@contextmanager
def _one_logger(folder: Path, name: str) -> Iterator[MakeSpan]:
    from nv_one_logger.api.config import OneLoggerConfig
    from nv_one_logger.exporter.file_exporter import FileExporter
    from nv_one_logger.recorder.default_recorder import ExportCustomizationMode
    from nv_one_logger.training_telemetry.api.config import TrainingTelemetryConfig
    from nv_one_logger.training_telemetry.api.context import application, training_iteration, training_loop
    from nv_one_logger.training_telemetry.api.training_telemetry_provider import TrainingTelemetryProvider

    base = OneLoggerConfig(
        application_name="spans",
        session_tag_or_fn="spans",
        world_size_or_fn=1,
        enable_for_current_rank=name != "one_logger_off",
    )
    provider = TrainingTelemetryProvider.instance().with_base_config(base)
    provider = provider.with_exporter(FileExporter(file_path=folder / "spans.jsonl"))
    if name == "one_logger_exported":
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


if __name__ == "__main__":
    run_alone(build)
