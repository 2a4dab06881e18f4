"""Runs the dashboard in this process and the trainer as a child in the same terminal (`make run`)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from .access.access_options import without_tokens
from .launcher import (
    CANNOT_START,
    LaunchError,
    LaunchOptions,
    exit_on_signals,
    open_browser,
    prepare,
    raise_exit_on_signals,
    startup_message,
    wait_for_page_threads,
)
from .settings import DashboardSettings

_RUN_PY = Path(__file__).resolve().parent.parent / "run.py"
_SAVE_TIMEOUT_S = 60.0

# Exit codes of a trainer that was asked to stop.
_STOPPED = frozenset((130, 143, -2, -15, -1))


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the dashboard on ./logs, run `run.py` with `argv`, and keep serving until stopped.

    The first Ctrl-C stops only the trainer, which saves and ends. Any other signal ends both.
    The exit code is the trainer's if it failed, and 0 otherwise.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    options = LaunchOptions(settings=DashboardSettings())
    # A wheel has no run.py.
    program = [str(_RUN_PY)] if _RUN_PY.is_file() else ["-m", "ai_toolkit_telemetry", "train"]
    training = Training(
        [sys.executable, *program, *arguments], folder=Path.cwd(), environ=without_tokens(os.environ)
    )

    exit_on_signals()
    try:
        prepared = prepare(options)
    except LaunchError as error:
        _print(str(error), to_stderr=True)
        return CANNOT_START
    raise_exit_on_signals()
    server, url = prepared.server, prepared.listener.url

    def begin() -> None:
        ctrl_c = "Ctrl-C stops the training, a second Ctrl-C the dashboard."
        stop_it = ctrl_c if has_terminal else f"To stop: kill {os.getpid()}"
        _print(startup_message(prepared, stop_it))
        if has_terminal and prepared.opens_without_token:
            open_browser(url)
        training.start(on_end=report_exit)

    def report_exit(code: int) -> None:
        if server.should_exit:
            return
        if code == 0:
            what = "Training finished"
        elif code in _STOPPED:
            what = "Training was stopped"
        else:
            what = f"Training failed with exit code {code}"
        stop = "press Ctrl-C to stop it" if has_terminal else f"to stop it: kill {os.getpid()}"
        _print(f"{what}. The dashboard is still at {url} ({stop}).")

    def on_signal(number: signal.Signals) -> None:
        if training.forward_signal(number) and number == signal.SIGINT:
            return
        server.stop()

    _on_hangup(on_signal)
    try:
        server.serve_until_stopped(on_ready=begin, on_signal=on_signal)
    finally:
        code = training.finish()
    exit_code = 0 if code in _STOPPED else code if code >= 0 else 128 - code
    wait_for_page_threads(exit_code)
    return exit_code


class Training:
    """The trainer as a child process; each signal reaches it once, from the terminal or from here."""

    def __init__(self, command: Sequence[str], *, folder: Path, environ: dict[str, str]) -> None:
        self._command = list(command)
        self._folder = folder
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None
        self._signals: list[signal.Signals] = []
        self._is_starting = False
        self._cancelled = threading.Event()

    def start(self, *, on_end: Callable[[int], None]) -> None:
        """Start the trainer; `on_end` gets its exit code, in another thread."""
        if self._cancelled.is_set():
            return
        self._is_starting = True
        process = subprocess.Popen(self._command, cwd=self._folder, env=self._environ)
        self._process = process
        # A signal may have come while the trainer began, before the call above returned.
        for number in self._signals[:2]:
            self._send(process, number)
        threading.Thread(target=lambda: on_end(process.wait()), daemon=True).start()

    def forward_signal(self, number: signal.Signals) -> bool:
        """Forward a signal to the trainer if it runs; True if it was the first, so the trainer saves and ends."""
        process = self._process
        if process is None and not self._is_starting:
            self._cancelled.set()
            self._signals.append(number)
            return False
        if process is not None and process.poll() is not None:
            return False
        is_first = not self._signals
        self._signals.append(number)
        # A second Ctrl-C makes the trainer quit at once; other signals after the first are not forwarded.
        if process is not None and (is_first or number == signal.SIGINT):
            self._send(process, number)
        return is_first

    @staticmethod
    def _send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        if number != signal.SIGINT:
            process.send_signal(signal.SIGTERM)
        elif not _terminal_signals_children():
            process.send_signal(signal.SIGINT)

    def finish(self) -> int:
        """Return the trainer's exit code once it has ended, 0 if it never started.

        After a signal it gets a minute to save. Without one it runs to its end:
        a failing server must not end a training.
        """
        process = self._process
        if process is None:
            return 0
        try:
            return process.wait(_SAVE_TIMEOUT_S if self._signals else None)
        except subprocess.TimeoutExpired:
            _print("Training did not stop in time; killing it.", to_stderr=True)
            return _kill(process)
        except SystemExit:
            return _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> int:
    process.kill()
    process.wait()
    return -signal.SIGTERM


def _terminal_signals_children() -> bool:
    """Return whether Ctrl-C reaches the trainer directly: a terminal sends it to its whole foreground group."""
    if sys.platform == "win32":
        return True
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _on_hangup(act: Callable[[signal.Signals], None]) -> None:
    """Treat a closed terminal as a request to stop, unless nohup ignores it."""
    hangup = getattr(signal, "SIGHUP", None)

    def handle(number: int, _frame: FrameType | None) -> None:
        act(signal.Signals(number))

    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        signal.signal(hangup, handle)


def _print(text: str, *, to_stderr: bool = False) -> None:
    # The terminal may be gone.
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr if to_stderr else sys.stdout, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
