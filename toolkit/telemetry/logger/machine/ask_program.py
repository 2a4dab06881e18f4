"""What a program prints, within a time limit and a number of bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping


def answer_of(
    *command: str,
    timeout_s: float,
    folder: str | None = None,
    environ: Mapping[str, str] | None = None,
    most_bytes: int = 1_000_000,
) -> str | None:
    """Return the first `most_bytes` of what a program prints; None where it fails, or does not end in time.

    `environ` is used in place of the variables of this process.
    """
    # Imported where a program is asked: nearly no run does.
    import subprocess
    import tempfile

    with tempfile.TemporaryFile() as printed:
        try:
            subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.DEVNULL,
                env={**(os.environ if environ is None else environ), "LC_ALL": "C"},
                timeout=timeout_s,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        printed.seek(0)
        return printed.read(most_bytes).decode("utf-8", "replace")
