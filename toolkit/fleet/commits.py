"""What the engine has of each record file: how far it was taken, and what it holds beyond that."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Final

from toolkit.fleet.binary_form import types_of
from toolkit.fleet.engine import Engine, chunks, quote
from toolkit.fleet.tail import LONGEST_LINE, Counter, half_md5
from toolkit.runfolder.portable import pread
from toolkit.runfolder.safefile import open_regular

FileKey = tuple[str, int]
"""Run id and rank."""

_STRAYS_AT_ONCE: Final = 60_000
"""More rows than one batch: mostly all that was sent and not committed."""


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
    moves: int = 0
    """How often a generation came from another node than the one before."""

    @property
    def key(self) -> FileKey:
        """The file it is about."""
        return self.run_id, self.rank

    def next_generation(self, why: str) -> Commit:
        """Return where the next generation of the file begins."""
        return replace(self, gen=self.gen + 1, end=0, crc=0, lines=0, bad_lines=0, why=why)


def newest_commits(engine: Engine, run_ids: Iterable[str]) -> dict[FileKey, Commit]:
    """Return the commit of the newest generation of every file of these runs."""
    found: dict[FileKey, Commit] = {}
    for some in chunks(run_ids):
        rows = engine.iterate(
            "SELECT run_id, rank, gen, max(end) AS last, argMax(crc, end), argMax(lines, end), "
            "argMax(bad_lines, end), argMax(why, end), argMax(node, end) "
            f"FROM {engine.table('commits')} WHERE run_id IN ({', '.join(map(quote, some))}) "
            "GROUP BY run_id, rank, gen ORDER BY run_id, rank, gen",
            *("String", "UInt32", "UInt16", "UInt64", "UInt32", "UInt64", "UInt32", "String", "String"),
        )
        for run_id, rank, gen, end, crc, lines, bad_lines, why, node in rows:
            before = found.get((run_id, rank))
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
                moves=before.moves + (before.node != node) if before is not None else 0,
            )
    return found


def newest_labels(engine: Engine, run_ids: Iterable[str]) -> dict[str, tuple[int, bool]]:
    """Return the version of the labels of each run that has some, and whether it was deleted on a page."""
    found: dict[str, tuple[int, bool]] = {}
    for some in chunks(run_ids):
        for run_id, version, deleted in engine.iterate(
            f"SELECT run_id, max(version) AS newest, argMax(deleted, version) FROM {engine.table('labels')} "
            f"WHERE run_id IN ({', '.join(map(quote, some))}) GROUP BY run_id",
            *("String", "UInt64", "UInt8"),
        ):
            found[run_id] = (version, bool(deleted))
    return found


def insert_commits(engine: Engine, commits: Sequence[tuple[Commit, int]], node: str) -> None:
    """Record that these files were taken so far; with each commit goes the day its run was created."""
    rows = [
        (one.run_id, one.rank, one.gen, one.end, one.crc, one.lines, one.bad_lines, one.why, node, day)
        for one, day in commits
    ]
    engine.insert_rows("commits", _TYPES, rows)


_TYPES: Final = types_of(
    "run_id String, rank UInt32, gen UInt16, end UInt64, crc UInt32, lines UInt64, bad_lines UInt32, "
    "why String, node String, created Date"
)


def last_session(engine: Engine, commit: Commit) -> tuple[int, float]:
    """Return the last session that the engine has of a file's generation, and the time of its last record."""
    rows = engine.rows(
        f"SELECT session, maxIf(time, isFinite(time)) FROM {engine.table('records')} "
        f"WHERE {_any_of([(commit.run_id, commit.rank, commit.gen, f'at < {commit.end}')])} "
        "GROUP BY session ORDER BY session DESC LIMIT 1",
        "UInt32",
        "Float64",
    )
    return rows[0] if rows else (0, 0.0)


def counters_at(engine: Engine, commits: Iterable[Commit]) -> dict[FileKey, dict[str, Counter]]:
    """Return for each file and metric how many values it has before its commit's end, and how many are not finite."""
    found: dict[FileKey, dict[str, Counter]] = {}
    for some in chunks(commits):
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
    after: int
    length: int
    hash: int
    """Of its bytes, without a newline."""


def strays_behind(
    engine: Engine, ends: Iterable[tuple[FileKey, int, int]]
) -> Iterator[tuple[FileKey, list[Stray]]]:
    """Yield the lines of each file behind a generation's end, and those of later generations, some at a time."""
    for some in chunks(ends):
        files = " OR ".join(
            f"(run_id = {quote(run_id)} AND rank = {rank} AND (gen > {gen} OR (gen = {gen} AND at >= {end})))"
            for (run_id, rank), gen, end in some
        )
        rest = ""
        while True:
            rows = engine.rows(
                "SELECT run_id, rank, gen, at, next, length(line) AS size, halfMD5(line) AS hash "
                f"FROM {engine.table('records')} WHERE ({files}){rest} "
                "GROUP BY run_id, rank, gen, at, next, size, hash "
                f"ORDER BY run_id, rank, gen, at LIMIT {_STRAYS_AT_ONCE}",
                *("String", "UInt32", "UInt16", "UInt64", "UInt64", "UInt64", "UInt64"),
            )
            for key, group in groupby(rows, key=lambda row: (row[0], row[1])):
                yield key, [Stray(*row[2:]) for row in group]
            if len(rows) < _STRAYS_AT_ONCE:
                break
            # From the last line on again: there may be several rows of it.
            run_id, rank, gen, at = rows[-1][:4]
            order = ">=" if rows[0][:4] != rows[-1][:4] else ">"
            rest = (
                f" AND (run_id > {quote(run_id)} OR (run_id = {quote(run_id)} AND (rank > {rank} "
                f"OR (rank = {rank} AND (gen > {gen} OR (gen = {gen} AND at {order} {at}))))))"
            )


def gens_not_in(path: Path, strays: Iterable[Stray]) -> set[int]:
    """Return the generations that have a line which the file does not have at its place.

    Raises:
        OSError: it cannot be read.
    """
    found = set()
    descriptor = open_regular(path)
    try:
        for stray in strays:
            size = stray.after - stray.at
            data = pread(descriptor, size, stray.at) if stray.length <= size <= LONGEST_LINE else b""
            line, newline = data[: stray.length], data[stray.length :]
            is_there = len(data) == size and newline in (b"", b"\n") and half_md5(line) == stray.hash
            if not is_there:
                found.add(stray.gen)
    finally:
        os.close(descriptor)
    return found


def whole_line(at: int, after: int, line: bytes) -> bytes:
    """Return the bytes of a file between `at` and `after`: the line, and its newline unless it is a piece of one."""
    return line + b"\n" if after - at == len(line) + 1 else line


def _any_of(files: Iterable[tuple[str, int, int, str]]) -> str:
    return " OR ".join(
        f"(run_id = {quote(run_id)} AND rank = {rank} AND gen = {gen} AND {condition})"
        for run_id, rank, gen, condition in files
    )
