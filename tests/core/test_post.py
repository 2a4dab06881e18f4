"""A POST goes where it was sent to, requires a valid certificate, and an answer is short or an error."""

from __future__ import annotations

import socket
import ssl

import pytest

from tests.mirrors.messages.local_receivers import certificate, never_answer, raw_receiving, receiving
from toolkit.telemetry.core.outbox import NotSentError
from toolkit.telemetry.core.post import LONGEST_ANSWER, post

BODY = b'{"a":1}'


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def send(url, **options):
    return post(url, BODY, {"Content-Type": "application/json"}, **options)


def take_request(connection):
    """Read all of a request: to close a connection with something unread in it is to break it off."""
    data = b""
    while not data.endswith(BODY) and (more := connection.recv(65536)):
        data += more


def failure(url, **options):
    with pytest.raises(NotSentError) as refused:
        send(url, **options)
    return refused.value


def test_a_request_arrives_as_it_was_made():
    with receiving() as receiver:
        answer = send(f"{receiver.url}/hook?a=b")

    [got] = receiver.got
    assert answer == b"ok"
    assert (got.path, got.body) == ("/hook?a=b", BODY)
    assert got.headers["User-Agent"] == "ai-toolkit-telemetry", "Discord refuses Python-urllib"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("1.5", 1.5), ("soon", 0.0), ("nan", 0.0), ("inf", 0.0), ("9" * 400, 0.0)],
)
def test_how_long_a_service_wants_to_be_left_alone_is_read(header, seconds):
    with receiving((429, {"Retry-After": header}, b"slow down")) as receiver:
        error = failure(receiver.url)

    assert (str(error), error.most_attempts) == ("answered 429: slow down", 5)
    assert error.retry_after_s == seconds


@pytest.mark.parametrize(("status", "most_attempts"), [(400, 1), (403, 1), (404, 1), (408, 5), (500, 5)])
def test_only_a_refusal_that_may_pass_is_tried_again(status, most_attempts):
    with receiving((status, {}, b"no")) as receiver:
        error = failure(receiver.url)

    assert (str(error), error.most_attempts) == (f"answered {status}: no", most_attempts)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_a_failure(status):
    with receiving() as other, receiving((status, {"Location": other.url}, b"")) as receiver:
        error = failure(receiver.url)

    assert str(error) == f"answered {status}, a redirect; redirects are not followed"
    assert other.got == []


@pytest.mark.parametrize(
    ("host", "said", "most_attempts"),
    [("no-such-host.invalid", "", 5), ("a" * 64 + ".example", "the host name", 1)],
)
def test_a_host_name_that_leads_nowhere_is_reported(host, said, most_attempts):
    error = failure(f"https://{host}/")

    assert str(error).startswith(said)
    assert error.most_attempts == most_attempts


def test_a_refused_connection_is_reported():
    # Bound, so that no other program can use the port, but not listening.
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        error = failure(f"http://127.0.0.1:{held.getsockname()[1]}/")

    assert "refused" in str(error).lower()
    assert error.most_attempts == 5


def test_a_service_that_does_not_answer_is_given_up():
    with raw_receiving(never_answer) as receiver:
        error = failure(receiver.url, timeout_s=1.5)

    assert str(error) == "no response within 1.5 s"


@pytest.mark.parametrize("said", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 abc OK\r\n\r\n", b"A" * 100_000])
def test_what_is_no_response_is_not_a_success_and_sent_once_more_at_most(said):
    def say(connection, is_closing):
        take_request(connection)
        connection.sendall(said)

    with raw_receiving(say) as receiver:
        error = failure(receiver.url)

    assert error.most_attempts == 2
    assert len(str(error)) <= 200


def test_of_an_endless_answer_only_the_beginning_is_read():
    def go_on(connection, is_closing):
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not is_closing.is_set():
            connection.sendall(b"x" * 65536)

    with raw_receiving(go_on) as receiver:
        answer = send(receiver.url)

    assert answer == b"x" * LONGEST_ANSWER


# ------------------------------------------------------------ who answers


def test_a_certificate_of_someone_else_is_not_trusted(tmp_path, monkeypatch):
    tls, file = certificate(tmp_path, name="elsewhere.example.org")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with receiving(tls=tls) as receiver:
        error = failure(f"https://localhost:{receiver.port}/")

    assert "its certificate is not trusted: Hostname mismatch" in str(error)
    assert receiver.got == []


def test_a_certificate_that_is_known_is_trusted_for_its_name(tmp_path, monkeypatch):
    tls, file = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with receiving(tls=tls) as receiver:
        assert send(f"https://localhost:{receiver.port}/x") == b"ok"


def test_a_service_that_does_not_speak_tls_gets_nothing():
    with receiving() as receiver:
        failure(f"https://localhost:{receiver.port}/")

    assert receiver.got == []


# ------------------------------------------------------------ through a proxy


def passing_on(asked, *, answer=b"HTTP/1.1 200 Connection established\r\n\r\n", to=None):
    """Return a proxy's behaviour: it answers CONNECT, and joins the connection to the port `to`."""

    def behave(connection, is_closing):
        asked.append(connection.recv(65536))
        connection.sendall(answer)
        if to is None:
            return
        with socket.create_connection(("127.0.0.1", to)) as there:
            there.setblocking(False)
            connection.setblocking(False)
            while not is_closing.wait(0.005):
                for source, target in ((connection, there), (there, connection)):
                    try:
                        data = source.recv(65536)
                    except (BlockingIOError, ssl.SSLWantReadError):
                        continue
                    if not data:
                        return
                    target.sendall(data)

    return behave


def test_a_proxy_passes_the_connection_on_and_sees_nothing_of_it(tmp_path, monkeypatch):
    tls, file = certificate(tmp_path, name="hooks.example.org")
    asked = []
    with receiving(tls=tls) as receiver, raw_receiving(passing_on(asked, to=receiver.port)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:p%40ss@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        answer = send("https://hooks.example.org/secret/path")

    assert answer == b"ok"
    assert receiver.got[0].path == "/secret/path"
    assert asked[0].startswith(b"CONNECT hooks.example.org:443 HTTP/1.")
    assert b"Proxy-Authorization: Basic bWU6cEBzcw==\r\n" in asked[0]
    assert b"secret" not in asked[0]


def test_a_proxy_that_says_no_is_reported_without_its_password(monkeypatch):
    with raw_receiving(passing_on([], answer=b"HTTP/1.1 407 Auth\r\n\r\n")) as proxy:
        monkeypatch.setenv("https_proxy", f"http://me:s3cr3t@127.0.0.1:{proxy.port}")
        error = failure("https://hooks.example.org/")

    assert str(error) == "Tunnel connection failed: 407 Auth"


def test_this_machine_is_asked_directly(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with receiving() as receiver:
        assert send(receiver.url) == b"ok"
