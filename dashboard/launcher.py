"""The command that starts the dashboard: options in, one line with its address out, pages until Ctrl-C."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from dashboard.listening import DEFAULT_HOST, DEFAULT_PORT, Listener, ListenError, listen
from dashboard.missing_packages import what_is_missing
from dashboard.settings import DashboardSettings, default_log_dirs

if TYPE_CHECKING:
    from dashboard.server import DashboardServer

_NOTHING_TO_RUN_WITH = 1
_WRONG_OPTION = 2

_PACKAGE = Path(__file__).resolve().parent
_SECONDS_FOR_PAGES_TO_END = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Where the dashboard listens, what it shows, and whether it opens a browser."""

    settings: DashboardSettings
    host: str = DEFAULT_HOST
    port: int | None = None
    """None stands for the default port, or the next free one."""

    open_browser: bool = True


def main(argv: Sequence[str] | None = None, *, prog: str = "run_dashboard.py") -> int:
    """Serve the dashboard as `argv` (the command line where it is None) asks for, and return the exit code.

    It is 0 after Ctrl-C or SIGTERM, 1 when a package is missing, 2 when an option cannot be followed.
    """
    options = parse_options(argv, prog=prog)
    with_signals_as_exit()
    try:
        server, listener = prepare(options)
    except LaunchError as error:
        print(error if error.exit_code == _NOTHING_TO_RUN_WITH else f"{prog}: {error}", file=sys.stderr)
        return error.exit_code

    def announce() -> None:
        print(f"{whereabouts(listener, options.settings)}  Ctrl-C stops it.", flush=True)
        if options.open_browser:
            open_browser(listener.url)

    server.serve_until_stopped(on_ready=announce)
    leave_pages_behind()
    return 0


class LaunchError(Exception):
    """The dashboard cannot start; the message is for the terminal."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def parse_options(argv: Sequence[str] | None = None, *, prog: str = "run_dashboard.py") -> LaunchOptions:
    """Return what the command line asks for; a wrong one is answered on stderr and ends with SystemExit(2)."""
    parser = _Parser(
        prog=prog,
        description="Show training runs in a browser. Nothing leaves this machine.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--log-dir",
        action="append",
        type=_log_dir,
        metavar="DIR",
        help="folder with run folders; may be given more than once (default: ./logs)",
    )
    parser.add_argument(
        "--port",
        type=_port,
        metavar="N",
        help=f"port to listen on (default: {DEFAULT_PORT}, or the next free one)",
    )
    parser.add_argument(
        "--host",
        default=DEFAULT_HOST,
        help="address to listen on (default: localhost, which only this machine can reach)",
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    parser.add_argument(
        "--read-only", action="store_true", help="only look: no control of runs, no labels, no deleting"
    )
    chosen = parser.parse_args(argv)
    log_dirs = tuple(dict.fromkeys(chosen.log_dir)) if chosen.log_dir else default_log_dirs()
    return LaunchOptions(
        settings=DashboardSettings(log_dirs=log_dirs, read_only=chosen.read_only),
        host=chosen.host,
        port=chosen.port,
        open_browser=not chosen.no_browser,
    )


def prepare(options: LaunchOptions) -> tuple[DashboardServer, Listener]:
    """Return a server that listens and only needs to be run; the settings go to the pages by environment.

    The process leaves the folder it was started in, so that nothing lying there is read or imported.

    Raises:
        LaunchError: a package is missing, or nothing can listen there.
    """
    missing = what_is_missing()
    if missing is not None:
        raise LaunchError(missing, _NOTHING_TO_RUN_WITH)
    try:
        listener = listen(options.host, options.port)
    except ListenError as error:
        raise LaunchError(str(error), _WRONG_OPTION) from error
    if options.port is None and listener.port != DEFAULT_PORT:
        print(f"Port {DEFAULT_PORT} is in use, so the dashboard is on {listener.port}.", file=sys.stderr)
    if not listener.is_private:
        print(_warning(listener), file=sys.stderr)

    os.environ.update(options.settings.to_environment())
    _leave_current_folder()
    # Imported here: it takes a second, and a wrong option is answered without it.
    from dashboard.server import DashboardServer

    return DashboardServer(listener), listener


def whereabouts(listener: Listener, settings: DashboardSettings) -> str:
    """Return where the pages are and which runs they show, for the terminal."""
    folders = ", ".join(_printable(str(path)) for path in settings.log_dirs)
    return f"Dashboard: {listener.url}  (runs in {folders})"


def open_browser(url: str) -> None:
    """Open `url` where somebody can see it: at a terminal with a screen, and not at the far end of ssh."""
    has_screen = sys.platform in ("win32", "darwin") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    if sys.stdout.isatty() and has_screen and "SSH_CONNECTION" not in os.environ:
        # Some browsers return only when they are closed.
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def with_signals_as_exit() -> None:
    """Make Ctrl-C and SIGTERM end this process with 0 and without a traceback, also while it is still starting."""

    def leave(_number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(0)

    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, leave)


def leave_pages_behind(exit_code: int = 0) -> None:
    """Return when no page computes any more; after half a second end the process without waiting for it."""
    deadline = time.monotonic() + _SECONDS_FOR_PAGES_TO_END
    while _busy_threads():
        if time.monotonic() > deadline:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(exit_code)
        time.sleep(0.02)


def _busy_threads() -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread is not threading.current_thread()
        # Daemons may be left behind, but not in the middle of Arrow's code, which does not survive the interpreter.
        and (not thread.daemon or thread.name.startswith(("reading ", "saving ")))
    ]


def _leave_current_folder() -> None:
    here = Path.cwd()
    if here != _PACKAGE.parent:
        sys.path[:] = [entry for entry in sys.path if entry and Path(entry) != here]
    os.chdir(_PACKAGE)


def _warning(listener: Listener) -> str:
    port = listener.port
    return (
        f"WARNING: the dashboard listens on {listener.address}, not only on this machine.\n"
        "  It has no login: anybody who reaches this port can read every run, and stop those that train.\n"
        f"  The safe way from elsewhere is to leave --host out here, and on the other machine:\n"
        f"    ssh -L {port}:localhost:{port} {_this_machine()}\n"
        f"  and then to open http://localhost:{port} there."
    )


def _this_machine() -> str:
    return _printable(socket.gethostname()) or "this-machine"


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(_WRONG_OPTION, f"{self.prog}: {message}\n'{self.prog} --help' lists the options.\n")


def _log_dir(text: str) -> Path:
    path = Path(text).expanduser()
    if not text:
        raise argparse.ArgumentTypeError("'' is no folder; a folder with run folders is allowed")
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a file; a folder with run folders is allowed")
    return path.absolute()


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no port; a number from 1 to 65535 is allowed, or 0 for any free one"
        )
    return int(text)
