"""Everything that a training script can call, called once."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.logger_internals import internals

HERE = Path(__file__)


def call_everything(log: TelemetryLogger, step: int, tensor: object = 0.5) -> None:
    """Call every method of `log` that a training loop has a use for; `tensor` is a loss."""
    log.log_step(step, train_loss=0.5, lr=1e-4, text="a", tensor=tensor, nested={"a": [1]})
    log.log_step(step + 1, train_loss=tensor)
    log.log_step(step + 2, train_loss=float("nan"))
    log.log_step(step + 3, train_loss=0.5)
    _call_spans(log)
    _call_decorators(log)
    log.log_eval(step, val_loss=0.5)
    log.log_epoch(1, {"a": 2}, global_step=step)
    log.log_checkpoint(step, HERE)
    log.log_sample(step, HERE, prompt="p")
    log.log_completion(step, prompt="p", completion="c", reward={"r": 1.0})
    log.log_event("mine", a=1)
    internals(log).event_outside_spans("apart", {"a": 1})
    internals(log).set_tags(perf_tag="a")
    log.take_requests()
    assert log.should_stop in (True, False)
    assert log.log_every >= 1
    assert log.run_folder is None or log.run_id
    assert internals(log).completions is None or log.is_live


def _call_spans(log: TelemetryLogger) -> None:
    with log.span("forward"):
        pass
    with log.span("mine", a=1) as span:
        span.set(b=2)
        span.set_all({"c": 3})
        span.event("happened", d=4)
        with log.span("inside"):
            pass
    with log.device_span("on_device"):
        pass
    for name in ("data_loading", "mine"):
        with contextlib.suppress(ValueError), log.span(name):
            raise ValueError("the training's own")
    span = log.start_span("begun", attributes={"a": 1}, start_time=time.time() - 1)
    internals(log).current_span()
    internals(log).latest_loss()
    span.stop()


def _call_decorators(log: TelemetryLogger) -> None:
    with log.profile_block("block"):
        pass

    @log.profile
    def profiled() -> int:
        return 1

    @log.timed("named")
    def timed() -> int:
        return 2

    @log.capture_errors
    def captured() -> int:
        return 3

    assert (profiled(), timed(), captured()) == (1, 2, 3)
    with contextlib.suppress(ValueError), log.capture_errors():
        raise ValueError("the training's own")


def keep_house(log: TelemetryLogger) -> None:
    """Do what the threads of ours would do within the next seconds."""
    if log._run is not None:
        for doing, _, do in log._run.periodic._tasks:
            with log.guard.catch(doing):
                do()
