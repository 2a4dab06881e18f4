"""One engine, filled by the real shipper and asked by the real store: processor time of the engine for each answer."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from benchmarks import fleet_shippers
from benchmarks.command import say
from benchmarks.fleet_data import RANKED, SLOW_RANK
from benchmarks.fleet_server import Server
from benchmarks.fleet_shippers import PATIENCE_S
from toolkit.telemetry.fleet.commits import Commit, insert_commits
from toolkit.telemetry.fleet.engine import Engine
from toolkit.telemetry.fleet.schema import set_up
from toolkit.telemetry.fleet.shipping.shipper import Shipper
from toolkit.telemetry.fleet.tail import RecordTail, Rows, RunKey
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore

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

    def wait_until_idle(self, timeout_s: float = 120.0) -> None:
        """Wait until merges are over."""
        deadline = time.monotonic() + timeout_s
        quiet = 0
        while quiet < 2 and time.monotonic() < deadline:
            before = self.seconds()
            time.sleep(1.0)
            quiet = quiet + 1 if self.seconds() - before < _IDLE else 0

    def of(self, call: Callable[[], object], repeats: int) -> tuple[float, float]:
        """Return milliseconds of the engine and of this process, for one `call`."""
        self.wait_until_idle(20.0)
        engine, page = self.seconds(), time.process_time()
        for _ in range(repeats):
            call()
        return (self.seconds() - engine) / repeats * 1e3, (time.process_time() - page) / repeats * 1e3


def measure(logs: dict[str, Path], plan: dict[str, int]) -> dict[str, float]:
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
        self._address = engine.address()
        self._logs = logs
        self._plan = plan
        self._meter = Meter(engine)
        self._ask = Engine(self._address, patience_s=PATIENCE_S)
        self._found: dict[str, float] = {}
        self._small = sorted(read_manifest(path).run_id for path in logs["small"].iterdir())
        self._large = read_manifest(next(logs["large"].iterdir())).run_id
        self._ranked = read_manifest(logs["ranks"] / RANKED).run_id

    def figures(self) -> dict[str, float]:
        parts = (self._take_in, self._small_insert, self._one_run, self._several, self._ranks, self._shippers)
        for part in parts:
            say(f"{part.__name__.strip('_').replace('_', ' ')}")
            part()
        return self._found

    def _store(self) -> ClickHouseStore:
        """Return a store that knows the runs and nothing else."""
        store = ClickHouseStore(self._address, patience_s=PATIENCE_S)
        store.list_runs()
        return store

    def _ship(self, *places: Path) -> tuple[int, float, float]:
        """Return how many lines were shipped, and the processor time of the shipper and of the engine, with merges."""
        shipper = Shipper(Engine(self._address, patience_s=PATIENCE_S), places)
        shipper.start()
        before, own = self._meter.seconds(), time.process_time()
        shipper.ship_all()
        own = time.process_time() - own
        self._meter.wait_until_idle()
        return shipper.totals.lines, own, self._meter.seconds() - before

    def _take_in(self) -> None:
        lines, own, engine = self._ship(self._logs["small"], self._logs["large"])
        size = 0.0
        for table in ("records", "points"):
            self._ask.query(f"OPTIMIZE TABLE {table} FINAL")
            parts = f"FROM system.parts WHERE active AND table = '{table}'"
            size += float(self._ask.query(f"SELECT sum(bytes_on_disk) {parts}"))
        self._found |= {"ship_us": own / lines * 1e6, "bytes": size / lines}
        self._found["value_us"] = engine / (lines * _NUMBERS) * 1e6
        self._ship(self._logs["ranks"])

    def _small_insert(self) -> None:
        key = RunKey(run_id="insert-alone", project="", day=20_000)
        path = next(self._logs["small"].iterdir()) / "metrics.jsonl"
        end = sum(map(len, path.read_bytes().splitlines(keepends=True)[:_SMALL_INSERT]))
        tail, rows = RecordTail(path, key, Commit(run_id=key.run_id, rank=0)), Rows()
        tail.read(rows, until=end)
        blocks, commit = rows.blocks(), tail.commit

        def insert() -> None:
            for block in blocks:
                self._ask.insert(*block)
            insert_commits(self._ask, [(commit, key.day)], "node")

        self._found["insert"], _ = self._meter.of(insert, self._plan["repeats"])

    def _one_run(self) -> None:
        """Read the large run at first, then a curve of it and its newest events, by a page."""
        store = self._store()
        self._found["rows"] = sum(self._meter.of(lambda: store.refresh(self._large, wait_s=PATIENCE_S), 1))
        self._found["curve"] = sum(
            self._meter.of(lambda: store.series(self._large, "train_loss", buckets=600), 1)
        )
        self._found["events"], _ = self._meter.of(
            lambda: store.events(self._large, limit=200), self._plan["repeats"]
        )

    def _several(self) -> None:
        for name, count in (("compare", 8), ("group", 50)):
            store, wanted = self._store(), self._small[:count]

            def curves(store: ClickHouseStore = store, wanted: list[str] = wanted) -> None:
                store.refresh_all(wanted, wait_s=PATIENCE_S)
                assert len(store.series_of(wanted, "train_loss")) == len(wanted)

            self._found[name], _ = self._meter.of(curves, 1)

    def _ranks(self) -> None:
        store = self._store()

        def grid() -> None:
            found = store.rank_grid(self._ranked, "sec_per_step", buckets=50)
            assert found.slowest(1)[0].rank == SLOW_RANK

        self._found["ranks"], _ = self._meter.of(grid, 1)

    def _shippers(self) -> None:
        address, seconds = self._address, float(self._plan["live_s"])
        large = next(self._logs["large"].iterdir())
        self._found |= fleet_shippers.to_page(address, seconds)
        self._found |= fleet_shippers.answered(address, self._plan["requests"])
        self._found |= fleet_shippers.drained(address, self._plan["jobs"])
        self._found |= fleet_shippers.with_a_large_run(address, large, seconds)
        self._found |= fleet_shippers.several(address, self._meter.seconds, seconds)
        self._found |= fleet_shippers.idle(address, self._plan["runs"], seconds)
