"""PostHog's real client against a server on this machine: what it sends, and what it leaves alone."""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.mirrors.messages.local_receivers import raw_receiving, receiving
from tests.mirrors.usage.posthog_server import KEY, arrived, bodies
from toolkit.mirrors.usage import posthog_client
from toolkit.mirrors.usage.event import UsageEvent
from toolkit.mirrors.usage.posthog_client import NotInstalled, PostHogClient, ReportNotSent

pytest.importorskip("posthog")

EVENT = UsageEvent(name="run-start", time=1_700_000_000.25, properties={"os": "linux", "$ip": "0.0.0.0"})


@pytest.fixture(autouse=True)
def _time_for_a_slow_machine_to_answer(monkeypatch):
    monkeypatch.setattr(posthog_client, "REQUEST_TIMEOUT_S", 60.0)


def test_what_arrives_is_the_event_and_nothing_else(monkeypatch):
    monkeypatch.setenv("POSTHOG_RELEASE_ID", "orchid-release")
    with receiving() as server:
        PostHogClient(server.url, KEY, "random-id").send(EVENT)

    [got], [sent] = server.got, arrived(server)
    assert got.path == "/batch/"
    assert got.headers["Content-Encoding"] == "gzip"
    assert sent.pop("uuid")
    assert sent == {
        "event": "run-start",
        "distinct_id": "random-id",
        "timestamp": "2023-11-14T22:13:20.250000+00:00",
        "properties": {"os": "linux", "$ip": "0.0.0.0"},
    }
    assert b"orchid" not in bodies(server)[0]


def test_tags_that_the_script_gives_its_own_events_stay_out_of_ours():
    import posthog

    with receiving() as server, posthog.new_context():
        posthog.tag("customer", "orchid")
        posthog.identify_context("jane")
        PostHogClient(server.url, KEY, "random-id").send(EVENT)

    assert arrived(server)[0]["distinct_id"] == "random-id"
    assert b"orchid" not in bodies(server)[0]
    assert b"jane" not in bodies(server)[0]


def test_it_installs_no_hook_no_exit_handler_and_no_thread():
    from posthog.consumer import Consumer

    hooks = sys.excepthook, threading.excepthook
    with receiving() as server:
        PostHogClient(server.url, KEY, "random-id").send(EVENT)
        handlers = atexit._ncallbacks()
        PostHogClient(server.url, KEY, "another-id").send(EVENT)

        assert (sys.excepthook, threading.excepthook) == hooks
        assert atexit._ncallbacks() == handlers
        assert not [thread for thread in threading.enumerate() if isinstance(thread, Consumer)]
        assert len(server.got) == 2


def test_the_script_s_logging_is_left_as_it_is():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    with receiving() as server:
        PostHogClient(server.url, KEY, "random-id").send(EVENT)

    assert (list(root.handlers), root.level) == (handlers, level)


@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
def test_a_refusal_is_reported_by_its_number_without_the_server_s_words(status, caplog):
    with receiving((status, {}, f"no such key: {KEY}".encode())) as server:
        with pytest.raises(ReportNotSent) as refusal:
            PostHogClient(server.url, KEY, "random-id").send(EVENT)

    assert str(refusal.value) == f"{server.url} answered {status}"
    assert KEY not in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_not_followed(status):
    with receiving() as other, receiving((status, {"Location": f"{other.url}/batch/"}, b"")) as server:
        with pytest.raises(ReportNotSent) as refusal:
            PostHogClient(server.url, KEY, "random-id").send(EVENT)

    assert str(refusal.value) == f"{server.url} answered {status}"
    assert len(server.got) == 1
    assert other.got == []


def test_a_login_that_netrc_has_for_every_server_is_not_sent(tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("default login jane password orchid\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with receiving() as server:
        PostHogClient(server.url, KEY, "random-id").send(EVENT)

    assert "authorization" not in {name.lower() for name in server.got[0].headers}


def test_a_server_that_is_not_there_is_reported():
    with receiving() as server:
        url = server.url
    with pytest.raises(ReportNotSent, match="was not reached"):
        PostHogClient(url, KEY, "random-id").send(EVENT)


def test_a_server_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(posthog_client, "REQUEST_TIMEOUT_S", 1.0)

    def say_nothing(connection, is_closing):
        connection.recv(65536)
        is_closing.wait(60)

    with raw_receiving(say_nothing) as server:
        with pytest.raises(ReportNotSent, match="ReadTimeout"):
            PostHogClient(server.url, KEY, "random-id").send(EVENT)

        assert not server.is_closing.is_set()


def test_a_client_that_is_not_installed_is_reported_with_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "posthog", None)

    with pytest.raises(NotInstalled) as refusal:
        PostHogClient("http://127.0.0.1:1", KEY, "random-id").send(EVENT)

    assert 'pip install "ai-toolkit-telemetry[usage]"' in str(refusal.value)


def test_a_client_that_would_follow_redirects_sends_nothing(monkeypatch):
    import posthog.request

    def post(api_key, host=None, path=None, gzip=False, timeout=15, **kwargs):
        raise AssertionError("nothing is to be sent by it")

    monkeypatch.setattr(posthog.request, "post", post)
    with receiving() as server, pytest.raises(NotInstalled, match=r"from 7\.4 on"):
        PostHogClient(server.url, KEY, "random-id").send(EVENT)

    assert server.got == []


def test_nothing_of_it_is_imported_before_the_first_event():
    code = (
        "import sys; from toolkit.mirrors.usage import sink, posthog_client\n"
        "posthog_client.PostHogClient('http://127.0.0.1:1', 'k', 'i'); print('posthog' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )

    assert ended.stdout.strip() == "False"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_in_the_midst_of_a_request_leaves_the_child_free():
    program = Path(__file__).parent / "programs" / "fork_during_a_request.py"
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", program], capture_output=True, text=True, timeout=100,
        env={**os.environ, "PYTHONPATH": os.getcwd(), "no_proxy": "*"},
    )  # fmt: skip

    assert ended.stdout.strip() == "7", ended.stderr
