"""TLS, passwords and versions: whatever is wrong is one sentence of the shipper and of the dashboard alike."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from dashboard import launcher
from tests.fleet.certificates import make_ca, make_certificate
from tests.fleet.engines import PASSWORD, ROOT, Embedded, NoEngine, free_ports, has_openssl
from tests.fleet.shipped_runs import engine_bytes, id_of, make_run, newest_or_nothing, record_bytes, ship
from tests.lengths import in_make_faults
from tests.waiting import wait_until
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.fleet.address import address_of
from toolkit.telemetry.fleet.engine import Engine
from toolkit.telemetry.fleet.schema import VERSION, set_up
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore

WRONG = "wr0ng-hunter2"


class Secured:
    """An engine with an https port, the CA that signed its certificate, and a password file for its user ship."""

    def __init__(self, folder: Path) -> None:
        self.ca, self.other_ca = make_ca(folder, "ours"), make_ca(folder, "another")
        certificate, key = make_certificate(self.ca, "IP:127.0.0.1")
        self.engine = Embedded(
            folder / "engine", passwords={"ship": PASSWORD}, certificate=str(certificate), key=str(key)
        )
        self.password_file = folder / "password"
        self.password_file.write_text(PASSWORD + "\n")
        self.password_file.chmod(0o600)

    def start(self) -> None:
        self.engine.start()
        self.https, self.http = self.engine.https_port, self.engine.port
        set_up(self.address())
        admin = Engine(address_of(self.url(database="default"), password=PASSWORD, ca=self.ca))
        for database, version in (("earlier", 0), ("later", 9)):
            admin.query(f"CREATE DATABASE {database}")
            admin.query(f"CREATE VIEW {database}.schema_version AS SELECT toUInt32({version}) AS version")

    def address(self):
        return address_of(self.url(), password=PASSWORD, ca=self.ca)

    def url(self, host: str = "127.0.0.1", port: int | None = None, database: str = "telemetry") -> str:
        return f"clickhouse://ship@{host}:{port or self.https}/{database}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    if not has_openssl():
        pytest.skip("openssl makes the certificates, and is not here")
    try:
        engine = Secured(tmp_path_factory.mktemp("secured"))
    except NoEngine as error:
        pytest.skip(str(error))
    try:
        engine.start()
        yield engine
    finally:
        engine.engine.stop()


def test_shipper_and_store_work_over_tls(secured, logs, capsys):
    folder = make_run(logs, "secured", 5)
    how = ["--ca", str(secured.ca), "--password-file", str(secured.password_file)]

    assert main(["ship", str(logs), "--once", "--to", secured.url(), *how]) == 0

    assert engine_bytes(Engine(secured.address()), id_of(folder)) == {
        (0, 1): record_bytes(folder)["metrics.jsonl"]
    }
    store = ClickHouseStore(secured.address(), patience_s=120.0)
    assert store.refresh(id_of(folder)).records == 5
    assert store.recent(id_of(folder), "train_loss", 1)[0] == 0.2
    assert PASSWORD not in "".join(capsys.readouterr())


def test_what_is_wrong_is_one_sentence_of_shipper_and_dashboard(secured, logs, tmp_path, capsys):
    make_run(logs, "refused", 3)
    wrong = tmp_path / "wrong"
    wrong.write_text(f"{WRONG}\n")
    wrong.chmod(0o600)
    not_a_ca = tmp_path / "not-a-ca.pem"
    not_a_ca.write_text("hello\n")
    trusted = ["--ca", str(secured.ca)]
    password = ["--password-file", str(secured.password_file)]
    cases = (
        ([f"{secured.url()}?secure=1", *password], "is refused ("),
        ([secured.url(), *password, "--ca", str(secured.other_ca)], "; --ca names the CA that signed it"),
        (
            [secured.url("localhost"), *password, *trusted],
            "is refused (Hostname mismatch, certificate is not valid for 'localhost'",
        ),
        ([secured.url(), *password, "--ca", str(not_a_ca)], f"the CA file {not_a_ca} cannot be used"),
        ([secured.url(), *password, "--ca", str(tmp_path / "no")], "cannot be used: No such file"),
        (
            [secured.url(port=secured.http), *password, *trusted],
            f"127.0.0.1:{secured.http} does not speak TLS",
        ),
        (
            [secured.url(), *password],
            "; if it wants TLS, add ?secure=1 to the address, or --ca",
        ),
        ([f"{secured.url()}?secure=0", *password], "TLS cannot be turned off"),
        (
            [secured.url(), "--password-file", str(wrong), *trusted],
            "refused user ship: wrong user name or password",
        ),
        ([secured.url(), "--password-file", str(tmp_path / "no"), *trusted], "cannot be read: No such file"),
        ([secured.url(database="nowhere"), *password, *trusted], "has no database nowhere; `telemetry ship"),
        (
            [secured.url(database="default"), *password, *trusted],
            "default has no telemetry tables; `telemetr",
        ),
        (
            [secured.url(database="earlier"), *password, *trusted],
            f"have version 0 and this program needs version {VERSION}: let `telemetry ship --set-up` make a new",
        ),
        (
            [secured.url(database="later"), *password, *trusted],
            f"have version 9 and this program needs version {VERSION}: upgrade this program",
        ),
    )
    for (url, *how), said in cases:
        # Not --once: a mistake of the person who starts it is not waited for.
        # What a proxy may do too is tried again, without --once.
        once = ["--once"] if "if it wants TLS" in said else []
        assert main(["ship", str(logs), "--to", url, *how, *once]) == 2, said
        out, shown = capsys.readouterr()
        with pytest.raises(launcher.LaunchError) as refused:
            launcher.prepare(launcher.parse_options(["--no-browser", "--store", url, *how]))
        sentence = shown.strip()

        assert said in sentence
        assert (out, shown.count("\n")) == ("", 1)
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)
        for secret in (PASSWORD, WRONG):
            assert secret not in sentence + str(refused.value)
    # Nor are tables of another version made over.
    assert main(["ship", "--set-up", "--to", secured.url(database="later"), *password, *trusted]) == 2
    assert "upgrade this program" in capsys.readouterr().err


def shows_password(process) -> list[str]:
    """Return the processes of this machine whose arguments contain the password."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = place.read_bytes()
        except OSError:
            continue
        if PASSWORD.encode() in arguments:
            found.append(str(place))
    assert process.poll() is None
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="this machine has no /proc")
def test_a_shipper_never_shows_its_password(secured, logs, tmp_path):
    folder = make_run(logs, "watched", 5)
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "toolkit.telemetry.cli", "ship", str(logs), "--to", secured.url()),
                *("--ca", str(secured.ca), "--password-file", str(secured.password_file)),
            ],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        connection = Engine(secured.address())
        expected = record_bytes(folder)["metrics.jsonl"]
        wait_until(lambda: newest_or_nothing(connection, id_of(folder)) == expected, process)
        assert shows_password(process) == []
        assert PASSWORD.encode() not in Path(f"/proc/{process.pid}/environ").read_bytes()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()

    assert "shipping" in output.read_text()
    assert PASSWORD not in output.read_text()


