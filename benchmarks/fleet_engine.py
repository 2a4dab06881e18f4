"""One engine, filled by the real shipper and asked by the real store: processor time of the engine for each answer."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks import fleet_shippers
from benchmarks.child import ROOT
from benchmarks.command import say
from benchmarks.fleet_data import RANKED, SLOW_RANK
from benchmarks.fleet_requests import request_to_answer
from benchmarks.fleet_server import Server
from benchmarks.report import percentile
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.fleet.commits import Commit, insert_commits
from toolkit.telemetry.fleet.engine import Engine
from toolkit.telemetry.fleet.schema import set_up
from toolkit.telemetry.fleet.shipping.shipper import Shipper
from toolkit.telemetry.fleet.tail import Position, RecordTail, Rows, RunKey
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore

PATIENCE_S: Final = 600.0
_LOOK_EVERY_S: Final = 0.5
"""How often it is tried whether a page could show a record."""
_RECORDS_A_SECOND: Final = 100
_SMALL_INSERT: Final = 50
_IDLE: Final = 0.03
_NUMBERS: Final = 8
"""Metrics of a record of `large_run`."""


class Meter:
    """Processor time of an engine."""

    def __init__(self, engine: Server) -> None:
        self._process = psutil.Process(engine.process.pid)

    def seconds(self) -> float:
        """Return the processor time so far."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def memory_mb(self) -> float:
        """Return the memory that the engine has now."""
        return float(self._process.memory_info().rss) / 2**20

    def wait_until_idle(self, timeout_s: float = 120.0) -> None:
        """Wait until merges are over."""
        deadline = time.monotonic() + timeout_s
        quiet = 0
        while quiet < 2 and time.monotonic() < deadline:
            before = self.seconds()
            time.sleep(1.0)
            quiet = quiet + 1 if self.seconds() - before < _IDLE else 0

    def of(self, call: Callable[[], object], repeats: int) -> dict[str, float]:
        """Return milliseconds of the engine, of this process and of the clock, for one `call`."""
        self.wait_until_idle(20.0)
        engine, page, wall = self.seconds(), time.process_time(), time.perf_counter()
        for _ in range(repeats):
            call()
        return {
            "engine_ms": (self.seconds() - engine) / repeats * 1e3,
            "page_ms": (time.process_time() - page) / repeats * 1e3,
            "wall_ms": (time.perf_counter() - wall) / repeats * 1e3,
        }


def measure(logs: dict[str, Path], plan: dict[str, int]) -> dict[str, Any]:
    """Return the figures of an engine; `logs` are the log directories of small runs, the large one and the ranks."""
    with tempfile.TemporaryDirectory(prefix="bench-engine-", ignore_cleanup_errors=True) as folder:
        engine = Server(Path(folder) / "engine")
        engine.start()
        try:
            set_up(engine.address())
            return _Trial(engine, logs, plan).figures()
        finally:
            engine.stop()


