"""The command that starts the dashboard: `telemetry-dashboard`, or `python run_dashboard.py` in a checkout."""

from __future__ import annotations

import argparse
import os
import re
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

from toolkit.telemetry.fleet.address import AddressError, address_of
from toolkit.telemetry.fleet.options import add_engine_arguments, add_objects_arguments, file_path, fill_in
from toolkit.telemetry.fleet.stores import PlaceError, store_at

from .access.access_options import Access, AccessError, AccessOptions, decide
from .access.login import Login, UserHeader
from .access.tokens import AccessTokens
from .listening import DEFAULT_HOST, DEFAULT_PORT, Listener, ListenError, listen
from .missing_packages import missing_login_packages_message, missing_packages_message
from .network_guard import PublicUrl
from .settings import DashboardSettings, EngineSettings, PageAccess, default_log_dirs

if TYPE_CHECKING:
    from .server import DashboardServer

CANNOT_START = 2
"""The exit code, as of every command that could not do what it was asked."""

_OF_A_STORE = ("password_file", "ca", "objects")
_SECRETS = ("password_file",)
"""Never taken for another store than they were given for."""
_NAMED = re.compile(r"[A-Za-z0-9_.-]{1,40}=clickhouse:")
_PACKAGE = Path(__file__).resolve().parent
_PAGES_TIMEOUT_S = 0.5
_ENGINE_TIMEOUT_S = 10.0
_NO_HOME = os.path.abspath("/nonexistent")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Where the dashboard listens, what it shows, and whether it opens a browser."""

    settings: DashboardSettings
    host: str = DEFAULT_HOST
    port: int | None = None
    """None: the default port, or the next free one."""

    open_browser: bool = True

    access: AccessOptions = field(default_factory=AccessOptions)
    """The access options that were given."""

    public: PublicUrl | None = None
    """The URL of a proxy in front of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDashboard:
    """A dashboard that already listens and is ready to serve."""

    server: DashboardServer
    listener: Listener
    settings: DashboardSettings
    access: Access


def main(argv: Sequence[str] | None = None, *, prog: str = "telemetry-dashboard") -> int:
    """Serve the dashboard with the options in `argv` (default: the command line) and return the exit code.

    0 after Ctrl-C or SIGTERM, 2 if a package is missing or an option is invalid.
    """
    options = parse_options(argv, prog=prog)
    exit_on_signals()
    try:
        prepared = prepare(options)
    except LaunchError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return CANNOT_START
    raise_exit_on_signals()

    def announce() -> None:
        print(startup_message(prepared, "Press Ctrl-C to stop."), flush=True)
        # A token in the URL would show up in the list of processes.
        if options.open_browser and not isinstance(prepared.access, AccessTokens):
            open_browser(prepared.listener.url)

    prepared.server.serve_until_stopped(on_ready=announce)
    wait_for_page_threads()
    return 0


class LaunchError(Exception):
    """The dashboard cannot start; the message is for the terminal."""


def parse_options(argv: Sequence[str] | None = None, *, prog: str = "telemetry-dashboard") -> LaunchOptions:
    """Parse the command line; an invalid one is reported on stderr and raises SystemExit(2)."""
    parser = _parser(prog)
    chosen = parser.parse_args(argv)
    try:
        access = AccessOptions(
            require="always" if chosen.token else "never" if chosen.no_token else "auto",
            token_file=chosen.token_file,
            reader_token=chosen.reader_token,
            reader_token_file=chosen.reader_token_file,
            login_file=chosen.login,
            user_header=chosen.user_header,
        )
    except AccessError as error:
        parser.error(str(error))
    log_dirs = tuple(dict.fromkeys(chosen.log_dir)) if chosen.log_dir else default_log_dirs()
    if chosen.engine and chosen.log_dir:
        parser.error("--store and --log-dir cannot be combined: runs come from an engine or from folders")
    flags = [name for name in _OF_A_STORE if getattr(chosen, name) is not None]
    try:
        if not chosen.log_dir:
            fill_in(chosen, "dashboard")
        engines = _engines(chosen)
    except AddressError as error:
        parser.error(_printable(str(error)))
    if not engines and flags:
        parser.error("--password-file, --ca and --objects need --store")
    return LaunchOptions(
        settings=DashboardSettings(
            log_dirs=log_dirs,
            read_only=chosen.read_only,
            engines=engines,
            other_tools=not chosen.no_other_tools,
        ),
        host=chosen.host,
        port=chosen.port,
        open_browser=not chosen.no_browser,
        access=access,
        public=chosen.public_url,
    )


