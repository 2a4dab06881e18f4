"""The tables of a fleet: their SQL, and their version."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from toolkit.telemetry.fleet.address import Address
from toolkit.telemetry.fleet.engine import Engine, EngineError, RefusedError, quote
from toolkit.telemetry.fleet.signed_requests import key_id_of, token_of
from toolkit.telemetry.runfolder.untrusted import parse_object

VERSION: Final = 3
"""Of the tables. Programs and tables of different versions refuse each other: a new version is a new database."""

PART_BYTES: Final = 4 * 1024 * 1024
"""Files are compared, and sent again, in parts of this size."""
AT_WEIGHT: Final = 0x9E3779B97F4A7C15
N_WEIGHT: Final = 0xC2B2AE3D27D4EB4F
BAD_WEIGHT: Final = 0x165667B19E3779F9
"""What the columns `at`, `n` (of lines `next`) and `bad` are multiplied by in a sum; any odd numbers do."""

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
            n UInt32 CODEC({_STEPPED}), bad UInt32 CODEC({_RAW}), at UInt64 CODEC({_SAME}),
            step Float64 CODEC({_SAME}), value Float64 CODEC(FPC, ZSTD(1)), created Date""",
        engine="ReplacingMergeTree",
        key="(run_id, metric, rank, gen, n)",
        granularity=2048,
    ),
    _Table(
        name="commits",
        columns="""run_id String, rank UInt32, gen UInt16, end UInt64, crc UInt32, lines UInt64, bad_lines UInt32,
            why String, node {LC}, seal String, mac String, received DateTime DEFAULT now(), created Date,
            metric Nested(name String, count UInt32, bad UInt32, last Float64, last_at UInt64, low Float64,
            high Float64, first_at UInt64)""",
        engine="ReplacingMergeTree(end)",
        key="(run_id, rank, gen, seal)",
    ),
    _Table(
        name="runs",
        columns="""project {LC}, run_id String, version UInt64, name String, node {LC}, folder String, status {LC},
            why String, sure UInt8, heartbeat Float64, step Float64, manifest String CODEC(ZSTD(3)),
            trend Array(Float32), behind UInt64, received DateTime DEFAULT now(), created Date,
            problem String, last_sign Float64, shown String, tags Array({LC}), tagged String, searched String,
            facts JSON, card String, INDEX by_id run_id TYPE bloom_filter GRANULARITY 1""",
        engine="ReplacingMergeTree(version)",
        # By day first: only the rows of recent days have to be merged when a list is read.
        key="(created, run_id)",
        granularity=128,
    ),
    _Table(
        name="labels",
        columns="""project {LC}, run_id String, version UInt64, by String, labels String, deleted UInt8,
            created Date, received DateTime DEFAULT now(), archived UInt8, shown String, has_tags UInt8,
            tags Array({LC}), tagged String""",
        engine="ReplacingMergeTree(version)",
        key="run_id",
    ),
    _Table(
        name="requests",
        columns="""project {LC}, run_id String, id String, asked Float64, expires Float64, by String, body String,
            mac String, created Date""",
        engine="ReplacingMergeTree",
        # With the signature: whoever does not have the key cannot replace a request.
        key="(run_id, id, mac)",
    ),
    _Table(
        name="deliveries",
        columns="""project {LC}, run_id String, id String, version UInt64, node {LC}, key_id String, state String,
            received DateTime DEFAULT now(), created Date""",
        engine="ReplacingMergeTree(version)",
        key="(run_id, id)",
    ),
    _Table(
        name="objects",
        columns="""project {LC}, run_id String, path String, sha256 String, bytes UInt64, version UInt64,
            created Date""",
        engine="ReplacingMergeTree(version)",
        key="(run_id, path)",
    ),
    _Table(
        name="shippers",
        columns="""node {LC}, version UInt64, started Float64, clock_ahead_s Float64, files UInt32, behind UInt64,
            last_error String, received DateTime DEFAULT now()""",
        engine="ReplacingMergeTree(version)",
        key="node",
        partition="tuple()",
        dated="received",
    ),
)

FROM_NODES: Final = ("runs", "labels", "deliveries", "objects", "shippers")
"""Nodes write into a table `node_…`, and a view copies its rows."""

