"""The tables of a fleet: their SQL, and their version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from toolkit.telemetry.fleet.address import Address
from toolkit.telemetry.fleet.engine import Engine, EngineError, RefusedError

VERSION: Final = 7
"""Of the tables. Programs and tables of different versions refuse each other: a new version is a new database."""

ABOUT: Final = "schema_version"
_RAW = "ZSTD(1)"
"""Also for lines: at higher levels short matches of digits, of which most of a line consists, take more room."""
_STEPPED = "DoubleDelta, ZSTD(1)"
_CLOSE = "Delta, ZSTD(1)"
_SAME = "Delta, ZSTD(3)"
"""For the same sequence again and again, as each metric of a run has it: whole bytes, which are found again."""


class SchemaError(RefusedError):
    """The tables are missing or of another version; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    name: str
    columns: str
    engine: str
    key: str
    partition: str = "toYYYYMM(created)"
    dated: str = "created"
    """From then on --keep-days counts."""
    granularity: int = 8192


TABLES: Final = (
    _Table(
        name="records",
        columns=f"""run_id String, rank UInt32, gen UInt16,
            at UInt64 CODEC({_STEPPED}), next UInt64 CODEC({_STEPPED}),
            seq Int64 CODEC({_STEPPED}), session UInt32, event {{LC}},
            time Float64 CODEC({_CLOSE}), elapsed Float64 CODEC({_CLOSE}),
            step Float64 CODEC({_CLOSE}), epoch Float64 CODEC({_CLOSE}),
            line String CODEC({_RAW}), created Date""",
        engine="ReplacingMergeTree",
        key="(run_id, rank, gen, at)",
    ),
    _Table(
        name="points",
        columns=f"""run_id String, metric {{LC}}, rank UInt32, gen UInt16,
            at UInt64 CODEC({_SAME}), step Float64 CODEC({_SAME}), value Float64 CODEC(FPC, ZSTD(1)), created Date""",
        engine="ReplacingMergeTree",
        key="(run_id, metric, rank, gen, at)",
        granularity=2048,
    ),
    _Table(
        name="commits",
        columns="""run_id String, rank UInt32, gen UInt16, end UInt64, crc UInt32, why String,
            node {LC}, received DateTime DEFAULT now(), created Date""",
        engine="ReplacingMergeTree(end)",
        key="(run_id, rank, gen)",
    ),
    _Table(
        name="runs",
        columns="""project {LC}, run_id String, version UInt64, name String, node {LC}, folder String, status {LC},
            why String, sure UInt8, step Float64, manifest String CODEC(ZSTD(3)),
            trend Array(Float32), behind UInt64, received DateTime DEFAULT now(), created Date,
            last_sign Float64, shown String, tags Array({LC}), tagged String, searched String,
            facts JSON, card String, control {LC}, INDEX by_id run_id TYPE bloom_filter GRANULARITY 1""",
        engine="ReplacingMergeTree(version)",
        # By day first: only the rows of recent days have to be merged when a list is read.
        key="(created, run_id)",
        granularity=128,
    ),
    _Table(
        name="labels",
        columns="""run_id String, version UInt64, by String, labels String, deleted UInt8,
            created Date, received DateTime DEFAULT now(), archived UInt8, shown String, has_tags UInt8,
            tags Array({LC}), tagged String""",
        engine="ReplacingMergeTree(version)",
        key="run_id",
    ),
    _Table(
        name="requests",
        columns="""run_id String, id String, asked Float64, expires Float64, by String, body String, created Date""",
        engine="ReplacingMergeTree",
        key="(run_id, id)",
    ),
    _Table(
        name="deliveries",
        columns="run_id String, id String, version UInt64, state String, created Date",
        engine="ReplacingMergeTree(version)",
        key="(run_id, id)",
    ),
    _Table(
        name="shippers",
        columns="""node {LC}, clock_ahead_s Float64, files UInt32, behind UInt64,
            last_error String, received DateTime DEFAULT now()""",
        engine="ReplacingMergeTree(received)",
        key="node",
        partition="tuple()",
        dated="received",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """How the tables were made."""

    keep_days: int = 0
    """Runs created longer ago are removed by the engine, and not shipped; 0 keeps all."""
    engine_version: str = ""


def set_up(address: Address, keep_days: int | None = None) -> str:
    """Make the tables that are missing; return what was done, in words. No data is ever dropped.

    With `keep_days` the engine removes all of runs that were created longer ago; 0 keeps all, None leaves it as it is.

    Raises:
        EngineError: the engine refused.
    """
    with closing(Engine(replace(address, database="default"))) as anywhere:
        anywhere.query(f"CREATE DATABASE IF NOT EXISTS {address.database}")
        engine_version = anywhere.rows("SELECT version()")[0][0]
    with closing(Engine(address)) as engine:
        found = _tables(engine)
        before = found.keep_days if found is not None else 0
        days = before if keep_days is None else keep_days
        for statement in statements(days, is_change=found is not None and before != days):
            engine.query(statement)
    done = "made" if found is None else "checked"
    return f"{address.place}: tables of version {VERSION} {done} (ClickHouse {engine_version})"


def statements(keep_days: int, *, is_change: bool = False) -> Iterator[str]:
    """Yield the statements that make what is missing; for a change of `keep_days`, also those for what is there."""
    for table in TABLES:
        expiry = f"TTL {table.dated} + INTERVAL {keep_days} DAY" if keep_days else ""
        columns = table.columns.replace("{LC}", "LowCardinality(String)")
        yield (
            f"CREATE TABLE IF NOT EXISTS {table.name} ({columns}) ENGINE = {table.engine} "
            f"PARTITION BY {table.partition} ORDER BY {table.key} {expiry} "
            f"SETTINGS index_granularity = {table.granularity}"
        )
        if is_change:
            yield f"ALTER TABLE {table.name} {f'MODIFY {expiry}' if keep_days else 'REMOVE TTL'}"
    # Last, so that tables are used only if all of them are there.
    yield (
        f"CREATE {'OR REPLACE VIEW' if is_change else 'VIEW IF NOT EXISTS'} {ABOUT} AS "
        f"SELECT toUInt32({VERSION}) AS version, toUInt32({keep_days}) AS keep_days"
    )


def require_tables(engine: Engine) -> Tables:
    """Return how the tables of the engine were made.

    Raises:
        SchemaError: the tables are missing or of another version.
        EngineError: the engine did not answer.
    """
    found = _tables(engine)
    if found is None:
        raise SchemaError(
            f"the database {engine.address.database} has no telemetry tables; `telemetry ship --set-up` makes them"
        )
    return found


_UNKNOWN_TABLE: Final = 60


def _tables(engine: Engine) -> Tables | None:
    try:
        # Something else may answer with nothing.
        version = next(iter(engine.rows(f"SELECT version FROM {ABOUT}")), (0,))[0]
    except EngineError as error:
        if error.code == _UNKNOWN_TABLE:
            return None
        raise
    if version != VERSION:
        raise SchemaError(
            f"the tables of the database {engine.address.database} have version {version} and this program needs "
            f"version {VERSION}: "
            + (
                "upgrade this program"
                if version > VERSION
                else "let `telemetry ship --set-up` make a new database, and the shippers fill it from their folders"
            )
        )
    keep_days, engine_version = engine.rows(f"SELECT keep_days, version() FROM {ABOUT}")[0]
    return Tables(keep_days=keep_days, engine_version=engine_version)
