from __future__ import annotations

import threading

from tests.waiting import wait_until
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.outbox import NotSentError, Outbox, backoff_s


class Server:
    """Takes events, after so many refusals."""

    def __init__(self, refusals=0):
        self.tried = []
        self.taken = []
        self.refusals = refusals

    def send(self, event):
        self.tried.append(event)
        if len(self.tried) <= self.refusals:
            raise NotSentError("no")
        self.taken.append(event)


def make(server, first_pause_s=0.001):
    guard = Guard()
    outbox = Outbox("parcels", server.send, guard=guard, first_pause_s=first_pause_s)
    return outbox, guard


def test_a_server_that_is_away_for_a_while_still_gets_everything():
    server = Server(refusals=3)
    outbox, guard = make(server)
    outbox.put("a")
    outbox.put("b")
    wait_until(lambda: server.taken == ["a", "b"])
    outbox.close(30.0)

    assert server.taken == ["a", "b"]
    assert guard.counts == {"sending parcels: NotSentError": 3}


def test_a_server_that_never_takes_anything_is_given_up_and_reported_once(caplog):
    server = Server(refusals=10**9)
    outbox, guard = make(server)
    outbox.put("a")
    wait_until(lambda: "sending further parcels: NotSentError" in guard.counts)
    outbox.put("b")
    outbox.close(30.0)

    assert server.tried == ["a"] * 5
    assert len([record for record in caplog.records if "parcels failed" in record.message]) == 2


def test_what_waits_is_tried_once_more_at_the_end_and_then_given_up():
    server = Server(refusals=10**9)
    outbox, guard = make(server, first_pause_s=600.0)
    outbox.put("a")
    outbox.put("b")
    wait_until(lambda: server.tried)
    outbox.close(30.0)
    tried = list(server.tried)
    outbox.put("c")

    assert tried == ["a", "a"]
    assert server.tried == tried
    assert guard.counts["sending parcels: NotSentError"] == 3


def test_pauses_grow_up_to_the_longest():
    pauses = [backoff_s(failures, first_s=1.0, longest_s=60.0) for failures in (1, 2, 3, 10, 10_000)]

    assert pauses == [1.0, 2.0, 4.0, 60.0, 60.0]
    assert 0.5 <= backoff_s(1, first_s=1.0, longest_s=60.0, spread=0.5) <= 1.5


def test_a_server_that_hangs_delays_nothing():
    answer = threading.Event()
    guard = Guard()
    outbox = Outbox("parcels", lambda _: answer.wait(60), guard=guard)
    for number in range(500):
        outbox.put(str(number))
    outbox.close(0.05)

    assert not answer.is_set()
    assert guard.counts == {"sending parcels: NotSentError": 1}
    answer.set()