def _engines(chosen: argparse.Namespace) -> tuple[EngineSettings, ...]:
    """Return the stores, each with its own options. Raises AddressError if it is not clear whose they are."""
    found = {name: getattr(chosen, name) for name in ("engine", *_OF_A_STORE)}
    given = {name: one if isinstance(one, list) else [one] for name, one in found.items() if one is not None}
    stores, engines = given.pop("engine", []), []
    for name, values in given.items():
        if stores and len(values) != len(stores) and (len(values) > 1 or name in _SECRETS):
            raise AddressError(
                f"--{name.replace('_', '-')} is for one store each, in the order of --store: "
                f"there are {len(stores)} stores and {len(values)} of it"
            )
    for number, store in enumerate(stores):
        team, _, url = store.partition("=") if _NAMED.match(store) else ("", "", store)
        if len(stores) > 1:
            team = team or address_of(url).database.removeprefix("telemetry_")
        own = {name: values[number % len(values)] for name, values in given.items()}
        engines.append(EngineSettings(url=url, team=team, **{k: v for k, v in own.items() if v != "none"}))
    if len({one.team for one in engines}) < len(engines):
        raise AddressError("two stores have the same name: --store NAME=clickhouse://… gives them one")
    return tuple(engines)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=prog,
        description="Show training runs in a browser. No data leaves this machine.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--log-dir",
        action="append",
        type=_log_dir,
        metavar="DIR",
        help="folder that contains run folders, or other tools' logs; can be repeated (default: ./logs)",
    )
    parser.add_argument(
        "--no-other-tools",
        action="store_true",
        help="show only our own run folders, not TensorBoard, W&B, MLflow and other logs below --log-dir",
    )
    add_engine_arguments(
        parser,
        "--store",
        "show the runs that were shipped to ClickHouse instead (docs/fleet.md); can be repeated, "
        "as NAME=clickhouse://…, with the other options of each store in the same order",
        action="append",
    )
    add_objects_arguments(parser, "where `telemetry ship` stores sample images and other files", "append")
    parser.add_argument(
        "--port",
        type=_port,
        metavar="N",
        help=f"port to listen on (default: {DEFAULT_PORT}, or the next free one)",
    )
    parser.add_argument(
        "--host",
        default=DEFAULT_HOST,
        help="address to listen on (default: localhost, reachable from this machine only)",
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    parser.add_argument(
        "--read-only", action="store_true", help="disable control of runs, labels and deletion"
    )
    _add_access_options(parser)
    return parser


def _add_access_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "access",
        "On localhost, everyone on this machine has access. On any other address a token is required; it is printed "
        "at startup. Tokens are never passed on the command line, where other users of this machine could read them.",
    )
    token = group.add_mutually_exclusive_group()
    token.add_argument("--token", action="store_true", help="require a token on localhost as well")
    token.add_argument(
        "--no-token",
        action="store_true",
        help="require no token, for example behind a proxy that authenticates users",
    )
    group.add_argument(
        "--token-file",
        type=file_path,
        metavar="FILE",
        help="use the token in FILE instead of a new one (or set TELEMETRY_DASHBOARD_TOKEN)",
    )
    group.add_argument("--reader-token", action="store_true", help="also print a read-only link")
    group.add_argument(
        "--reader-token-file",
        type=file_path,
        metavar="FILE",
        help="use the token in FILE for read-only access (or set TELEMETRY_DASHBOARD_READER_TOKEN)",
    )
    group.add_argument(
        "--login",
        type=file_path,
        metavar="FILE",
        help="require a login with the OpenID Connect provider and the users in FILE (see docs/remote.md)",
    )
    group.add_argument(
        "--user-header",
        type=_header,
        metavar="NAME",
        help="trust the proxy in front, which sets this header to the address of each visitor (see docs/remote.md)",
    )
    group.add_argument(
        "--public-url",
        type=_public_url,
        metavar="URL",
        help="URL of the proxy in front of the dashboard, such as https://runs.example.org",
    )


