"""Configurations that are for ai-toolkit's own trainers: what they need, and how they are started in a checkout."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from toolkit.telemetry.integrations.ai_toolkit.attach import AttachError, attach, is_checkout, status

AI_TOOLKIT_TYPES = tuple(
    """
    sd_trainer diffusion_trainer ui_trainer textual_inversion_trainer concept_slider concept_replacer
    image_reference_slider_trainer ultimate_slider_trainer
    """.split()
)
"""Process types that ai-toolkit trains; the embedded trainer never pretends to."""


def what_is_missing(kind: str, config: Path, folder: Path) -> str:
    """Say in two lines what a configuration of type `kind` needs before it can be trained from `folder`."""
    if is_checkout(folder):
        return (
            f"type {kind} is trained by ai-toolkit, and {folder} is a checkout of it.\n"
            f"Start it there: python run.py {config} --ai-toolkit {folder}"
        )
    return (
        f"type {kind} is trained by ai-toolkit, and {folder} is not a checkout of it (no jobs/ and toolkit/job.py).\n"
        "Get one with `git clone https://github.com/ostris/ai-toolkit`, install it as its README says, "
        "and give its folder: --ai-toolkit FOLDER"
    )


def start_in_checkout(checkout: Path, configs: Sequence[Path], *, name: str | None = None) -> int:
    """Train `configs` with ai-toolkit's own run.py, attached to first if it is not yet; return its exit code.

    It runs in the checkout's own environment where it has one, and its relative paths begin at the checkout.

    Raises:
        AttachError: `checkout` is not an ai-toolkit checkout, or cannot be attached to.
        OSError: it could not be attached to, or Python could not be started.
    """
    checkout = checkout.resolve()
    found = status(checkout)
    if not found.is_current:
        path = attach(checkout, all_jobs=found.all_jobs)
        print(f"[run] attached: {path}; `telemetry detach {checkout}` removes it", flush=True)
    command = [python_of(checkout), "run.py", *(str(config.resolve()) for config in configs)]
    if name is not None:
        command += ["--name", name]
    print(f"[run] {' '.join(command)}, in {checkout}", flush=True)
    with subprocess.Popen(command, cwd=checkout) as job, _handing_on_sigterm(job):
        while True:
            try:
                code = job.wait()
                break
            except KeyboardInterrupt:
                # The terminal has sent it to the job as well, which ends in its own time.
                continue
    return code if code >= 0 else 128 - code


def python_of(checkout: Path) -> str:
    """Return the Python of the checkout's own environment, else the one that runs this."""
    for environment in ("venv", ".venv"):
        for inside in ("bin/python", "Scripts/python.exe"):
            python = checkout / environment / inside
            if python.is_file():
                return str(python)
    return sys.executable


@contextmanager
def _handing_on_sigterm(job: subprocess.Popen[bytes]) -> Iterator[None]:
    """End the job together with this process."""

    def hand_on(_: int, __: FrameType | None) -> None:
        job.terminate()

    before = signal.signal(signal.SIGTERM, hand_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


__all__ = [
    "AI_TOOLKIT_TYPES",
    "AttachError",
    "is_checkout",
    "python_of",
    "start_in_checkout",
    "what_is_missing",
]
