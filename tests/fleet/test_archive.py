"""Finished runs as Parquet: every line byte for byte, every number, and again only what changed."""

from __future__ import annotations

import math
import os
import struct
import subprocess
import sys
import time
from dataclasses import replace

import pandas as pd
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.fleet.engines import ROOT
from tests.fleet.s3_server import BUCKET, SECRET
from tests.fleet.shipped_runs import (
    BROKEN,
    append,
    engine_points,
    file_points,
    id_of,
    log_run,
    make_run,
    ship,
    write,
)
from tests.lengths import in_make_faults
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.fleet.engine import quote
from toolkit.telemetry.runfolder.manifest import read_manifest, write_manifest


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "archive"
    folder.mkdir()
    return folder


def archive(logs, place, *more):
    return main(["archive", str(logs), "--to", f"file://{place}", *more])


def file_of(place, table, folder):
    [found] = (place / table).rglob(f"{id_of(folder)}.parquet")
    return found


def lines_of(path, rank=0):
    """Return the record file that a table of records was made of."""
    table = pq.read_table(path, partitioning=None).to_pylist()
    rows = [row for row in table if row["rank"] == rank]
    assert [row["at"] for row in rows] == [0, *(row["next"] for row in rows)][: len(rows)]
    return b"".join(row["line"] + b"\n" * (row["next"] - row["at"] - len(row["line"])) for row in rows)


def points_of(frame):
    order = frame.sort_values(["metric", "n"])
    return [
        (row.metric, row.n, row.bad, row.at, row.value if math.isfinite(row.value) else str(row.value))
        for row in order.itertuples()
    ]


def test_an_archived_run_has_every_line_and_every_number(logs, place, capsys):
    folder = log_run(logs, "logged")
    odd = make_run(logs, "odd", 3, run_id="../../id of anyone", project="p")
    write(odd, b"\n".join(BROKEN) + b"\n")
    append(odd, range(5), rank=2)

    assert archive(logs.parent / "lo*", place) == 0

    assert "2 runs archived" in capsys.readouterr().out
    month = time.strftime("%Y-%m", time.gmtime(read_manifest(folder).created))
    records = place / "records" / f"month={month}" / f"{id_of(folder)}.parquet"
    assert lines_of(records) == (folder / "metrics.jsonl").read_bytes()
    assert pq.read_metadata(records).metadata[b"run.json"] == (folder / "run.json").read_bytes()
    points = pd.read_parquet(place / "points")
    mine = points[points.run_id == id_of(folder)]
    # NaN and infinities are there as such.
    assert points_of(mine) == [
        (name, n, bad, at, value if math.isfinite(value) else str(value))
        for name, n, bad, at, value in expected_points(folder / "metrics.jsonl")
    ]
    assert mine.value.isna().sum() == 1
    assert set(points.month) == {month, "2026-09"}
    [of_odd] = (place / "records").rglob("run-*.parquet")
    assert lines_of(of_odd) == (odd / "metrics.jsonl").read_bytes()
    assert lines_of(of_odd, rank=2) == (odd / "ranks" / "00002.jsonl").read_bytes()
    assert ds.dataset(place / "records", partitioning="hive").count_rows() == sum(
        path.read_bytes().count(b"\n") for path in logs.rglob("*.jsonl")
    )
    assert sorted(path.name for path in place.iterdir()) == ["points", "records"]


def expected_points(path):
    return [
        (name, n, bad, at, struct.unpack("<d", struct.pack("<Q", bits))[0])
        for name, n, bad, at, bits in file_points(path)
    ]


