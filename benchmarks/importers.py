"""What it costs to read other tools' logs, against the tools' own readers."""

from __future__ import annotations

import importlib
import json
import os
import random
import resource
import struct
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.child import measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.report import Claim, Report
from toolkit.telemetry.exchange.export_runs import export, read_about
from toolkit.telemetry.exchange.exported_run import run_of_source
from toolkit.telemetry.importers.detect import find_sources
from toolkit.telemetry.importers.framing import leveldb_log, tfrecord
from toolkit.telemetry.importers.source import RunSource, read_all
from toolkit.telemetry.importers.summary import summaries
from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runs.sources.local_store import LocalStore

_TAGS = 10
_APPENDED = 100


def build(options: Options) -> Report:
    """Read an event file, a W&B log and a folder of many runs, each reader in a process of its own."""
    scalars = 20_000 if options.quick else 1_000_000
    megabytes = 1 if options.quick else 50
    runs = 50 if options.quick else 1_000
    notes = ["columns of our own runs are cached; another tool's log is read again by each new process"]
    say(f"an event file of {scalars:,} scalars")
    events: dict[str, Any] = measure_in_child(read_events, scalars, timeout_s=3600)
    say(f"a W&B log of {megabytes} MB")
    wandb: dict[str, Any] = measure_in_child(read_wandb, megabytes, timeout_s=3600)
    if "theirs_s" not in wandb:
        notes.append(f"W&B's own reader: not measured, {wandb['missing']}")
    say(f"the first picture of {scalars:,} scalars, and of as many records of ours")
    picture: dict[str, Any] = measure_in_child(first_picture, scalars, timeout_s=3600)
    rows_of_table = 20_000 if options.quick else 1_000_000
    say(f"a CSV file of {rows_of_table:,} rows")
    table: dict[str, Any] = measure_in_child(read_table, rows_of_table, timeout_s=3600)
    say(f"a folder of {runs:,} runs")
    listed: dict[str, Any] = measure_in_child(list_runs, runs, timeout_s=3600)

    theirs = events["theirs_s"]
    rows = [
        _row("EventAccumulator", theirs, events["theirs_mb"], theirs),
        _row("ours, with numpy, every checksum", events["ours_s"], events["ours_mb"], theirs),
    ]
    claims = [
        Claim(
            text="CPU of an event file, with numpy",
            measured=events["ours_s"] / theirs,
            limit=1 / 6,
            unit="x",
        ),
        Claim(
            text=f"CPU of a refresh after {_APPENDED} events",
            measured=events["refresh_s"] * 1e3,
            limit=30,
            unit=" ms",
        ),
        Claim(
            text="bytes read by that refresh that are not new", measured=events["old_bytes"], limit=0, unit=""
        ),
        Claim(
            text="CPU of the first picture, against a run of ours with as many records",
            measured=picture["theirs_s"] / picture["ours_s"],
            limit=1.5,
            unit="x",
        ),
        Claim(text="runs listed", measured=listed["warm_s"], limit=1.0, unit=" s"),
        Claim(text="CPU of `show` of a table", measured=table["show_s"], limit=2.0, unit=" s"),
        Claim(text="memory of `export` of a table", measured=table["export_mb"], limit=300, unit=" MB"),
    ]
    rows += [
        ["first picture: event file", f"{picture['theirs_s']:.2f}", f"{picture['theirs_mb']:.0f}", ""],
        ["first picture: records of ours", f"{picture['ours_s']:.2f}", f"{picture['ours_mb']:.0f}", ""],
        ["again: event file", f"{picture['theirs_again_s']:.2f}", "", ""],
        ["again: records of ours", f"{picture['ours_again_s']:.2f}", "", ""],
    ]
    rows.append(["W&B log: ours", f"{wandb['ours_s']:.2f}", f"{wandb['ours_mb']:.0f}", ""])
    if "theirs_s" in wandb:
        ratio = wandb["ours_s"] / wandb["theirs_s"]
        rows.append(
            [
                "W&B log: DataStore and protobuf",
                f"{wandb['theirs_s']:.2f}",
                f"{wandb['theirs_mb']:.0f}",
                f"{1 / ratio:.1f}",
            ]
        )
        claims.append(Claim(text="CPU of a W&B log", measured=ratio, limit=1.0, unit="x"))
    rows += [
        [
            f"CSV of {rows_of_table:,} rows: {name}",
            f"{table[f'{key}_s']:.2f}",
            f"{table[f'{key}_mb']:.0f}",
            "",
        ]
        for key, (name, _) in _TABLE_READERS.items()
    ]
    rows.append([f"{runs:,} runs found, warm", f"{listed['warm_s']:.2f}", "", ""])
    return Report(
        name="importers",
        title=f"Reading other tools' logs: {scalars:,} scalars in an event file, {megabytes} MB of W&B",
        columns=["reader", "CPU s", "MB", "x EventAccumulator, or x us"],
        rows=rows,
        figures={"events": events, "wandb": wandb, "picture": picture, "table": table, "listed": listed},
        claims=claims,
        notes=notes,
    )


