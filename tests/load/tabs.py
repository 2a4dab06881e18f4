"""Tabs that open and close: real WebSocket sessions with a real server, and the resources it holds afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from urllib.parse import urlsplit

import psutil

from tests.load.long_run import held_by

_PATIENCE_S = 60.0


class Tab:
    """A session like a browser tab's: it requests a page and reads until the page is drawn."""

    def __init__(self, url: str) -> None:
        from websockets.sync.client import connect
        from websockets.typing import Origin, Subprotocol

        parts = urlsplit(url)
        self._opened = ExitStack()
        connection = connect(
            f"ws://{parts.netloc}/_stcore/stream",
            origin=Origin(f"http://{parts.netloc}"),
            subprotocols=[Subprotocol("streamlit")],
            max_size=None,
            open_timeout=_PATIENCE_S,
        )
        self._socket = self._opened.enter_context(connection)

    def ask(self, query: str = "", *, page: str = "") -> int:
        """Request a page and return how many messages drew it."""
        from streamlit.proto.BackMsg_pb2 import BackMsg
        from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

        asked = BackMsg()
        asked.rerun_script.query_string = query
        asked.rerun_script.page_name = page
        self._socket.send(asked.SerializeToString())
        messages, deadline = 0, time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            said = ForwardMsg()
            said.ParseFromString(bytes(self._socket.recv(timeout=_PATIENCE_S)))  # type: ignore[arg-type]
            messages += 1
            if said.WhichOneof("type") == "script_finished":
                return messages
        raise TimeoutError("the page was not drawn")

    def close(self) -> None:
        """Close the tab."""
        self._opened.close()


def come_and_go(url: str, tabs: int, pages: list[tuple[str, str]], *, at_once: int = 4) -> int:
    """Open `tabs` tabs, a few at a time, draw all `pages` in each, and close them; count the messages."""
    messages = 0
    for first in range(0, tabs, at_once):
        opened = [Tab(url) for _ in range(min(at_once, tabs - first))]
        for page, query in pages:
            for tab in opened:
                messages += tab.ask(query, page=page)
        for tab in opened:
            tab.close()
    return messages


def settled(process: psutil.Process, *, threads: float = 0.0, files: float = 0.0) -> dict[str, float]:
    """Return the server's resources once threads and descriptors are down to these, or after a timeout."""
    deadline = time.monotonic() + 10.0
    while True:
        held = held_by(process)
        if time.monotonic() > deadline or (held["threads"] <= threads and held["files"] <= files):
            return held
        time.sleep(0.25)


def soak(
    url: str, pid: int, run: str, *, rounds: int, tabs: int, log: Callable[[int], object]
) -> list[dict[str, float]]:
    """Open and close tabs in `rounds`; return the server's resources after each, the first being the warm-up.

    Before each round, `log` writes this many further steps.
    """
    process = psutil.Process(pid)
    pages = [("", ""), ("overview", f"run={run}"), ("metrics", f"run={run}"), ("alerts", f"run={run}")]
    come_and_go(url, tabs, pages)
    time.sleep(2.0)
    points = [held_by(process)]
    for _ in range(rounds):
        log(100)
        messages = come_and_go(url, tabs, pages)
        held = settled(process, threads=points[0]["threads"], files=points[0]["files"])
        points.append({"messages": float(messages), **held})
    return points
