"""What somebody may ask of a trainer of ai-toolkit between two steps, and how it is done there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from toolkit.telemetry.guard import Guard
from toolkit.telemetry.logger import TelemetryLogger

_KNOBS: Final = (("save_every", "save_config"), ("sample_every", "sample_config"))
"""Intervals that ai-toolkit looks up anew at every step."""


class StoppedOnRequest(BaseException):
    """Ends the loop, which has no other way out; caught around the trainer's `run`.

    Not an `Exception`, so that nobody in between takes it for a failure.
    """


def declare(process: Any, log: TelemetryLogger) -> None:
    """Say what this trainer can be asked for."""
    for action in ("save", "stop", "save_and_stop"):
        log.declare_action(action)
    if _can_sample(process):
        log.declare_action("sample")
    for knob, config in _KNOBS:
        value = getattr(getattr(process, config, None), knob, None)
        # 0 and nothing turn it off, and what is off may have no prompts or no room.
        if isinstance(value, int) and value >= 1:
            log.declare_knob(knob, int, low=1, high=1_000_000, value=value)


def answer(process: Any, log: TelemetryLogger) -> bool:
    """Do what was asked for; say whether the training is to stop."""
    for request in log.take_requests():
        if request.name in ("save", "save_and_stop"):
            with log.guard.watch("saving on request"):
                _paused(process, _save)
        elif request.name == "sample":
            with log.guard.watch("sampling on request"):
                _paused(process, _sample)
        else:
            for knob, config in _KNOBS:
                if request.name == knob and isinstance(request.value, int):
                    setattr(getattr(process, config), knob, request.value)
    return log.should_stop


def tidy_up(process: Any, guard: Guard) -> None:
    """Do for a trainer that was stopped what it does itself at its end, short of saving."""
    bar = getattr(process, "progress_bar", None)
    if bar is not None:
        with guard.watch("closing the progress bar"):
            bar.close()
    with guard.watch("ending ai-toolkit's own log"):
        if process.accelerator.is_main_process:
            process.logger.finish()
    with guard.watch("telling ai-toolkit of the stop"):
        # As its own run.py does it where somebody presses Ctrl-C: its pages then show the job as stopped.
        process.on_error(KeyboardInterrupt("stopped on request"))
    with guard.watch("ending the accelerator"):
        process.accelerator.end_training()


def _paused(process: Any, do: Callable[[Any], None]) -> None:
    bar = getattr(process, "progress_bar", None)
    if bar is not None:
        bar.pause()
    try:
        if process.accelerator.num_processes > 1:
            process.accelerator.wait_for_everyone()
        do(process)
    finally:
        # A save or a sampling that failed half-way must not leave the averaged weights in place.
        if getattr(process, "ema", None) is not None:
            process.ema.train()
        process.ensure_params_requires_grad()
        if bar is not None:
            bar.unpause()


def _save(process: Any) -> None:
    print(f"\n[telemetry] saving at step {process.step_num}, as was asked")
    process.save(process.step_num)


def _sample(process: Any) -> None:
    print(f"\n[telemetry] sampling at step {process.step_num}, as was asked")
    if process.train_config.free_u:
        process.sd.pipeline.disable_freeu()
    process.sample(process.step_num)
    if process.train_config.unload_text_encoder:
        process.sd.text_encoder_to("cpu")


def _can_sample(process: Any) -> bool:
    prompts = getattr(getattr(process, "sample_config", None), "prompts", None)
    return bool(prompts) and not getattr(process.train_config, "disable_sampling", False)
