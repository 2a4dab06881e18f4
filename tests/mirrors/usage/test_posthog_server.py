"""What arrives at a PostHog server on this machine, and what a server that is no good leads to."""

from __future__ import annotations

import pytest

from tests.mirrors.messages.local_receivers import raw_receiving, receiving
from tests.mirrors.usage.posthog_server import KEY, arrived
from toolkit.telemetry.core.outbox import NotSentError
from toolkit.telemetry.mirrors.usage import sink
from toolkit.telemetry.mirrors.usage.events import UsageEvent
from toolkit.telemetry.mirrors.usage.sink import PostHogServer

EVENT = UsageEvent(name="run-start", time=1_700_000_000.25, properties={"os": "linux", "$ip": "0.0.0.0"})


@pytest.fixture(autouse=True)
def _time_for_a_slow_machine_to_answer(monkeypatch):
    monkeypatch.setattr(sink, "_REQUEST_TIMEOUT_S", 60.0)


def test_what_arrives_is_the_event_and_nothing_else(tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("default login jane password orchid\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with receiving() as server:
        PostHogServer(server.url, KEY).send(EVENT)

    [got], [sent] = server.got, arrived(server)
    assert got.path == "/batch/"
    assert "authorization" not in {name.lower() for name in got.headers}
    assert sent.pop("uuid") != sent.pop("distinct_id")
    assert sent == {
        "event": "run-start",
        "timestamp": "2023-11-14T22:13:20.250000+00:00",
        "properties": {"os": "linux", "$ip": "0.0.0.0"},
    }


@pytest.mark.parametrize("status", [400, 401, 429, 500, 503, 301, 302, 307, 308])
def test_a_refusal_is_reported_by_its_number_and_a_redirect_is_one(status):
    with receiving() as other:
        answer = (status, {"Location": f"{other.url}/batch/"}, f"no such key: {KEY}".encode())
        with receiving(answer) as server, pytest.raises(NotSentError) as refusal:
            PostHogServer(server.url, KEY).send(EVENT)

    assert str(refusal.value) == f"{server.url} answered {status}"
    assert len(server.got) == 1
    assert other.got == []


def test_a_server_that_is_not_there_is_reported():
    with receiving() as server:
        url = server.url
    with pytest.raises(NotSentError, match="was not reached"):
        PostHogServer(url, KEY).send(EVENT)


def test_a_server_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(sink, "_REQUEST_TIMEOUT_S", 1.0)

    def say_nothing(connection, is_closing):
        connection.recv(65536)
        is_closing.wait(60)

    with raw_receiving(say_nothing) as server:
        with pytest.raises(NotSentError, match="was not reached"):
            PostHogServer(server.url, KEY).send(EVENT)

        assert not server.is_closing.is_set()
