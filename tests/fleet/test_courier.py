"""Requests reach a run through the engine: signed ones, one at a time, each once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from tests.browser.growing_run import Training
from tests.fleet.engines import ROOT
from tests.fleet.requests_to_runs import (
    Node,
    answer,
    make_live_run,
    put,
    start_shipper,
)
from tests.fleet.shipped_runs import id_of, ship
from tests.lengths import in_make_faults
from tests.waiting import wait_until
from toolkit.telemetry.fleet.engine import Engine, quote
from toolkit.telemetry.fleet.shipping import courier
from toolkit.telemetry.runfolder.control import peek, read_request
from toolkit.telemetry.runfolder.process import host_name
from toolkit.telemetry.runfolder.records import CONTROL_CHANGE
from toolkit.telemetry.runs.sources.clickhouse import requests as engine_requests
from toolkit.telemetry.runs.sources.clickhouse import runs as engine_runs
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore
from toolkit.telemetry.runs.store import Refused

PATIENCE_S = 120.0


def store_on(engine, **how):
    return ClickHouseStore(engine.address(), patience_s=PATIENCE_S, **how)


def answers_of(store, key):
    store.refresh(key, wait_s=1.0)
    return {record["id"]: record for record in store.events(key, (CONTROL_CHANGE,), limit=50)}


def test_a_page_steers_a_live_run_through_the_engine(engine, logs, tmp_path):
    shipper = start_shipper(engine, logs)
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
    by = Engine(engine.address()).rows(f"SELECT `by` FROM requests WHERE run_id = {quote(key)}")
    assert by == [("ann@example.org",)]
    with pytest.raises(Refused, match="stopped and cannot answer"):
        store.ask(key, {"log_every": 9})


def is_offered(store, key):
    try:
        return store.meta(key).control_refusal is None
    except LookupError:
        return False


def test_only_requests_that_are_valid_and_new_are_delivered(engine, logs):
    folder = make_live_run(logs, "one")
    node, run_id = Node(engine, logs), id_of(folder)
    now = time.time()
    put(engine, run_id, "expired", asked=now - 60, expires=now - 10)
    put(engine, run_id, "endless", expires=1e18)
    put(engine, run_id, "large", body=b'{"knobs": {"x": "%s"}}' % (b"y" * 70_000))
    put(engine, run_id, "../up")
    for number, body in enumerate((b"", b"{", b"[]", b"{}", b'{"id": "x"}', b'{"log_every": "x"}')):
        put(engine, run_id, f"malformed-{number}", body=body)

    for _ in range(3):
        node.round()

    assert not (folder / "control.json").exists()
    said = "\n".join(node.said)
    assert said.count("request large to the run one is not delivered: the request has ") == 1
    assert said.count("request endless to the run one is not delivered: it must expire within") == 1
    assert said.count("request expired to the run one is not delivered: it expired ") == 1
    assert said.count("request ../up to the run one is not delivered: ") == 1
    assert all(said.count(f"request malformed-{number} to") == 1 for number in range(6))

    put(engine, run_id, "good")
    node.round()
    assert read_request(folder).id == "good"
    answer(folder, "good")
    os.unlink(folder / "control.json")
    node.round()
    Node(engine, logs).round()
    assert not (folder / "control.json").exists()


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
    run_id = id_of(make_live_run(logs, "silent"))
    ship(engine, logs)
    reason = f"{host_name()} does not deliver requests: its shipper runs without --deliver-requests"
    assert reason in store_on(engine).meta(run_id).control_refusal
    with pytest.raises(Refused, match=reason):
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
    put(engine, run_id, "late", asked=time.time() - 20_000, expires=time.time() - 10_000)
    found = wait_until(lambda: (note := store.delivery(run_id, "empty")).is_over and note)
    assert found.text == "not delivered: it asks for nothing"
    found = store.delivery(run_id, "late")
    assert (found.text, found.is_over) == (f"expired, {host_name()} did not deliver it", True)


@in_make_faults
def test_a_courier_killed_between_the_file_and_its_note_delivers_nothing_twice(engine, logs, tmp_path):
    store = store_on(engine)
    address = str(engine.address()).replace("default@", "")
    with Training(logs, "killed", tmp_path) as training:
        key, asked = id_of(training.folder), []
        for number in range(3):
            marker = tmp_path / f"killed-{number}"
            child = subprocess.Popen(
                [sys.executable, "-m", "tests.fleet.delivering_child", address, logs, marker],
                cwd=ROOT,
            )
            wait_until(lambda: is_offered(store, key))
            asked += [store.ask(key, {"actions": ["save"]}) for _ in range(2)]
            child.wait(PATIENCE_S)
            assert marker.exists()
        shipper = start_shipper(engine, logs)
        try:
            wait_until(lambda: set(asked) <= set(answers_of(store, key)), shipper)
        finally:
            shipper.kill()
            shipper.communicate()
        records = [json.loads(line) for line in (training.folder / "metrics.jsonl").read_bytes().splitlines()]
    answered = [record["id"] for record in records if record["event"] == CONTROL_CHANGE]
    assert answered == asked
    assert len([record for record in records if record["event"] == "checkpoint"]) == len(asked)
