"""Copies tables between engines and folders: a back-up of what is in no run folder, or a move to another engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from toolkit.telemetry.fleet.commits import newest_commits
from toolkit.telemetry.fleet.engine import Engine, chunks, quote
from toolkit.telemetry.fleet.schema import SchemaError, require_tables

ONLY_THERE: Final = ("labels", "requests", "deliveries")
"""What shippers cannot fill in again from the folders."""
EVERYTHING: Final = ("records", "points", "objects", "commits", "runs", *ONLY_THERE)
"""In this order: a run is shown once all of it is there."""
_BY_PLACE: Final = ("records", "points")
_AT_ONCE: Final = 32 * 1024 * 1024
"""Bytes of record files that one answer of an engine is for."""
_SUFFIX: Final = ".native"


def copy(source: Engine | Path, target: Engine | Path, tables: tuple[str, ...]) -> Iterator[str]:
    """Copy the rows of `tables`; yield a sentence for each. Rows that are there already are replaced by themselves.

    A folder has files in ClickHouse's format Native, which any ClickHouse reads.

    Raises:
        EngineError: an engine refused or does not answer.
        OSError: a folder or a file in it cannot be used.
    """
    for end in (source, target):
        if isinstance(end, Engine):
            require_tables(end)
    if isinstance(target, Path):
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        if next(target.iterdir(), None) is not None:
            raise FileExistsError(f"{target} is not empty; a back-up goes into a folder of its own")
    for table in tables:
        count = size = 0
        for block in _blocks(source, table):
            count, size = count + 1, size + len(block)
            if isinstance(target, Engine):
                target.insert(table, ("*",), block)
            else:
                (target / f"{table}.{count:06}{_SUFFIX}").write_bytes(block)
        yield f"{table}: {size} bytes in {count} parts"


def _blocks(source: Engine | Path, table: str) -> Iterator[bytes]:
    if isinstance(source, Path):
        if not any(source.glob(f"*{_SUFFIX}")):
            raise SchemaError(f"{source} has no files *{_SUFFIX}: it is not a back-up of tables")
        for path in sorted(source.glob(f"{table}.*{_SUFFIX}")):
            yield path.read_bytes()
        return
    for where in _parts(source, by_place=table in _BY_PLACE):
        if block := source.query(f"SELECT * FROM {table} WHERE {where} FORMAT Native"):
            yield block


def _parts(source: Engine, *, by_place: bool) -> Iterator[str]:
    """Yield conditions that share out the rows of a table in parts that fit into memory."""
    ids = [run_id for (run_id,) in source.rows(_RUN_IDS, "String")]
    for some in chunks(ids):
        if not by_place:
            yield f"run_id IN ({', '.join(map(quote, some))})"
            continue
        together: list[str] = []
        size = 0
        for (run_id, rank), commit in sorted(newest_commits(source, some).items()):
            file = f"run_id = {quote(run_id)} AND rank = {rank}"
            for begin in range(0, max(1, commit.end), _AT_ONCE):
                if together and size + commit.end > _AT_ONCE:
                    yield " OR ".join(together)
                    together, size = [], 0
                together.append(f"({file} AND at >= {begin} AND at < {begin + _AT_ONCE})")
                size += min(commit.end, _AT_ONCE)
        if together:
            yield " OR ".join(together)


_RUN_IDS: Final = (
    "SELECT DISTINCT run_id FROM (SELECT run_id FROM commits UNION ALL SELECT run_id FROM runs UNION ALL "
    "SELECT run_id FROM labels UNION ALL SELECT run_id FROM requests) ORDER BY run_id"
)