_READ: Final = {
    "newest_commits": """SELECT run_id, rank, gen, max(end) AS last, argMax(crc, end) AS its_crc,
        argMax(lines, end) AS its_lines, argMax(bad_lines, end) AS its_bad_lines, argMax(why, end) AS its_why,
        argMax(node, end) AS its_node, argMax(mac, end) AS its_mac, max(toUInt32(received)) AS seen
        FROM {commits} GROUP BY run_id, rank, gen, seal""",
    "record_hashes": """SELECT run_id, rank, gen, at, next, session, time, length(line) AS size,
        reinterpretAsUInt64(SHA1(line)) AS hash FROM {records}""",
    "file_paths": "SELECT run_id, event, JSONExtractString(line, 'path') AS path FROM {records}",
}
"""Views with the rights of whoever makes the tables: what a shipper reads, without contents and seals."""
_OWN_RIGHTS: Final = "DEFINER = CURRENT_USER SQL SECURITY DEFINER "
_ASKED: Final = {
    "point_sums": (
        f"""SELECT run_id, rank, gen, part, count() AS points, halfMD5(toString(sum(least))) AS low,
        halfMD5(toString(sum(most))) AS high FROM (SELECT run_id, rank, gen, metric, n, min(hash) AS least,
        max(hash) AS most, toUInt64(intDiv(max(at), {PART_BYTES})) AS part FROM (SELECT run_id, rank, gen, metric, n,
        at, reinterpretAsUInt64(reinterpretAsString(value)) + halfMD5(metric)
        + at * {AT_WEIGHT} + n * {N_WEIGHT} + bad * {BAD_WEIGHT} AS hash
        FROM {{points}} WHERE at >= {{begin}} AND at < {{until}}) GROUP BY run_id, rank, gen, metric, n)
        GROUP BY run_id, rank, gen, part""",
        {"begin": "UInt64", "until": "UInt64"},
    ),
    "commit_metrics": (
        """SELECT run_id, rank, gen, max(end) AS last, argMax(metric.name, end) AS names,
        argMax(metric.count, end) AS counts, argMax(metric.bad, end) AS bads, argMax(metric.last, end) AS lasts,
        argMax(metric.last_at, end) AS last_ats, argMax(metric.low, end) AS lows, argMax(metric.high, end) AS highs,
        argMax(metric.first_at, end) AS first_ats FROM {commits} WHERE has({seals}, seal) GROUP BY run_id, rank, gen""",
        {"seals": "Array(String)"},
    ),
}
"""Views like these that need parameters: what the values of a part of a file add up to, hashed, as the sum of one
would be the value; and the last values before a commit, for those who know its seal."""


def with_parameters(view: str, **parameters: object) -> str:
    """Return what to select from."""
    return f"{view}({', '.join(f'{name} = {value}' for name, value in parameters.items())})"


def set_up(address: Address, keep_days: int | None = None) -> str:
    """Make the tables that are missing; return what was done, in words. No data is ever dropped.

    With `keep_days` the engine removes all of runs that were created longer ago; 0 keeps all, None leaves it as it is.

    Raises:
        EngineError: the engine refused.
    """
    anywhere = Engine(replace(address, database="default"))
    try:
        anywhere.query(f"CREATE DATABASE IF NOT EXISTS {address.database}")
        engine_version = str(anywhere.rows("SELECT version()", "String")[0][0])
    finally:
        anywhere.close()
    engine = Engine(address)
    try:
        found = _tables(engine)
        if found is not None:
            _require_version(found, address)
        made = found or Tables()
        if keep_days is not None:
            made = replace(made, keep_days=keep_days)
        is_change = found is not None and found != made
        for statement in statements(made, is_change=is_change, key=address.key):
            engine.query(statement)
    finally:
        engine.close()
    done = "made" if found is None else "checked"
    return f"{address.place}: tables of version {VERSION} {done} (ClickHouse {engine_version})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """How the tables were made."""

    version: int = VERSION
    keep_days: int = 0
    """Runs created longer ago are removed by the engine, and not shipped; 0 keeps all."""
    engine_version: str = ""
    key_id: str = ""
    """Of the key without which a node's reports are left out; empty if none is needed."""

    def require_key(self, address: Address) -> None:
        """Refuse to report without the key: the engine would leave it out, and say nothing. Raises SchemaError."""
        if self.key_id and (address.key is None or key_id_of(address.key) != self.key_id):
            what = "has none" if address.key is None else "has another one"
            raise SchemaError(
                f"the database {address.database} takes reports with the team's key only, "
                f"and this shipper {what}: --key"
            )


