"""A list of 12,000 to a million runs in the engine: processor time of engine and dashboard for each question.

Searches and orders are asked of a store that has shown the first page: it counts all runs every 5 s at most.
The runs are made: rows that the real shipper wrote for some folders, copied by the engine with other ids, days and
times.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.command import say
from benchmarks.fleet_data import write_listed_runs
from benchmarks.fleet_engine import PATIENCE_S, Meter
from benchmarks.fleet_server import Server
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
    "project, version, name, node, folder, status, why, sure, heartbeat, step, manifest, trend, behind, shown, tags, "
    "tagged, facts, card"
)
_PAGE: Final = RunQuery(per_page=100, archived=False)
QUESTIONS: Final = {
    "first page again, something changed": _PAGE,
    "search of a word": RunQuery(per_page=100, archived=False, text="speech"),
    "search of two values": RunQuery(per_page=100, archived=False, text="learning_rate>1e-3 val_loss<0.5"),
    "sort by a metric": RunQuery(per_page=100, archived=False, sort="best:val_loss"),
    "sort by a setting": RunQuery(per_page=100, archived=False, sort="config:learning_rate"),
    "sort by a setting that is text": RunQuery(per_page=100, archived=False, sort="-config:optimizer"),
    "sort by name": RunQuery(per_page=100, archived=False, sort="name"),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """What one question costs."""

    runs: int
    question: str
    engine_ms: float
    page_ms: float
    wall_ms: float


def grow(engine: Engine, have: int, runs: int) -> None:
    """Copy runs until there are so many; the newest are of the last days."""
    number = "number + {first}"
    while have < runs:
        some = min(_AT_ONCE, runs - have)
        place = number.format(first=have)
        engine.query(
            f"INSERT INTO runs (run_id, searched, last_sign, received, created, {_COPIED}) "
            f"SELECT lower(hex(sipHash128({place}))) AS id, concat(id, '\\x01', project, '\\x01', node), "
            f"1790000000 + ({place}) * 17, toDateTime(1790000000), "
            f"toDate(20700 + intDiv({place}, {_DAY_RUNS})), {_COPIED} "
            f"FROM (SELECT number, number % {_FOLDERS} AS base FROM numbers({some})) AS n "
            f"ANY LEFT JOIN (SELECT toUInt64(substring(name, 7)) AS base, {_COPIED} FROM runs FINAL "
            f"WHERE created = toDate(intDiv({BEGAN:.0f}, 86400))) AS r USING (base)"
        )
        labels = [
            label_row(
                project="",
                run_id=run_id,
                version=1,
                by="benchmark",
                data=encode_labels(Labels(notes="a note", archived=place % 3 == 0)),
                day=20_700,
            )
            for place, (run_id,) in enumerate(
                engine.rows(
                    f"SELECT lower(hex(sipHash128({place}))) FROM numbers({some}) WHERE number % {_LABELLED} = 0",
                )
            )
        ]
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

    def figure(question: str, call: Callable[[], object]) -> Figure:
        call()
        cost = meter.of(call, repeats)
        return Figure(size, question, cost["engine_ms"], cost["page_ms"], cost["wall_ms"])

    def listed(store: ClickHouseStore, query: RunQuery) -> None:
        store._runs._lists.clear()  # noqa: SLF001 - it keeps what it was asked for just now
        if query is not _PAGE:
            store._runs._runs.clear()  # noqa: SLF001 - a search finds other runs than those before
        runs = store.list_runs(query)
        assert len(runs.cards) == 100, (query, runs.problems)
        assert not runs.is_stale

    def first() -> None:
        listed(ClickHouseStore(started.address(), patience_s=PATIENCE_S), _PAGE)

    store = ClickHouseStore(started.address(), patience_s=PATIENCE_S)
    key = store.list_runs(_PAGE).cards[50].key
    found = [figure("first page, counts included", first)]
    for question, query in QUESTIONS.items():
        found.append(figure(question, lambda query=query: listed(store, query)))  # type: ignore[misc]

    def one() -> None:
        store._runs.look_again()  # noqa: SLF001
        store.card(key)

    return [*found, figure("one run by its id", one)]
