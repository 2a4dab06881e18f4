"""The web server: Streamlit with app.py, plotly.js, and the middlewares in front."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import FrameType

import streamlit as st
import uvicorn
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from streamlit import config
from streamlit.web import bootstrap
from uvicorn.config import WS_PROTOCOLS

from . import terminal_log
from .access.access_options import Access
from .access.login import CALLBACK_PATH, Login, LoginGate, UserHeader, UserHeaderGate
from .access.roles import Role, with_role
from .access.token_gate import ROLE_HEADER, TokenGate
from .access.tokens import AccessTokens
from .answering import computed
from .asgi import AsgiApp, Message, Receive, Send
from .assets import (
    SAMPLE_FILE_URL,
    page_script,
    page_script_url,
    plotly_js_file,
    plotly_js_url,
    whole_plotly_js_file,
    whole_plotly_js_url,
)
from .connections import ConnectionLimits, accept_batch_size
from .curve_route import CSV_URL, CURVES_URL, answer_csv, answer_curves
from .first_response import completed
from .listening import QUEUE_LENGTH, Listener
from .network_guard import NetworkGuard
from .page_messages import PageMessages
from .theme import THEME_OPTIONS
from .widget_values import ignore_invalid_values

APP_SCRIPT = Path(__file__).with_name("app.py")

_SHUTDOWN_TIMEOUT_S = 1
_MAX_HEADER_BYTES = 64 * 1024
_COMPRESS_LEVEL = 5
_SWITCH_EVERY_S = 0.001
"""How long a request waits for a thread that computes a page; Python's default is five times that."""
_MOST_PATIENCE_S = 5.0
_SAMPLE_FILE_S = 30.0
_LOOK_EVERY_S = 0.005


class DashboardServer(uvicorn.Server):
    """Serves the pages on a socket that already listens, until `stop` or a signal."""

    def __init__(
        self, listener: Listener, *, access: Access = None, script: Path = APP_SCRIPT, warm_up: bool = True
    ) -> None:
        # A login with many groups fills several cookies; beyond 8 KiB of them websockets would never answer.
        os.environ.setdefault("WEBSOCKETS_MAX_LINE_LENGTH", str(_MAX_HEADER_BYTES))
        # Streamlit reads options while the application is built, so set them first.
        bootstrap.load_config_options(_supported_options(streamlit_options(listener, access)))
        ignore_invalid_values()
        application = st.App(
            script,
            routes=[
                _script(plotly_js_url(), lambda: plotly_js_file().read_bytes()),
                _script(whole_plotly_js_url(), lambda: whole_plotly_js_file().read_bytes()),
                _script(page_script_url(), page_script),
                Route(SAMPLE_FILE_URL, answer_sample_file, methods=["GET"]),
                Route(CURVES_URL, answer_curves, methods=["GET"]),
                Route(CSV_URL, answer_csv, methods=["GET"]),
                *(() if isinstance(access, Login) else _NO_LOGIN),
            ],
            # Only this section: from a file, Streamlit would put other values into the environment.
            secrets={"auth": dict(access.auth)} if isinstance(access, Login) else None,
        )
        whole = completed(application, _first_screen, has_login=isinstance(access, Login))
        # Streamlit compresses everything but its own scripts, which are 3.5 MB: too much over `ssh -L`.
        pages: AsgiApp = GZipMiddleware(PageMessages(whole), compresslevel=_COMPRESS_LEVEL)
        if isinstance(access, AccessTokens):
            pages = TokenGate(pages, access, port=listener.port)
        elif isinstance(access, Login):
            pages = LoginGate(pages, access)
        elif isinstance(access, UserHeader):
            pages = UserHeaderGate(pages, access)
        else:
            pages = _open_to_all(pages)
        counted, self._is_busy = _counting(pages)
        super().__init__(
            uvicorn.Config(
                NetworkGuard(counted, listener.allowed_hosts),
                # Fixed, whatever else is installed: httptools accepts headers of any length.
                loop="asyncio",
                http="h11",
                ws="websockets-sansio" if "websockets-sansio" in WS_PROTOCOLS else "auto",
                # Compression on one machine costs more than it saves; Streamlit disables it as well.
                ws_per_message_deflate=False,
                h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
                backlog=accept_batch_size(),
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
            )
        )
        self._listener = listener
        self._warm_up = warm_up
        self._limits = ConnectionLimits(self.server_state.connections)
        self._on_ready: Callable[[], None] = lambda: None

    def serve_until_stopped(self, *, on_ready: Callable[[], None] | None = None) -> None:
        """Serve in this thread, which must be the main thread, until Ctrl-C or SIGTERM.

        `on_ready` is called once pages can be opened.
        """
        self._on_ready = on_ready or self._on_ready
        with terminal_log.concise_logging():
            self.run(sockets=[self._listener.socket])

    def stop(self) -> None:
        """End `serve_until_stopped` soon; may be called from a signal handler and from any thread."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call `on_ready`."""
        sys.setswitchinterval(_SWITCH_EVERY_S)
        self.config.http_protocol_class = self._limits.watched(self.config.http_protocol_class)
        await super().startup(sockets)
        # `backlog` is both the queue length and how many are accepted at once; the queue may be longer.
        self._listener.socket.listen(QUEUE_LENGTH)
        # Uvicorn warns about invalid requests of strangers, which is noise in the terminal.
        # Set here, because Streamlit changes log levels while it starts.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        if self.started:
            # Started before the first browser connects, which takes a second to start itself.
            if self._warm_up:
                threading.Thread(
                    target=_warm_up, args=(self._is_busy,), name="warming up", daemon=True
                ).start()
            self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        """Close idle connections once a second; uvicorn calls this ten times a second."""
        if counter % 10 == 0:
            self._limits.close_idle()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close connections; a browser that stays connected is not worth a message."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  # what uvicorn calls
        """Stop at a signal. Uvicorn would raise it again at the end and change our exit code."""
        self.stop()


