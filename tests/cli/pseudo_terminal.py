"""A real terminal for the tests of commands: a pseudo-terminal with a command in it."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from typing import Any

from tests.waiting import wait_until


class PseudoTerminal:
    """A command in a terminal of some size; `seen` is all that it has written."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 80,
        rows: int = 24,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._own, self._its = os.openpty()
        self.resize(columns, rows)
        self.attributes: list[Any] = termios.tcgetattr(self._its)
        usual = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        self.process = subprocess.Popen(
            command,
            stdin=self._its,
            stdout=self._its,
            stderr=self._its,
            env={**usual, "TERM": "xterm-256color", **(env or {})},
            start_new_session=True,
        )
        self.seen = b""

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal."""
        fcntl.ioctl(self._its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def is_restored(self) -> bool:
        """Return whether keys are echoed and lines are edited as before."""
        return bool(termios.tcgetattr(self._its) == self.attributes)

    def send(self, keys: str) -> None:
        """Type keys."""
        os.write(self._own, keys.encode())

    def wait_for(self, text: str) -> None:
        """Wait until the command has written `text`."""
        wait_until(lambda: text.encode() in self.drain())

    def wait_for_end(self) -> int:
        """Return the exit code."""
        wait_until(lambda: (self.drain(), self.process.poll() is not None)[1])
        self.drain()
        return self.process.returncode

    def close(self) -> None:
        """End the command and the terminal."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._own)
        os.close(self._its)

    def drain(self) -> bytes:
        """Return all that it has written, and let it go on."""
        while select.select([self._own], [], [], 0.01)[0]:
            self.seen += os.read(self._own, 65536)
        return self.seen
