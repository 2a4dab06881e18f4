"""Starts the process that runs W&B, and talks to it."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from toolkit.privacy.masking import mask_secrets

INSTALL: Final = 'pip install "ai-toolkit-telemetry[wandb]"'
FINISH_TIMEOUT_S: Final = 30.0

_SCRIPT = Path(__file__).with_name("process.py")


class WandbError(OSError):
    """W&B did not accept the data; the message says why."""


class Client:
    """Starts W&B's process and talks to it, one line of JSON each way.

    The process ends on request, or when this one is gone: then it finishes the run with what it has, so that a kill of
    the training loses nothing that W&B has received.
    """

    def __init__(self, folder: Path) -> None:
        """Start the process.

        Raises:
            ModuleNotFoundError: W&B is not installed.
            OSError: the process cannot be started.
        """
        found = importlib.util.find_spec("wandb")
        # A folder called wandb, such as W&B's own output, counts as a package without an origin.
        if found is None or found.origin is None:
            raise ModuleNotFoundError(f"wandb: true needs W&B, which is not installed: {INSTALL}")
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (held as long as the process writes to it)
        self._process = subprocess.Popen(
            [sys.executable, str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=_environment(folder),
            # Ctrl-C is for the training; this process ends after it.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        self._send({"path": [entry for entry in sys.path if entry]})

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send `message` and wait for the answer. Raises WandbError if the process ends instead."""
        self._send(message)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WandbError(self._failure())
        answer = json.loads(line)
        return answer if isinstance(answer, dict) else {}

    def finish(self, exit_code: int) -> None:
        """Have the process finish the run, and wait for it up to half a minute. Raises WandbError if it failed."""
        # Closing the pipe is not enough: a forked data-loader worker may still hold it open.
        self._send({"finish": exit_code})
        try:
            ended_with = self._process.wait(FINISH_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return
        finally:
            self._close_pipes()
        if ended_with != 0:
            raise WandbError(self._failure())

    def abandon(self) -> None:
        """Close the pipes; the process ends by itself."""
        self._close_pipes()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            # Python's own JSON keeps NaN and infinities, and the other end is Python too.
            self._process.stdin.write(json.dumps(message, default=str).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise WandbError(self._failure()) from error

    def _failure(self) -> str:
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            return "W&B's process does not answer"
        self._stderr.seek(0)
        lines = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        # The message of an exception may have several lines; it follows the last indented line, which is code.
        message = list(
            reversed(list(itertools.takewhile(lambda line: not line.startswith(" "), reversed(lines))))
        )
        reason = " ".join(message)[-500:] or f"exit code {self._process.returncode}"
        return f"W&B's process ended: {mask_secrets(reason)}"

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:
                continue


def _environment(folder: Path) -> dict[str, str]:
    """Return this process's environment, with W&B silenced and its files inside `folder`."""
    environ = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    return {
        **environ,
        "WANDB_SILENT": "true",
        "WANDB_CONSOLE": "off",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_CACHE_DIR": str(folder / "wandb" / "cache"),
        "WANDB_DATA_DIR": str(folder / "wandb" / "data"),
    }


# The service of a W&B run of the training script itself; it ends with the script.
_LEFT_OUT: Final = frozenset({"WANDB_SERVICE"})
