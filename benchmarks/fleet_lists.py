"""A list of 1,000 to a million runs in the engine: processor time of the engine and of the dashboard for each question.

Searches and orders are asked of a store that has shown the first page: it counts all runs every 5 s at most.
The runs are made: rows that the real shipper wrote for some folders, copied by the engine with other ids, days and
times. `python -m benchmarks.fleet_lists [RUNS ...]`
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.command import say
from benchmarks.fleet_engine import PATIENCE_S, Meter
from tests.fleet.engines import Embedded
from tests.fleet.shipped_runs import make_run
from toolkit.telemetry.fleet.engine import Engine
from toolkit.telemetry.fleet.run_rows import LABEL_TYPES, LABELS_TABLE, label_row
from toolkit.telemetry.fleet.schema import set_up
from toolkit.telemetry.fleet.shipping.shipper import Shipper
from toolkit.telemetry.runfolder.labels import Labels, encode_labels
from toolkit.telemetry.runfolder.manifest import Evaluation
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore
from toolkit.telemetry.runs.store import RunQuery

SIZES: Final = (1_000, 12_000, 200_000, 1_000_000)
_FOLDERS: Final = 500
_AT_ONCE: Final = 50_000
_DAY_RUNS: Final = 5_000
_LABELLED: Final = 50
"""One of so many runs has labels."""
_COPIED: Final = (
    *(
        "project",
        "version",
        "name",
        "node",
        "folder",
        "status",
        "why",
        "sure",
        "heartbeat",
        "step",
        "manifest",
    ),
    *("trend", "behind", "shown", "tags", "tagged", "facts", "card"),
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


def write_folders(log_dir: Path, count: int = _FOLDERS) -> None:
    """Write finished runs with 30 settings and 4 evaluations each."""
    draw = random.Random(0)
    for number in range(count):
        make_run(
            log_dir,
            f"sweep-{number:04}",
            3,
            project=("vision", "speech", "language", "robots", "weather")[number % 5],
            tags=tuple(draw.sample(("baseline", "sweep", "final", "ablation"), draw.randrange(3))),
            config={
                "learning_rate": 10 ** draw.uniform(-5, -2),
                "optimizer": draw.choice(("adamw", "sgd", "lion", "adamw8bit")),
                **{f"model.setting_{place:02}": draw.random() for place in range(28)},
            },
            evaluations={
                name: Evaluation(last=draw.random(), best=draw.random(), direction="min")
                for name in ("val_loss", "acc", "fid", "reward")
            },
            summary={
                "epoch": number / 7,
                "train_loss": draw.random(),
                "max_steps": 1_000,
                "samples_per_sec": 12.5,
            },
        )


def grow(engine: Engine, have: int, runs: int) -> None:
    """Copy runs until there are so many; the newest are of the last days."""
    columns = ", ".join(_COPIED)
    number = "number + {first}"
    while have < runs:
        some = min(_AT_ONCE, runs - have)
        place = number.format(first=have)
        engine.query(
            f"INSERT INTO runs (run_id, searched, last_sign, received, created, {columns}) "
            f"SELECT lower(hex(sipHash128({place}))) AS id, concat(id, '\\x01', project, '\\x01', node), "
            f"1790000000 + ({place}) * 17, toDateTime(1790000000), "
            f"toDate(20700 + intDiv({place}, {_DAY_RUNS})), {columns} "
            f"FROM (SELECT number, number % {_FOLDERS} AS base FROM numbers({some})) AS n "
            f"ANY LEFT JOIN (SELECT toUInt64(substring(name, 7)) AS base, {columns} FROM runs FINAL "
            "WHERE created = toDate(intDiv(1790000000, 86400))) AS r USING (base)"
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
                    "String",
                )
            )
        ]
        engine.insert_rows(LABELS_TABLE, LABEL_TYPES, labels)
        have += some


def measure(sizes: tuple[int, ...] = SIZES, repeats: int = 5) -> list[Figure]:
    """Return what each question costs with so many runs, on ClickHouse 26.9."""
    found: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="bench-lists-", ignore_cleanup_errors=True) as name:
        logs = Path(name) / "logs"
        logs.mkdir()
        write_folders(logs)
        started = Embedded(Path(name) / "engine")
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


def _ask(started: Embedded, size: int, repeats: int) -> list[Figure]:
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

    def changed() -> None:
        store._runs._looked_at = -1e9  # noqa: SLF001 - it asks once a second
        store.list_runs(_PAGE)

    def one() -> None:
        store._runs.look_again()  # noqa: SLF001
        store.card(key)

    store.list_runs(_PAGE)
    return [*found, figure("what changed", changed), figure("one run by its id", one)]


def main(*sizes: str) -> None:
    """Print the table."""
    print(f"{'runs':>9}  {'question':<36}{'engine':>10}{'dashboard':>11}{'clock':>10}")
    for one in measure(tuple(map(int, sizes)) or SIZES):
        print(
            f"{one.runs:>9,}  {one.question:<36}{one.engine_ms:>7.1f} ms{one.page_ms:>8.1f} ms{one.wall_ms:>7.0f} ms"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
