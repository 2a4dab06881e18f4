"""Everything that can be wrong with an engine is one clear sentence, nothing is lost, and no password is shown."""

from __future__ import annotations

import json
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from tests.fleet.conftest import started
from tests.fleet.engines import PASSWORD, free_ports
from tests.fleet.flaky_front import (
    DROP_ANSWER,
    DROP_REQUEST,
    ERROR,
    NO_SPACE,
    TOO_MANY_PARTS,
    FlakyFront,
)
from tests.fleet.shipped_runs import (
    begin_shipping,
    engine_bytes,
    id_of,
    make_run,
    newest_or_nothing,
    record_bytes,
    ship,
)
from tests.waiting import wait_until
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.core import outbox
from toolkit.telemetry.fleet import run_rows
from toolkit.telemetry.fleet.address import address_of
from toolkit.telemetry.fleet.engine import Engine, RefusedError, UnreachableError
from toolkit.telemetry.fleet.shipping import sender as sender_module


@pytest.fixture
def front(engine):
    port = engine.address().port
    started = FlakyFront(port)
    yield started
    started.close()


@pytest.fixture
def brief_pauses(monkeypatch):
    monkeypatch.setattr(outbox, "FIRST_S", 0.05)
    monkeypatch.setattr(outbox, "LONGEST_S", 0.2)
    monkeypatch.setattr(sender_module, "EVERY_S", 0.05)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ((ERROR, TOO_MANY_PARTS), "cannot take more now: Too many parts (300). Merges are slower"),
        ((ERROR, NO_SPACE), "cannot take more now: Cannot reserve 1.00 MiB, not enough space."),
        ((ERROR, "<html>Bad gateway</html>"), "is not ClickHouse, or a proxy failed (status 500)"),
        ((DROP_REQUEST, ""), "cannot be reached: RemoteDisconnected"),
        ((DROP_ANSWER, ""), "cannot be reached: RemoteDisconnected"),
    ],
)
def test_an_engine_that_refuses_or_drops_is_waited_for(engine, ask, front, logs, brief_pauses, fault, said):
    folder = make_run(logs, "waits", 40)
    front.faults = [fault] * 4
    errors = []
    shipper = begin_shipping(front.address(), logs, say=errors.append)
    stop = threading.Event()
    thread = threading.Thread(target=shipper.run, args=(stop,))
    thread.start()
    try:
        wait_until(lambda: newest_or_nothing(ask, id_of(folder)) == record_bytes(folder)["metrics.jsonl"])
    finally:
        stop.set()
        thread.join()

    assert engine_bytes(ask, id_of(folder)) == {(0, 1): record_bytes(folder)["metrics.jsonl"]}
    assert front.faults == []
    assert said in errors[1]
    assert "\n" not in errors[1]
    assert shipper.totals.errors >= 1


def test_files_that_an_engine_that_is_away_was_not_asked_for_are_not_tried_without_a_pause(
    engine, logs, monkeypatch
):
    monkeypatch.setattr(outbox, "FIRST_S", 3600.0)
    monkeypatch.setattr(outbox, "LONGEST_S", 3600.0)
    make_run(logs, "new", 3)
    (closed,) = free_ports(1)
    shipper = begin_shipping(engine, logs)
    shipper.sender.engine = Engine(address_of(f"clickhouse://127.0.0.1:{closed}/telemetry"))

    assert not shipper.ship_round()
    assert shipper.sender.has_unknown_files


def test_a_clock_that_is_off_is_measured_and_shown(engine, logs, capsys, monkeypatch):
    make_run(logs, "late", 3)
    with monkeypatch.context() as patched:
        ahead = SimpleNamespace(time=lambda: time.time() + 3600.0, monotonic=time.monotonic)
        patched.setattr(run_rows, "time", ahead)
        ship(engine, logs, node="an hour ahead")

    main(["ship", str(logs), "--status", "--to", f"clickhouse://127.0.0.1:{engine.port}/telemetry"])
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("an hour ahead: "))
    # Each second that the engine takes to begin with it on a busy machine is lost.
    assert 3300 < int(line.split("its clock is +")[1].split(" s off")[0]) <= 3600, line