@in_make_faults
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="this machine has no /proc")
def test_a_dashboard_never_shows_its_password(secured, logs, tmp_path):
    make_run(logs, "on-a-page", 5)
    (port,) = free_ports(1)
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [
                *(sys.executable, str(ROOT / "run_dashboard.py"), "--no-browser", "--port", str(port)),
                *("--store", secured.url(), "--ca", str(secured.ca)),
                *("--password-file", str(secured.password_file)),
            ],
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path)},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: answers(port), process)
        assert shows_password(process) == []
        assert PASSWORD.encode() not in Path(f"/proc/{process.pid}/environ").read_bytes()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()

    assert PASSWORD not in output.read_text()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def changes_in(secured, run_id) -> list:
    """Return the rows of a run that a page can write."""
    connection = Engine(secured.address())
    try:
        return [
            row
            for table in ("labels", "requests")
            for row in connection.rows(f"SELECT run_id, by FROM {table} WHERE run_id = '{run_id}'")
        ]
    finally:
        connection.close()


@in_make_faults
def test_whatever_a_viewer_presses_on_pages_of_the_engine_changes_nothing(secured, logs, tmp_path):
    pytest.importorskip("streamlit")
    from tests.attacks.http_client import Visitor, pressed, typed
    from tests.dashboard.serving import dashboard

    folder = make_run(logs, "pressed", 20)
    ship(secured, logs)
    how = ("--ca", str(secured.ca), "--password-file", str(secured.password_file))
    run = f"run={id_of(folder)}"
    with dashboard(
        tmp_path, "--host", "0.0.0.0", "--store", secured.url(), *how, "--reader-token"
    ) as started:
        started.wait_until_ready()
        operator, viewer = Visitor(started.port), Visitor(started.port)
        for visitor, address in zip(
            (operator, viewer), re.findall(r"http://\S+/\?token=\S+", started.out), strict=True
        ):
            assert visitor.come_in(address) == 200
        pages = ("", "overview", "metrics", "config", "settings")
        with operator.tab() as tab:
            every = {widget for page in pages for widget in tab.open(page, run).buttons().values()}
            name = tab.open("config", f"{run}&tab=Notes").field("Name")
        assert every
        renamed = [typed(name, "renamed")]
        with viewer.tab() as tab:
            for page in pages:
                shown = tab.open(page, run)
                assert "Traceback" not in shown.text
                assert not {"Apply", "Archive", "Restore", "Stop"} & set(shown.buttons())
                tab.open(page, run, states=[pressed(widget) for widget in every])
            tab.open("config", run).open("config", run, states=renamed)
        assert changes_in(secured, id_of(folder)) == []
        # The same of an operator arrives.
        with operator.tab() as tab:
            tab.open("config", run).open("config", run, states=renamed)
        wait_until(lambda: changes_in(secured, id_of(folder)))
    assert PASSWORD not in started.out + started.err