def _counting(application: AsgiApp) -> tuple[AsgiApp, Callable[[], bool]]:
    """Return `application`, and whether it is answering an HTTP request; a WebSocket is open for hours."""
    being_answered: list[Message] = []

    async def counted(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        being_answered.append(scope)
        try:
            await application(scope, receive, send)
        finally:
            being_answered.pop()

    return counted, lambda: bool(being_answered)


def streamlit_options(listener: Listener, access: Access = None) -> dict[str, object]:
    """Return every Streamlit option that affects access, privacy and appearance.

    These take precedence over any config.toml; options left out here are harmless at any value.
    """
    public = listener.allowed_hosts.public
    names = sorted(
        {name.strip("[]") for name in (*listener.allowed_hosts.names, *([public.name] if public else ()))}
    )
    return {
        "server.address": listener.address,
        "server.port": listener.port,
        "browser.serverAddress": public.name
        if public
        else listener.url.removeprefix("http://").rpartition(":")[0],
        "browser.serverPort": public.port if public else listener.port,
        "browser.gatherUsageStats": False,
        "server.headless": True,
        "server.showEmailPrompt": False,
        "server.baseUrlPath": "",
        "server.customComponentBaseUrlPath": "",
        # With any address allowed, the network guard does this check.
        "server.allowedHosts": ["*"] if listener.allowed_hosts.any_address else names,
        "server.corsAllowedOrigins": [],
        "server.enableCORS": True,
        "server.enableXsrfProtection": True,
        "server.enableStaticServing": False,
        "server.enableAgentApi": False,
        "server.scriptHealthCheckEnabled": False,
        "server.trustedUserHeaders": _trusted_headers(access),
        "server.unsafeMetricsUserAttributes": [],
        "server.fileWatcherType": "none",
        "server.folderWatchList": [],
        "server.runOnSave": False,
        "server.allowRunOnSave": False,
        "client.allowedOrigins": [],
        "client.showErrorDetails": "none",
        "client.showErrorLinks": False,
        "client.showSidebarNavigation": True,
        "client.toolbarMode": "minimal",
        "global.developmentMode": False,
        # It prints past the limit of terminal_log.
        "logger.enableRich": False,
        "logger.hideWelcomeMessage": True,
        "logger.level": "warning",
        "runner.magicEnabled": False,
        # A secrets file found on disk belongs to another app.
        "secrets.files": [],
        **THEME_OPTIONS,
    }


def _open_to_all(application: AsgiApp) -> AsgiApp:
    async def pages(scope: Message, receive: Receive, send: Send) -> None:
        await application(with_role(scope, Role.OPERATOR), receive, send)

    return pages


def _trusted_headers(access: Access) -> dict[str, str]:
    if isinstance(access, AccessTokens):
        # The token gate drops this header from outside and sets the visitor's role.
        return {ROLE_HEADER: "role"}
    return {access.name: "email"} if isinstance(access, UserHeader) else {}


def _supported_options(options: Mapping[str, object]) -> dict[str, object]:
    """Leave out options that this version of Streamlit does not have."""
    # The public function would read the configuration files first, and then complain about changes.
    known = config._config_options_template  # noqa: SLF001
    return {name: value for name, value in options.items() if name in known}


_CACHE_FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}


