"""Writes the run folder that test_golden.py opens: `python -m tests.golden.make FOLDER`.

A folder that is in the repository is never made again: it is what old runs look like. A new format gets a new one.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.telemetry.logged import describe_at_once
from toolkit.telemetry.runfolder.manifest import Heartbeat, read_manifest, write_manifest
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.core.clock import ManualClock

CONFIG = {
    "job": "extension",
    "config": {
        "name": "grey jacket, =v1",
        "process": [
            {
                "type": "sd_trainer",
                "network": {"type": "lora", "linear": 16, "linear_alpha": 8},
                "train": {
                    "batch_size": 2,
                    "gradient_accumulation_steps": 4,
                    "steps": 60,
                    "optimizer": "adamw8bit",
                },
                "model": {"name_or_path": "black-forest-labs/FLUX.1-dev", "hf_token": "hf_" + "a1B2" * 9},
            }
        ],
    },
}

MACHINE = {
    "host": "workstation",
    "os": "an operating system",
    "python": "3.11.7",
    "packages": {"torch": "2.6.0"},
}


def main(log_dir: Path) -> None:
    """Write two sessions of one run into `log_dir`."""
    clock = ManualClock(wall=1_703_123_456.789)
    with pytest.MonkeyPatch.context() as patch:
        describe_at_once(patch, MACHINE)
        log = first_session(log_dir, clock)
        clock.advance(3600.25)
        second_session(log_dir, clock)
    settle_manifest(log.run_folder)


def make_logger(log_dir: Path, clock: ManualClock, **options) -> TelemetryLogger:
    """Return the logger of one session."""
    return TelemetryLogger(
        "grey jacket, =v1",
        log_dir=log_dir,
        log_every=10,
        system=False,
        project="jackets",
        tags=["flux", "naïve"],
        run_id="0123456789abcdef",
        config=CONFIG,
        clock=clock,
        **options,
    )


def first_session(log_dir: Path, clock: ManualClock) -> TelemetryLogger:
    """Write a session that is broken off by an exception."""
    log = make_logger(log_dir, clock)
    log.log_start(
        lora={"dropout": 0.1, "target_modules": ["to_q", "to_v"]}, model={"parameters": 11_901_408_320}
    )
    for step in range(33):
        loss = 1 / (step + 3)
        if step == 17:
            loss = math.nan
        log.log_step(
            step, train_loss=loss, lr=1e-4 * (1 - step / 60), grad_norm=math.inf if step == 30 else 0.75
        )
        clock.advance(0.3125)
    log.log_eval(30, val_loss=0.0625, deep={"psnr": 31.5, "ssim": None})
    log.log_event(
        "my, event", text='a "quoted", text\nof two lines', formula="=1+1", snow="☃ \u2028", big=2**80
    )
    log.log_event("odd", thing=object(), nothing=None, seq=5)
    log.close("failed", error=RuntimeError("the loss is not a number"))
    return log


def second_session(log_dir: Path, clock: ManualClock) -> None:
    """Write a session that goes on and finishes."""
    log = make_logger(log_dir, clock, resume=True)
    for step in range(30, 61):
        log.log_step(step, train_loss=0.25 + (5.0 if step == 55 else step / 1000), extra=step * 2)
        clock.advance(0.25)
    log.log_checkpoint(60, "checkpoints/last.safetensors", is_best=True, seconds=1.5)
    log.log_sample(60, log.run_folder / "samples" / "60.png", prompt="a grey jacket")
    log.log_epoch(1, global_step=60, train_loss=0.3)
    log.close()


def settle_manifest(folder: Path) -> None:
    """Put no one's machine into the manifest."""
    manifest = read_manifest(folder)
    sessions = [
        replace(
            session,
            host="workstation",
            pid=4242,
            pid_started=100 + session.session,
            boot_id="boot",
            pid_namespace=None,
            journal=None,
            lock=None,
        )
        for session in manifest.sessions
    ]
    beat = manifest.heartbeat or Heartbeat(time=0.0)
    write_manifest(folder, replace(manifest, sessions=tuple(sessions), heartbeat=beat))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