def test_once_and_pull_say_in_one_sentence_what_is_wrong(engine, logs, capsys):
    make_run(logs, "refused", 3)
    (closed,) = free_ports(1)
    port = engine.address().port
    for address, said in (
        (
            f"clickhouse://127.0.0.1:{closed}/telemetry",
            f"127.0.0.1:{closed} cannot be reached: Connection refused",
        ),
        ("clickhouse://no-such-host.invalid/telemetry", "no machine is called no-such-host.invalid"),
        (
            f"clickhouse://127.0.0.1:{port}/nothing_here",
            "has no database nothing_here; `telemetry ship --set-up`",
        ),
        ("clickhouse://me:secret@127.0.0.1/telemetry", "the address contains a password"),
    ):
        for command in (
            ["ship", str(logs), "--once", "--to", address],
            ["copy", "refused", "--from", address],
        ):
            assert main(command) == 2
            out, err = capsys.readouterr()
            assert said in err, command
            assert err.count("\n") == 1, command
            assert out == ""
            assert "secret" not in err


def test_a_password_that_was_changed_is_read_again(tmp_path):
    secret = tmp_path / "password"
    secret.write_text("the one before\n")
    secret.chmod(0o600)
    for engine in started(tmp_path / "locked", passwords={"ship": PASSWORD}):
        url = f"clickhouse://ship@127.0.0.1:{engine.port}/default"
        connection = Engine(address_of(url, password_file=secret))
        with pytest.raises(RefusedError, match="refused user ship: wrong user name or password$"):
            connection.query("SELECT 1")

        secret.unlink()
        with pytest.raises(RefusedError, match="^the password file .* cannot be read"):
            connection.query("SELECT 1")

        secret.write_text(PASSWORD)
        secret.chmod(0o600)
        assert connection.query("SELECT 1") == b"1\n"


def test_the_command_ships_shows_how_far_and_pulls(engine, logs, tmp_path, capsys):
    port = engine.address().port
    address = f"clickhouse://127.0.0.1:{port}/telemetry"
    folder = make_run(logs, "by-command", 12)
    assert main(["ship", str(logs), "--status", "--to", address]) == 1, "its records are older than a minute"
    size = (folder / "metrics.jsonl").stat().st_size
    assert f"1 record files, {size} bytes behind in 1 of them" in capsys.readouterr().out

    assert main(["ship", str(logs), "--verify", "--to", address]) == 0
    assert "12 lines shipped, 1 record files" in capsys.readouterr().out
    assert main(["ship", str(logs), "--status", "--to", address]) == 0
    assert "0 bytes behind in 0 of them" in capsys.readouterr().out
    assert main(["copy", "by-command", "--from", address, "--to", str(tmp_path / "back")]) == 0
    assert record_bytes(tmp_path / "back" / "by-command") == record_bytes(folder)

    capsys.readouterr()
    assert main(["ship", str(logs), "--status", "--to", address, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["record_files"], found["bytes_behind"], found["late"], found["behind"]) == (1, 0, False, [])
    assert main(["ship", str(logs), "--once", "--to", address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lines"] == 0
    assert main(["copy", "by-command", "--from", address, "--to", str(tmp_path / "again"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["runs"], found["files"], found["missing"]) == (1, 2, 0)
    # What was trained here is not overwritten.
    assert main(["copy", "by-command", "--from", address, "--to", str(logs)]) == 1
    assert f"{logs} has a run by-command that is not a copy" in capsys.readouterr().err
    assert main(["ship", str(logs), "--to", address, "--json"]) == 2
    assert "--json needs --once" in capsys.readouterr().err


def test_an_engine_that_is_silent_is_given_up_after_its_time():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = address_of(f"clickhouse://127.0.0.1:{silent.getsockname()[1]}/telemetry")

        with pytest.raises(UnreachableError, match=r"has not answered for 0.2 s"):
            Engine(address, patience_s=0.2).query("SELECT 1")