def prepare(options: LaunchOptions) -> PreparedDashboard:
    """Return a server that already listens; `settings` are those that pages go by from now on.

    Changes the current directory, so that no file lying there is read or imported.

    Raises:
        LaunchError: a package is missing, the address cannot be used, or access options are invalid.
    """
    missing = missing_packages_message()
    if missing is not None:
        raise LaunchError(missing)
    silent = [why for engine in options.settings.engines if (why := _check_engine(engine)) is not None]
    if silent and len(silent) == len(options.settings.engines):
        raise LaunchError(silent[0])
    for why in silent:
        print(f"{why}. The page shows the other stores.", file=sys.stderr)
    try:
        listener = listen(options.host, options.port, public=options.public)
        access = decide(
            options.access,
            is_private=listener.is_private,
            read_only=options.settings.read_only,
            environ=os.environ,
        )
    except (ListenError, AccessError) as error:
        raise LaunchError(str(error)) from error
    _check_named_visitors(access, listener)
    if options.port is None and listener.port != DEFAULT_PORT:
        print(f"Port {DEFAULT_PORT} is in use, using {listener.port} instead.", file=sys.stderr)
    if not listener.is_private and not _is_protected(listener, access):
        print(_warning(listener, access), file=sys.stderr)

    settings = replace(options.settings, access=_page_access(access))
    DashboardSettings.in_use = settings
    _leave_current_folder()
    _ensure_home_folder()
    # Imported here: it takes a second, and an invalid option is reported without it.
    from .server import DashboardServer

    return PreparedDashboard(
        server=DashboardServer(listener, access=access), listener=listener, settings=settings, access=access
    )


def _check_engine(engine: EngineSettings) -> str | None:
    """Return why an engine does not answer, which may be temporary. Raises LaunchError for everything else."""
    from toolkit.telemetry.fleet.engine import Engine, EngineError, UnreachableError
    from toolkit.telemetry.fleet.schema import require_tables

    try:
        if engine.objects is not None:
            store_at(engine.objects)
    except PlaceError as error:
        raise LaunchError(f"--objects: {_printable(str(error))}") from error
    try:
        address = address_of(engine.url, password_file=engine.password_file, ca=engine.ca)
        connection = Engine(address, patience_s=_ENGINE_TIMEOUT_S)
        try:
            require_tables(connection)
        finally:
            connection.close()
    except UnreachableError as error:
        return f"--store: {_printable(str(error))}"
    except (AddressError, EngineError) as error:
        raise LaunchError(f"--store: {_printable(str(error))}") from error
    return None


def _page_access(access: Access) -> PageAccess:
    if isinstance(access, AccessTokens):
        return PageAccess(by="token")
    if isinstance(access, Login):
        return PageAccess(by="login", allow_list=access.allow_list)
    return PageAccess(by="anyone" if access is None else "header")


def _check_named_visitors(access: Access, listener: Listener) -> None:
    if isinstance(access, UserHeader) and not listener.is_local:
        raise LaunchError(
            "--user-header: leave out --host, or anyone could send that header without the proxy"
        )
    if not isinstance(access, Login):
        return
    missing = missing_login_packages_message()
    if missing is not None:
        raise LaunchError(missing)
    host = access.origin.partition("://")[2]
    if not listener.allowed_hosts.allows_origin(
        access.origin, host
    ) or not listener.allowed_hosts.allows_host(host):
        raise LaunchError(
            f"--login: redirect_uri points to {access.origin}, but the dashboard is at {listener.url}; "
            "make them match with --public-url, --host or --port"
        )


def startup_message(prepared: PreparedDashboard, how_to_stop: str) -> str:
    """Return the lines for the terminal: the URL, where the runs are and how to stop."""
    engines = prepared.settings.engines
    places = [address_of(one.url, ca=one.ca) for one in engines] or prepared.settings.log_dirs
    folders = ", ".join(_printable(str(place)) for place in places)
    url, access = prepared.listener.url, prepared.access
    lines = [f"Dashboard: {url}  (runs in {folders})  {how_to_stop}"]
    if isinstance(access, AccessTokens):
        operator = url if access.is_fixed else _with_token(url, access.operator)
        lines = [f"Dashboard: {operator}  (runs in {folders})  {how_to_stop}"]
        if access.is_fixed:
            lines.append("Access requires the token you provided.")
        if access.viewer is not None:
            lines.append(
                "Read-only access requires the reader token you provided."
                if access.is_viewer_fixed
                else f"Read-only: {_with_token(url, access.viewer)}"
            )
    if prepared.listener.allowed_hosts.any_address and prepared.listener.allowed_hosts.public is None:
        lines.append(f"From another machine, use {_this_machine()} or its IP address instead of localhost.")
    return "\n".join(lines)


