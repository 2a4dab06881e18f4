"""The web server: Streamlit around app.py, plotly.js beside it, the network guard in front of both."""

from __future__ import annotations

import asyncio
import gzip
import importlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from types import FrameType

import streamlit as st
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from streamlit import config
from streamlit.web import bootstrap
from uvicorn.config import WS_PROTOCOLS

from dashboard import terminal_log
from dashboard.access.access_options import Access
from dashboard.access.login_file import CALLBACK_PATH, Login
from dashboard.access.login_gate import LoginGate
from dashboard.access.token_gate import RIGHTS_HEADER, TokenGate
from dashboard.access.tokens import Keys
from dashboard.assets import SCRIPTS, plotly_js_file, plotly_js_url, script_code, script_url
from dashboard.connections import ConnectionLimits, taken_at_once
from dashboard.listening import QUEUE_LENGTH, Listener
from dashboard.network_guard import NetworkGuard
from dashboard.page_messages import PageMessages
from dashboard.preload import with_preloads
from dashboard.theme import THEME_OPTIONS

APP_SCRIPT = Path(__file__).with_name("app.py")

_SECONDS_FOR_OPEN_CONNECTIONS = 1
_LONGEST_HEADER = 64 * 1024


class DashboardServer(uvicorn.Server):
    """Serves the pages on a socket that already listens, until `stop` is called or a signal says so."""

    def __init__(
        self,
        listener: Listener,
        *,
        access: Access = None,
        script: Path = APP_SCRIPT,
        preload: bool = True,
    ) -> None:
        # A login with many groups fills several cookies; beyond 8 KiB of them the library would never answer.
        os.environ.setdefault("WEBSOCKETS_MAX_LINE_LENGTH", str(_LONGEST_HEADER))
        # Streamlit reads options while the application is built, so they come first.
        bootstrap.load_config_options(_known_here(streamlit_options(listener, access)))
        scripts, modules = (
            ([plotly_js_url()], [script_url(name) for name in SCRIPTS]) if preload else ([], [])
        )
        application = st.App(
            script,
            routes=[
                Route(plotly_js_url(), _plotly_js, methods=["GET"]),
                *(Route(script_url(name), _script(name), methods=["GET"]) for name in SCRIPTS),
                *(() if isinstance(access, Login) else _NO_LOGIN),
            ],
            # Streamlit gets this section alone: from a file it would put other values into the environment.
            secrets={"auth": dict(access.auth)} if isinstance(access, Login) else None,
        )
        pages = with_preloads(PageMessages(application), scripts, modules)
        if isinstance(access, Keys):
            pages = TokenGate(pages, access, port=listener.port)
        elif isinstance(access, Login):
            pages = LoginGate(pages, access)
        super().__init__(
            uvicorn.Config(
                NetworkGuard(pages, listener.doors),
                # The same for everyone, whatever else is installed: httptools takes headers of any length.
                loop="asyncio",
                http="h11",
                ws="websockets-sansio" if "websockets-sansio" in WS_PROTOCOLS else "auto",
                # Compressing what stays on this machine costs more than it saves; Streamlit leaves it off as well.
                ws_per_message_deflate=False,
                h11_max_incomplete_event_size=_LONGEST_HEADER,
                backlog=taken_at_once(),
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_SECONDS_FOR_OPEN_CONNECTIONS,
            )
        )
        self._listener = listener
        self._limits = ConnectionLimits(self.server_state.connections)
        self._on_ready: Callable[[], None] = _nothing
        self._on_signal: Callable[[signal.Signals], None] = self._stop_on_signal

    def serve_until_stopped(
        self,
        *,
        on_ready: Callable[[], None] | None = None,
        on_signal: Callable[[signal.Signals], None] | None = None,
    ) -> None:
        """Serve in this thread, which must be the main one for signals to be heard.

        `on_ready` is called once pages can be opened.
        `on_signal` decides what Ctrl-C and SIGTERM do; without it either ends the server.
        """
        self._on_ready = on_ready or self._on_ready
        self._on_signal = on_signal or self._on_signal
        with terminal_log.short_and_plain():
            self.run(sockets=[self._listener.socket])

    def stop(self) -> None:
        """End `serve_until_stopped` soon; may be called from a signal handler and from any thread."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and tell the one who waits for it."""
        self.config.http_protocol_class = self._limits.watched(self.config.http_protocol_class)
        await super().startup(sockets)
        # `backlog` was both the length of the queue and how many are taken from it at once; the queue may be longer.
        self._listener.socket.listen(QUEUE_LENGTH)
        # Nobody at the terminal can do anything about a stranger's odd request, which is a warning to uvicorn.
        # Said here, because Streamlit sets the levels of its own liking while it starts.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        if self.started:
            # Begun before the first browser asks: it needs a second to start itself.
            threading.Thread(target=_get_ready, name="getting ready", daemon=True).start()
            self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        """Look once a second for connections that wait in vain; uvicorn calls this ten times as often."""
        if counter % 10 == 0:
            self._limits.close_stalled()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close what is open; a browser that does not hang up is no news."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  # what uvicorn calls
        """Pass a signal on. Uvicorn would also raise it again at the end, and the exit code would not be ours."""
        self._on_signal(signal.Signals(sig))

    def _stop_on_signal(self, _number: signal.Signals) -> None:
        self.stop()


