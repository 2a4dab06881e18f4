"""Sends records to a W&B run, which is in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.mirrors.shared.scalars import plain_attributes, scalars_of, without_envelope
from toolkit.telemetry.mirrors.shared.span_filter import SpanFilter
from toolkit.telemetry.privacy.masking import Masker, mask_secrets
from toolkit.telemetry.runfolder.records import END, ENVIRONMENT, SPAN, SPAN_EVENT, START, TAGS, Record
from toolkit.telemetry.runfolder.untrusted import is_number

_log = logging.getLogger("toolkit.telemetry")

_ROWS_A_MESSAGE = 500


class WandbExporter:
    """Sends the metrics, spans and events of a run to W&B, or keeps them for `wandb sync` in `<folder>/wandb`.

    W&B runs in a process of its own. Inside the training process it would replace `sys.exit` and `sys.excepthook`,
    write environment variables, hook imports, wait for the network at exit, and compete for the GIL.
    Only masked records are sent; W&B's own collection of code, git state, console, packages and machine is off.

    `mode` is `online`, `offline` or `disabled`; None means `WANDB_MODE`, else `online` if W&B has an API key and
    `offline` if not. A run with the same `run_id` resumes the run in W&B.
    """

    name = "wandb"
    longest_pause_s = 300.0
    """Each attempt starts a process, which takes some seconds of CPU."""

    def __init__(
        self,
        folder: Path,
        project: str,
        run_name: str,
        run_id: str,
        mode: str | None = None,
        *,
        span_filter: SpanFilter | None = None,
    ) -> None:
        # The training script may change its working folder later.
        self._folder = Path(os.path.abspath(folder))
        self._settings = {"project": project, "run_name": run_name, "run_id": run_id}
        self._mode = mode
        self._span_filter = span_filter or SpanFilter()
        self._client: Client | None = None
        self._ended_well = True

    def write(self, batch: Sequence[Record]) -> None:
        """Hand `batch` to W&B; returns when W&B has accepted it."""
        mode = self._mode or os.environ.get("WANDB_MODE") or None
        if mode == "disabled":
            return
        masker = Masker()
        config: dict[str, Any] = {}
        rows: list[dict[str, Any]] = []
        for record in batch:
            event = record.get("event")
            if event in (START, ENVIRONMENT, TAGS):
                config.update(masker.mask(without_envelope(record)))
            elif event == END:
                self._ended_well = record.get("status") in ("finished", "stopped")
            elif scalars := scalars_of(record) or numbers_of(record, self._span_filter):
                rows.append(_row(record, masker.mask(scalars)))
        if not config and not rows:
            return
        if self._client is None:
            self._client = self._start(mode)
        try:
            if config:
                self._client.ask({"config": config})
            for begin in range(0, len(rows), _ROWS_A_MESSAGE):
                self._client.ask({"rows": rows[begin : begin + _ROWS_A_MESSAGE]})
        except OSError:
            client, self._client = self._client, None
            client.abandon()
            raise

    def close(self) -> None:
        """Finish the W&B run and wait for its process; it may finish sending after that."""
        if self._client is not None:
            client, self._client = self._client, None
            client.finish(exit_code=0 if self._ended_well else 1)

    def _start(self, mode: str | None) -> Client:
        client = Client(self._folder)
        try:
            answer = client.ask({**self._settings, "mode": mode, "folder": str(self._folder)})
        except OSError:
            client.abandon()
            raise
        if answer.get("without_key"):
            _log.warning(
                "[telemetry] W&B has no API key here, so the run is kept offline; upload it later with: wandb sync %s",
                answer.get("folder"),
            )
        return client


def _row(record: Record, scalars: dict[str, Any]) -> dict[str, Any]:
    row = {**scalars, "_timestamp": record["time"]}
    step = record.get("global_step")
    if step is not None:
        row["global_step"] = step
    # W&B requires a number that only grows. The run's own steps go back when it resumes from a checkpoint.
    return {"step": record["seq"], "row": row}


def numbers_of(record: Record, span_filter: SpanFilter) -> dict[str, float]:
    """Return a span's duration or an event's numeric attributes; nothing for other records: W&B plots numbers only."""
    event = record.get("event")
    name = record.get("name")
    if event == SPAN and isinstance(name, str) and span_filter.takes(name):
        duration = record.get("duration")
        if isinstance(duration, int | float):
            return {f"span/{name}/duration_s": float(duration)}
    if event == SPAN_EVENT and isinstance(name, str) and span_filter.takes(str(record.get("span", ""))):
        return {
            f"event/{name}/{attribute}": float(value)
            for attribute, value in plain_attributes(record.get("attributes")).items()
            if is_number(value)
        }
    return {}


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
            raise ModuleNotFoundError(
                f"wandb: true needs W&B, which is not installed: {install_extra('wandb')}"
            )
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
            self.abandon()
        if ended_with != 0:
            raise WandbError(self._failure())

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
        code = max((number for number, line in enumerate(lines) if line.startswith(" ")), default=-1)
        reason = " ".join(lines[code + 1 :])[-500:] or f"exit code {self._process.returncode}"
        return f"W&B's process ended: {mask_secrets(reason)}"

    def abandon(self) -> None:
        """Close the pipes; the process ends by itself."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()


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
