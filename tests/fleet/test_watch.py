"""Which folders the shipper looks at, and how seldom where nothing changes."""

from __future__ import annotations

import os
import time
from collections import Counter
from types import SimpleNamespace

from tests.fleet.shipped_runs import (
    append,
    begin_shipping,
    id_of,
    make_due,
    make_run,
    newest_bytes,
    record_bytes,
)
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.fleet.engine import quote
from toolkit.telemetry.fleet.shipping import watch as watch_module
from toolkit.telemetry.fleet.shipping.watch import Node, Watch
from toolkit.telemetry.runfolder.labels import Labels, write_labels


def test_folders_that_are_missing_are_waited_for_and_patterns_are_expanded_again(engine, ask, logs, capsys):
    # The system refuses to look at so long a name, as it does while a file system is away.
    later, pattern, odd = logs / "later", logs / "job*" / "runs", logs / ("x" * 300)
    said = []
    shipper = begin_shipping(engine, later, pattern, odd, say=said.append)
    for _ in range(3):
        look_again(shipper)
    folders = [make_run(later, "a", 3), make_run(logs / "job1" / "runs", "b", 3)]
    look_again(shipper)
    folders.append(make_run(logs / "job2" / "runs", "c", 3))
    look_again(shipper)

    for folder in folders:
        assert newest_bytes(ask, id_of(folder)) == record_bytes(folder)["metrics.jsonl"]
    assert sorted(said) == [f"{place} is not there yet; it is waited for" for place in (pattern, later, odd)]
    assert shipper.totals.errors == 0

    address = f"clickhouse://127.0.0.1:{engine.address().port}/telemetry"
    assert main(["ship", str(pattern), "--once", "--to", address]) == 0
    assert "0 lines shipped, 2 record files" in capsys.readouterr().out
    assert main(["ship", str(logs / "never*"), "--once", "--to", address]) == 2
    assert f"{logs}/never* is not a folder" in capsys.readouterr().err


def look_again(shipper):
    shipper.watch._next_expansion = shipper.watch._next_listing = 0.0
    make_due(shipper)
    shipper.ship_round()


def test_runs_that_have_ended_are_left_alone_until_they_change(engine, ask, logs, monkeypatch):
    folders = [make_run(logs, f"ended{number}", 3) for number in range(20)]
    with TelemetryLogger("resumed", log_dir=logs) as log:
        log.log_step(1, train_loss=1.0)
    an_hour_ago = time.time() - 3600
    for folder in (*logs.iterdir(), logs):
        for path in (folder / "run.json", folder / "metrics.jsonl", folder):
            if path.exists():
                os.utime(path, (an_hour_ago, an_hour_ago))
    shipper = begin_shipping(engine, logs)
    for _ in range(2):
        shipper.ship_round()
    make_due(shipper)
    shipper.ship_round()
    assert not shipper.watch.active

    calls = count_calls(monkeypatch)
    for _ in range(5):
        shipper.ship_round()
    assert sum(calls.values()) <= 5, "the log directory only"

    with TelemetryLogger("resumed", log_dir=logs, resume=True) as log:
        log.log_step(2, train_loss=0.5)
    look_again(shipper)
    assert newest_bytes(ask, id_of(log.run_folder)) == record_bytes(log.run_folder)["metrics.jsonl"]

    write_labels(folders[0], Labels(notes="later"))
    look_again(shipper)
    (row,) = ask.rows(f"SELECT labels FROM labels WHERE run_id = {quote(id_of(folders[0]))}")
    assert "later" in row[0]

    append(folders[1], [3])
    look_again(shipper)
    assert newest_bytes(ask, id_of(folders[1])) == record_bytes(folders[1])["metrics.jsonl"]


def test_within_a_minute_every_run_is_looked_at_a_few_in_each_round(logs, monkeypatch):
    folders = {make_run(logs, f"ended{number}", 1) for number in range(100)}
    clock, looks = [1000.0], []
    ours = SimpleNamespace(monotonic=lambda: clock[0], time=time.time, time_ns=time.time_ns)
    monkeypatch.setattr(watch_module, "time", ours)
    watch = Watch([logs], Node(name="n", say=print, objects=None, delivers_requests=False))
    watch.look()
    watch.active.clear()
    monkeypatch.setattr(watch, "_look_at", lambda folder, *_: looks.append((clock[0], folder)))
    while clock[0] < 1058.0:
        clock[0] += 2.0
        watch.look()

    assert {folder for _, folder in looks} == folders
    assert max(Counter(when for when, _ in looks).values()) <= 5


def count_calls(monkeypatch) -> Counter:
    calls = Counter()

    def counted(name, real):
        def call(*args, **options):
            calls[name] += 1
            return real(*args, **options)

        return call

    for name in ("lstat", "stat", "scandir"):
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    return calls