def _row(name: str, seconds: float, memory: float, theirs: float) -> list[str]:
    return [name, f"{seconds:.2f}", f"{memory:.0f}", f"{theirs / seconds:.1f}"]


# ---------------------------------------------------------------- event files


def read_events(folder: Path, scalars: int) -> dict[str, Any]:
    """Return the CPU seconds of each reader."""
    path = folder / "events.out.tfevents.1700000000.host.1.0"
    _write_events(path, scalars, 0)
    found = {}
    for name in ("ours", "theirs"):
        seconds, memory, points = _forked(_EVENT_READERS[name], folder)
        assert points == scalars, (name, points)
        found[f"{name}_s"], found[f"{name}_mb"] = seconds, memory
    (source,) = find_sources(folder).runs
    cursor = _last_cursor(source)
    size = path.stat().st_size
    _write_events(path, _APPENDED, scalars // _TAGS)
    started = time.process_time()
    batch = source.read(cursor)
    found["refresh_s"] = time.process_time() - started
    assert sum(map(len, batch.columns)) == _APPENDED
    found["old_bytes"] = batch.bytes_read - (path.stat().st_size - size)
    return found


def _write_events(path: Path, scalars: int, first_step: int) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    chance = random.Random(first_step)
    with path.open("ab") as file:
        if first_step == 0:
            file.write(_frame(Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString()))
        for number in range(scalars):
            step = first_step + number // _TAGS
            tag = f"train/metric_{'x' * (number % _TAGS)}"
            value = Summary.Value(tag=tag, simple_value=chance.random())
            event = Event(wall_time=1.7e9 + step * 0.1, step=step, summary=Summary(value=[value]))
            file.write(_frame(event.SerializeToString()))


def _frame(data: bytes) -> bytes:
    head = struct.pack("<QI", len(data), tfrecord.checksum_of_length(len(data)))
    return head + data + struct.pack("<I", tfrecord.masked_crc32c(data))


def _ours(folder: Path) -> int:
    (source,) = find_sources(folder).runs
    return sum(len(column) for batch in read_all(source) for column in batch.columns)


def _event_accumulator(folder: Path) -> int:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return sum(len(found.Scalars(tag)) for tag in found.Tags()["scalars"])


_EVENT_READERS: dict[str, Callable[[Path], int]] = {
    "ours": _ours,
    "theirs": _event_accumulator,
}


# ---------------------------------------------------------------- tables


def read_table(folder: Path, rows: int) -> dict[str, Any]:
    """Return the CPU seconds and megabytes of `show`, of `export` and of pandas, imports included."""
    chance = random.Random(3)
    with (folder / "metrics.csv").open("w") as file:
        file.write("step,epoch,train_loss,lr,grad_norm,time\n")
        for step in range(rows):
            cells = (step, step // 10_000, chance.random(), 1e-4, chance.random(), 1.7e9 + step * 0.1)
            file.write(",".join(map(repr, cells)) + "\n")
    found: dict[str, Any] = {}
    for name, (_, reader) in _TABLE_READERS.items():
        found[f"{name}_s"], found[f"{name}_mb"], points = _forked(reader, folder)
        assert points == 4 * rows, (name, points)
    return found


def _show(folder: Path) -> int:
    (run,) = summaries(find_sources(folder).runs, time.time())[0]
    return sum(series["count"] for series in run["metrics"].values())


def _export(folder: Path) -> int:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        (source,) = find_sources(folder).runs
        runs = [run_of_source(source, source.info.name, Path(scratch))]
        read_about(runs)
        return export(runs, "csv", Path(scratch) / "out.csv").points


def _pandas(folder: Path) -> int:
    import pandas as pd

    table = pd.read_csv(folder / "metrics.csv")
    return 4 * len(table)


_TABLE_READERS: dict[str, tuple[str, Callable[[Path], int]]] = {
    "show": ("show", _show),
    "export": ("export to CSV", _export),
    "pandas": ("pandas.read_csv", _pandas),
}


# ---------------------------------------------------------------- W&B


def read_wandb(folder: Path, megabytes: int) -> dict[str, Any]:
    """Return the CPU seconds of both readers of one log."""
    try:
        messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
        datastore: Any = importlib.import_module("wandb.sdk.internal.datastore")
    except ImportError as error:
        return {"missing": str(error), "ours_s": 0.0, "ours_mb": 0.0}
    path = folder / "run-20260101_000000-abc" / "run-abc.wandb"
    path.parent.mkdir()
    rows = _write_wandb(path, megabytes * 1024**2, messages)

    def theirs(folder: Path) -> int:  # noqa: ARG001
        store = datastore.DataStore()
        store.open_for_scan(str(path))
        points = 0
        while (data := store.scan_data()) is not None:
            record = messages.Record()
            record.ParseFromString(data)
            for item in record.history.item:
                value = json.loads(item.value_json)
                points += isinstance(value, float) and not (item.key or item.nested_key[0]).startswith("_")
        return points

    found: dict[str, Any] = {}
    for name, reader in (("ours", _ours), ("theirs", theirs)):
        seconds, memory, points = _forked(reader, folder)
        assert points == rows * 10, (name, points)
        found[f"{name}_s"], found[f"{name}_mb"] = seconds, memory
    return found


def _write_wandb(path: Path, size: int, messages: Any) -> int:
    """Write history rows with ten metrics each, as W&B frames them."""
    chance = random.Random(1)
    block = 32 * 1024
    rows = 0
    with path.open("wb") as file:
        file.write(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
        at = leveldb_log.HEADER
        while at < size:
            record = messages.Record(num=rows)
            for number in range(10):
                record.history.item.add(
                    nested_key=[f"train/metric_{number}"], value_json=repr(chance.random())
                )
            record.history.item.add(nested_key=["_step"], value_json=str(rows))
            record.history.item.add(nested_key=["_timestamp"], value_json=repr(1.7e9 + rows))
            record.history.step.num = rows
            data = record.SerializeToString()
            rows += 1
            is_first = True
            while data or is_first:
                left = block - at % block
                if left < leveldb_log.HEADER:
                    file.write(bytes(left))
                    at += left
                    continue
                part, data = data[: left - leveldb_log.HEADER], data[left - leveldb_log.HEADER :]
                kind = (1 if not data else 2) if is_first else (4 if not data else 3)
                checksum = zlib.crc32(part, zlib.crc32(bytes([kind])))
                file.write(struct.pack("<IHB", checksum, len(part), kind) + part)
                at += leveldb_log.HEADER + len(part)
                is_first = False
    return rows


# ---------------------------------------------------------------- first picture


def first_picture(folder: Path, scalars: int) -> dict[str, Any]:
    """Return the CPU seconds until a curve can be drawn, of an event file and of a run of ours, and the second time."""
    theirs, ours = folder / "theirs", folder / "ours"
    for path in (theirs / "run", ours / "run"):
        path.mkdir(parents=True)
    _write_events(theirs / "run" / "events.out.tfevents.1700000000.host.1.0", scalars, 0)
    _write_records(ours / "run" / METRICS_JSONL, scalars)
    found: dict[str, Any] = {}
    for name, root in (("theirs", theirs), ("ours", ours)):
        for again in ("", "_again"):
            seconds, memory, points = _forked(_picture, root)
            assert points == scalars // (_TAGS if name == "theirs" else 1), (name, points)
            found[f"{name}{again}_s"], found[f"{name}{again}_mb"] = seconds, memory
    return found


def _picture(root: Path) -> int:
    store = LocalStore([root], cache_dir=root.parent / "cache", labels_dir=None, other_tools=True)
    key = ""
    while not key:
        key = next((card.key for card in store.list_runs().cards), "")
    while not store.refresh(key, wait_s=60.0).complete:
        pass
    metric = "train/metric_" if "~" in key else "train_loss"
    total = store.series(key, metric).total
    # The next process finds it.
    store.wait_until_saved(600.0)
    return total


def _write_records(path: Path, records: int) -> None:
    chance = random.Random(2)
    with path.open("wb") as file:
        for number in range(records):
            record = {
                "event": "step",
                "time": 1.7e9 + number * 0.1,
                "elapsed": number * 0.1,
                "seq": number,
                "session": 1,
                "global_step": number,
                "train_loss": chance.random(),
                "lr": 1e-4,
                "grad_norm": chance.random(),
            }
            file.write(encode(record))


# ---------------------------------------------------------------- many runs


def list_runs(folder: Path, runs: int) -> dict[str, Any]:
    """Return the seconds that finding many runs takes, the second time."""
    for number in range(runs):
        run = folder / f"project_{number % 20}" / f"run_{number}"
        run.mkdir(parents=True)
        if number % 2:
            _write_events(run / f"events.out.tfevents.{1_700_000_000 + number}.host.{number}.0", 10, 0)
        else:
            (run / "metrics.csv").write_text(
                "step,train_loss\n" + "".join(f"{i},{1 / (i + 1)}\n" for i in range(20))
            )
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        assert len(find_sources(folder).runs) == runs
        seconds.append(time.perf_counter() - started)
    return {"cold_s": seconds[0], "warm_s": seconds[1]}


# ---------------------------------------------------------------- helpers


def _last_cursor(source: RunSource) -> bytes:
    cursor = b""
    for batch in read_all(source):
        cursor = batch.cursor
    return cursor


def _forked(reader: Callable[[Path], int], folder: Path) -> tuple[float, float, int]:
    """Return CPU seconds, megabytes and points of a reader, in a process of its own."""
    output, into = os.pipe()
    child = os.fork()
    if child == 0:
        started = time.process_time()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        points = reader(folder)
        took = time.process_time() - started
        memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        os.write(into, f"{took} {memory} {points}".encode())
        os._exit(0)
    os.close(into)
    with os.fdopen(output) as file:
        answer = file.read().split()
    os.waitpid(child, 0)
    return float(answer[0]), float(answer[1]), int(answer[2])


if __name__ == "__main__":
    run_alone(build)
