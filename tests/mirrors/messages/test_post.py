"""A POST goes to the address that was checked, requires a valid certificate, and ends in time."""

from __future__ import annotations

import socket
import ssl
import time

import pytest

from tests.mirrors.messages.local_receivers import certificate, never_answer, raw_receiving, receiving
from toolkit.telemetry.mirrors.messages.delivery import LONGEST_ANSWER, post
from toolkit.telemetry.mirrors.messages.services import HttpRequest, NotDelivered
from toolkit.telemetry.mirrors.messages.web_address import web_address

REQUEST = HttpRequest(body=b'{"a":1}', headers={"Content-Type": "application/json"})


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def send(url, timeout_s=20.0):
    return post(web_address(url), REQUEST, timeout_s=timeout_s)


def take_request(connection):
    """Read all of a request: to close a connection with something unread in it is to break it off."""
    data = b""
    while not data.endswith(REQUEST.body) and (more := connection.recv(65536)):
        data += more


def refusal(url, **options):
    with pytest.raises(NotDelivered) as refused:
        send(url, **options)
    return refused.value


def test_a_request_arrives_as_it_was_made():
    with receiving() as receiver:
        answer = send(f"{receiver.url}/hook?a=b")

    [got] = receiver.got
    assert answer == b"ok"
    assert (got.path, got.body) == ("/hook?a=b", b'{"a":1}')
    assert got.headers["Host"] == f"127.0.0.1:{receiver.port}"
    assert got.headers["Content-Length"] == "7"
    assert got.headers["Connection"] == "close"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("1.5", 1.5), ("-3", -3.0), ("soon", 0.0), ("nan", 0.0), ("inf", 0.0), ("9" * 400, 0.0)],
)
def test_how_long_a_service_wants_to_be_left_alone_is_read(header, seconds):
    with receiving((429, {"Retry-After": header}, b"slow down")) as receiver:
        error = refusal(receiver.url)

    assert str(error) == "answered 429: slow down"
    assert error.retry_after_s == seconds


# ------------------------------------------------------------ where it goes


@pytest.mark.parametrize(
    ("host", "said", "most_attempts"),
    [
        ("no-such-host.invalid", "", 5),
        ("a" * 64 + ".example", "the host name", 1),
        ("a..example", "the host name", 1),
    ],
)
def test_a_host_name_that_leads_nowhere_is_reported(host, said, most_attempts):
    error = refusal(f"https://{host}/")

    assert str(error).startswith(said)
    assert error.most_attempts == most_attempts


def test_a_refused_connection_is_reported():
    # Bound, so that no other program can use the port, but not listening.
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        error = refusal(f"http://127.0.0.1:{held.getsockname()[1]}/")

    assert "refused" in str(error).lower()
    assert error.most_attempts == 5


# ------------------------------------------------------------ how long it takes


def test_a_service_that_does_not_answer_is_left_in_time():
    with raw_receiving(never_answer) as receiver:
        # Long enough for it to be sent first, unless the machine pauses right then.
        for timeout_s in (1.5, 3.0, 60.0):
            error = refusal(receiver.url, timeout_s=timeout_s)
            if error.most_attempts == 2:
                break

    assert str(error) == f"no response within {timeout_s:g} s"
    assert error.most_attempts == 2


@pytest.mark.parametrize(
    "drip", [b"H", b"HTTP/1.1 200 OK\r\nA: b\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"]
)
def test_a_service_that_answers_byte_by_byte_does_not_extend_the_timeout(drip):
    def drop_by_drop(connection, is_closing):
        connection.recv(65536)
        connection.sendall(drip)
        while not is_closing.wait(0.02):
            connection.sendall(b"x")

    with raw_receiving(drop_by_drop) as receiver:
        began = time.monotonic()
        error = refusal(receiver.url, timeout_s=0.5)
        took = time.monotonic() - began

    assert "no response within 0.5 s" in str(error)
    assert took < 30, "a byte each 20 ms would have gone on for ever"


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"\x00" * 100,
        b"A" * 100_000,
    ],
)
def test_what_is_no_response_is_not_a_success(said):
    def say(connection, is_closing):
        take_request(connection)
        connection.sendall(said)

    with raw_receiving(say) as receiver:
        error = refusal(receiver.url)

    assert error.most_attempts == 2


def test_a_body_that_breaks_off_does_not_take_back_the_status():
    def say(connection, is_closing):
        take_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

    with raw_receiving(say) as receiver:
        answer = send(receiver.url)

    assert answer == b"half"


def test_of_an_endless_answer_only_the_beginning_is_read():
    def go_on(connection, is_closing):
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not is_closing.is_set():
            connection.sendall(b"x" * 65536)

    with raw_receiving(go_on) as receiver:
        answer = send(receiver.url)

    assert answer == b"x" * LONGEST_ANSWER


def test_endless_headers_are_an_end():
    def go_on(connection, is_closing):
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while not is_closing.is_set():
            connection.sendall(b"X-More: " + b"x" * 1000 + b"\r\n")

    with raw_receiving(go_on) as receiver:
        assert "headers" in str(refusal(receiver.url))


# ------------------------------------------------------------ who answers


def test_a_certificate_of_someone_else_is_not_trusted(tmp_path, monkeypatch):
    tls, file = certificate(tmp_path, name="elsewhere.example.org")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with receiving(tls=tls) as receiver:
        error = refusal(f"https://localhost:{receiver.port}/")

    assert "its certificate is not trusted: Hostname mismatch" in str(error)
    assert receiver.got == []


def test_a_certificate_that_is_known_is_trusted_for_its_name(tmp_path, monkeypatch):
    tls, file = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with receiving(tls=tls) as receiver:
        answer = send(f"https://localhost:{receiver.port}/x")

    assert answer == b"ok"
    assert receiver.got[0].headers["Host"] == f"localhost:{receiver.port}"


def test_a_service_that_does_not_speak_tls_gets_nothing():
    with receiving() as receiver:
        refusal(f"https://localhost:{receiver.port}/")

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
    assert receiver.got[0].headers["Host"] == "hooks.example.org"
    assert asked[0].startswith(b"CONNECT hooks.example.org:443 HTTP/1.")
    assert b"Proxy-Authorization: Basic bWU6cEBzcw==\r\n" in asked[0]
    assert b"secret" not in asked[0]


def test_a_proxy_that_says_no_is_reported_without_its_password(monkeypatch):
    with raw_receiving(passing_on([], answer=b"HTTP/1.1 407 Auth\r\n\r\n")) as proxy:
        monkeypatch.setenv("https_proxy", f"http://me:s3cr3t@127.0.0.1:{proxy.port}")
        error = refusal("https://hooks.example.org/")

    assert str(error) == "Tunnel connection failed: 407 Auth"


@pytest.mark.parametrize("named", ["socks5://127.0.0.1:1", "https://127.0.0.1:1", "http://", "http://[::1"])
def test_a_proxy_of_another_kind_is_refused(named, monkeypatch):
    monkeypatch.setenv("https_proxy", named)

    assert "https_proxy" in str(refusal("https://hooks.example.org/"))


def test_this_machine_is_asked_directly(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with receiving() as receiver:
        assert send(receiver.url) == b"ok"


def test_a_name_that_no_proxy_excepts_is_asked_directly(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", ".invalid")

    assert "refused" not in str(refusal("https://no-such-host.invalid/")), "as the proxy would have"
