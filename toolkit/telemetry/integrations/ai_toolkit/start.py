"""Starts a job of ai-toolkit in its checkout, recorded."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from toolkit.telemetry.integrations.ai_toolkit.attach import attach, status


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
        print(
            f"[run] attached: {path}; `telemetry setup ai-toolkit detach {checkout}` removes it", flush=True
        )
    pythons = [
        checkout / venv / inside
        for venv in ("venv", ".venv")
        for inside in ("bin/python", "Scripts/python.exe")
    ]
    python = next((str(path) for path in pythons if path.is_file()), sys.executable)
    command = [python, "run.py", *(str(config.resolve()) for config in configs)]
    if name is not None:
        command += ["--name", name]
    print(f"[run] {' '.join(command)}, in {checkout}", flush=True)
    with subprocess.Popen(command, cwd=checkout) as job:
        before = signal.signal(signal.SIGTERM, lambda *_: job.terminate())
        try:
            while True:
                try:
                    code = job.wait()
                    break
                except KeyboardInterrupt:
                    # The terminal has sent it to the job as well, which ends in its own time.
                    continue
        finally:
            signal.signal(signal.SIGTERM, before)
    return code if code >= 0 else 128 - code
