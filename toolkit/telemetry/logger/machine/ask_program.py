"""What a program prints, within a time limit and a number of bytes."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

_MUCH: Final = 1_000_000


class Question:
    """A program that was started; several can be, before the first answer is waited for.

    `environ` is used in place of the variables of this process.
    """

    def __init__(
        self, *command: str, folder: str | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**(os.environ if environ is None else environ), "LC_ALL": "C"},
        )

    def answer(self, deadline: float, most_bytes: int = _MUCH) -> str | None:
        """Return what it prints, at most the first `most_bytes`; None where it fails, or does not end in time."""
        process, is_ended = self._process, False
        printed = bytearray()
        with suppress(subprocess.TimeoutExpired):
            if sys.platform == "win32":
                # Pipes cannot be waited for there.
                printed += process.communicate(timeout=max(0.01, deadline - time.monotonic()))[0]
                is_ended = True
            else:
                is_ended = self._read(printed, deadline, most_bytes)
                if is_ended:
                    process.wait(max(0.01, deadline - time.monotonic()))
        is_long = len(printed) > most_bytes
        if process.returncode is None:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                # Not waited for much longer: on a file system that hangs it does not even die.
                process.wait(0.05)
        if process.stdout is not None:
            process.stdout.close()
        is_answer = is_long or (is_ended and process.returncode == 0)
        return bytes(printed[:most_bytes]).decode("utf-8", "replace") if is_answer else None

    def _read(self, printed: bytearray, deadline: float, most_bytes: int) -> bool:
        """Read until the end of the output, which is True, or until a limit."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while len(printed) <= most_bytes and selector.select(max(0.01, deadline - time.monotonic())):
                data = os.read(pipe, 65_536)
                if not data:
                    return True
                printed += data
        return False
