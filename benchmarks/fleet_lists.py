"""A list of 12,000 to a million runs in the engine: processor time of engine and dashboard for each question.

Searches and orders are asked of a store that has shown the first page: it counts all runs every 5 s at most.
The runs are made: rows that the real shipper wrote for some folders, copied by the engine with other ids, days and
times.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.command import say
from benchmarks.fleet_data import write_listed_runs
from benchmarks.fleet_engine import Meter
from benchmarks.fleet_server import Server
from benchmarks.fleet_shippers import PATIENCE_S
from benchmarks.large_run import BEGAN
from toolkit.telemetry.fleet.engine import Engine
from toolkit.telemetry.fleet.run_rows import LABEL_TYPES, LABELS_TABLE, label_row
from toolkit.telemetry.fleet.schema import set_up
from toolkit.telemetry.fleet.shipping.shipper import Shipper
from toolkit.telemetry.runfolder.labels import Labels, encode_labels
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore
from toolkit.telemetry.runs.store import RunQuery

SIZES: Final = (12_000, 1_000_000)
_FOLDERS: Final = 500
_AT_ONCE: Final = 50_000
_DAY_RUNS: Final = 5_000
_LABELLED: Final = 50
"""One of so many runs has labels."""
_COPIED: Final = (
    "project, version, name, node, folder, status, why, sure, step, manifest, trend, behind, shown, tags, "
    "tagged, facts, card"
)
_PAGE: Final = RunQuery(per_page=100, archived=False)
QUESTIONS: Final = {
    "the same again": _PAGE,
    "search for a word": RunQuery(per_page=100, archived=False, text="speech"),
    "order by a metric": RunQuery(per_page=100, archived=False, sort="best:val_loss"),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """What one question costs."""

    runs: int
    question: str
    engine_ms: float
    page_ms: float


def grow(engine: Engine, have: int, runs: int) -> None:
    """Copy runs until there are so many; the newest are of the last days."""
    while have < runs:
        some, place = min(_AT_ONCE, runs - have), f"number + {have}"
        engine.query(
            f"INSERT INTO runs (run_id, searched, last_sign, received, created, {_COPIED}) "
            f"SELECT lower(hex(sipHash128({place}))) AS id, concat(id, '\\x01', project, '\\x01', node), "
            f"1790000000 + ({place}) * 17, toDateTime(1790000000), "
            f"toDate(20700 + intDiv({place}, {_DAY_RUNS})), {_COPIED} "
            f"FROM (SELECT number, number % {_FOLDERS} AS base FROM numbers({some})) AS n "
            f"ANY LEFT JOIN (SELECT toUInt64(substring(name, 7)) AS base, {_COPIED} FROM runs FINAL "
            f"WHERE created = toDate(intDiv({BEGAN:.0f}, 86400))) AS r USING (base)"
        )
        labelled = (
            f"SELECT lower(hex(sipHash128({place}))) FROM numbers({some}) WHERE number % {_LABELLED} = 0"
        )
        labels = []
        for at, (run_id,) in enumerate(engine.rows(labelled)):
            data = encode_labels(Labels(notes="a note", archived=at % 3 == 0))
            labels.append(label_row(run_id, 1, by="us", data=data, day=20_700))
        engine.insert_rows(LABELS_TABLE, LABEL_TYPES, labels)
        have += some


def measure(sizes: tuple[int, ...] = SIZES, repeats: int = 3) -> list[Figure]:
    """Return what each question costs with so many runs, on ClickHouse 26.9."""
    found: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="bench-lists-", ignore_cleanup_errors=True) as name:
        logs = Path(name) / "logs"
        logs.mkdir()
        write_listed_runs(logs, _FOLDERS)
        started = Server(Path(name) / "engine")
        started.start()
        try:
            set_up(started.address())
            engine = Engine(started.address(), patience_s=PATIENCE_S)
            shipper = Shipper(engine, [logs])
            shipper.start()
            shipper.ship_all()
            have = _FOLDERS
            for size in sizes:
                say(f"{size:,} runs")
                grow(engine, have, size)
                have = size
                # Reports that are not merged yet, as of live runs.
                engine.query(
                    "INSERT INTO runs SELECT * REPLACE (version + 1 AS version) FROM runs "
                    "ORDER BY created DESC LIMIT 500"
                )
                found += _ask(started, size, repeats)
        finally:
            started.stop()
    return found


def _ask(started: Server, size: int, repeats: int) -> list[Figure]:
    meter = Meter(started)
    meter.wait_until_idle()

    def listed(store: ClickHouseStore, query: RunQuery) -> None:
        store._runs._lists.clear()  # noqa: SLF001 - it keeps what it was asked for just now
        if query is not _PAGE:
            store._runs._runs.clear()  # noqa: SLF001 - a search finds other runs than those before
        runs = store.list_runs(query)
        assert len(runs.cards) == 100, (query, runs.problems)
        assert not runs.is_stale

    def new_store() -> ClickHouseStore:
        return ClickHouseStore(started.address(), patience_s=PATIENCE_S)

    store = new_store()
    calls: dict[str, Callable[[], None]] = {"first page": lambda: listed(new_store(), _PAGE)}
    calls |= {question: partial(listed, store, query) for question, query in QUESTIONS.items()}
    listed(store, _PAGE)
    found = []
    for question, call in calls.items():
        call()
        found.append(Figure(size, question, *meter.of(call, repeats)))
    return found
