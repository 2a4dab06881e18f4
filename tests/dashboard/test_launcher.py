from __future__ import annotations

import contextlib
import importlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest

from tests.waiting import wait_until

pytest.importorskip("streamlit")

from streamlit import config
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import connect

from dashboard import launcher, listening, missing_packages
from dashboard.access.tokens import AccessTokens, new_token
from dashboard.server import streamlit_options
from dashboard.settings import DashboardSettings
from tests.attacks.http_client import Visitor
from tests.dashboard.serving import PATIENCE_S, RUN_DASHBOARD, Started, dashboard, get
from tests.lengths import in_make_faults
from tests.project.markdown import ROOT


def run(*arguments, python=(sys.executable,), environ=None, cwd=None):
    """Run the command to its end, for what ends by itself."""
    return subprocess.run(
        [*python, str(RUN_DASHBOARD), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=cwd,
        env={**os.environ, **(environ or {})},
    )


@contextlib.contextmanager
def open_page(port):
    """Open a page as a browser does, and let it run to its end; the connection stays for as long as the block."""
    with connect(
        f"ws://localhost:{port}/_stcore/stream",
        origin=f"http://localhost:{port}",
        subprotocols=["streamlit"],
        max_size=None,
        open_timeout=PATIENCE_S,
    ) as connection:
        wish = BackMsg()
        wish.rerun_script.query_string = ""
        connection.send(wish.SerializeToString())
        while True:
            message = ForwardMsg.FromString(connection.recv(timeout=PATIENCE_S))
            if message.WhichOneof("type") == "script_finished":
                break
        yield


# ---------------------------------------------------------------- starting and ending


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_one_line_and_ends_at_once_on_a_signal_even_with_a_page_open(tmp_path, number):
    took = []
    # Were it to wait for the page, it would do so each time; a pause of the machine comes once.
    while len(took) < 3 and min(took, default=3) >= 3:
        folder = tmp_path / str(len(took))
        folder.mkdir()
        with dashboard(folder) as started:
            started.wait_until_ready()
            with open_page(started.port):
                code, seconds = started.end(number)
        took.append(seconds)

        assert code == 0
        assert started.err == ""
        # The pages may keep what they computed, in the folder that systems have for that.
        assert {path.name for path in started.home.iterdir()} <= {".cache"}
        assert list(started.cwd.iterdir()) == []
        assert started.out == (
            f"Dashboard: http://localhost:{started.port}  (runs in {folder / 'cwd' / 'logs'})  Press Ctrl-C to stop.\n"
        )
    assert min(took) < 3


@in_make_faults
def test_a_client_that_does_not_hang_up_does_not_hold_it(tmp_path):
    with dashboard(tmp_path) as started:
        started.wait_until_ready()
        with socket.create_connection(("127.0.0.1", started.port)) as silent:
            silent.sendall(f"GET / HTTP/1.1\r\nHost: localhost:{started.port}\r\n".encode())
            code, seconds = started.end()

    assert code == 0
    # The client would not hang up in a hundred.
    assert seconds < 30
    assert started.err == ""


def test_ctrl_c_while_it_is_still_starting_is_no_traceback(tmp_path):
    with dashboard(tmp_path, fresh=True) as started:
        # It listens before it imports Streamlit, which takes most of a second.
        wait_until(lambda: psutil.Process(started.process.pid).net_connections())
        started.process.send_signal(signal.SIGINT)
        assert started.process.wait(PATIENCE_S) == 0

    assert started.err == ""


def test_a_page_that_computes_does_not_hold_the_terminal():
    code = "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()"
    finished = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{code}\nfrom dashboard.launcher import wait_for_page_threads; wait_for_page_threads()",
        ],
        cwd=ROOT,
        timeout=PATIENCE_S,
    )

    assert finished.returncode == 0


# ---------------------------------------------------------------- what it leaves behind, and what it believes