def statements(tables: Tables, *, is_change: bool = False, key: bytes | None = None) -> Iterator[str]:
    """Yield the statements that make what is missing; for a change of `keep_days`, also those for what is there.

    With a `key`, only nodes that have it report anything.
    """
    for table in TABLES:
        yield (
            f"CREATE TABLE IF NOT EXISTS {table.name} ({_columns(table)}) ENGINE = {table.engine} "
            f"PARTITION BY {table.partition} ORDER BY {table.key} {_expiry(table, tables)}"
            f"SETTINGS index_granularity = {table.granularity}"
        )
        if is_change:
            how = f"MODIFY {_expiry(table, tables)}" if tables.keep_days else "REMOVE TTL"
            yield f"ALTER TABLE {table.name} {how}"
        if table.name in FROM_NODES:
            yield from _from_nodes(table, key)
    words, views = {}, dict(_READ)
    for name, (select, parameters) in _ASKED.items():
        views[name] = select
        words.update({parameter: f"{{{parameter}:{kind}}}" for parameter, kind in parameters.items()})
    words.update({table.name: table.name for table in TABLES})
    for name, select in views.items():
        yield f"CREATE VIEW IF NOT EXISTS {name} {_OWN_RIGHTS}AS {select.format(**words)}"
    # Last, so that tables are used only if all of them are there.
    yield (
        f"CREATE {'OR REPLACE VIEW' if key or is_change else 'VIEW IF NOT EXISTS'} {ABOUT} AS "
        f"SELECT toUInt32({tables.version}) AS version, toUInt32({tables.keep_days}) AS keep_days, "
        f"{quote(key_id_of(key) if key else tables.key_id)} AS key_id"
    )


def insert_from_node(
    engine: Engine, table: str, types: Mapping[str, str], rows: Iterable[tuple[Any, ...]]
) -> None:
    """Insert rows of which the engine checks that they come from someone with the team's key. Raises EngineError."""
    token = token_of(engine.address.key)
    engine.insert_rows(f"node_{table}", {**types, "token": "String"}, ((*row, token) for row in rows))


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
    _require_version(found, engine.address)
    return found


_UNKNOWN_TABLE: Final = 60
_MAX_ABOUT: Final = 64 * 1024


def _tables(engine: Engine) -> Tables | None:
    try:
        answer = engine.query(f"SELECT *, version() AS engine_version FROM {ABOUT} FORMAT JSONEachRow")
        # What a later version adds is not for this one; what an earlier one lacks has its default.
        found = parse_object(answer, "about", _MAX_ABOUT, ValueError)
        known = {name: found[name] for name in Tables.__dataclass_fields__ if name in found}
        if not isinstance(found["version"], int):
            raise TypeError
        return Tables(**known)
    except EngineError as error:
        if error.code == _UNKNOWN_TABLE:
            return None
        raise
    except (ValueError, TypeError, LookupError) as error:
        raise EngineError(f"{engine.address} gave an answer of another form than asked for") from error


def _require_version(found: Tables, address: Address) -> None:
    if found.version != VERSION:
        raise SchemaError(
            f"the tables of the database {address.database} have version {found.version} and this program needs "
            f"version {VERSION}: "
            + (
                "upgrade this program"
                if found.version > VERSION
                else "let `telemetry ship --set-up` make a new database, and the shippers fill it from their folders"
            )
        )


def _expiry(table: _Table, tables: Tables) -> str:
    return f"TTL {table.dated} + INTERVAL {tables.keep_days} DAY " if tables.keep_days else ""


def _columns(table: _Table) -> str:
    return table.columns.replace("{LC}", "LowCardinality(String)")


def _from_nodes(table: _Table, key: bytes | None) -> Iterator[str]:
    """Yield what makes the table that nodes insert into: no row of theirs deletes a run, and the engine checks it."""
    name = f"node_{table.name}"
    columns = re.sub(r",\s*INDEX .*", "", _columns(table))
    names = [one.split()[0] for one in re.sub(r"\([^()]*(\([^()]*\)[^()]*)*\)", "", columns).split(",")]
    taken = ["toUInt8(0) AS deleted" if one == "deleted" else f"`{one}`" for one in names]
    select = f"SELECT {', '.join(taken)} FROM {name}"
    if key is not None:
        select += f" WHERE lower(hex(SHA256(token))) = '{hashlib.sha256(token_of(key)).hexdigest()}'"
    yield f"CREATE TABLE IF NOT EXISTS {name} ({columns}, token String) ENGINE = Null"
    yield f"CREATE MATERIALIZED VIEW IF NOT EXISTS {name}_view TO {table.name} AS {select}"
    if key is not None:
        # The team may have another key than before.
        yield f"ALTER TABLE {name}_view MODIFY QUERY {select}"
