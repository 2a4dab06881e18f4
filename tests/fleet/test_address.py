"""Addresses, passwords, quoting and blocks, without an engine."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from toolkit.telemetry.fleet import engine
from toolkit.telemetry.fleet.address import AddressError, address_of, read_password
from toolkit.telemetry.fleet.engine import Engine, EngineError, chunks, quote


def test_an_address_names_user_host_and_database():
    address = address_of("clickhouse://ship@db.example/runs", password="hunter2")

    assert (address.host, address.port) == ("db.example", 8443)
    assert (address.user, address.database, address.secure) == ("ship", "runs", True)
    assert str(address) == "clickhouse://ship@db.example:8443/runs"
    assert "hunter2" not in repr(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_only_this_machine_is_reached_without_tls(host):
    assert not address_of(f"clickhouse://{host}/telemetry").secure
    assert address_of(f"clickhouse://{host}/telemetry?secure=1").secure
    assert address_of("clickhouse://127.0.0.1.example/telemetry").secure


@pytest.mark.parametrize(
    "text",
    [
        "",
        "db.example",
        "https://db.example/telemetry",
        "clickhouse://",
        "clickhouse://u:pw@db.example/t",
        "clickhouse://u:pw/pw@db.example/t",
        "clickhouse://u:x/pw@db.example/t",
        "clickhouse://u:pw?x#pw@db.example/t",
        "clickhouse://u/pw@db.example/t",
        "clickhouse://u:p@pw",
        "clickhouse://u:pw",
        "clickhouse://u:pw,pw/t",
        "clickhouse://db1.example,db2.example/t",
        "clickhouse://db1.example:8443,db2.example:8443/t",
        "clickhouse://db.example:0/t",
        "clickhouse://db.example:x/t",
        "clickhouse://db.example:99999/t",
        "clickhouse://db example/t",
        "clickhouse://db.example/t;drop",
        "clickhouse://db.example/t?verify=0",
        "clickhouse://db.example/t?secure=0",
        "clickhouse://a,,b/t",
        "clickhouse://me%0aX-Other:1@db.example/t",
    ],
)
def test_an_invalid_address_is_refused_in_one_sentence(text):
    with pytest.raises(AddressError) as refused:
        address_of(text)

    assert "pw" not in str(refused.value).replace("password", "")


def test_a_password_comes_from_a_file_of_ours_or_the_environment(tmp_path, monkeypatch):
    path = tmp_path / "password"
    path.write_text("first line\n")
    path.chmod(0o600)
    monkeypatch.setenv("TELEMETRY_CLICKHOUSE_PASSWORD", "from the environment")

    assert read_password(path) == "first line"
    assert read_password(None) == "from the environment"
    for mode in (0o640, 0o604):
        path.chmod(mode)
        with pytest.raises(AddressError, match="other users can read the password"):
            read_password(path)
    with pytest.raises(AddressError, match="cannot be read: No such file"):
        read_password(tmp_path / "missing")
    path.chmod(0o600)
    path.write_text("two\nlines\n")
    with pytest.raises(AddressError, match="contains a control character or a line break") as refused:
        read_password(path)
    assert "two" not in str(refused.value)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root makes files of root")
def test_a_password_in_a_file_of_root_may_be_read_by_a_group(tmp_path, monkeypatch):
    path = tmp_path / "password"
    path.write_text("mounted\n")
    path.chmod(0o440)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert read_password(path) == "mounted"
    for mode in (0o444, 0o460):
        path.chmod(mode)
        with pytest.raises(AddressError, match="other users can read the password"):
            read_password(path)


def test_quoted_text_has_no_character_with_a_meaning():
    literal = quote("it's \\ \x00 \u2028 ü `x` {p:String} -- /*")

    assert literal[0] == literal[-1] == "'"
    assert not set(literal[1:-1]) - set("abcdefghijklmnopqrstuvwxyzS0123456789 :-/\\")
    assert literal.count("\\") == literal.count("\\x")


def test_a_question_about_many_runs_with_long_ids_is_cut_into_short_ones():
    ids = [f"{number}-" + "🏃" * 5_000 for number in range(30)] + [f"{number:032x}" for number in range(500)]

    some = list(chunks(ids))

    assert [run_id for each in some for run_id in each] == ids
    assert max(len(", ".join(map(quote, each))) for each in some) < 256 * 1024
    assert len(some) < 40


def test_threads_that_share_a_connection_wait_for_each_other():
    class Front(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65_536

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Front)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    shared = Engine(address_of(f"clickhouse://127.0.0.1:{server.server_address[1]}/t"))
    questions = [f"SELECT {number}" for number in range(100)]
    try:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(shared.query, questions))
    finally:
        shared.close()
        server.shutdown()
        server.server_close()

    assert [answer.decode() for answer in answers] == questions


def endless(send):
    send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    part = b"100000\r\n" + bytes(1024**2) + b"\r\n"
    while True:
        send(part)


def a_byte_at_a_time(send):
    send(b"HTTP/1.1 200 OK\r\n")
    while True:
        send(b"X")
        time.sleep(0.05)


def other_json(send):
    send(b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n" + b'{"status":"ok"}')


def lengths_without_end(send):
    content = b"\xff" * 1_000_000
    send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content))


def cut_off(send):
    send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly this")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (endless, "gave an answer of more than 2 MiB"),
        (a_byte_at_a_time, "has not finished its answer after 0.5 s"),
        (other_json, "gave an answer of another form"),
        (lengths_without_end, "gave an answer of another form"),
        (cut_off, "cannot be reached: IncompleteRead"),
    ],
)
def test_an_answer_without_end_or_form_is_refused(monkeypatch, answer, said):
    monkeypatch.setattr(engine, "_MAX_ANSWER", 2 * 1024**2)
    if answer is a_byte_at_a_time:
        monkeypatch.setattr(engine, "_WHOLE_ANSWER", 0.5 / engine.PATIENCE_S)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    with contextlib.suppress(ConnectionError), listener.accept()[0] as connection:
                        asked_for = b""
                        while b"FORMAT" not in asked_for:
                            asked_for += connection.recv(65_536)
                        answer(connection.sendall)

        threading.Thread(target=serve, daemon=True).start()
        asked = Engine(address_of(f"clickhouse://127.0.0.1:{listener.getsockname()[1]}/t"))
        with pytest.raises(EngineError, match=said):
            asked.rows("SELECT 1")
        asked.close()
