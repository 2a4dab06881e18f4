"""What the engine has of each record file: how far it was taken, and what it holds beyond that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from toolkit.fleet.engine import Engine, quote
from toolkit.fleet.native_block import native_block
from toolkit.fleet.tail import Counter, bytes_of

FileKey = tuple[str, int]
"""Run id and rank."""

_AT_ONCE: Final = 200
_MOST_STRAYS: Final = 60_000
"""More rows than one batch: what was sent and not committed."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """All bytes of a generation of a file up to `end` are in the engine, and this is their crc."""

    run_id: str
    rank: int
    gen: int
    end: int
    crc: int
    lines: int
    bad_lines: int
    why: str = ""
    """Why this generation began, if it is not the first."""
    node: str = ""
    """The node that sent it; empty before that."""

    @property
    def key(self) -> FileKey:
        """The file it is about."""
        return self.run_id, self.rank


def newest_commits(engine: Engine, run_ids: Iterable[str]) -> dict[FileKey, Commit]:
    """Return the commit of the newest generation of every file of these runs."""
    found: dict[FileKey, Commit] = {}
    for some in _chunks(run_ids):
        rows = engine.iterate(
            "SELECT run_id, rank, gen, max(end) AS last, argMax(crc, end), argMax(lines, end), "
            "argMax(bad_lines, end), argMax(why, end), argMax(node, end) "
            f"FROM {engine.table('commits')} WHERE run_id IN ({', '.join(map(quote, some))}) "
            "GROUP BY run_id, rank, gen",
            *("String", "UInt32", "UInt16", "UInt64", "UInt32", "UInt64", "UInt32", "String", "String"),
        )
        for run_id, rank, gen, end, crc, lines, bad_lines, why, node in rows:
            known = found.get((run_id, rank))
            if known is None or gen > known.gen:
                found[run_id, rank] = Commit(
                    run_id=run_id,
                    rank=rank,
                    gen=gen,
                    end=end,
                    crc=crc,
                    lines=lines,
                    bad_lines=bad_lines,
                    why=why,
                    node=node,
                )
    return found


def insert_commits(engine: Engine, commits: Sequence[tuple[Commit, int]], node: str) -> None:
    """Record that these files were taken so far; with each commit goes the day its run was created."""
    block = native_block(
        [
            ("run_id", "String", [commit.run_id.encode() for commit, _ in commits]),
            ("rank", "UInt32", [commit.rank for commit, _ in commits]),
            ("gen", "UInt16", [commit.gen for commit, _ in commits]),
            ("end", "UInt64", [commit.end for commit, _ in commits]),
            ("crc", "UInt32", [commit.crc for commit, _ in commits]),
            ("lines", "UInt64", [commit.lines for commit, _ in commits]),
            ("bad_lines", "UInt32", [commit.bad_lines for commit, _ in commits]),
            ("why", "String", [commit.why.encode() for commit, _ in commits]),
            ("node", "String", [node.encode()] * len(commits)),
            ("created", "Date", [day for _, day in commits]),
        ]
    )
    engine.insert("commits", _COLUMNS, block)


_COLUMNS: Final = ("run_id", "rank", "gen", "end", "crc", "lines", "bad_lines", "why", "node", "created")


def last_time(engine: Engine, commit: Commit) -> float:
    """Return the time of the last record that the engine has of a file's generation; 0 if no record has one."""
    rows = engine.rows(
        f"SELECT maxIf(time, isFinite(time)) FROM {engine.table('records')} "
        f"WHERE {_any_of([(commit.run_id, commit.rank, commit.gen, f'at < {commit.end}')])}",
        "Float64",
    )
    return float(rows[0][0]) if rows else 0.0


def counters_at(engine: Engine, commits: Iterable[Commit]) -> dict[FileKey, dict[str, Counter]]:
    """Return for each file and metric how many values it has before its commit's end, and how many are not finite."""
    found: dict[FileKey, dict[str, Counter]] = {}
    for some in _chunks(commits):
        rows = engine.iterate(
            f"SELECT run_id, rank, metric, max(n), argMax(bad, n) FROM {engine.table('points')} "
            f"WHERE {_any_of((commit.run_id, commit.rank, commit.gen, f'at < {commit.end}') for commit in some)} "
            "GROUP BY run_id, rank, metric",
            *("String", "UInt32", "Bytes", "UInt32", "UInt32"),
        )
        for run_id, rank, metric, n, bad in rows:
            found.setdefault((run_id, rank), {})[metric.decode()] = Counter(metric, n, bad)
    return found


@dataclass(frozen=True, slots=True)
class Stray:
    """A line that was taken and is not covered by a commit, as when a shipper was killed in between."""

    gen: int
    at: int
    data: bytes

    def is_in(self, path: Path) -> bool:
        """Return whether the file has these bytes at this place."""
        return bytes_of(path, self.at, self.at + len(self.data)) == self.data


def strays_behind(engine: Engine, ends: Iterable[tuple[FileKey, int, int]]) -> dict[FileKey, list[Stray]]:
    """Return the lines of each file behind a generation's end, and those of later generations."""
    found: dict[FileKey, list[Stray]] = {}
    for some in _chunks(ends):
        conditions = " OR ".join(
            f"(run_id = {quote(run_id)} AND rank = {rank} AND (gen > {gen} OR (gen = {gen} AND at >= {end})))"
            for (run_id, rank), gen, end in some
        )
        rows = engine.iterate(
            f"SELECT run_id, rank, gen, at, next, line FROM {engine.table('records')} WHERE {conditions} "
            f"ORDER BY run_id, rank, gen, at LIMIT {_MOST_STRAYS}",
            *("String", "UInt32", "UInt16", "UInt64", "UInt64", "Bytes"),
        )
        for run_id, rank, gen, at, after, line in rows:
            found.setdefault((run_id, rank), []).append(Stray(gen, at, whole_line(at, after, line)))
    return found


def whole_line(at: int, after: int, line: bytes) -> bytes:
    """Return the bytes of a file between `at` and `after`: the line, and its newline unless it is a piece of one."""
    return line + b"\n" if after - at == len(line) + 1 else line


def _any_of(files: Iterable[tuple[str, int, int, str]]) -> str:
    return " OR ".join(
        f"(run_id = {quote(run_id)} AND rank = {rank} AND gen = {gen} AND {condition})"
        for run_id, rank, gen, condition in files
    )


def _chunks(items: Iterable[_T]) -> Iterator[list[_T]]:
    rest = iter(items)
    while some := list(islice(rest, _AT_ONCE)):
        yield some
