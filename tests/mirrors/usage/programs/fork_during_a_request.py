"""Forks while a request is under way, and prints how the child ended."""

from __future__ import annotations

import importlib
import os
import threading

from tests.mirrors.messages.local_receivers import raw_receiving
from toolkit.mirrors.usage.event import UsageEvent
from toolkit.mirrors.usage.posthog_client import PostHogClient, ReportNotSent


def say_nothing(connection, is_closing):
    asked.set()
    is_closing.wait(60)


def send():
    try:
        client.send(UsageEvent(name="run-start", time=0.0, properties={}))
    except ReportNotSent:
        pass


asked = threading.Event()
with raw_receiving(say_nothing) as server:
    client = PostHogClient(server.url, "phc_x", "id")
    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    assert asked.wait(60)
    child = os.fork()
    if child == 0:
        importlib.import_module("requests")
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
