"""Run folders to ship, and what the engine should have of them."""

from __future__ import annotations

import atexit
import functools
import math
import os
import shutil
import struct
import tempfile
import uuid
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.fleet.address import Address
from toolkit.telemetry.fleet.copy import copy_runs
from toolkit.telemetry.fleet.engine import Engine, quote
from toolkit.telemetry.fleet.engine_runs import EngineRuns
from toolkit.telemetry.fleet.shipping.shipper import Shipper
from toolkit.telemetry.fleet.stores import FolderStore, Store
from toolkit.telemetry.runfolder.layout import rank_file
from toolkit.telemetry.runfolder.manifest import Heartbeat, Manifest, Session, read_manifest, write_manifest
from toolkit.telemetry.runfolder.metrics import metrics_of
from toolkit.telemetry.runfolder.process import boot_id, host_name
from toolkit.telemetry.runfolder.reader import parse_line

BROKEN = (
    b"not json",
    b"",
    b'{"event":"step","seq":1',
    b"\x00\xff\xfe\x80 \r \xe2\x80\xa8",
    b'{"no_event":1}',
    b'{"event":7}',
    b'[{"event":"step"}]',
    b'{"event":"step","time":NaN,"global_step":3,"train_loss":Infinity}',
    b'{"event":"step","time":1e400}',
)
"""Lines that a reader passes over, or nearly."""


def log_run(log_dir: Path, name: str = "run", *, steps: int = 30) -> Path:
    """Return the folder of a run in two sessions, with NaN and infinity, written by the real logger.

    It is logged once and copied from then on, with an id of its own.
    """
    logged = _logged(steps)
    folder = shutil.copytree(logged, log_dir / name)
    old, new = id_of(logged).encode(), uuid.uuid4().hex.encode()
    for path in (folder / "run.json", folder / "metrics.jsonl"):
        path.write_bytes(
            path.read_bytes().replace(old, new).replace(b'"name": "logged"', b'"name": "%s"' % name.encode())
        )
    return folder


