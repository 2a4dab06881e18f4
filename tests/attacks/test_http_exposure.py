"""Untrusted clients of the real server, over HTTP and WebSocket: hosts, origins, paths, and invalid requests."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

pytest.importorskip("streamlit")

from tests.attacks.http_client import Visitor
from tests.attacks.two_runs import two_runs
from tests.dashboard.serving import RUN_DASHBOARD, Started, ask, fork_dashboard, get, handshake
from tests.lengths import in_make_faults, is_long, longer
from tests.project.markdown import ROOT
from tests.provision import NoTool, tool
from tests.waiting import wait_until

CANARY = "canary-5d1f0c7e"

# The first test may have to install the tracer, and to wait for another installation.
pytestmark = pytest.mark.timeout(longer(900, 3_000))


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    with two_runs(tmp_path_factory.mktemp("runs")) as folder:
        yield folder


def is_alive(port):
    return get(port, "/_stcore/health")[0] in (200, 403)


# ---------------------------------------------------------------- as it is started: on this machine alone


@pytest.fixture(scope="module")
def hostile(tmp_path_factory, logs):
    """A dashboard started in a hostile folder, with every network call traced."""
    folder = tmp_path_factory.mktemp("hostile")
    cwd = folder / "cwd"
    (cwd / ".streamlit").mkdir(parents=True)
    (cwd / "static").mkdir()
    (cwd / "pages").mkdir()
    (cwd / ".streamlit" / "config.toml").write_text(
        textwrap.dedent("""
        [server]
        enableCORS = false
        enableXsrfProtection = false
        enableStaticServing = true
        enableAgentApi = true
        scriptHealthCheckEnabled = true
        address = "0.0.0.0"
        port = 1234
        allowedHosts = ["*"]
        corsAllowedOrigins = ["*"]
        [client]
        showErrorDetails = "full"
        [global]
        developmentMode = true
        [browser]
        gatherUsageStats = true
        """)
    )
    (cwd / ".streamlit" / "secrets.toml").write_text(
        f'stolen = "{CANARY}"\n[auth]\ncookie_secret = "{CANARY}"\n'
    )
    (cwd / "static" / "file.txt").write_text(CANARY)
    (cwd / "pages" / "1_evil.py").write_text("import os; os._exit(66)\n")
    for name in ("click", "streamlit", "uvicorn", "toml", "sitecustomize", "json"):
        (cwd / f"{name}.py").write_text("import os; os._exit(66)\n")
    (folder / "secret.txt").write_text(CANARY)
    calls = folder / "calls.txt"
    command = [sys.executable, str(RUN_DASHBOARD), "--port", "0", "--no-browser", "--log-dir", str(logs)]
    tracer = _tracer(folder)
    if tracer is not None:
        # -D: the dashboard stays our child, and the tracer detaches.
        watched = "trace=connect,sendto,sendmsg,sendmmsg"
        command = [tracer, "-D", "-f", "-qq", "-e", watched, "-o", str(calls), *command]
    with Started(command, folder) as started:
        started.calls = calls
        yield started.wait_until_ready()


def _tracer(folder):
    """Return the path of strace; None if it is missing or may not trace."""
    try:
        tracer = tool("strace", "strace")
    except NoTool:
        return None
    tried = subprocess.run(
        [
            tracer,
            "-D",
            "-qq",
            "-e",
            "trace=connect",
            "-o",
            str(folder / "tried.txt"),
            sys.executable,
            "-c",
            "",
        ],
        capture_output=True,
        timeout=60,
    )
    return tracer if tried.returncode == 0 else None


HOSTS = {
    "localhost:{port}": True,
    "LOCALHOST:{port}": True,
    "127.0.0.1:{port}": True,
    "[::1]:{port}": True,
    "localhost.:{port}": False,
    "localhost": False,
    "localhost:1": False,
    "localhost:{port}:{port}": False,
    "localhost:{port}, evil.example": False,
    "evil.example:{port}": False,
    "evil.example": False,
    "localhost.evil.example:{port}": False,
    "localhost@evil.example:{port}": False,
    "evil.example@localhost:{port}": False,
    "localhost:{port}@evil.example": False,
    "localhost:{port}#.evil.example": False,
    "localhost:{port}/": False,
    "127.0.0.1.nip.example:{port}": False,
    "127.1:{port}": False,
    "0x7f.1:{port}": False,
    "2130706433:{port}": False,
    "0.0.0.0:{port}": False,
    "[::ffff:127.0.0.1]:{port}": False,
    "[::1%25lo]:{port}": False,
    "192.168.1.7:{port}": False,
    "": False,
}
ORIGINS = {
    "http://localhost:{port}": True,
    "http://LOCALHOST:{port}": True,
    "https://localhost:{port}": True,
    "http://localhost": False,
    "http://localhost:9999": False,
    "http://127.0.0.1:{port}": False,
    "http://[::1]:{port}": False,
    "http://localhost.:{port}": False,
    "http://evil.example": False,
    "http://evil.example:{port}": False,
    "http://localhost:{port}.evil.example": False,
    "http://user@localhost:{port}": False,
    "http://localhost:{port}@evil.example": False,
    "http://localhost:{port}/": False,
    "http://localhost:{port} http://evil.example": False,
    "ws://localhost:{port}": False,
    "file://": False,
    "chrome-extension://abcdefgh": False,
    "null": False,
    "": False,
}


def test_only_our_own_host_and_origin_are_served(hostile, record_property):
    port, wrong = hostile.port, []
    for host, ours in HOSTS.items():
        host = host.format(port=port)
        by_http = get(port, host=host)[0]
        by_socket = handshake(port, host=host, origin=f"http://{host}")[0]
        if (by_http == 200, by_socket == 101) != (ours, ours):
            wrong.append((host, by_http, by_socket))
    for origin, ours in ORIGINS.items():
        origin = origin.format(port=port)
        by_http = get(port, origin=origin)[0]
        by_socket = handshake(port, origin=origin)[0]
        if (by_http == 200, by_socket == 101) != (ours, ours):
            wrong.append((origin, by_http, by_socket))
    for doubled in ("Host: evil.example", "Origin: http://evil.example"):
        lines = ["GET / HTTP/1.1", f"Host: localhost:{port}", f"Origin: http://localhost:{port}", doubled]
        status = ask(port, lines)[0]
        if status not in (400, 403):
            wrong.append((doubled, status))
    record_property(
        "measured",
        f"{len(HOSTS)} Host and {len(ORIGINS)} Origin headers over HTTP and WebSocket, {len(wrong)} let in wrongly",
    )

    assert wrong == []


@pytest.mark.parametrize(
    ("site", "mode", "dest", "status"),
    [
        ("none", "navigate", "document", 200),
        ("same-origin", "cors", "empty", 200),
        ("cross-site", "navigate", "document", 200),
        ("cross-site", "navigate", "iframe", 403),
        ("cross-site", "no-cors", "image", 403),
        ("cross-site", "no-cors", "script", 403),
        ("same-site", "no-cors", "image", 403),
        ("same-site", "cors", "empty", 403),
    ],
)
def test_a_page_of_another_site_or_port_may_link_to_us_and_load_nothing(hostile, site, mode, dest, status):
    said = {"sec_fetch_site": site, "sec_fetch_mode": mode, "sec_fetch_dest": dest}

    assert get(hostile.port, **said)[0] == status


_UP = (
    *("../", "..%2f", "%2e%2e/", "%2e%2e%2f", "..%5c", "..\\", "%252e%252e%252f", ".%2e/", "..;/"),
    "%c0%ae%c0%ae/",
)
_BEGINNINGS = (
    *("/", "/static/", "/app/static/", "/media/", "/component/x/", "/_stcore/"),
    "/_stcore/bidi-components/x/",
)
_WANTED = ("secret.txt", "etc/passwd", "app.py", "cwd/static/file.txt", ".streamlit/secrets.toml")
_ODD_TARGETS = (
    "//evil.example/",
    "//evil.example/%2f..",
    "/\\evil.example/share/x",
    "/%5c%5cevil.example%5cshare%5cx",
    "/component/%5c%5cevil.example/share",
    "/static/%5c%5cevil.example%5cshare%5cx.js",
    "/app/static/file.txt",
    "/static/file.txt",
    "/media/file.txt",
    "/media/%00",
    "/static/%00.js",
    "/%00",
    "/C:/Windows/win.ini",
    "/static/C:%5cWindows%5cwin.ini",
    "/static/con",
    "//etc/passwd",
    "/static//etc/passwd",
    "/_stcore/message",
    "/_stcore/agent/interact",
    "/_stcore/agent/mcp",
    "/_stcore/agent/openapi.json",
    "/_stcore/script-health-check",
    "/_stcore/upload_file/x/y",
    "/_stcore/../../../../etc/passwd",
    "/auth/login",
    "/auth/login?provider=default",
    "/auth/logout",
    "/oauth2callback?error=%1b%5d0%3bowned%07&error_description=%1b%5b2J",
    "/oauth2callback?code=x&state=y",
    "http://evil.example/",
    "http://evil.example/static/../../../etc/passwd",
    "/?run=..%2f..%2fetc&run=%00",
    "/overview?run=%5c%5cevil.example%5cshare",
    "/curves?x=%00&c=%5b%5b",
    "/curves?c=%5b%5b%22..%2f..%2fetc%22,%22m%22,0,%7b%22fit%22:1%7d%5d%5d",
    "/" + "a" * 4000,
    "/?" + "a=b&" * 2000,
    "*",
)


def test_no_path_leads_out_and_no_response_reveals_the_server(hostile, record_property):
    targets = [
        beginning + up * depth + wanted
        for beginning, up, wanted, depth in itertools.product(
            _BEGINNINGS, _UP, _WANTED, (1, 3, 5, 9) if is_long() else (5,)
        )
    ]
    targets = targets[:: longer(5, 1)] + list(_ODD_TARGETS)
    led_out, codes, bare = [], set(), []
    inside = [
        CANARY,
        "root:x:",
        "Traceback",
        "site-packages",
        str(ROOT),
        str(hostile.folder),
        "import streamlit",
    ]
    for target in targets:
        status, headers, body = ask(
            hostile.port, [f"GET {target} HTTP/1.1", f"Host: localhost:{hostile.port}", "Connection: close"]
        )
        text = body.decode("utf-8", "replace") + str(headers)
        led_out += [(target, status, word) for word in inside if word in text]
        codes.add(status)
        if "location" in headers and not re.match(r"/(?![/\\])", headers["location"]):
            led_out.append((target, "leads to", headers["location"]))
        if status != 400 and not {"content-security-policy", "x-frame-options"} <= set(headers):
            bare.append(target)
    record_property(
        "measured", f"{len(targets)} paths requested, {len(led_out)} led out or revealed the server"
    )

    assert led_out == []
    assert bare == [], "answers without the headers that keep a browser in"
    assert codes <= {200, 302, 307, 400, 403, 404, 405}, codes
    assert is_alive(hostile.port)


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "X" * 30]
)
def test_nothing_can_be_uploaded_or_deleted(hostile, method):
    paths = ("/_stcore/upload_file/session/file", "/_stcore/agent/interact", "/")
    for path, length in itertools.product(paths, (0, 1_000_000_000)):
        lines = [f"{method} {path} HTTP/1.1", f"Host: localhost:{hostile.port}", f"Content-Length: {length}"]
        status, headers, body = ask(hostile.port, lines, body=b"x" * min(length, 1000))

        assert status in (400, 405)
        assert status == 400 or body == b"This dashboard does not accept uploads.\n"
        assert headers["connection"] == "close"


def test_a_request_inside_another_is_not_answered(hostile):
    inner = f"GET /_stcore/health HTTP/1.1\r\nHost: localhost:{hostile.port}\r\n\r\n"
    chunked, whole = "Transfer-Encoding: chunked", f"Content-Length: {len(inner)}"
    asked = {
        "both lengths": ("POST", ["Content-Length: 4", chunked], "0\r\n\r\n"),
        "two lengths": ("POST", ["Content-Length: 0", whole], ""),
        "a body for GET": ("GET", [whole], ""),
        "chunks for GET": ("GET", [chunked], "0\r\n\r\n"),
        "an odd coding": ("POST", ["Transfer-Encoding: \x0bchunked"], "0\r\n\r\n"),
        "a folded line": ("GET", ["X: a", f" {chunked}", "Content-Length: 3"], "0\r\n\r\n"),
    }
    answers = {}
    for name, (method, lines, end) in asked.items():
        head = "\r\n".join([f"{method} / HTTP/1.1", f"Host: localhost:{hostile.port}", *lines, "", ""])
        with socket.create_connection(("127.0.0.1", hostile.port), timeout=30) as connection:
            connection.sendall((head + end + inner).encode("latin-1"))
            answers[name] = len(re.findall(rb"HTTP/1\.1 \d\d\d", _read_all(connection)))

    assert answers == dict.fromkeys(asked, 1)


def _read_all(connection):
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def test_requests_that_are_too_large_too_slow_or_invalid_do_not_affect_others(hostile):
    place = f"Host: localhost:{hostile.port}"
    waiting = [socket.create_connection(("127.0.0.1", hostile.port)) for _ in range(longer(60, 300))]
    for number, connection in enumerate(waiting):
        connection.sendall(f"GET /{number} HTTP/1.1\r\n{place}\r\nX-Slow: ".encode())
    spoken, is_cut = [], True
    with socket.create_connection(("127.0.0.1", hostile.port), timeout=60) as connection:
        # It may be refused, and hung up on, before all of it is sent; the answer may then be gone as well.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(f"GET / HTTP/1.1\r\n{place}\r\nX-Large: {'a' * 200_000}\r\n\r\n".encode())
            is_cut = False
        large = _read_all(connection)
    for nonsense in (
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"\x00" * 100,
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", hostile.port), timeout=30) as connection:
            connection.sendall(nonsense + b"\r\n\r\n")
            spoken.append(_read_all(connection))
    page = get(hostile.port)[0]
    for connection in waiting:
        connection.close()

    assert re.match(rb"HTTP/1\.1 (400|431) ", large) or (is_cut and not large)
    assert page == 200
    assert not any(b"Traceback" in answer or b"/dashboard/" in answer for answer in spoken)


def test_a_socket_full_of_nonsense_is_closed_and_the_next_one_works(hostile, logs):
    visitor = Visitor(hostile.port)
    for nonsense in ("text", b"\xff" * 100, b"\x00" * longer(1_000_000, 20_000_000)):
        with visitor.tab() as tab:
            said = tab.say(nonsense)

        assert b"Traceback" not in said
    with visitor.tab() as tab:
        tab.open("no/../such/page", "run=../../etc/passwd&from=nan&to=inf&x=%00")
        tab.open("overview", "run=alive")

    assert "alive" in tab.text
    assert "Traceback" not in tab.text


def test_it_listens_on_localhost_only_and_opens_no_connection(hostile, logs, record_property):
    if not hostile.calls.exists():
        pytest.skip("strace is missing, or may trace nothing here")
    with Visitor(hostile.port).tab() as tab:
        for page in ("", "overview", "metrics", "settings", "compare"):
            tab.open(page, "run=alive")
    handshake(hostile.port, origin="http://evil.example")
    process = psutil.Process(hostile.process.pid)
    listens = {
        (place.laddr.ip, place.laddr.port)
        for one in (process, *process.children(recursive=True))
        for place in one.net_connections()
        if place.status == psutil.CONN_LISTEN
    }
    calls = hostile.calls.read_text(errors="replace").splitlines()
    outward = [line for line in calls if "sa_family=AF_INET" in line]
    record_property(
        "measured",
        f"listens on {', '.join(sorted(ip for ip, _ in listens))}; {len(outward)} connections outward",
    )

    assert listens == {("127.0.0.1", hostile.port)}
    assert calls, "nothing was traced"
    assert outward == []


def test_the_working_directory_has_no_influence(hostile):
    assert hostile.process.poll() is None
    assert Path(psutil.Process(hostile.process.pid).cwd()) == ROOT / "dashboard"
    assert CANARY not in hostile.out + hostile.err
    assert get(hostile.port, "/app/static/file.txt")[2].count(CANARY.encode()) == 0
    for path in ("openapi.json", "mcp", "interact", "", "..%2fagent/openapi.json"):
        status, _, body = get(hostile.port, f"/_stcore/agent/{path}")
        assert (status, body) == (404, b"Not served here.\n")


def test_client_input_does_not_reach_the_terminal(hostile):
    get(hostile.port, "/oauth2callback?error=%1b%5d0%3bowned%07&error_description=%1b%5b2J")
    get(hostile.port, "/auth/login?provider=%1b%5d0%3bowned%07")

    assert "\x1b" not in hostile.err + hostile.out
    assert "owned" not in hostile.err + hostile.out
    assert "secrets" not in hostile.err, "there are no settings for a login here"


def test_the_oldest_streamlit_we_take_knows_which_hosts_are_ours():
    wanted = (ROOT / "dashboard_requirements.txt").read_text()
    oldest = tuple(
        int(part) for part in re.search(r"^streamlit>=([\d.]+)", wanted, re.MULTILINE)[1].split(".")
    )

    assert oldest >= (1, 61)


@in_make_faults
def test_a_failing_page_reveals_no_path_and_no_code(tmp_path):
    programs = Path(__file__).parent / "programs"
    command = [str(programs / "serve_page.py"), str(programs / "failing_page.py")]
    environ = {"PYTHONPATH": str(ROOT)}
    with Started(command, tmp_path, environ=environ, start=fork_dashboard) as process:
        process.wait_until_ready()
        with Visitor(process.port).tab() as tab:
            tab.open()
        # Whoever started it reads it in the terminal.
        wait_until(lambda: "/home/someone/secret" in process.err + process.out, process.process)

    assert "it began" in tab.text
    assert any(element.HasField("exception") for element in tab.elements)
    assert not [
        word
        for word in ("/home", "secret", "RuntimeError", "Traceback", str(tmp_path), str(ROOT), ".py")
        if any(word in str(element) for element in tab.elements)
    ]