def streamlit_options(listener: Listener, access: Access = None) -> dict[str, object]:
    """Return every option that decides who gets in, what leaves, and how it looks.

    Given this way they win over any config.toml; what is left out here is harmless at any value.
    """
    public = listener.doors.public
    names = sorted({name.strip("[]") for name in (*listener.doors.names, *([public.name] if public else ()))})
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
        # The guard knows better than this list when every address is a name of ours.
        "server.allowedHosts": ["*"] if listener.doors.any_address else names,
        "server.corsAllowedOrigins": [],
        "server.enableCORS": True,
        "server.enableXsrfProtection": True,
        "server.enableStaticServing": False,
        "server.enableAgentApi": False,
        "server.scriptHealthCheckEnabled": False,
        # The gate in front throws away what a visitor sends by this name, and writes down what they may do.
        "server.trustedUserHeaders": {RIGHTS_HEADER: "rights"} if isinstance(access, Keys) else {},
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
        "logger.hideWelcomeMessage": True,
        "logger.level": "warning",
        "runner.magicEnabled": False,
        # A file of secrets that lies about belongs to another app.
        "secrets.files": [],
        **THEME_OPTIONS,
    }


def _known_here(options: Mapping[str, object]) -> dict[str, object]:
    """Leave out what this version of Streamlit does not have yet, such as a colour or a door it has not built."""
    # Asking in public would read the configuration files first, and then complain that it changed.
    known = config._config_options_template  # noqa: SLF001
    return {name: value for name, value in options.items() if name in known}


_FOR_GOOD = {"Cache-Control": "public, max-age=31536000, immutable"}


def _script(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_request: Request) -> Response:
        body = await asyncio.to_thread(script_code, name)
        return Response(body, media_type="text/javascript", headers=_FOR_GOOD)

    return answer


async def _plotly_js(request: Request) -> Response:
    headers = {**_FOR_GOOD, "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        body = await asyncio.to_thread(_compressed_plotly_js)
    else:
        body = await asyncio.to_thread(plotly_js_file().read_bytes)
    return Response(body, media_type="text/javascript", headers=headers)


async def _not_here(_request: Request) -> Response:
    return Response("Nobody logs in here.\n", status_code=404, media_type="text/plain")


# Streamlit has these pages in any case, and complains in the terminal about settings that nobody made.
_NO_LOGIN = tuple(Route(path, _not_here) for path in ("/auth/login", "/auth/logout", CALLBACK_PATH))


def _get_ready() -> None:
    _compressed_plotly_js()
    # What every page needs: pandas and pyarrow alone take a second to import.
    importlib.import_module("dashboard.components.curve_panel")


def _compressed_plotly_js() -> bytes:
    """Return 1.5 MB instead of 4.8, made once a process: through `ssh -L` the difference is seconds."""
    with _compressing:
        return _compress_plotly_js()


_compressing = threading.Lock()


@cache
def _compress_plotly_js() -> bytes:
    # Level 2 is within a tenth of the best and takes a third of its time, which the first page waits for.
    return gzip.compress(plotly_js_file().read_bytes(), compresslevel=2, mtime=0)


def _nothing() -> None:
    pass