@functools.cache
def _logged(steps: int) -> Path:
    log_dir = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, log_dir, ignore_errors=True)
    for session in (0, 1):
        with TelemetryLogger("logged", log_dir=log_dir, log_every=1, resume=session > 0, project="p") as log:
            log.log_start()
            for step in range(session * steps // 2, (session + 1) * steps // 2):
                odd = {4: math.nan, 5: math.inf, 6: -math.inf}.get(step, 1.0 / (step + 1))
                log.log_step(step, train_loss=odd, lr=1e-4, acc=step / 7)
            log.log_eval(session * 10 + 1, val_loss=0.5)
            log.log_epoch(session, global_step=session * 10 + 2, mean=0.25)
    assert log.run_folder is not None
    return log.run_folder


def make_run(
    log_dir: Path, name: str, lines: int = 20, *, run_id: str | None = None, **manifest: Any
) -> Path:
    """Return a run folder made by hand; it has ended."""
    folder = log_dir / name
    folder.mkdir(parents=True)
    now = 1_790_000_000.0
    session = Session(session=1, started=now, pid=1, host=host_name(), boot_id=boot_id(), status="finished")
    write_manifest(
        folder,
        Manifest(
            run_id=run_id or uuid.uuid4().hex,
            name=name,
            display_name=name,
            created=now,
            sessions=(session,),
            heartbeat=Heartbeat(time=now, seq=lines, global_step=lines),
            **manifest,
        ),
    )
    append(folder, range(lines))
    return folder


def append(folder: Path, steps: Iterable[int], *, rank: int = 0, **values: Any) -> None:
    """Append step records."""
    lines = [step_line(step, rank, **values) for step in steps]
    write(folder, b"".join(lines), rank=rank)


def step_line(step: int, rank: int = 0, **values: Any) -> bytes:
    record = {
        "event": "step",
        "time": 1_790_000_000.0 + step,
        "elapsed": float(step),
        "seq": step,
        "session": 1,
    }
    if rank:
        record["rank"] = rank
    return (
        orjson.dumps({**record, "global_step": step, "train_loss": 1.0 / (step + 1), "lr": 1e-4, **values})
        + b"\n"
    )


def write(folder: Path, data: bytes, *, rank: int = 0) -> None:
    path = rank_file(folder, rank)
    path.parent.mkdir(exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def id_of(folder: Path) -> str:
    return read_manifest(folder).run_id


def begin_shipping(engine: Any, *places: Path, **how: Any) -> Shipper:
    """Return a shipper that has shipped nothing yet. `engine` may be the address of a database."""
    address = engine if isinstance(engine, Address) else engine.address()
    shipper = Shipper(Engine(address), places, **how)
    shipper.start()
    return shipper


def ship(engine: Any, *places: Path, **how: Any) -> Shipper:
    """Ship what is there now, by a shipper of its own."""
    shipper = begin_shipping(engine, *places, **how)
    shipper.ship_all()
    return shipper


def make_due(*shippers: Shipper) -> None:
    """Have these shippers look at every run in their next round, although they looked just now."""
    for shipper in shippers:
        shipper.watch._last_look = -1e9
        shipper.sender._next_recheck = 0.0


def say_labels(connection: Engine, folder: Path, *, deleted: bool) -> None:
    """Label a run by a clock that is a century ahead, or delete it on a page."""
    connection.query(
        "INSERT INTO labels (run_id, version, by, labels, deleted, created) VALUES "
        f"({quote(id_of(folder))}, 4000000000000, 'someone', '', {int(deleted)}, '2026-09-21')"
    )


def pull(connection: Engine, wanted: str, log_dir: Path, objects: Store | None = None) -> SimpleNamespace:
    """Copy a run from the engine; return its folder, what came of it, and what was said."""
    said: list[str] = []
    runs = EngineRuns(connection, [wanted], objects)
    done = copy_runs(runs, FolderStore(log_dir), runs.names, say=said.append)
    return SimpleNamespace(folder=log_dir / runs.names[0], done=done, said=said)


def drop_parts(engine: Any, table: str) -> None:
    """Lose a month of a table; no other test needs its rows any more."""
    connection = Engine(engine.address())
    connection.query(f"ALTER TABLE {table} DROP PARTITION 202609")
    connection.close()


def record_bytes(folder: Path) -> dict[str, bytes]:
    """Return the complete lines of every record file."""
    found = {}
    for path in (folder / "metrics.jsonl", *sorted(folder.glob("ranks/*.jsonl"))):
        if path.exists():
            data = path.read_bytes()
            found[path.name] = data[: data.rfind(b"\n") + 1]
    return found


def engine_bytes(connection: Engine, run_id: str, where: str = "") -> dict[tuple[int, int], bytes]:
    """Return the lines of each rank and generation as the engine has them, a line only once."""
    found: dict[tuple[int, int], bytes] = {}
    rows = connection.query(
        f"SELECT rank, gen, at, next, line FROM records WHERE run_id = {quote(run_id)} {where} "
        "ORDER BY rank, gen, at LIMIT 1 BY rank, gen, at FORMAT TSVRaw"
    )
    for row in rows.split(b"\n")[:-1]:
        *numbers, line = row.split(b"\t", 4)
        rank, gen, at, after = map(int, numbers)
        data = found.get((rank, gen), b"")
        assert len(data) == at, f"a gap at byte {len(data)} of rank {rank}, generation {gen}"
        found[rank, gen] = data + line + b"\n" * (after - at - len(line))
    return found


def newest_bytes(connection: Engine, run_id: str, rank: int = 0) -> bytes:
    """Return the newest committed generation of a file."""
    gen = connection.rows(f"SELECT max(gen) FROM commits WHERE run_id = {quote(run_id)} AND rank = {rank}")[
        0
    ][0]
    return engine_bytes(connection, run_id, f"AND rank = {rank} AND gen = {gen}").get((rank, gen), b"")


def engine_points(connection: Engine, run_id: str, rank: int = 0, gen: int = 1) -> list[tuple[Any, ...]]:
    """Return metric, place and the bits of each value, once each."""
    return connection.rows(
        f"SELECT metric, at, reinterpretAsUInt64(reinterpretAsString(value)) FROM points FINAL "
        f"WHERE run_id = {quote(run_id)} AND rank = {rank} AND gen = {gen} ORDER BY metric, at",
    )


def file_points(path: Path) -> list[tuple[Any, ...]]:
    """Return what `engine_points` should return, worked out from the file in another way."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    at = 0
    for line in path.read_bytes().split(b"\n")[:-1]:
        record = parse_line(at, line) if line else None
        for name, value in metrics_of(record) if isinstance(record, dict) else ():
            bits = struct.unpack("<Q", struct.pack("<d", value))[0]
            found.setdefault(name, []).append((name, at, bits))
        at += len(line) + 1
    return [point for name in sorted(found, key=lambda name: name.encode()) for point in found[name]]


def claimed_by(connection: Engine, folder: Path) -> str:
    """Return the node whose shipper last reported a run."""
    rows = connection.rows(f"SELECT argMax(node, version) FROM runs WHERE run_id = {quote(id_of(folder))}")
    return rows[0][0] if rows else ""


def newest_or_nothing(connection: Engine, run_id: str) -> bytes:
    try:
        return newest_bytes(connection, run_id)
    except AssertionError:
        return b""
