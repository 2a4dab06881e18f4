"""`telemetry copy` between two engines and through a folder."""

from __future__ import annotations

import pytest

from tests.fleet.engines import Embedded
from tests.fleet.shipped_runs import id_of, log_run, make_run, record_bytes, ship
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.fleet import copy as copying
from toolkit.telemetry.fleet.copy import EVERYTHING, ONLY_THERE
from toolkit.telemetry.fleet.engine import Engine
from toolkit.telemetry.fleet.pull import pull
from toolkit.telemetry.fleet.schema import set_up
from toolkit.telemetry.runfolder.labels import Labels
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore


@pytest.fixture
def other(engine, tmp_path):
    """Another engine: with the embedded one, which is one a process, a process of its own."""
    started = Embedded(tmp_path / "other")
    started.start()
    set_up(started.address())
    yield started
    started.stop()


def url(engine):
    address = engine.address()
    return f"clickhouse://127.0.0.1:{address.port}/{address.database}"


def test_labels_go_through_a_folder_and_everything_to_another_engine(
    engine, other, logs, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(copying, "_AT_ONCE", 3_000)
    folders = [make_run(logs, "long", 60), log_run(logs, "logged")]
    ship(engine, logs)
    key = id_of(folders[0])
    store = ClickHouseStore(engine.address())
    store.list_runs()
    store.label(key, Labels(display_name="a new name"))
    backup = tmp_path / "backup"

    assert main(["copy", "--from", url(engine), "--to", str(backup)]) == 0
    assert "labels: " in capsys.readouterr().out
    saved = {path.name.partition(".")[0] for path in backup.iterdir()}
    assert {"labels"} <= saved <= set(ONLY_THERE)
    assert main(["copy", "--from", url(engine), "--to", str(backup)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main(["copy", "--from", str(tmp_path), "--to", url(other)]) == 2
    assert "it is not a back-up" in capsys.readouterr().err
    there = Engine(other.address())
    assert main(["copy", "--from", str(backup), "--to", url(other)]) == 0
    assert there.rows("SELECT count() FROM records", "UInt64") == [(0,)]
    assert there.rows(f"SELECT count() FROM labels WHERE run_id = '{key}'", "UInt64") == [(1,)]

    for _ in range(2):
        assert main(["copy", "--from", url(engine), "--to", url(other), "--all"]) == 0
        for folder in folders:
            back = pull(there, id_of(folder), tmp_path / f"back{_}{folder.name}").folder
            assert record_bytes(back) == record_bytes(folder)
        copied = ClickHouseStore(other.address())
        assert copied.list_runs().find(key).name == "a new name"
        assert copied.series(key, "train_loss") == store.series(key, "train_loss")
        ids = ", ".join(f"'{id_of(folder)}'" for folder in folders)
        for table in EVERYTHING:
            sql = f"SELECT count() FROM {table} FINAL WHERE run_id IN ({ids})"
            assert Engine(engine.address()).rows(sql, "UInt64") == there.rows(sql, "UInt64"), table
