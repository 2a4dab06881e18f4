"""Control requests to an ai-toolkit trainer, carried out between two steps."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from toolkit.telemetry.core.guard import PREFIX, Guard, print_line
from toolkit.telemetry.logger.logger import TelemetryLogger

_KNOBS: Final = (("save_every", "save_config"), ("sample_every", "sample_config"))
"""Intervals that ai-toolkit reads again at every step."""


class StoppedOnRequest(BaseException):
    """Ends the loop, which has no other way out; no `Exception`, so that nothing in between handles it."""


def declare(process: Any, log: TelemetryLogger) -> None:
    """Declare the actions and knobs of this trainer."""
    for action in ("save", "stop", "save_and_stop"):
        log.declare_action(action)
    has_prompts = bool(getattr(getattr(process, "sample_config", None), "prompts", None))
    if has_prompts and not getattr(process.train_config, "disable_sampling", False):
        log.declare_action("sample")
    for knob, config in _KNOBS:
        value = getattr(getattr(process, config, None), knob, None)
        # 0 or None turns it off; then prompts or disk space may be missing.
        if isinstance(value, int) and value >= 1:
            log.declare_knob(knob, int, low=1, high=1_000_000, value=value)


def carry_out(process: Any, log: TelemetryLogger) -> tuple[bool, bool]:
    """Carry out the requests, and return whether one to sample and one to stop is left to the caller.

    A save that fails is reported and does not raise.
    """
    to_sample = to_stop = False
    for request in log.take_requests():
        if request.name == "sample":
            to_sample = True
        elif request.name == "stop":
            to_stop = True
        elif request.name == "save":
            _save(process, log.guard)
        elif request.name == "save_and_stop":
            is_saved = _save(process, log.guard)
            # The request is for the weights. Other ranks cannot know that rank 0 failed to write them.
            to_stop = to_stop or is_saved or process.accelerator.num_processes > 1
            if not to_stop:
                print_line(f"{PREFIX} the weights could not be saved, so the training continues", sys.stdout)
        else:
            for knob, config in _KNOBS:
                if request.name == knob and isinstance(request.value, int):
                    setattr(getattr(process, config), knob, request.value)
    return to_sample, to_stop


def sample(process: Any) -> None:
    """Sample as ai-toolkit does between two steps.

    An exception ends the job, as in a sampling of ai-toolkit's own: it may leave the LoRA merged into the model, and
    training on from there would give different results.
    """
    print_line(f"{PREFIX} sampling at step {process.step_num}, as requested", sys.stdout)
    with _paused(process):
        if getattr(process.train_config, "free_u", False):
            process.sd.pipeline.disable_freeu()
        process.sample(process.step_num)
        if getattr(process.train_config, "unload_text_encoder", False):
            process.sd.text_encoder_to("cpu")


def tidy_up(process: Any, guard: Guard) -> None:
    """Clean up after a stopped trainer as it does itself at its end, without saving."""
    bar = getattr(process, "progress_bar", None)
    if bar is not None:
        with guard.catch("closing the progress bar"):
            bar.close()
    with guard.catch("ending ai-toolkit's own log"):
        if process.accelerator.is_main_process:
            process.logger.finish()
    with guard.catch("reporting the stop to ai-toolkit"):
        # As its own run.py does on Ctrl-C: its pages then show the job as stopped.
        process.on_error(KeyboardInterrupt("stopped on request"))
    with guard.catch("ending the accelerator"):
        process.accelerator.end_training()
    # Another process of the same job may need the memory.
    for name in ("sd", "network"):
        vars(process).pop(name, None)


def _save(process: Any, guard: Guard) -> bool:
    """Save, and return whether it succeeded."""
    print_line(f"{PREFIX} saving at step {process.step_num}, as requested", sys.stdout)
    is_saved = False
    with guard.catch("saving on request"), _paused(process):
        process.save(process.step_num)
        is_saved = True
    return is_saved


@contextmanager
def _paused(process: Any) -> Iterator[None]:
    bar = getattr(process, "progress_bar", None)
    if bar is not None:
        bar.pause()
    try:
        if process.accelerator.num_processes > 1:
            process.accelerator.wait_for_everyone()
        yield
    finally:
        # A save that failed halfway must not leave the averaged weights in place.
        if getattr(process, "ema", None) is not None:
            process.ema.train()
        process.ensure_params_requires_grad()
        if bar is not None:
            bar.unpause()
