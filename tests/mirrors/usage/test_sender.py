from __future__ import annotations

import threading

import pytest

from tests.waiting import wait_until
from toolkit.core.guard import Guard
from toolkit.mirrors.usage import sender as sender_module
from toolkit.mirrors.usage.event import UsageEvent
from toolkit.mirrors.usage.posthog_client import NotInstalled, ReportNotSent
from toolkit.mirrors.usage.sender import UsageSender


def event(name):
    return UsageEvent(name=name, time=0.0, properties={})


class Server:
    """Takes events, after so many refusals."""

    def __init__(self, refusals=0, error=None):
        self.tried = []
        self.taken = []
        self.refusals = refusals
        self.error = error or ReportNotSent("no")

    def send(self, event):
        self.tried.append(event.name)
        if len(self.tried) <= self.refusals:
            raise self.error
        self.taken.append(event.name)


@pytest.fixture
def _no_pauses(monkeypatch):
    monkeypatch.setattr(sender_module, "_FIRST_PAUSE_S", 0.001)


def make(server, environ=None):
    guard = Guard()
    return UsageSender(server.send, guard=guard, environ={} if environ is None else environ), guard


def test_events_are_sent_in_their_order():
    server = Server()
    sender, guard = make(server)
    for name in ("a", "b", "c"):
        sender.put(event(name))
    sender.close(30.0)

    assert server.taken == ["a", "b", "c"]
    assert guard.total == 0


@pytest.mark.usefixtures("_no_pauses")
def test_a_server_that_is_away_for_a_while_still_gets_everything():
    server = Server(refusals=3)
    sender, guard = make(server)
    sender.put(event("a"))
    sender.put(event("b"))
    wait_until(lambda: server.taken == ["a", "b"])
    sender.close(30.0)

    assert server.taken == ["a", "b"]
    assert guard.counts == {"sending usage reports: ReportNotSent": 3}


@pytest.mark.usefixtures("_no_pauses")
def test_a_server_that_never_takes_anything_is_given_up_and_reported_once(caplog):
    server = Server(refusals=10**9)
    sender, guard = make(server)
    sender.put(event("a"))
    wait_until(lambda: "sending further usage reports: ReportNotSent" in guard.counts)
    sender.put(event("b"))
    sender.close(30.0)

    assert server.tried == ["a"] * 5
    assert len([record for record in caplog.records if "usage reports failed" in record.message]) == 2


def test_what_waits_is_tried_once_more_at_the_end_and_then_given_up():
    server = Server(refusals=10**9)
    sender, guard = make(server)
    sender.put(event("a"))
    sender.put(event("b"))
    wait_until(lambda: server.tried)
    sender.close(30.0)
    tried = list(server.tried)
    sender.put(event("c"))

    assert tried == ["a", "a"]
    assert server.tried == tried
    assert guard.counts["sending usage reports: ReportNotSent"] == 3


def test_without_a_client_nothing_is_tried_again(caplog):
    server = Server(refusals=10**9, error=NotInstalled("usage reports need PostHog's client"))
    sender, guard = make(server)
    sender.put(event("a"))
    wait_until(lambda: guard.total)
    sender.put(event("b"))
    sender.close(30.0)

    assert server.tried == ["a"]
    assert guard.counts == {"sending usage reports: NotInstalled": 1}
    assert "usage reports need PostHog's client" in caplog.text


def test_do_not_track_takes_effect_during_a_run():
    environ = {}
    server = Server()
    sender, guard = make(server, environ)
    sender.put(event("a"))
    wait_until(lambda: server.taken == ["a"])
    environ["DO_NOT_TRACK"] = "1"
    sender.put(event("b"))
    sender.close(30.0)

    assert server.tried == ["a"]
    assert guard.total == 0


def test_a_bug_in_the_client_is_a_failure_like_any_other():
    server = Server(refusals=1, error=RuntimeError("a bug"))
    sender, guard = make(server)
    sender.put(event("a"))
    wait_until(lambda: guard.total)
    sender.close(30.0)

    assert server.taken == ["a"]
    assert guard.counts == {"sending usage reports: RuntimeError": 1}


def test_a_server_that_hangs_delays_nothing():
    answer = threading.Event()
    guard = Guard()
    sender = UsageSender(lambda _: answer.wait(60), guard=guard, environ={})
    for number in range(500):
        sender.put(event(str(number)))
    sender.close(0.05)

    assert not answer.is_set()
    assert guard.counts == {"sending usage reports: ReportNotSent": 1}
    answer.set()


def test_a_sender_that_has_nothing_to_send_has_no_thread():
    before = threading.active_count()
    sender, _ = make(Server())
    sender.close(1.0)

    assert threading.active_count() <= before