WITHOUT_A_NAME = """
import os, pwd, runpy, sys
os.environ.clear()
if sys.argv.pop(1) == "forget":
    # User namespaces are not allowed here, so the list of users is taken away instead.
    def getpwuid(uid):
        raise KeyError(uid)
    pwd.getpwuid = getpwuid
else:
    assert os.geteuid() == 12345, os.geteuid()
sys.argv.pop(0)
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@in_make_faults
def test_it_starts_and_shows_runs_for_a_user_without_a_home_and_a_name(tmp_path):
    pytest.importorskip("pwd")
    (tmp_path / "logs").mkdir()
    as_user = ["unshare", "--user", "--map-user=12345", "--map-group=12345"]
    try:
        allowed = subprocess.run([*as_user, sys.executable, "-c", ""], capture_output=True).returncode == 0
    except FileNotFoundError:
        allowed = False
    command = [sys.executable, "-c", WITHOUT_A_NAME, "real" if allowed else "forget", str(RUN_DASHBOARD)]
    options = ["--port", "0", "--no-browser", "--log-dir", str(tmp_path / "logs")]
    with Started([*(as_user if allowed else ()), *command, *options], tmp_path) as started:
        started.wait_until_ready()
        with Visitor(started.port).tab() as tab:
            runs = tab.open().text
            about = tab.open("settings").text
        code, _ = started.end()

    assert (code, started.err) == (0, "")
    assert str(tmp_path / "logs") in runs
    assert "this user has no home folder" in about


def test_the_options_that_matter_are_set_and_this_streamlit_has_them():
    listener = listening.listen("localhost", 0)
    listener.socket.close()
    options = streamlit_options(listener)

    assert set(options) <= set(config._config_options_template)
    # tests/attacks/test_http_exposure.py sets some of them otherwise in a config.toml, which changes nothing.
    assert (
        options.items()
        >= {
            "browser.gatherUsageStats": False,
            "server.enableCORS": True,
            "server.enableXsrfProtection": True,
            "server.enableStaticServing": False,
            "server.enableAgentApi": False,
            "client.showErrorDetails": "none",
            "server.allowedHosts": ["127.0.0.1", "::1", "localhost"],
            # With a name here anybody could say in a header who they are.
            "server.trustedUserHeaders": {},
        }.items()
    )


# ---------------------------------------------------------------- options


def test_options_become_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = launcher.parse_options(["--log-dir", "a", "--log-dir", f"{tmp_path}/b", "--log-dir", "a"])

    assert options.settings.log_dirs == (tmp_path / "a", tmp_path / "b")
    assert not options.settings.read_only
    assert launcher.parse_options([]).settings.log_dirs == (tmp_path / "logs",)
    assert launcher.parse_options(["--read-only"]).settings.read_only


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--port", "http"], ["--port", "'http'", "1 to 65535"]),
        (["--port", "65536"], ["--port", "'65536'", "1 to 65535"]),
        (["--port", "-1"], ["--port"]),
        (["--log-dir", str(RUN_DASHBOARD)], ["--log-dir", str(RUN_DASHBOARD), "a folder", "got the file"]),
        (["--log-dir", ""], ["--log-dir", "''", "a folder"]),
        (["--host", "no such host"], ["--host", "'no such host'", "localhost"]),
        (["--host", ""], ["--host", "''", "localhost"]),
        (["--host", "192.0.2.1", "--port", "0"], ["--host", "'192.0.2.1'", "not an address of this machine"]),
        (["--prot", "1"], ["--prot"]),
        (["--token", "--no-token"], ["--token", "--no-token", "not allowed with"]),
        (["--no-token", "--reader-token"], ["--no-token", "--reader-token", "cannot be combined"]),
        (["--login", "x.toml", "--token"], ["--login", "--token", "cannot be combined"]),
        (["--user-header", "X-User", "--login", "x"], ["--login", "--user-header", "cannot be combined"]),
        (["--user-header", "X-User", "--host", "0.0.0.0"], ["--user-header", "--host"]),
        (["--login", "no-such-file.toml"], ["--login", "no-such-file.toml", "No such file"]),
        (["--token-file", "no-such-file"], ["--token-file", "no-such-file", "No such file"]),
        (["--token-file", str(RUN_DASHBOARD)], ["--token-file", "others", "chmod 600"]),
        (["--read-only", "--reader-token"], ["--read-only", "reader token"]),
        (["--log-dir", "~no-such-user-5d1f/a"], ["the home folder in '~no-such-user-5d1f/a' is unknown"]),
        (["--token-file", "~no-such-user-5d1f/a"], ["the home folder in '~no-such-user-5d1f/a' is unknown"]),
        (["--public-url", "runs.example.org"], ["--public-url", "'runs.example.org'", "https://NAME"]),
        (["--public-url", "https://example.org/runs"], ["--public-url", "without a path"]),
        (["--public-url", "https://me:pw@example.org"], ["--public-url", "https://NAME"]),
    ],
)
def test_a_wrong_option_is_answered_with_its_name_its_value_and_what_is_allowed(arguments, parts, capsys):
    try:
        code = launcher.main(arguments)
    except SystemExit as ended:
        code = ended.code

    assert code == 2
    errors = capsys.readouterr().err
    for part in parts:
        assert part in errors


def test_a_port_that_was_asked_for_and_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        finished = run("--port", str(port))

    assert finished.returncode == 2
    assert finished.stderr == (
        f"run_dashboard.py: port {port} on localhost is in use; choose another one with --port\n"
    )


def test_without_a_wish_the_next_free_port_is_taken_and_said(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(listening, "DEFAULT_PORT", port)
        listener = listening.listen()
    listener.socket.close()

    assert port < listener.port <= port + 20
    assert listener.url == f"http://localhost:{listener.port}"


def test_an_exposed_dashboard_warns_and_asks_for_a_token(tmp_path):
    with dashboard(tmp_path, "--host", "0.0.0.0") as started:
        started.wait_until_ready()
        token = re.search(r"Dashboard: http://localhost:\d+/\?token=([\w-]{43})  ", started.out)[1]
        # tests/attacks/test_token_access.py tries what it lets in.
        by_name = get(started.port, f"/?token={token}", host=f"evil.example:{started.port}")[0]
        without = get(started.port, host=f"10.1.2.3:{started.port}")[0]
        argv = psutil.Process(started.process.pid).cmdline()
        code, _ = started.end()

    assert (by_name, without, code) == (403, 403, 0)
    for part in (
        "WARNING",
        "A token is required",
        "not encrypted",
        f"ssh -L {started.port}:localhost:{started.port}",
    ):
        assert part in started.err
    assert started.out.count(token) == 1
    documented = (ROOT / "docs" / "remote.md").read_text("utf-8")
    changing = r":\d+/\?token=\S+|runs in [^)]*"
    assert re.sub(changing, "", started.out.splitlines()[0]) in re.sub(changing, "", documented)
    assert token not in started.err
    assert not any(token in word for word in argv)


def test_a_dashboard_is_exposed_without_a_token_only_on_request_and_with_a_warning(tmp_path):
    with dashboard(tmp_path, "--host", "0.0.0.0", "--no-token") as started:
        started.wait_until_ready()
        status = get(started.port, host=f"10.1.2.3:{started.port}")[0]
        started.end()

    assert status == 200
    for part in ("WARNING", "No token is required", "anyone", "stop"):
        assert part in started.err


def test_a_login_that_would_come_back_to_another_place_is_named(tmp_path):
    file = tmp_path / "login.toml"
    file.write_text(
        "[auth]\nredirect_uri = 'https://runs.example.org/oauth2callback'\nclient_id = 'a'\n"
        f"client_secret = 'b'\nserver_metadata_url = 'https://id.example.org/x'\ncookie_secret = '{new_token()}'\n"
        "[dashboard]\nallow = ['ann@lab.example']\n"
    )
    file.chmod(0o600)
    finished = run("--port", "0", "--login", str(file))

    assert finished.returncode == 2
    for part in ("--login", "https://runs.example.org", "redirect_uri", "--public-url"):
        assert part in finished.stderr


def test_a_missing_login_package_is_reported_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(missing_packages, "_is_installed", lambda name: name != "authlib")
    said = [missing_packages.missing_login_packages_message()]
    monkeypatch.setattr(missing_packages, "_is_installed", lambda _name: True)
    for version in ("1.3.2", "1.6.10", "1.6"):
        monkeypatch.setattr(missing_packages, "_installed_version", lambda _name, found=version: found)
        said.append(missing_packages.missing_login_packages_message())
    assert "Authlib and httpx are not installed" in said[0]
    assert "Authlib 1.6.10 is too old, 1.6.11 or newer is required" in said[2]
    for text in said:
        assert shlex.split(text.splitlines()[-1])[-1] == str(ROOT / "requirements" / "login.txt")
    for version in ("1.6.11", "1.7.0", "2.0"):
        monkeypatch.setattr(missing_packages, "_installed_version", lambda _name, found=version: found)
        assert missing_packages.missing_login_packages_message() is None


def test_the_oldest_version_that_starts_is_the_one_pip_requires():
    wanted = (ROOT / "requirements" / "login.txt").read_text() + (
        ROOT / "dashboard_requirements.txt"
    ).read_text()

    for name, oldest in (
        ("Authlib", missing_packages._OLDEST_AUTHLIB),
        ("streamlit", missing_packages._OLDEST_STREAMLIT),
    ):
        assert re.search(rf"^{name}>={re.escape('.'.join(map(str, oldest)))}(,|$)", wanted, re.MULTILINE)


class ReadyAtOnce:
    def serve_until_stopped(self, on_ready):
        on_ready()


def test_no_browser_is_sent_to_an_address_with_a_token(monkeypatch):
    keys = AccessTokens(operator=new_token())
    listener = listening.listen("localhost", 0)
    listener.socket.close()

    def prepared(access):
        return launcher.PreparedDashboard(
            server=ReadyAtOnce(), listener=listener, settings=DashboardSettings(), access=access
        )

    sent = []
    monkeypatch.setattr(launcher, "open_browser", sent.append)
    for name in ("exit_on_signals", "raise_exit_on_signals", "wait_for_page_threads"):
        monkeypatch.setattr(launcher, name, lambda: None)
    for access in (keys, None):
        monkeypatch.setattr(launcher, "prepare", lambda _, access=access: prepared(access))
        launcher.main([])

    assert sent == [listener.url]
    assert keys.operator in launcher.startup_message(prepared(keys), "")
    assert keys.operator not in launcher.startup_message(prepared(replace(keys, is_fixed=True)), "")


# ---------------------------------------------------------------- what is not installed


def test_the_installed_command_is_telemetry_dashboard(capsys, monkeypatch):
    entry = re.search(
        r'^telemetry-dashboard = "([\w.]+):(\w+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    command = getattr(importlib.import_module(entry[1]), entry[2])
    monkeypatch.setattr(sys, "argv", ["telemetry-dashboard", "--help"])

    with pytest.raises(SystemExit) as end:
        command()

    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: telemetry-dashboard ")


def test_a_missing_package_is_reported_with_the_command_that_installs_it():
    finished = run(python=(sys.executable, "-S"))

    assert finished.returncode == 2
    assert "Traceback" not in finished.stderr
    assert "streamlit, pandas, plotly, pyarrow, orjson, PyYAML" in finished.stderr
    command = shlex.split(finished.stderr.splitlines()[-1])
    if "uv" not in command:
        assert command[-5:-1] == ["-m", "pip", "install", "-r"]
    assert any(os.path.exists(one) and os.path.samefile(one, sys.executable) for one in command)
    assert command[-1] == str(ROOT / "dashboard_requirements.txt")


def test_a_streamlit_that_is_too_old_is_reported(tmp_path):
    (tmp_path / "streamlit").mkdir()
    (tmp_path / "streamlit" / "__init__.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "streamlit-1.60.2.dist-info").mkdir()
    (tmp_path / "streamlit-1.60.2.dist-info" / "METADATA").write_text("Name: streamlit\nVersion: 1.60.2\n")
    finished = run(environ={"PYTHONPATH": str(tmp_path)})

    assert finished.returncode == 2
    assert "streamlit 1.60.2 is too old, 1.65 or newer is required" in finished.stderr
    assert f"-r {ROOT / 'dashboard_requirements.txt'}" in finished.stderr


def test_help_and_wrong_options_come_without_streamlit():
    code = (
        "import sys, run_dashboard; print([name for name in ('streamlit', 'pandas') if name in sys.modules])"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert finished.stdout == "[]\n"


# ---------------------------------------------------------------- the browser


@pytest.mark.parametrize(
    ("is_terminal", "environ", "opened"),
    [
        (True, {"DISPLAY": ":0"}, True),
        (True, {"WAYLAND_DISPLAY": "wayland-0"}, True),
        (True, {}, False),
        (False, {"DISPLAY": ":0"}, False),
        (True, {"DISPLAY": "localhost:10.0", "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}, False),
    ],
)
def test_a_browser_opens_where_the_user_can_see_it(monkeypatch, is_terminal, environ, opened):
    urls = []
    monkeypatch.setattr(launcher.sys, "platform", "linux")
    monkeypatch.setattr(launcher.sys.stdout, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(launcher.webbrowser, "open", urls.append)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    launcher.open_browser("http://localhost:8501")
    if opened:
        wait_until(lambda: urls)
    else:
        time.sleep(0.1)

    assert urls == (["http://localhost:8501"] if opened else [])