def _with_token(url: str, token: str) -> str:
    return f"{url}/?token={quote(token, safe='')}"


def open_browser(url: str) -> None:
    """Open `url` in a browser if this is a terminal with a display and not an ssh session."""
    has_screen = sys.platform in ("win32", "darwin") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    if sys.stdout.isatty() and has_screen and "SSH_CONNECTION" not in os.environ:
        # Some browsers block until they are closed.
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def exit_on_signals() -> None:
    """Make Ctrl-C and SIGTERM exit with 0 at once, without a traceback, while the process starts.

    Nothing is raised: most of the startup is imports, and their callbacks swallow exceptions.
    """

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        os._exit(0)

    _on_signals(end)


def raise_exit_on_signals() -> None:
    """Make Ctrl-C and SIGTERM raise SystemExit(0), so that cleanup runs."""

    def raise_exit(_number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(0)

    _on_signals(raise_exit)


def _on_signals(handler: Callable[[int, FrameType | None], NoReturn]) -> None:
    signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGTERM, handler)


def wait_for_page_threads() -> None:
    """Wait until no page is being computed; after half a second, end the process regardless."""
    deadline = time.monotonic() + _PAGES_TIMEOUT_S
    while _busy_threads():
        if time.monotonic() > deadline:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        time.sleep(0.02)
    # During interpreter shutdown another signal would kill the process, and the exit code would be the signal's.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _busy_threads() -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread is not threading.current_thread()
        # Daemon threads may be abandoned, but not inside Arrow code, which crashes when the interpreter ends.
        and (not thread.daemon or thread.name.startswith(("reading ", "saving ")))
    ]


def _leave_current_folder() -> None:
    here = Path.cwd()
    if here != _PACKAGE.parent:
        sys.path[:] = [entry for entry in sys.path if entry and Path(entry) != here]
    os.chdir(_PACKAGE)


def _ensure_home_folder() -> None:
    """Set a home folder that does not exist if none is known, as in some containers: Streamlit needs one to start."""
    try:
        if Path.home().is_absolute():
            return
    except RuntimeError:
        pass
    os.environ["USERPROFILE" if os.name == "nt" else "HOME"] = _NO_HOME


def _is_protected(listener: Listener, access: Access) -> bool:
    """Return whether other machines need https and a token or login."""
    public = listener.allowed_hosts.public
    return access is not None and public is not None and public.scheme == "https" and listener.is_local


def _warning(listener: Listener, access: Access) -> str:
    port = listener.port
    public = listener.allowed_hosts.public
    if access is None:
        access_note = (
            "No token is required: anyone who can reach this port can read every run and stop running ones."
        )
    else:
        required = "A token" if isinstance(access, AccessTokens) else "A login"
        access_note = (
            f"{required} is required, but the connection is not encrypted: "
            "anyone on the network path can read it and gain access."
        )
    if public is not None:
        where = f"WARNING: the dashboard is reachable from other machines at {public}."
    else:
        where = f"WARNING: the dashboard listens on {listener.address} and is reachable from other machines."
    return (
        f"{where}\n"
        f"  {access_note}\n"
        f"  Safer: leave out {'--public-url' if public else '--host'} here, run this on the other machine\n"
        f"    ssh -L {port}:localhost:{port} {_this_machine()}\n"
        f"  and open http://localhost:{port} there."
    )


def _this_machine() -> str:
    return _printable(socket.gethostname()) or "this-machine"


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(
            CANNOT_START, f"{self.prog}: {message}\nRun '{self.prog} --help' for the list of options.\n"
        )


def _log_dir(text: str) -> Path:
    path = file_path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"expected a folder with run folders, got the file {text!r}")
    return path


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"invalid port {text!r}; use 1 to 65535, or 0 for any free port")
    return int(text)


def _header(text: str) -> UserHeader:
    if not re.fullmatch(r"[A-Za-z0-9-]+", text):
        raise argparse.ArgumentTypeError(
            f"expected the name of a header such as X-Forwarded-Email, got {text!r}"
        )
    return UserHeader(text)


def _public_url(text: str) -> PublicUrl:
    url = PublicUrl.parse(text)
    if url is None:
        raise argparse.ArgumentTypeError(
            f"invalid URL {text!r}; use https://NAME or https://NAME:PORT, without a path"
        )
    return url
