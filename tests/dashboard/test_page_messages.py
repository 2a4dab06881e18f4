from __future__ import annotations

import asyncio
import re
import sys

import pytest

pytest.importorskip("streamlit")

from streamlit.proto.BackMsg_pb2 import BackMsg

from dashboard.page_messages import PageMessages
from tests.attacks.http_client import Visitor
from tests.dashboard.serving import Started
from tests.lengths import in_make_faults
from tests.project.markdown import ROOT


def with_field(name):
    message = BackMsg()
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.message_type is None:
        setattr(message, name, True)
    else:
        getattr(message, name).SetInParent()
    return message


def operation(name):
    message = BackMsg()
    getattr(message.backend_operation_request, name).SetInParent()
    return message


def deliver(*messages):
    """Return which of `messages` the application received, and what was sent back when it had ended."""
    coming = [{"type": "websocket.connect"}, *({"type": "websocket.receive", **one} for one in messages)]
    coming.append({"type": "websocket.disconnect", "code": 1000})
    received, sent = [], []

    async def receive():
        return coming.pop(0)

    async def send(message):
        sent.append(message)

    async def application(_scope, receive, send):
        while True:
            message = await receive()
            received.append(message)
            if message["type"] == "websocket.disconnect":
                await send({"type": "websocket.send", "bytes": b"a page that was being drawn"})
                return

    asyncio.run(PageMessages(application)({"type": "websocket"}, receive, send))
    return [message["bytes"] for message in received if "bytes" in message], received[-1]["code"], sent


PASSED_ON = {"rerun_script", "stop_script", "app_heartbeat", "backend_operation_request"}


@pytest.mark.parametrize("name", [field.name for field in BackMsg.DESCRIPTOR.oneofs_by_name["type"].fields])
def test_only_what_pages_send_reaches_streamlit(name):
    message = operation("deferred_file") if name == "backend_operation_request" else with_field(name)
    content = message.SerializeToString()
    assert message.WhichOneof("type") == name

    received, _, _ = deliver({"bytes": content})

    assert received == ([content] if name in PASSED_ON else [])


@pytest.mark.parametrize(
    ("name", "reaches"),
    [
        ("deferred_file", True),
        ("dataframe_chunk", True),
        ("install_skills", False),
        ("dismiss_skills_nudge", False),
    ],
)
def test_files_are_handed_out_and_none_is_written(name, reaches):
    if name not in BackMsg().backend_operation_request.DESCRIPTOR.fields_by_name:
        pytest.skip("this Streamlit does not have it")

    received, _, _ = deliver({"bytes": operation(name).SerializeToString()})

    assert bool(received) is reaches


@pytest.mark.parametrize("nonsense", [{"text": "text"}, {"bytes": b"\xff" * 100}], ids=["text", "bytes"])
def test_what_is_no_message_ends_the_connection_before_streamlit_sees_it(nonsense):
    received, code, sent = deliver(nonsense, {"bytes": BackMsg(app_heartbeat=True).SerializeToString()})

    assert (received, code) == ([], 1002)
    assert sent == [{"type": "websocket.close", "code": 1002, "reason": ""}]


SERVER = """
import pathlib, sys
from dashboard.access.tokens import AccessTokens
from dashboard.listening import listen
from dashboard.server import DashboardServer
listener = listen("localhost", 0)
keys = AccessTokens(operator=sys.argv[2], viewer=sys.argv[3])
server = DashboardServer(listener, access=keys, script=pathlib.Path(sys.argv[1]), warm_up=False)
server.serve_until_stopped(on_ready=lambda: print(f"Dashboard: {listener.url} ", flush=True))
"""
PAGE = """
import uuid
import streamlit as st

@st.cache_resource
def read():
    return uuid.uuid4().hex

st.text(f"what was read: {read()}")
"""


@in_make_faults
@pytest.mark.timeout(300)
def test_a_viewer_that_asks_to_clear_the_cache_clears_it_for_no_one(tmp_path):
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "page.py").write_text(PAGE)
    steer, look = "steer-" + "0123456789" * 3, "look-" + "0123456789" * 3
    command = [sys.executable, str(tmp_path / "server.py"), str(tmp_path / "page.py"), steer, look]
    with Started(command, tmp_path, environ={"PYTHONPATH": str(ROOT)}) as started:
        started.wait_until_ready()
        operator, viewer = Visitor(started.port), Visitor(started.port)
        operator.come_in(f"http://localhost:{started.port}/?token={steer}")
        viewer.come_in(f"http://localhost:{started.port}/?token={look}")
        with operator.tab() as tab, viewer.tab() as other_tab:
            before = what_was_read(tab.open())
            other_tab.open()
            other_tab._connection.send(BackMsg(clear_cache=True).SerializeToString())
            # Messages of one tab are taken one after another, and a page is drawn when those before it were taken.
            seen_by_viewer = what_was_read(other_tab.open())
            after = what_was_read(tab.open())

    assert seen_by_viewer == after == before


def what_was_read(tab):
    return re.search("what was read: ([0-9a-f]{32})", tab.text)[1]
