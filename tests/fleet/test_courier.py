"""Requests reach a run through the engine: signed ones, one at a time, each once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dashboard import launcher
from tests.browser.growing_run import Training
from tests.fleet.engines import ROOT
from tests.fleet.requests_to_runs import (
    KEY,
    Node,
    answer,
    make_live_run,
    put,
    put_row,
    start_shipper,
    write_key,
)
from tests.fleet.shipped_runs import id_of, ship
from tests.lengths import in_make_faults
from tests.waiting import wait_until
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.fleet.address import AddressError
from toolkit.telemetry.fleet.engine import Engine, quote
from toolkit.telemetry.fleet.schema import set_up
from toolkit.telemetry.fleet.shipping import courier
from toolkit.telemetry.fleet.signed_requests import SignedRequest, read_key
from toolkit.telemetry.runfolder.control import peek, read_request
from toolkit.telemetry.runfolder.process import host_name
from toolkit.telemetry.runfolder.records import CONTROL_CHANGE
from toolkit.telemetry.runs.sources.clickhouse import requests as engine_requests
from toolkit.telemetry.runs.sources.clickhouse import runs as engine_runs
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore
from toolkit.telemetry.runs.store import Refused

PATIENCE_S = 120.0


def store_on(engine, key=KEY, **how):
    return ClickHouseStore(engine.address(), patience_s=PATIENCE_S, request_key=key, **how)


def answers_of(store, key):
    store.refresh(key, wait_s=1.0)
    return {record["id"]: record for record in store.events(key, (CONTROL_CHANGE,), limit=50)}


def test_a_page_steers_a_live_run_through_the_engine(engine, logs, tmp_path):
    shipper = start_shipper(engine, logs, write_key(tmp_path))
    store = store_on(engine, visitor=lambda: "ann@example.org")
    try:
        with Training(logs, "steered", tmp_path) as training:
            key = id_of(training.folder)
            wait_until(lambda: is_offered(store, key), shipper)

            asked = store.ask(key, {"log_every": 7, "actions": ["stop"]})

            assert store.delivery(key, asked).text in (f"waiting for {host_name()}", "pending")
            wait_until(lambda: asked in answers_of(store, key), shipper)
            wait_until(lambda: store.card(key).status.name == "stopped", shipper)
    finally:
        shipper.kill()
        shipper.communicate()
    found = answers_of(store, key)[asked]
    assert [found[name] for name in ("status", "old", "new")] == ["applied", 5, 7]
    by = Engine(engine.address()).rows(f"SELECT `by` FROM requests WHERE run_id = {quote(key)}", "String")
    assert by == [("ann@example.org",)]
    with pytest.raises(Refused, match="stopped and cannot answer"):
        store.ask(key, {"log_every": 9})


def is_offered(store, key):
    try:
        return store.meta(key).control_refusal is None
    except LookupError:
        return False


def test_only_requests_that_are_signed_valid_and_new_are_delivered(engine, logs):
    folder, other = make_live_run(logs, "one"), make_live_run(logs, "other")
    node, run_id = Node(engine, logs), id_of(folder)
    put(engine, run_id, "forged", key=b"x" * 32)
    put(engine, run_id, "unsigned", mac=b"")
    now = time.time()
    put(engine, run_id, "expired", asked=now - 60, expires=now - 10)
    put(engine, run_id, "endless", expires=1e18)
    put(engine, run_id, "large", body=b'{"knobs": {"x": "%s"}}' % (b"y" * 70_000))
    for number, body in enumerate((b"", b"{", b"[]", b"{}", b'{"id": "x"}', b'{"log_every": "x"}')):
        put(engine, run_id, f"malformed-{number}", body=body)
    # Signed for another run, and copied with another body.
    row = SignedRequest(
        run_id=run_id.encode(), id=b"copied", asked=now, expires=now + 600, by=b"", body=b'{"log_every":50}'
    )
    signed = replace(row, mac=row.signature(KEY))
    put_row(engine, replace(signed, run_id=id_of(other).encode()))
    put_row(engine, replace(signed, body=b'{"log_every":51}'))

    for _ in range(3):
        node.round()

    assert not (folder / "control.json").exists()
    assert not (other / "control.json").exists()
    said = "\n".join(node.said)
    assert said.count("the run one has no valid signature and is not delivered") == 1
    assert said.count("the run other has no valid signature and is not delivered") == 1
    assert said.count("a request to the run one is too large") == 1
    assert said.count("request endless to the run one is not delivered: it must expire within") == 1
    assert said.count("request expired to the run one is not delivered: it expired ") == 1
    assert all(said.count(f"request malformed-{number} to") == 1 for number in range(6))

    put(engine, run_id, "good")
    node.round()
    assert read_request(folder).id == "good"
    answer(folder, "good")
    os.unlink(folder / "control.json")
    node.round()
    # The same row, and the same request in another row, are a replay.
    Node(engine, logs).round()
    assert not (folder / "control.json").exists()


def test_rows_without_a_signature_neither_hold_up_nor_replace_a_request(engine, logs, record_property):
    folder = make_live_run(logs, "flooded")
    run_id, node, connection = id_of(folder), Node(engine, logs), Engine(engine.address())
    put(engine, run_id, "good", asked=time.time() - 5)
    forged = 900
    connection.query(
        "INSERT INTO requests (run_id, id, asked, expires, body, mac, created) SELECT "
        f"{quote(run_id)}, if(number = 0, 'good', toString(number)), toUnixTimestamp(now()) + number % 7, "
        f"toUnixTimestamp(now()) + 600, '{{}}', '{'a' * 64}', '2026-09-21' FROM numbers({forged})"
    )
    connection.query("OPTIMIZE TABLE requests FINAL")

    node.round()

    assert read_request(folder).id == "good"
    record_property("measured", f"{forged:,} rows without a signature, the request delivered")


def test_the_next_request_waits_for_the_answer_also_of_a_courier_that_was_killed(engine, logs):
    folder = make_live_run(logs, "two")
    run_id = id_of(folder)
    node = Node(engine, logs)
    put(engine, run_id, "first", body=b'{"log_every": 30}')
    put(engine, run_id, "second", body=b'{"actions": ["stop"]}')
    node.round()
    delivered = peek(folder)
    assert read_request(folder).id == "first"

    for again in (node, Node(engine, logs), Node(engine, logs)):
        again.round()
        assert peek(folder) == delivered
    # Even if someone on the node has replaced it meanwhile.
    os.unlink(folder / "control.json")
    Node(engine, logs)
    assert not (folder / "control.json").exists()

    answer(folder, "first")
    again.round()
    found = read_request(folder)
    assert (found.id, found.actions, found.run_id) == ("second", ("stop",), run_id)
    assert found.expires - found.timestamp == pytest.approx(600, abs=1)


def test_a_run_whose_folder_belongs_to_another_user_gets_nothing_and_the_page_says_so(engine, logs):
    folder = make_live_run(logs, "foreign")
    folder.chmod(0o770)
    node, run_id, store = Node(engine, logs), id_of(folder), store_on(engine)
    put(engine, run_id, "x")
    node.round()

    assert not (folder / "control.json").exists()
    reason = "the run folder can be written by others (mode 0770)"
    assert any(line.startswith(f"requests of {folder} are not delivered: {reason}") for line in node.said)
    assert reason in store.meta(run_id).control_refusal
    with pytest.raises(Refused, match="can be written by others"):
        store.ask(run_id, {"log_every": 20})


def test_a_page_says_beforehand_that_a_request_would_not_be_delivered(engine, logs):
    folder = make_live_run(logs, "silent")
    run_id, node = id_of(folder), host_name()
    ship(engine, logs)
    for key, reason in (
        (None, "started without --request-key"),
        (KEY, f"{node} does not deliver requests: its shipper runs without --deliver-requests"),
    ):
        store = store_on(engine, key)
        assert reason in store.meta(run_id).control_refusal
        with pytest.raises(Refused, match=reason):
            store.ask(run_id, {"log_every": 20})
    Node(engine, logs, b"another key, and it is long enough")
    with pytest.raises(Refused, match=f"{node} has another request key than this dashboard"):
        store_on(engine).ask(run_id, {"log_every": 20})


@in_make_faults
def test_clocks_that_are_an_hour_off_change_nothing(engine, logs, monkeypatch):
    folder = make_live_run(logs, "clocks")
    run_id, node = id_of(folder), Node(engine, logs)
    for module, off_s in ((courier, 3600), (engine_requests, -3600), (engine_runs, -3600)):
        clock = SimpleNamespace(
            time=lambda off_s=off_s: time.time() + off_s,
            monotonic=time.monotonic,
            perf_counter=time.perf_counter,
        )
        monkeypatch.setattr(module, "time", clock)
    store = store_on(engine)

    asked = store.ask(run_id, {"log_every": 20})
    node.round()

    found = read_request(folder)
    assert found.id == asked
    # The run goes by the clock of its node.
    assert found.timestamp == pytest.approx(time.time() + 3600, abs=300)
    assert found.expires - found.timestamp == pytest.approx(600, abs=1)


def test_a_viewer_sends_nothing(engine, logs):
    folder = make_live_run(logs, "viewed")
    Node(engine, logs)
    for how in ({"read_only": True}, {"read_only_reason": lambda: "this link gives read-only access"}):
        with pytest.raises(Refused, match="read-only"):
            store_on(engine, **how).ask(id_of(folder), {"log_every": 20})
    found = Engine(engine.address()).rows(
        f"SELECT count() FROM requests WHERE run_id = {quote(id_of(folder))}", "UInt64"
    )
    assert found == [(0,)]


def test_a_page_shows_what_became_of_a_request_that_has_no_answer(engine, logs):
    folder = make_live_run(logs, "waiting")
    run_id, node = id_of(folder), Node(engine, logs)
    store = store_on(engine)
    asked = store.ask(run_id, {"log_every": 20})
    assert store.delivery(run_id, asked).text == f"waiting for {host_name()}"

    node.round()
    wait_until(lambda: store.delivery(run_id, asked).text == "pending")
    # After it one that asks for nothing, and one that no one takes until it expires.
    answer(folder, asked)
    put(engine, run_id, "empty", body=b"{}")
    node.round()
    store._requests._by_run[run_id].asked.update({"empty": time.time() + 600, "late": 1.0})
    found = wait_until(lambda: (note := store.delivery(run_id, "empty")).is_over and note)
    assert found.text == "not delivered: it asks for nothing"
    found = store.delivery(run_id, "late")
    assert (found.text, found.is_over) == (f"expired, {host_name()} did not deliver it", True)


@in_make_faults
def test_a_courier_killed_between_the_file_and_its_note_delivers_nothing_twice(engine, logs, tmp_path):
    key_file, store = write_key(tmp_path), store_on(engine)
    address = str(engine.address()).replace("default@", "")
    with Training(logs, "killed", tmp_path) as training:
        key, asked = id_of(training.folder), []
        for number in range(3):
            marker = tmp_path / f"killed-{number}"
            child = subprocess.Popen(
                [sys.executable, "-m", "tests.fleet.delivering_child", address, logs, key_file, marker],
                cwd=ROOT,
            )
            wait_until(lambda: is_offered(store, key))
            asked += [store.ask(key, {"actions": ["save"]}) for _ in range(2)]
            child.wait(PATIENCE_S)
            assert marker.exists()
        shipper = start_shipper(engine, logs, key_file)
        try:
            wait_until(lambda: set(asked) <= set(answers_of(store, key)), shipper)
        finally:
            shipper.kill()
            shipper.communicate()
        records = [json.loads(line) for line in (training.folder / "metrics.jsonl").read_bytes().splitlines()]
    answered = [record["id"] for record in records if record["event"] == CONTROL_CHANGE]
    assert answered == asked
    assert len([record for record in records if record["event"] == "checkpoint"]) == len(asked)


@in_make_faults
def test_with_tables_of_an_older_version_lines_are_shipped_and_requests_are_not(engine, logs):
    address = engine.address("older")
    set_up(address)
    Engine(address).query("DROP TABLE deliveries")
    folder = make_live_run(logs, "older")
    node = Node(SimpleNamespace(address=lambda: address), logs)
    store = ClickHouseStore(address, patience_s=PATIENCE_S, request_key=KEY)

    assert node.shipper.totals.lines == 3
    assert len([line for line in node.said if "deliveries" in line and "--set-up` makes it" in line]) == 1
    assert "does not deliver requests" in store.meta(id_of(folder)).control_refusal

    set_up(address)
    wait_until(lambda: node.round() or is_offered(store, id_of(folder)))


def test_options_that_cannot_be_used_are_refused_with_one_sentence(engine, logs, tmp_path, capsys):
    place = str(engine.address())
    key_file = str(write_key(tmp_path))
    for options, said in (
        (("--deliver-requests", key_file, "--once"), "is for a shipper that keeps running"),
        (("--deliver-requests", str(tmp_path / "none")), "the key file .* cannot be read: No such file"),
    ):
        assert main(["ship", str(logs), "--to", place, *options]) == 2
        assert re.search(said, capsys.readouterr().err)
    write_key(tmp_path, b"short")
    options = launcher.parse_options(["--no-browser", "--store", place, "--request-key", key_file])
    with pytest.raises(launcher.LaunchError, match="--request-key: the key in .* fewer than 32"):
        launcher.prepare(options)
    with pytest.raises(SystemExit):
        launcher.parse_options(["--no-browser", "--request-key", key_file])
    assert re.search("--request-key.* need --store", capsys.readouterr().err)


def test_a_key_file_is_private_and_long_enough(tmp_path):
    path = write_key(tmp_path)
    assert read_key(path) == KEY
    path.chmod(0o640)
    with pytest.raises(AddressError, match=r"other users can read the key in .*: chmod 600"):
        read_key(path)
    path = write_key(tmp_path, b"short")
    with pytest.raises(AddressError, match=r"has 5 bytes, fewer than 32; make one with \(umask 077; openssl"):
        read_key(path)


def test_no_two_requests_have_the_same_signature():
    fields = {"run_id": b"ab", "id": b"c", "asked": 1.0, "expires": 2.0, "by": b"d", "body": b"ef"}
    changed = [
        *({name: value + b"x"} for name, value in fields.items() if isinstance(value, bytes)),
        *({name: value + 1} for name, value in fields.items() if isinstance(value, float)),
        # The same bytes in other fields.
        {"run_id": b"a", "id": b"bc"},
        {"by": b"", "body": b"def"},
        {"by": b"de", "body": b"f"},
    ]
    requests = [SignedRequest(**fields), *(SignedRequest(**{**fields, **change}) for change in changed)]
    assert len({request.signature(KEY) for request in requests}) == len(requests)
    assert len({request.signature(KEY + b"x") for request in requests}) == len(requests)
