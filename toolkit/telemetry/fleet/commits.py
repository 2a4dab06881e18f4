"""What the engine has of each record file: how far it was taken, and what it holds beyond that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from toolkit.telemetry.fleet.binary_form import types_of
from toolkit.telemetry.fleet.engine import Asks, Engine, chunks, quote
from toolkit.telemetry.fleet.tail import (
    LINE_SUM,
    SUMMARY_TYPES,
    Counter,
    Position,
    Summary,
)

FileKey = tuple[str, int]
"""Run id and rank."""

_LAST_GENERATION: Final = 2**16 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """All bytes of a generation of a file up to `end` are in the engine, and this is their crc."""

    run_id: str
    rank: int
    gen: int = 1
    end: int = 0
    crc: int = 0
    lines: int = 0
    bad_lines: int = 0
    why: str = ""
    """Why this generation began, if it is not the first."""
    node: str = ""
    """The node that sent it; empty before that."""
    received: int = 0
    """When the engine took it, by its own clock, in seconds."""
    moves: int = 0
    """How often a generation came from another node than the one before."""
    metrics: Summary = field(default=Position().summary(), compare=False)
    """What is written of each metric; not read back."""

    @property
    def key(self) -> FileKey:
        """The file it is about."""
        return self.run_id, self.rank

    def next_generation(self, why: str) -> Commit:
        """Return where the next generation of the file begins.

        Raises:
            OSError: there are too many.
        """
        if self.gen >= _LAST_GENERATION:
            raise OSError(f"it is not shipped any more: it was replaced {self.gen:,} times")
        return replace(
            self, gen=self.gen + 1, end=0, crc=0, lines=0, bad_lines=0, why=why, metrics=Position().summary()
        )


def newest_commits(engine: Asks, run_ids: Iterable[str]) -> dict[FileKey, Commit]:
    """Return the commit of the newest generation of every file of these runs."""
    found: dict[FileKey, Commit] = {}
    for some in chunks(run_ids):
        for row in engine.rows(
            "SELECT run_id, rank, gen, end, crc, lines, bad_lines, why, node, toUInt32(received) FROM commits FINAL "
            f"WHERE run_id IN ({', '.join(map(quote, some))}) ORDER BY run_id, rank, gen",
            *(
                "String",
                "UInt32",
                "UInt16",
                "UInt64",
                "UInt32",
                "UInt64",
                "UInt32",
                "String",
                "String",
                "UInt32",
            ),
        ):
            commit = Commit(**dict(zip(_FIELDS, row, strict=True)))
            before = found.get(commit.key)
            moves = before.moves + (before.node != commit.node) if before is not None else 0
            found[commit.key] = replace(commit, moves=moves)
    return found


def newest_labels(engine: Engine, run_ids: Iterable[str]) -> dict[str, tuple[int, bool]]:
    """Return the version of the labels of each run that has some, and whether it was deleted on a page."""
    found: dict[str, tuple[int, bool]] = {}
    for some in chunks(run_ids):
        for run_id, version, deleted in engine.iterate(
            f"SELECT run_id, max(version) AS newest, argMax(deleted, version) FROM labels "
            f"WHERE run_id IN ({', '.join(map(quote, some))}) GROUP BY run_id",
            *("String", "UInt64", "UInt8"),
        ):
            found[run_id] = (version, bool(deleted))
    return found


def insert_commits(engine: Engine, commits: Sequence[tuple[Commit, int]], node: str) -> None:
    """Record that these files were taken so far; with each commit goes the day its run was created."""
    rows = []
    for one, day in commits:
        numbers = (one.rank, one.gen, one.end, one.crc, one.lines, one.bad_lines)
        rows.append((one.run_id, *numbers, one.why, node, day, *one.metrics))
    engine.insert_rows("commits", _TYPES, rows)


_TYPES: Final = types_of(
    "run_id String, rank UInt32, gen UInt16, end UInt64, crc UInt32, lines UInt64, bad_lines UInt32, "
    f"why String, node String, created Date, {SUMMARY_TYPES}"
)
_FIELDS: Final = ("run_id", "rank", "gen", "end", "crc", "lines", "bad_lines", "why", "node", "received")


def last_session(engine: Engine, commit: Commit) -> tuple[int, float]:
    """Return the last session that the engine has of a file's generation, and the time of its last record."""
    rows = engine.rows(
        "SELECT session, maxIf(time, isFinite(time)) FROM records "
        f"WHERE {_any_of([(commit.run_id, commit.rank, commit.gen, f'at < {commit.end}')])} "
        "GROUP BY session ORDER BY session DESC LIMIT 1",
        "UInt32",
        "Float64",
    )
    return rows[0] if rows else (0, 0.0)


def counters_at(engine: Engine, commits: Iterable[Commit]) -> dict[FileKey, dict[str, Counter]]:
    """Return what is known of each metric of a file before its commit's end."""
    found: dict[FileKey, dict[str, Counter]] = {}
    for some in chunks(commits):
        rows = engine.iterate(
            f"SELECT run_id, rank, {', '.join(types_of(SUMMARY_TYPES))} FROM commits FINAL "
            f"WHERE {_any_of((one.run_id, one.rank, one.gen, f'end = {one.end}') for one in some)}",
            *("String", "UInt32", "Array(Bytes)", *tuple(types_of(SUMMARY_TYPES).values())[1:]),
        )
        for run_id, rank, *columns in rows:
            counters = (Counter(*known) for known in zip(*columns, strict=True))
            found[run_id, rank] = {counter.name.decode(): counter for counter in counters}
    return found


class Strays(NamedTuple):
    """Lines of a generation that were taken and are after its commit, as when a shipper was killed in between."""

    end: int
    """Where the last of them ends."""
    lines: int
    low: int
    """The sum of LINE_SUM of each, of lines at the same place that with the least; `high` with the greatest."""
    high: int


def strays_after(engine: Engine, commits: Iterable[Commit]) -> dict[tuple[str, int, int], Strays]:
    """Return the lines after each commit, and those of later generations, by run, rank and generation."""
    found = {}
    for some in chunks(commits):
        files = " OR ".join(
            f"(run_id = {quote(one.run_id)} AND rank = {one.rank} AND "
            f"(gen > {one.gen} OR (gen = {one.gen} AND at >= {one.end})))"
            for one in some
        )
        for run_id, rank, gen, *strays in engine.iterate(
            "SELECT run_id, rank, gen, max(after), count(), sum(low), sum(high) FROM ("
            f"SELECT run_id, rank, gen, at, max(next) AS after, min({LINE_SUM}) AS low, max({LINE_SUM}) AS high "
            f"FROM records WHERE {files} GROUP BY run_id, rank, gen, at) GROUP BY run_id, rank, gen",
            *("String", "UInt32", "UInt16", "UInt64", "UInt64", "UInt64", "UInt64"),
        ):
            found[run_id, rank, gen] = Strays(*strays)
    return found


def whole_line(at: int, after: int, line: bytes) -> bytes:
    """Return the bytes of a file between `at` and `after`: the line, and its newline unless it is a piece of one."""
    return line + b"\n" if after - at == len(line) + 1 else line


def _any_of(files: Iterable[tuple[str, int, int, str]]) -> str:
    return " OR ".join(
        f"(run_id = {quote(run_id)} AND rank = {rank} AND gen = {gen} AND {condition})"
        for run_id, rank, gen, condition in files
    )
