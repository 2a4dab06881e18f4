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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import quote

from dashboard.access.access_options import Access, AccessError, AccessWishes, decide
from dashboard.access.login_file import Login
from dashboard.access.tokens import Keys
from dashboard.listening import DEFAULT_HOST, DEFAULT_PORT, Listener, ListenError, listen
from dashboard.missing_packages import what_is_missing, what_login_misses
from dashboard.network_guard import PublicUrl
from dashboard.settings import Admission, DashboardSettings, default_log_dirs

if TYPE_CHECKING:
    from dashboard.server import DashboardServer

_NOTHING_TO_RUN_WITH = 1
_WRONG_OPTION = 2

_PACKAGE = Path(__file__).resolve().parent
_SECONDS_FOR_PAGES_TO_END = 0.5
_NO_HOME = os.path.abspath("/nonexistent")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Where the dashboard listens, what it shows, and whether it opens a browser."""

    settings: DashboardSettings
    host: str = DEFAULT_HOST
    port: int | None = None
    """None stands for the default port, or the next free one."""

    open_browser: bool = True

    access: AccessWishes = field(default_factory=AccessWishes)
    """Who may come in, as far as somebody said so."""

    public: PublicUrl | None = None
    """Where a proxy in front of it makes it known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A dashboard that listens and only needs to be run."""

    server: DashboardServer
    listener: Listener
    settings: DashboardSettings
    access: Access

    @property
    def opens_by_itself(self) -> bool:
        """Whether its address alone opens it; a token would be seen in the list of processes."""
        return not isinstance(self.access, Keys)


def main(argv: Sequence[str] | None = None, *, prog: str = "run_dashboard.py") -> int:
    """Serve the dashboard as `argv` (the command line where it is None) asks for, and return the exit code.

    It is 0 after Ctrl-C or SIGTERM, 1 when a package is missing, 2 when an option cannot be followed.
    """
    options = parse_options(argv, prog=prog)
    end_at_once_on_signals()
    try:
        prepared = prepare(options)
    except LaunchError as error:
        print(error if error.exit_code == _NOTHING_TO_RUN_WITH else f"{prog}: {error}", file=sys.stderr)
        return error.exit_code
    with_signals_as_exit()

    def announce() -> None:
        print(whereabouts(prepared, "Ctrl-C stops it."), flush=True)
        if options.open_browser and prepared.opens_by_itself:
            open_browser(prepared.listener.url)

    prepared.server.serve_until_stopped(on_ready=announce)
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
    who = parser.add_argument_group(
        "who may come in",
        "On localhost everyone on this machine. Where others can reach it, who has the token that is printed at the "
        "start. A token is never given on the command line, where others on this machine can read it.",
    )
    token = who.add_mutually_exclusive_group()
    token.add_argument("--token", action="store_true", help="ask for a token on localhost as well")
    token.add_argument(
        "--no-token",
        action="store_true",
        help="ask for none, since a proxy in front asks people who they are",
    )
    who.add_argument(
        "--token-file",
        type=_file,
        metavar="FILE",
        help="a token of your own, which stays the same (or in TELEMETRY_DASHBOARD_TOKEN)",
    )
    who.add_argument(
        "--reader-token", action="store_true", help="print a second address, with which one may only look"
    )
    who.add_argument(
        "--reader-token-file",
        type=_file,
        metavar="FILE",
        help="the same with a token of your own (or in TELEMETRY_DASHBOARD_READER_TOKEN)",
    )
    who.add_argument(
        "--login",
        type=_file,
        metavar="FILE",
        help="log in with an OpenID Connect provider; FILE says which, and who may (docs/remote.md)",
    )
    who.add_argument(
        "--public-url",
        type=_public_url,
        metavar="URL",
        help="where a proxy in front makes it known, such as https://runs.example.org",
    )
    chosen = parser.parse_args(argv)
    try:
        access = AccessWishes(
            asks="always" if chosen.token else "never" if chosen.no_token else "where needed",
            token_file=chosen.token_file,
            reader_token=chosen.reader_token,
            reader_token_file=chosen.reader_token_file,
            login_file=chosen.login,
        )
    except AccessError as error:
        parser.error(str(error))
    log_dirs = tuple(dict.fromkeys(chosen.log_dir)) if chosen.log_dir else default_log_dirs()
    return LaunchOptions(
        settings=DashboardSettings(log_dirs=log_dirs, read_only=chosen.read_only),
        host=chosen.host,
        port=chosen.port,
        open_browser=not chosen.no_browser,
        access=access,
        public=chosen.public_url,
    )


def prepare(options: LaunchOptions) -> Prepared:
    """Return a server that listens and only needs to be run; the settings go to the pages by environment.

    The process leaves the folder it was started in, so that nothing lying there is read or imported.

    Raises:
        LaunchError: a package is missing, nothing can listen there, or who may come in cannot be settled.
    """
    missing = what_is_missing()
    if missing is not None:
        raise LaunchError(missing, _NOTHING_TO_RUN_WITH)
    try:
        listener = listen(options.host, options.port, public=options.public)
        access = decide(
            options.access,
            is_private=listener.is_private,
            read_only=options.settings.read_only,
            environ=os.environ,
        )
    except (ListenError, AccessError) as error:
        raise LaunchError(str(error), _WRONG_OPTION) from error
    if isinstance(access, Login):
        _check_login(access, listener)
    if options.port is None and listener.port != DEFAULT_PORT:
        print(f"Port {DEFAULT_PORT} is in use, so the dashboard is on {listener.port}.", file=sys.stderr)
    if not listener.is_private and not _is_well_kept(listener, access):
        print(_warning(listener, access), file=sys.stderr)

    settings = replace(options.settings, admission=_admission(access))
    os.environ.update(settings.to_environment())
    _leave_current_folder()
    _have_a_home()
    # Imported here: it takes a second, and a wrong option is answered without it.
    from dashboard.server import DashboardServer

    return Prepared(
        server=DashboardServer(listener, access=access), listener=listener, settings=settings, access=access
    )


def _admission(access: Access) -> Admission:
    if isinstance(access, Keys):
        return Admission(by="token")
    if isinstance(access, Login):
        return Admission(by="login", guests=access.guests, providers=access.providers)
    return Admission()


def _check_login(login: Login, listener: Listener) -> None:
    missing = what_login_misses()
    if missing is not None:
        raise LaunchError(missing, _NOTHING_TO_RUN_WITH)
    if not listener.doors.takes(login.origin, login.origin.partition("://")[2]) or not listener.doors.admits(
        login.origin.partition("://")[2]
    ):
        raise LaunchError(
            f"--login: people would come back to {login.origin} (redirect_uri), and the dashboard is known as "
            f"{listener.url}; --public-url, --host or --port makes the two agree",
            _WRONG_OPTION,
        )


def whereabouts(prepared: Prepared, how_to_stop: str) -> str:
    """Return where the pages are, which runs they show and how it ends, for the terminal."""
    folders = ", ".join(_printable(str(path)) for path in prepared.settings.log_dirs)
    url, access = prepared.listener.url, prepared.access
    lines = [f"Dashboard: {url}  (runs in {folders})  {how_to_stop}"]
    if isinstance(access, Keys):
        steer = url if access.is_fixed else _with_token(url, access.steer)
        lines = [f"Dashboard: {steer}  (runs in {folders})  {how_to_stop}"]
        if access.is_fixed:
            lines.append("It asks for the token that you gave.")
        if access.look is not None:
            lines.append(
                "Readers come in with the token that you gave for them."
                if access.is_look_fixed
                else f"To look only: {_with_token(url, access.look)}"
            )
    if prepared.listener.doors.any_address and prepared.listener.doors.public is None:
        lines.append(f"From another machine: {_this_machine()}, or its address, in the place of localhost.")
    return "\n".join(lines)


def _with_token(url: str, token: str) -> str:
    return f"{url}/?token={quote(token, safe='')}"


def open_browser(url: str) -> None:
    """Open `url` where somebody can see it: at a terminal with a screen, and not at the far end of ssh."""
    has_screen = sys.platform in ("win32", "darwin") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    if sys.stdout.isatty() and has_screen and "SSH_CONNECTION" not in os.environ:
        # Some browsers return only when they are closed.
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def end_at_once_on_signals() -> None:
    """Make Ctrl-C and SIGTERM end this process with 0 and without a traceback while it is still starting.

    Nothing is raised: most of that time goes into imports, and a callback of theirs swallows what is raised in it.
    """

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        os._exit(0)

    _on_signals(end)


def with_signals_as_exit() -> None:
    """Make Ctrl-C and SIGTERM end this process with 0 and without a traceback, and let what has begun be ended."""

    def leave(_number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(0)

    _on_signals(leave)


def _on_signals(handler: Callable[[int, FrameType | None], NoReturn]) -> None:
    signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGTERM, handler)


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


def _have_a_home() -> None:
    """Name a home folder that does not exist where none is known: Streamlit does not start without one.

    A container that runs as a user without a name (`docker run --user 12345`) may have none.
    """
    try:
        if Path.home().is_absolute():
            return
    except RuntimeError:
        pass
    os.environ["USERPROFILE" if os.name == "nt" else "HOME"] = _NO_HOME


def _is_well_kept(listener: Listener, access: Access) -> bool:
    """Say whether others come in by https alone, and only those who are asked for something."""
    public = listener.doors.public
    return access is not None and public is not None and public.scheme == "https" and listener.is_local


def _warning(listener: Listener, access: Access) -> str:
    port = listener.port
    public = listener.doors.public
    if access is None:
        who = "It asks for no token: anybody who reaches this port can read every run, and stop those that train."
    else:
        who = (
            f"Only who {'has the token' if isinstance(access, Keys) else 'is on the list'} comes in, but the way "
            "there is not encrypted: whoever sits in between can read along and come in as well."
        )
    if public is not None:
        where = f"WARNING: the dashboard answers to {public}, for people beyond this machine."
    else:
        where = f"WARNING: the dashboard listens on {listener.address}, not only on this machine."
    return (
        f"{where}\n"
        f"  {who}\n"
        f"  The safe way from elsewhere is to leave {'--public-url' if public else '--host'} out here, "
        "and on the other machine:\n"
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
    if not text:
        raise argparse.ArgumentTypeError("'' is no folder; a folder with run folders is allowed")
    path = _with_home(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a file; a folder with run folders is allowed")
    return path.absolute()


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no port; a number from 1 to 65535 is allowed, or 0 for any free one"
        )
    return int(text)


def _file(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("'' is no file")
    # The process leaves the folder that this name is seen from.
    return _with_home(text).absolute()


def _with_home(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} begins with a home folder that is not known here; a path from / on is allowed"
        ) from error


def _public_url(text: str) -> PublicUrl:
    url = PublicUrl.parse(text)
    if url is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no place of its own; https://NAME or https://NAME:PORT is allowed, without a path behind"
        )
    return url
