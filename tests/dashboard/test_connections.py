from __future__ import annotations

import pytest

from dashboard.connections import REQUEST_S, UNREAD_S, ConnectionLimits, accept_batch_size, max_connections
from toolkit.telemetry.core.clock import ManualClock


class Transport:
    def __init__(self):
        self.closed = False
        self.unread = 0

    def is_closing(self):
        return self.closed

    def abort(self):
        self.closed = True

    def get_write_buffer_size(self):
        return self.unread


class Request:
    def __init__(self, *, response_complete=False):
        self.response_complete = response_complete


class Http:
    def __init__(self, request=None):
        self.transport = Transport()
        self.cycle = request


class WebSocket:
    def __init__(self):
        self.transport = Transport()


class Door:
    """The connections of a server, with a clock that only the test moves."""

    def __init__(self, limit=3):
        self.connections = set()
        self.clock = ManualClock()
        self.limits = ConnectionLimits(self.connections, limit=limit, clock=self.clock.monotonic)

    def open(self, connection):
        self.clock.advance(0.001)
        self.connections.add(connection)
        self.limits.make_room_for(connection)
        return connection

    def pass_time(self, seconds):
        self.limits.close_idle()
        self.clock.advance(seconds)
        self.limits.close_idle()


def closed(*connections):
    return [connection.transport.closed for connection in connections]


def test_the_oldest_connection_without_a_request_gives_way_to_a_new_one():
    door = Door(limit=3)
    busy = door.open(Http(Request()))
    oldest, newer, newest = (door.open(Http()) for _ in range(3))

    assert closed(busy, oldest, newer, newest) == [False, True, False, False]


def test_a_connection_that_waits_for_its_next_request_gives_way_too():
    door = Door(limit=1)
    answered = door.open(Http(Request(response_complete=True)))
    newest = door.open(Http())

    assert closed(answered, newest) == [True, False]


def test_where_all_are_busy_the_new_one_is_turned_away():
    door = Door(limit=2)
    busy = [door.open(WebSocket()), door.open(Http(Request()))]
    newest = door.open(Http())

    assert closed(*busy, newest) == [False, False, True]


@pytest.mark.parametrize(
    ("connection", "is_closed"),
    [
        (Http(), True),
        (Http(Request(response_complete=True)), True),
        (Http(Request()), False),
        (WebSocket(), False),
    ],
    ids=["no request", "answered", "being answered", "WebSocket"],
)
def test_who_asks_for_nothing_is_hung_up_on_after_a_while(connection, is_closed):
    door = Door()
    door.open(connection)
    door.pass_time(REQUEST_S - 0.1)
    before = connection.transport.closed
    door.pass_time(0.2)

    assert (before, connection.transport.closed) == (False, is_closed)


@pytest.mark.parametrize("connection", [Http(Request()), WebSocket()], ids=["HTTP", "WebSocket"])
def test_who_reads_nothing_of_what_was_sent_is_hung_up_on(connection):
    door = Door()
    door.open(connection)
    connection.transport.unread = 5_000_000
    door.pass_time(UNREAD_S - 0.1)
    connection.transport.unread = 4_000_000
    door.pass_time(UNREAD_S - 0.1)
    reads_slowly = connection.transport.closed
    door.pass_time(UNREAD_S)

    assert (reads_slowly, connection.transport.closed) == (False, True)


@pytest.mark.parametrize(
    ("soft", "hard", "limit"),
    [
        (256, 256, 8),
        (256, -1, 128),
        (1024, 4096, 128),
        (4096, 4096, 896),
        (-1, -1, 872),
        (10**6, 10**6, 1000),
    ],
)
def test_connections_leave_descriptors_for_files(monkeypatch, soft, hard, limit):
    resource = pytest.importorskip("resource")
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "RLIM_INFINITY", -1)
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, wanted: limits.append(wanted))

    assert max_connections() == limit
    assert accept_batch_size() == min(128, limit // 4)
    assert limits[-1][0] in (soft, 1024)
