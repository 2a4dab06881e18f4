"""Connection floods against the real server: the disk does not fill up, and others are served."""

from __future__ import annotations

import contextlib
import socket
import sys
import time

import psutil
import pytest

pytest.importorskip("streamlit")

from streamlit.proto.BackMsg_pb2 import BackMsg

from tests.attacks.http_client import Visitor
from tests.dashboard.serving import PATIENCE_S, RUN_DASHBOARD, Started, get
from tests.lengths import in_make_faults, longer

resource = pytest.importorskip("resource")

DESCRIPTORS = 1024
MOST_BYTES = 20_000
"""A few tracebacks. One for each failed accept() was ten megabytes within ten seconds."""

pytestmark = pytest.mark.timeout(600)

START = f"""
import os, resource, runpy, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}))
sys.argv.pop(0)
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A dashboard with a low limit of open files."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "logs").mkdir()
    command = [sys.executable, "-c", START, str(RUN_DASHBOARD), "--port", "0", "--no-browser"]
    with Started([*command, "--log-dir", str(folder / "logs")], folder) as started:
        started.wait_until_ready()
        # What it does once after the start opens files, and takes its time.
        with Visitor(started.port).tab() as tab:
            tab.open()
        with socket.create_connection(("127.0.0.1", started.port), timeout=PATIENCE_S) as started.slow:
            started.slow.sendall(b"GET / HTTP/1.1\r\nHost: localh")
            yield started


@pytest.fixture(scope="module", autouse=True)
def many_descriptors():
    """The client needs one per connection as well."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * DESCRIPTORS + 200
    if before[0] < wanted:
        if before[1] < wanted:
            pytest.skip(f"this process may not have {wanted} files open")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def half_open(port, number):
    """`number` connections of which half say nothing, and half begin a request that they do not finish."""
    held = []
    try:
        for place in range(number):
            connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            held.append(connection)
            if place % 2:
                # It may have given way to a newer one already.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.sendall(f"GET /{place} HTTP/1.1\r\nHost: localh".encode())
        yield held
    finally:
        for connection in held:
            connection.close()


def printed(started):
    return started._err.stat().st_size


def is_served(started):
    return get(started.port, "/_stcore/health")[0] == 200


@in_make_faults
def test_without_free_descriptors_it_logs_a_few_times_and_recovers(small, record_property):
    if not hasattr(resource, "prlimit"):
        pytest.skip("only Linux takes descriptors away from a living process")
    before = printed(small)
    process = psutil.Process(small.process.pid)
    allowed = resource.prlimit(small.process.pid, resource.RLIMIT_NOFILE)
    failures = 0
    try:
        # Nothing below the highest number in use can be opened from now on, as if they were all taken.
        resource.prlimit(small.process.pid, resource.RLIMIT_NOFILE, (1, allowed[1]))
        # accept() fails once a second for as long as a connection waits. This is time for it to print, not to succeed.
        end = time.monotonic() + longer(3, 40)
        while time.monotonic() < end:
            with socket.socket() as connection:
                connection.settimeout(0.1)
                with contextlib.suppress(OSError):
                    connection.connect(("127.0.0.1", small.port))
                    connection.recv(1)
            failures += 1
    finally:
        resource.prlimit(small.process.pid, resource.RLIMIT_NOFILE, allowed)
    record_property(
        "measured",
        f"{failures} connections without a descriptor, {printed(small) - before} bytes printed",
    )

    assert is_served(small)
    assert process.is_running()
    assert printed(small) - before <= MOST_BYTES


@in_make_faults
def test_invalid_messages_to_streamlit_do_not_flood_the_terminal(small, record_property):
    before = printed(small)
    visitor = Visitor(small.port)
    sent = 0
    for nonsense in ("text", b"\xff" * 100):
        for _ in range(longer(10, 200)):
            with visitor.tab() as tab:
                tab.say(nonsense)
            sent += 1
    with visitor.tab() as tab:
        for number in range(longer(100, 5_000)):
            for name in ("debug_shutdown_runtime", "debug_disconnect_websocket", "load_git_info"):
                tab._connection.send(BackMsg(**{name: True}).SerializeToString())
            unknown = BackMsg()
            unknown.backend_operation_request.request_id = str(number)
            unknown.backend_operation_request.deferred_file.file_id = "no such file"
            tab._connection.send(unknown.SerializeToString())
            sent += 4
        # A page comes after everything that was asked for before it.
        tab.open()
    record_property("measured", f"{sent} messages, {printed(small) - before} bytes printed")

    assert is_served(small)
    assert printed(small) - before <= MOST_BYTES


@in_make_faults
def test_an_unfinished_request_is_disconnected(small):
    with contextlib.suppress(ConnectionResetError):
        assert small.slow.recv(1) == b""


@in_make_faults
def test_half_open_connections_lock_no_one_out_and_print_nothing(small, record_property):
    before = printed(small)
    process = psutil.Process(small.process.pid)
    with half_open(small.port, longer(DESCRIPTORS + 50, 2 * DESCRIPTORS)) as held:
        served = [is_served(small) for _ in range(10)]
        descriptors = process.num_fds()
    record_property(
        "measured",
        f"{len(held)} half-open connections, {len(served)} of {len(served)} requests between them "
        f"answered, {descriptors} of {DESCRIPTORS} descriptors, {printed(small) - before} bytes printed",
    )

    assert all(served)
    assert descriptors < DESCRIPTORS
    assert printed(small) - before <= MOST_BYTES