def test_only_what_changed_is_written_again_and_a_live_run_waits(logs, place, capsys):
    folder, live = make_run(logs, "finished"), make_run(logs, "live")
    manifest = read_manifest(live)
    session = replace(manifest.sessions[0], pid=os.getpid(), status="running")
    write_manifest(
        live, replace(manifest, sessions=(session,), heartbeat=replace(manifest.heartbeat, time=time.time()))
    )
    assert archive(logs, place) == 0
    assert "1 runs archived, 0 were there already, 1 not finished" in capsys.readouterr().out
    records = file_of(place, "records", folder)
    before = records.stat()
    assert archive(logs, place) == 0
    assert "0 runs archived, 1 were there already" in capsys.readouterr().out
    assert records.stat() == before

    append(folder, range(20, 30))
    # Whatever half a file is there, of a copy that was cut off or of someone else.
    file_of(place, "points", folder).write_bytes(b"PAR1 not Parquet")
    assert archive(logs, place) == 0

    assert lines_of(records) == (folder / "metrics.jsonl").read_bytes()
    assert len(pd.read_parquet(file_of(place, "points", folder))) == 60
    records.write_bytes(records.read_bytes()[:-100])
    assert archive(logs, place) == 0
    assert lines_of(records) == (folder / "metrics.jsonl").read_bytes()


def test_bad_input_is_one_sentence(logs, place, tmp_path, capsys):
    make_run(logs, "run")
    copy = make_run(logs, "copy", run_id=id_of(logs / "run"))
    assert archive(logs, place) == 1
    assert f"{logs / 'run'} is not archived: it is a copy of {copy}" in capsys.readouterr().err
    assert archive(logs, tmp_path / "missing") == 2
    assert "is missing; make or mount it" in capsys.readouterr().err
    assert main(["archive", str(logs), "--to", "parquet"]) == 2
    assert "is not a place for files" in capsys.readouterr().err
    assert main(["archive", str(logs)]) == 2
    assert "where should the files go? --to PLACE" in capsys.readouterr().err


def test_without_pyarrow_the_sentence_names_the_extra(logs, place, monkeypatch, capsys):
    make_run(logs, "run")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for more in (
        ["archive", "--to", f"file://{place}"],
        ["ship", "--to", "clickhouse://127.0.0.1:1", "--objects", "s3://bucket"],
    ):
        assert main([*more, str(logs)]) == 2
        assert f"needs pyarrow: {install_extra('fleet')}" in capsys.readouterr().err


def test_clickhouse_and_pyarrow_read_the_archive_on_s3(s3, engine, ask, logs, monkeypatch):
    folder = log_run(logs, "on-s3")
    ship(engine, logs)
    for name, value in s3.keys("ship").items():
        monkeypatch.setenv(name, value)

    assert main(["archive", str(logs), "--to", f"s3://{BUCKET}/archive"]) == 0

    source = f"s3('{s3.endpoint}/{BUCKET}/archive/points/month=*/*.parquet', 'page', '{SECRET}', 'Parquet')"
    found = ask.rows(
        "SELECT metric, n, bad, at, reinterpretAsUInt64(reinterpretAsString(value)) "
        f"FROM {source} WHERE run_id = {quote(id_of(folder))} ORDER BY metric, n",
        *("String", "UInt32", "UInt32", "UInt64", "UInt64"),
    )
    assert found == engine_points(ask, id_of(folder))
    assert found == file_points(folder / "metrics.jsonl")
    dataset = ds.dataset(f"{BUCKET}/archive/records", filesystem=s3.files("page"), partitioning="hive")
    lines = dataset.to_table(columns=["at", "line"]).sort_by("at").column("line").to_pylist()
    assert b"\n".join(lines) + b"\n" == (folder / "metrics.jsonl").read_bytes()


@in_make_faults
def test_killed_at_any_time_the_archive_has_whole_files_and_is_completed(logs, place):
    folders = [make_run(logs, f"run-{number}", 400) for number in range(30)]
    command = [sys.executable, "-m", "toolkit.telemetry.cli", "archive", str(logs), "--to", f"file://{place}"]
    for pause in (0.2, 0.4, 0.6, 0.8, 1.0, 1.2):
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        time.sleep(pause)  # where it is killed is left to chance
        child.kill()
        child.wait()
        for path in place.rglob("*.parquet"):
            pq.read_table(path, partitioning=None)
    assert archive(logs, place) == 0
    for folder in folders:
        assert lines_of(file_of(place, "records", folder)) == (folder / "metrics.jsonl").read_bytes()
        assert len(pd.read_parquet(file_of(place, "points", folder))) == 800
