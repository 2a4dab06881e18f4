"""Train and watch: the dashboard in this process, the trainer as its child in the same terminal (`make run`)."""

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

from dashboard.access.access_options import without_tokens
from dashboard.launcher import (
    LaunchError,
    LaunchOptions,
    end_at_once_on_signals,
    leave_pages_behind,
    open_browser,
    prepare,
    whereabouts,
    with_signals_as_exit,
)
from dashboard.settings import DashboardSettings

_RUN_PY = Path(__file__).resolve().parent.parent / "run.py"
_SECONDS_TO_SAVE = 60.0

# What the trainer answers with, or what ends it, when someone asks it to stop.
_STOPPED = frozenset((130, 143, -2, -15, -1))


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the dashboard on ./logs, run `run.py` with `argv`, and go on serving until told to stop.

    The first Ctrl-C of a training is the trainer's: it saves and ends, and the pages stay.
    Any other signal ends both. The exit code is the trainer's when it failed, and 0 otherwise.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    options = LaunchOptions(settings=DashboardSettings())
    training = Training(
        [sys.executable, str(_RUN_PY), *arguments], folder=Path.cwd(), environ=without_tokens(os.environ)
    )

    end_at_once_on_signals()
    try:
        prepared = prepare(options)
    except LaunchError as error:
        _say(str(error), to_stderr=True)
        return error.exit_code
    with_signals_as_exit()
    server, url = prepared.server, prepared.listener.url

    def begin() -> None:
        ctrl_c = "Ctrl-C stops the training, a second one the dashboard."
        stop_it = ctrl_c if has_terminal else f"stop with: kill {os.getpid()}"
        _say(whereabouts(prepared, stop_it))
        if has_terminal and prepared.opens_by_itself:
            open_browser(url)
        training.start(on_end=tell_the_end)

    def tell_the_end(code: int) -> None:
        if server.should_exit:
            return
        if code == 0:
            what = "Training has ended"
        elif code in _STOPPED:
            what = "Training was stopped"
        else:
            what = f"Training failed with exit code {code}"
        until = "until Ctrl-C." if has_terminal else f"until you stop it with: kill {os.getpid()}"
        _say(f"{what}; the dashboard stays on {url} {until}")

    def on_signal(number: signal.Signals) -> None:
        if training.take(number) and number == signal.SIGINT:
            return
        server.stop()

    _on_hangup(on_signal)
    try:
        server.serve_until_stopped(on_ready=begin, on_signal=on_signal)
    finally:
        code = training.finish()
    exit_code = 0 if code in _STOPPED else code if code >= 0 else 128 - code
    leave_pages_behind(exit_code)
    return exit_code


class Training:
    """The trainer as a child process: it hears of each wish to stop once, from the terminal or from here."""

    def __init__(self, command: Sequence[str], *, folder: Path, environ: dict[str, str]) -> None:
        self._command = list(command)
        self._folder = folder
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None
        self._told: list[signal.Signals] = []
        self._called_off = threading.Event()

    def start(self, *, on_end: Callable[[int], None]) -> None:
        """Start the trainer; `on_end` gets its exit code, in a thread of its own."""
        if self._called_off.is_set():
            return
        process = subprocess.Popen(self._command, cwd=self._folder, env=self._environ)
        self._process = process
        # A handler runs between any two lines, also while the call above had not yet returned.
        if self._called_off.is_set():
            process.terminate()
        threading.Thread(target=lambda: on_end(process.wait()), daemon=True).start()

    def take(self, number: signal.Signals) -> bool:
        """Hand a signal to the trainer if it runs; True when this was the first, so that it saves and ends."""
        process = self._process
        if process is None:
            self._called_off.set()
            self._told.append(number)
            return False
        if process.poll() is not None:
            return False
        is_first = not self._told
        self._told.append(number)
        # A second Ctrl-C makes the trainer drop everything; any other signal after the first does not hurry it.
        if (is_first or number == signal.SIGINT) and not (number == signal.SIGINT and _terminal_tells_all()):
            process.send_signal(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
        return is_first

    def finish(self) -> int:
        """Return the trainer's exit code once it has ended, 0 if it never started.

        A trainer that was told to stop gets a minute to save. One that nobody told goes on to its end:
        a server that broke is no reason to lose a training.
        """
        process = self._process
        if process is None:
            return 0
        try:
            return process.wait(_SECONDS_TO_SAVE if self._told else None)
        except subprocess.TimeoutExpired:
            _say("Training does not end; killing it.", to_stderr=True)
            return _kill(process)
        except SystemExit:
            return _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> int:
    process.kill()
    process.wait()
    return -signal.SIGTERM


def _terminal_tells_all() -> bool:
    """Say whether a Ctrl-C reaches the trainer by itself: a terminal sends it to every process in its foreground."""
    if sys.platform == "win32":
        return True
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _on_hangup(act: Callable[[signal.Signals], None]) -> None:
    """Let a terminal that goes away count as a wish to stop, unless nohup has already settled that."""
    hangup = getattr(signal, "SIGHUP", None)

    def handle(number: int, _frame: FrameType | None) -> None:
        act(signal.Signals(number))

    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        signal.signal(hangup, handle)


def _say(text: str, *, to_stderr: bool = False) -> None:
    # The terminal may be gone.
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr if to_stderr else sys.stdout, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
