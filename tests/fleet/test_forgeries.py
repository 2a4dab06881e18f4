"""Whoever has the nodes' password, but not the team's key, cannot hide, replace or end a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fleet.engines import Embedded, NoEngine
from tests.fleet.requests_to_runs import KEY
from tests.fleet.shipped_runs import append, id_of, make_run, record_bytes, ship
from toolkit.telemetry.fleet.engine import Engine, EngineError, quote
from toolkit.telemetry.fleet.pull import PullError, pull
from toolkit.telemetry.fleet.schema import set_up
from toolkit.telemetry.fleet.signed_requests import token_of
from toolkit.telemetry.runfolder.labels import Labels, write_labels
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore

PATIENCE_S = 120.0
OTHER_KEY = b"o" * 32


class Signed:
    """An engine as those see it who have a key."""

    def __init__(self, engine, key=KEY):
        self._engine, self._key = engine, key

    def address(self):
        return replace(self._engine.address(), key=self._key)

    def bytes_of(self, run_id, folder):
        """Return the records as `pull` brings them back, and what a page says about them."""
        store = ClickHouseStore(self._engine.address(), patience_s=PATIENCE_S, request_key=self._key)
        health = store.refresh(run_id, wait_s=PATIENCE_S)
        pulled = record_bytes(pull(Engine(self.address()), run_id, folder).folder)
        assert b"".join(store.record_lines(run_id)) == pulled["metrics.jsonl"]
        return pulled, health.problem


def forge(engine, table, **values):
    connection = Engine(engine.address())
    texts = [quote(value) if isinstance(value, str) else str(value) for value in values.values()]
    connection.query(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(texts)})")
    merged = table.removeprefix("node_")
    connection.query(f"OPTIMIZE TABLE {merged} FINAL")


def test_a_forged_commit_hides_and_replaces_nothing_and_is_named(engine, logs, tmp_path):
    folder = make_run(logs, "real")
    run_id, signed = id_of(folder), Signed(engine)
    ship(signed, logs)
    seal, mac = Engine(engine.address()).rows(
        f"SELECT seal, mac FROM commits WHERE run_id = {quote(run_id)}", "String", "String"
    )[0]
    common = {"run_id": run_id, "rank": 0, "created": "2026-09-21"}
    forge(engine, "commits", **common, gen=65535, end=0)
    forge(engine, "commits", **common, gen=1, end=10**15, mac=mac)
    # The signature of another run, and of another generation of this one.
    forge(engine, "commits", **common, gen=2, end=5, seal="x" * 64, mac=mac)

    pulled, problem = signed.bytes_of(run_id, tmp_path / "pulled")

    assert pulled == record_bytes(folder)
    assert f"of 1 record files of the run {run_id} have no valid signature and are ignored" in problem
    append(folder, range(20, 25))
    said = []
    shipper = ship(signed, logs, say=said.append)
    assert shipper.totals.lines == 5
    assert [file.problem for file in shipper.files] == [None]
    assert shipper.verify() == []
    assert sum("have no valid signature" in line for line in said) == 1
    assert signed.bytes_of(run_id, tmp_path / "again")[0] == record_bytes(folder)
    assert len(seal) == 64
    # The last values are for those who know the seal.
    for known, count in ((seal, 1), ("", 0), (mac, 0)):
        rows = f"commit_metrics(seals = [{quote(known)}]) WHERE run_id = {quote(run_id)} AND notEmpty(names)"
        assert Engine(engine.address()).rows(f"SELECT count() FROM {rows}", "UInt64") == [(count,)]


def test_with_a_new_key_everything_is_committed_again(engine, logs, tmp_path):
    folder = make_run(logs, "moved")
    run_id = id_of(folder)
    ship(engine, logs)
    for key in (KEY, OTHER_KEY):
        signed = Signed(engine, key)
        store = ClickHouseStore(engine.address(), patience_s=PATIENCE_S, request_key=key)
        health = store.refresh(run_id, wait_s=PATIENCE_S)
        assert (health.records, "no valid signature" in health.problem) == (0, True)

        ship(signed, logs)

        assert signed.bytes_of(run_id, tmp_path / key[:1].decode())[0] == record_bytes(folder)
    generations = Engine(engine.address()).rows(
        f"SELECT DISTINCT gen FROM records WHERE run_id = {quote(run_id)}", "UInt16"
    )
    assert generations == [(1,)]


def test_forged_lines_are_refused_by_pull_and_found_and_repaired_by_verify(engine, logs, tmp_path):
    folder = make_run(logs, "changed")
    run_id, signed = id_of(folder), Signed(engine)
    shipper = ship(signed, logs)
    line = record_bytes(folder)["metrics.jsonl"].split(b"\n")[0].decode()
    created = Engine(engine.address()).rows(
        f"SELECT DISTINCT toString(created) FROM records WHERE run_id = {quote(run_id)}", "String"
    )[0][0]
    common = {"run_id": run_id, "rank": 0, "gen": 1, "at": 0, "created": created}
    forge(engine, "records", **common, next=len(line) + 1, event="step", line=line.replace("1.0", "9.0"))
    forge(engine, "points", **common, metric="train_loss", n=1, value=9.0)

    with pytest.raises(PullError, match="differs from the one that was shipped; `telemetry ship --verify`"):
        pull(Engine(signed.address()), run_id, tmp_path / "refused")
    repaired = shipper.verify()

    assert len(repaired) == 1
    assert "the engine had lines that the file has not; it is shipped again" in repaired[0]
    shipper.ship_all()
    assert signed.bytes_of(run_id, tmp_path / "pulled")[0] == record_bytes(folder)


@pytest.mark.parametrize("line", [1, 2])
@pytest.mark.parametrize("forged", ["other kind", "no length", "endless", "not a record"])
def test_a_forged_line_takes_no_page_of_the_run_away(engine, logs, line, forged):
    folder = make_run(logs, f"{forged} {line}", 0)
    for step in range(3):
        append(folder, [step], **{f"only_{step}": 1.0})
    run_id, signed = id_of(folder), Signed(engine)
    ship(signed, logs)
    real = record_bytes(folder)["metrics.jsonl"].splitlines(keepends=True)
    at = sum(map(len, real[:line]))
    after = at + len(real[line])
    created = Engine(engine.address()).rows(
        f"SELECT DISTINCT toString(created) FROM records WHERE run_id = {quote(run_id)}", "String"
    )[0][0]
    row = {"run_id": run_id, "rank": 0, "gen": 1, "at": at, "created": created, "line": "{}"}
    row |= {
        "other kind": {"next": after, "event": "start"},
        "no length": {"next": at, "event": "step"},
        "endless": {"next": 2**64 - 1, "event": "step"},
        "not a record": {"next": after, "event": ""},
    }[forged]
    forge(engine, "records", **row)
    store = ClickHouseStore(engine.address(), patience_s=PATIENCE_S, request_key=KEY)

    for _ in range(2):
        health = store.refresh(run_id, wait_s=PATIENCE_S)
        assert health.records <= 3
        for metric in [info.name for info in store.metrics(run_id)]:
            assert sum(len(part.x) for part in store.series(run_id, metric).segments) <= 3
        store.meta(run_id)
        store.events(run_id)
        store.spans(run_id)
        store.table(run_id)
        append(folder, [5])
        ship(signed, logs)


def test_without_the_key_no_row_from_a_node_deletes_renames_or_ends_a_run(tmp_path):
    try:
        engine = Embedded(tmp_path / "engine")
    except NoEngine as error:
        pytest.skip(str(error))
    engine.start()
    try:
        for key in (OTHER_KEY, KEY):
            # As `--set-up --team` does, also with a new key.
            set_up(replace(engine.address(), key=key))
        signed, folder = Signed(engine), make_run(tmp_path / "logs", "mine")
        for other, said in ((engine, "has none"), (Signed(engine, OTHER_KEY), "has another one")):
            with pytest.raises(
                EngineError, match=f"with the team's key only, and this shipper {said}: --key"
            ):
                ship(other, tmp_path / "logs")
        write_labels(folder, Labels(notes="ours"))
        run_id, now = id_of(folder), 2**63
        ship(signed, tmp_path / "logs")
        common = {"run_id": run_id, "version": now, "created": "2026-09-21"}
        for token in ("", "x" * 64, token_of(OTHER_KEY).decode()):
            forge(
                engine,
                "node_labels",
                **common,
                deleted=1,
                archived=1,
                labels='{"notes": "theirs"}',
                token=token,
            )
            forge(engine, "node_runs", **common, name="theirs", status="failed", token=token)
            # Requests that count as delivered, files with another content, a node that seems to live.
            for table in ("node_deliveries", "node_objects"):
                forge(engine, table, **common, token=token)
            forge(engine, "node_shippers", node="theirs", version=now, token=token)

        store = ClickHouseStore(engine.address(), patience_s=PATIENCE_S, request_key=KEY)
        assert [card.name for card in store.list_runs().cards] == ["mine"]
        meta = store.meta(run_id)
        assert (meta.labels.notes, meta.card.status.name) == ("ours", "finished")
        for table in ("deliveries", "objects", "shippers"):
            assert not Engine(engine.address()).query(f"SELECT * FROM {table} WHERE version = {now}")
        # Not even with the key: a page deletes.
        forge(engine, "node_labels", **common, deleted=1, token=token_of(KEY).decode())
        assert Engine(engine.address()).rows(
            "SELECT max(deleted), max(version) FROM labels", "UInt8", "UInt64"
        ) == [(0, now)]
        shipper = ship(signed, tmp_path / "logs")
        assert not any(run.report.is_deleted for run in shipper.runs.values())
    finally:
        engine.stop()