def _script(url: str, read: Callable[[], bytes]) -> Route:
    async def answer(_request: Request) -> Response:
        return Response(await asyncio.to_thread(read), media_type="text/javascript", headers=_CACHE_FOREVER)

    return Route(url, answer, methods=["GET"])


async def answer_sample_file(request: Request) -> Response:
    """Answer with the file of a sample, or with 404 and the reason in a sentence.

    The gates in front have checked the visitor's access, as for every file with contents of a run.
    """
    asked = request.query_params
    answer = partial(
        _sample_file,
        asked.get("run", ""),
        asked.get("path", ""),
        is_small="small" in asked,
        part=request.headers.get("range", ""),
    )
    return await computed(request, answer, seconds=_SAMPLE_FILE_S)


def _sample_file(run: str, path: str, *, is_small: bool, part: str) -> Response:
    # Imported here: they import pandas and pyarrow, which take a second.
    from toolkit.telemetry.runs.files.sample_files import sample_file
    from toolkit.telemetry.runs.formatting import clean
    from toolkit.telemetry.runs.store import Refused, StoreUnavailable, UnknownRun

    from . import session

    try:
        found = sample_file(session.store(), run, path, small=is_small)
    except (Refused, UnknownRun) as error:
        reason = error.why if isinstance(error, StoreUnavailable) else error
        return Response(f"{clean(str(reason))}\n", 404, {"Cache-Control": "no-store"}, "text/plain")
    # Only for this browser, and not for long: a file may be written again.
    headers = {"Cache-Control": "private, max-age=600", "Accept-Ranges": "bytes"}
    start, end = _part_asked_for(part, len(found.data))
    if (start, end) == (0, len(found.data)):
        return Response(found.data, headers=headers, media_type=found.content_type)
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(found.data)}"
    return Response(found.data[start:end], 206, headers, found.content_type)


def _part_asked_for(header: str, length: int) -> tuple[int, int]:
    """Return start and end of the part of a file that a `Range` header asks for; a player asks for parts to seek."""
    found = re.fullmatch(r"bytes=(\d{0,15})-(\d{0,15})", header)
    if found is None or found[1] == found[2] == "":
        return 0, length
    if not found[1]:
        return max(0, length - int(found[2])), length
    start, end = int(found[1]), min(length, int(found[2]) + 1) if found[2] else length
    return (start, end) if start < end else (0, length)


async def _not_here(_request: Request) -> Response:
    return Response("This dashboard does not use logins.\n", status_code=404, media_type="text/plain")


# Streamlit always has these routes, and without settings it logs errors about them.
_NO_LOGIN = tuple(Route(path, _not_here) for path in ("/auth/login", "/auth/logout", CALLBACK_PATH))


_FIRST_NEEDED = """
    numpy pyarrow pyarrow.compute toolkit.telemetry.runs.store toolkit.telemetry.runs.columns.column_queries
    .session toolkit.telemetry.diagnostics.examiner toolkit.telemetry.reports.ledger_labels PIL.PngImagePlugin
    .components.frame .components.curve_panel .components.cards .components.alert_card .components.resume_card
    .components.event_list .components.pictures .components.settings_dialog .components.shortcuts .first_screen
""".split()
"""What the first page of a run imports, in parts of a tenth of a second at most; together they take half a second."""


_is_warm = threading.Event()


def _first_screen(path: str, asked: Mapping[str, str], cookies: Mapping[str, str]) -> str:
    # Before that, what it imports would take longer than all the rest.
    if not _is_warm.is_set():
        return ""
    return str(importlib.import_module(".first_screen", __package__).first_screen(path, asked, cookies))


def _warm_up(is_busy: Callable[[], bool]) -> None:
    until = time.monotonic() + _MOST_PATIENCE_S
    for module in _FIRST_NEEDED:
        _wait_while(is_busy, until)
        importlib.import_module(module, __package__)
    importlib.import_module("toolkit.telemetry.diagnostics.examiner").Examiner()
    _is_warm.set()
    # Of the newest run: its list and its log are read by then.
    _first_screen("/overview", {}, {})
    # Streamlit asks for the stack when it draws the first element of a process; Python remembers where modules are.
    inspect.stack()
    _wait_while(is_busy, until)
    # For tables, of which the first page of a run has none.
    importlib.import_module("pandas")


def _wait_while(is_busy: Callable[[], bool], until: float) -> None:
    """Wait for idle time: the browser computes in between, and what it asks for would wait for an import."""
    while is_busy() and time.monotonic() < until:
        time.sleep(_LOOK_EVERY_S)