class _Trial:
    def __init__(self, engine: Server, logs: dict[str, Path], plan: dict[str, int]) -> None:
        self._engine = engine
        self._logs = logs
        self._plan = plan
        self._meter = Meter(engine)
        self._ask = Engine(engine.address(), patience_s=PATIENCE_S)
        self._found: dict[str, Any] = {}
        self._small = sorted(read_manifest(path).run_id for path in logs["small"].iterdir())
        self._large = read_manifest(next(logs["large"].iterdir())).run_id
        self._ranked = read_manifest(logs["ranks"] / RANKED).run_id

    def figures(self) -> dict[str, Any]:
        for part in (
            self._take_in,
            self._stored,
            self._small_inserts,
            self._one_metric,
            self._several,
            self._ranks,
            self._events,
            self._live,
            self._requests,
            self._shippers,
        ):
            say(f"{part.__name__.strip('_').replace('_', ' ')}")
            part()
        self._found["memory_mb"] = self._meter.memory_mb()
        return self._found

    def _store(self) -> ClickHouseStore:
        """Return a store that knows the runs and nothing else."""
        store = ClickHouseStore(self._engine.address(), patience_s=PATIENCE_S)
        store.list_runs()
        return store

    def _ship(self, *places: Path) -> tuple[int, float, float]:
        """Return how many lines were shipped, and the processor time of the shipper and of the engine, with merges."""
        shipper = Shipper(Engine(self._engine.address(), patience_s=PATIENCE_S), places)
        shipper.start()
        before, own = self._meter.seconds(), time.process_time()
        shipper.ship_all()
        own = time.process_time() - own
        self._meter.wait_until_idle()
        return shipper.totals.lines, own, self._meter.seconds() - before

    def _take_in(self) -> None:
        lines, own, engine = self._ship(self._logs["small"], self._logs["large"])
        self._found["records"] = lines
        self._found["ship_us"] = own / lines * 1e6
        self._found["value_us"] = engine / (lines * _NUMBERS) * 1e6

    def _stored(self) -> None:
        before = self._bytes_on_disk()
        self._found["bytes"] = before / self._found["records"]
        lines, own, engine = self._ship(self._logs["trainer"])
        self._found["trainer_ship_us"], self._found["trainer_us"] = own / lines * 1e6, engine / lines * 1e6
        self._found["trainer_bytes"] = (self._bytes_on_disk() - before) / lines
        self._ship(self._logs["ranks"])

    def _bytes_on_disk(self) -> float:
        """Return the size of lines and numbers, merged."""
        size = 0.0
        for table in ("records", "points"):
            self._ask.query(f"OPTIMIZE TABLE {table} FINAL")
            parts = f"FROM system.parts WHERE active AND table = '{table}'"
            size += float(self._ask.query(f"SELECT sum(bytes_on_disk) {parts}"))
        return size

    def _small_inserts(self) -> None:
        for name, kind in (("insert", "small"), ("trainer_insert", "trainer")):
            self._found[name] = self._small_insert(next(self._logs[kind].iterdir()) / "metrics.jsonl", name)

    def _small_insert(self, path: Path, name: str) -> dict[str, float]:
        key = RunKey(run_id=f"{name}-alone", project="", day=20_000)
        end = sum(map(len, path.read_bytes().splitlines(keepends=True)[:_SMALL_INSERT]))
        tail, rows = RecordTail(path, key, 0, 1, Position()), Rows()
        tail.read(rows, until=end)
        blocks = rows.blocks()
        at = tail.position
        commit = Commit(run_id=key.run_id, rank=0, end=at.end, crc=at.crc, lines=at.lines)
        own = self._ask

        def insert() -> None:
            for block in blocks:
                own.insert(*block)
            insert_commits(own, [(commit, key.day)], "node")

        return self._meter.of(insert, self._plan["repeats"])

    def _one_metric(self) -> None:
        stores = [self._store() for _ in range(max(1, self._plan["repeats"] // 5))]
        unread, read = list(stores), list(stores)
        self._found["rows"] = self._meter.of(
            lambda: unread.pop().refresh(self._large, wait_s=PATIENCE_S), len(stores)
        )
        self._found["curve"] = self._meter.of(
            lambda: read.pop().series(self._large, "train_loss", buckets=600), len(stores)
        )

    def _several(self) -> None:
        for name, count in (("compare", 8), ("group", 50)):
            keys = self._small[:count]
            stores = [self._store() for _ in range(max(1, self._plan["repeats"] // 4))]

            def curves(stores: list[ClickHouseStore] = stores, wanted: list[str] = keys) -> None:
                store = stores.pop()
                store.refresh_all(wanted, wait_s=PATIENCE_S)
                assert len(store.series_of(wanted, "train_loss")) == len(wanted)

            self._found[name] = self._meter.of(curves, len(stores))

    def _ranks(self) -> None:
        store = self._store()
        rounds = max(1, self._plan["repeats"] // 4)
        for cells in (128, 50):

            def grid(cells: int = cells) -> None:
                store._grids.clear()  # noqa: SLF001 - it asks once in two seconds
                found = store.rank_grid(self._ranked, "sec_per_step", buckets=cells)
                assert found.slowest(1)[0].rank == SLOW_RANK

            self._found[f"ranks_{cells}"] = self._meter.of(grid, rounds)

    def _events(self) -> None:
        for name, key in (("events", self._small[0]), ("events_large", self._large)):
            store = self._store()
            store.refresh(key, wait_s=PATIENCE_S)

            def newest(store: ClickHouseStore = store, key: str = key) -> None:
                store.events(key, limit=200)

            self._found[name] = self._meter.of(newest, self._plan["repeats"])

    def _live(self) -> None:
        """Log 100 records a second next to a shipper and a page; how long each takes to be on the page."""
        with tempfile.TemporaryDirectory(prefix="bench-live-", ignore_cleanup_errors=True) as folder:
            log_dir = Path(folder) / "logs"
            log_dir.mkdir()
            shipper = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "toolkit.telemetry.cli",
                    "ship",
                    str(log_dir),
                    "--to",
                    str(self._engine.address()),
                ],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stderr=subprocess.DEVNULL,
            )
            try:
                delays = self._follow(log_dir, psutil.Process(shipper.pid))
            finally:
                shipper.kill()
                shipper.wait()
        self._found["to_page_p50_s"] = percentile(delays, 0.5)
        self._found["to_page_p99_s"] = percentile(delays, 0.99)
        self._found["to_page_count"] = len(delays)

    def _shippers(self) -> None:
        address, seconds = self._engine.address(), float(self._plan["live_s"])
        self._found |= fleet_shippers.drained(address, self._plan["jobs"])
        large = next(self._logs["large"].iterdir())
        self._found |= fleet_shippers.with_a_large_run(address, large, seconds)
        self._found |= fleet_shippers.several(address, self._meter.seconds, seconds)
        self._found |= fleet_shippers.idle(address, self._plan["runs"], seconds)

    def _requests(self) -> None:
        found = request_to_answer(self._engine.address(), self._plan["requests"])
        self._found["request_p50_s"], self._found["request_p99_s"] = found["p50_s"], found["p99_s"]

    def _follow(self, log_dir: Path, shipper: psutil.Process) -> list[float]:
        store = ClickHouseStore(self._engine.address(), patience_s=PATIENCE_S)
        delays: list[float] = []
        seen = 0
        used: list[tuple[float, float]] = []
        began = time.monotonic()
        next_look = began
        with TelemetryLogger("live", log_dir=log_dir, log_every=1, system=False) as log:
            log.log_start()
            step = 0
            while (now := time.monotonic()) < began + self._plan["live_s"]:
                while step < (now - began) * _RECORDS_A_SECOND:
                    log.log_step(step, train_loss=0.5, lr=1e-4, grad_norm=1.0, sent=time.time())
                    step += 1
                if now >= next_look and log.run_id is not None:
                    next_look = now + _LOOK_EVERY_S
                    seen = self._read_new(store, log.run_id, seen, delays)
                    times = shipper.cpu_times()
                    used.append((now, times.user + times.system))
                time.sleep(0.005)
        # Starting the interpreter is no part of a record's cost.
        late = [point for point in used if point[0] > began + 8.0]
        self._found["ship_share"] = (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0])
        return delays

    def _read_new(self, store: ClickHouseStore, key: str, seen: int, delays: list[float]) -> int:
        store._runs.look_again()  # noqa: SLF001
        if store.list_runs().find(key) is None:
            return seen
        store.refresh(key, wait_s=PATIENCE_S)
        values = store.recent(key, "sent", 1_000_000)
        now = time.time()
        delays += [now - logged for logged in values[seen:]]
        return len(values)
