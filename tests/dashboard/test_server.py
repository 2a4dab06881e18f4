"""What the server does so that the first page opens soon: it names its script early, and imports in idle time."""

from __future__ import annotations

import asyncio
import inspect

import pytest

pytest.importorskip("streamlit")

from dashboard import server
from dashboard.assets import page_script_url


def answered(application, scope):
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(application(scope, None, send))
    return sent


def answering(content_type, seen=None):
    async def application(_scope, _receive, send):
        if seen is not None:
            seen()
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", content_type)]}
        )
        await send({"type": "http.response.body", "body": b""})

    return application


def test_a_page_names_our_script_and_a_file_does_not():
    scope = {"type": "http", "path": "/"}
    links = [
        [
            value
            for name, value in answered(server._with_script(answering(kind)), scope)[0]["headers"]
            if name == b"link"
        ]
        for kind in (b"text/html; charset=utf-8", b"text/javascript")
    ]

    assert links == [[f"<{page_script_url()}>; rel=modulepreload".encode()], []]


def test_a_request_is_counted_while_it_is_answered_even_if_that_fails():
    busy = []

    def broken():
        raise RuntimeError

    responses = iter([lambda: None, lambda: None, broken])

    def respond():
        busy.append(is_busy())
        next(responses)()

    counted, is_busy = server._counting(answering(b"text/html", respond))
    answered(counted, {"type": "http"})
    answered(counted, {"type": "websocket"})
    with pytest.raises(RuntimeError):
        answered(counted, {"type": "http"})

    assert busy == [True, False, True]
    assert not is_busy()


def test_the_warm_up_waits_for_idle_time_but_not_for_ever(monkeypatch):
    imported, waits = [], iter([True, True, False])
    monkeypatch.setattr(server, "_LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(server, "_FIRST_NEEDED", ("json", "csv"))
    monkeypatch.setattr(inspect, "stack", list)

    class Module:
        Examiner = object

        @staticmethod
        def settings():
            return type("Settings", (), {"engines": ("one",)})

    monkeypatch.setattr(
        server.importlib, "import_module", lambda name, _=None: imported.append(name) or Module
    )
    server._warm_up(lambda: next(waits, False))
    monkeypatch.setattr(server, "_MOST_PATIENCE_S", 0.0)
    server._warm_up(lambda: True)

    assert next(waits, None) is None
    needed = ["json", "csv", "toolkit.telemetry.diagnostics.examiner", ".session", "pandas"]
    assert imported == needed * 2
