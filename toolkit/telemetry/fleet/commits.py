"""What the engine has of each record file: how far it was taken, and what it holds beyond that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from toolkit.telemetry.fleet.engine import Asks, Engine, chunks, quote
from toolkit.telemetry.fleet.native_form import types_of

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
    why: str = ""
    """Why this generation began, if it is not the first."""
    node: str = ""
    """The node that sent it; empty before that."""
    received: int = 0
    """When the engine took it, by its own clock, in seconds."""

    @property
    def key(self) -> FileKey:
        """The file it is about."""
        return self.run_id, self.rank

    @property
    def where(self) -> str:
        """The condition for the rows of its generation."""
        return f"run_id = {quote(self.run_id)} AND rank = {self.rank} AND gen = {self.gen}"

    def next_generation(self, why: str, after: int = 0) -> Commit:
        """Return where the next generation of the file begins, at least the one `after` another.

        Raises:
            OSError: there are too many.
        """
        gen = max(self.gen, after) + 1
        if gen > _LAST_GENERATION:
            raise OSError(f"it is not shipped any more: it was replaced {gen - 1:,} times")
        return replace(self, gen=gen, end=0, crc=0, why=why)


def newest_commits(engine: Asks, run_ids: Iterable[str]) -> dict[FileKey, Commit]:
    """Return the commit of the newest generation of every file of these runs."""
    found = {}
    for some in chunks(run_ids):
        for row in engine.rows(
            f"SELECT {', '.join(_TYPES)}, toUInt32(received) FROM commits FINAL "
            f"WHERE run_id IN ({', '.join(map(quote, some))}) ORDER BY run_id, rank, gen DESC LIMIT 1 BY run_id, rank"
        ):
            commit = Commit(**dict(zip(_FIELDS, row, strict=True)))
            found[commit.key] = commit
    return found


def newest_labels(engine: Engine, run_ids: Iterable[str]) -> dict[str, tuple[int, bool]]:
    """Return the version of the labels of each run that has some, and whether it was deleted on a page."""
    found: dict[str, tuple[int, bool]] = {}
    for some in chunks(run_ids):
        for run_id, version, deleted in engine.rows(
            f"SELECT run_id, max(version) AS newest, argMax(deleted, version) FROM labels "
            f"WHERE run_id IN ({', '.join(map(quote, some))}) GROUP BY run_id"
        ):
            found[run_id] = (version, bool(deleted))
    return found


def insert_commits(engine: Engine, commits: Sequence[tuple[Commit, int]], node: str) -> None:
    """Record that these files were taken so far; with each commit goes the day its run was created."""
    rows = [(*(getattr(replace(one, node=node), name) for name in _TYPES), day) for one, day in commits]
    engine.insert_rows("commits", {**_TYPES, "created": "Date"}, rows)


_TYPES: Final = types_of(
    "run_id String, rank UInt32, gen UInt16, end UInt64, crc UInt32, why String, node String"
)
_FIELDS: Final = tuple(one.name for one in fields(Commit))


def last_session(engine: Engine, commit: Commit) -> tuple[int, float]:
    """Return the last session that the engine has of a file's generation, and the time of its last record."""
    rows = engine.rows(
        "SELECT session, maxIf(time, isFinite(time)) FROM records "
        f"WHERE {commit.where} AND at < {commit.end} "
        "GROUP BY session ORDER BY session DESC LIMIT 1"
    )
    return rows[0] if rows else (0, 0.0)


def strays_after(engine: Engine, commits: Iterable[Commit]) -> dict[FileKey, tuple[int, int]]:
    """Return the newest generation with lines after the commit of a file, and where the last of them ends.

    They were taken without a commit, as when a shipper was killed in between.
    """
    found = {}
    for some in chunks(commits):
        files = " OR ".join(
            f"(run_id = {quote(one.run_id)} AND rank = {one.rank} AND "
            f"(gen > {one.gen} OR (gen = {one.gen} AND at >= {one.end})))"
            for one in some
        )
        for run_id, rank, *newest in engine.rows(
            "SELECT run_id, rank, (max((gen, next)) AS newest).1, newest.2 FROM records "
            f"WHERE {files} GROUP BY run_id, rank"
        ):
            found[run_id, rank] = (newest[0], newest[1])
    return found


def lines_of(engine: Asks, commit: Commit, begin: int, end: int) -> bytes:
    """Return the lines that begin between two offsets of a generation, up to the first that is missing.

    Raises:
        EngineError: the engine did not answer.
    """
    return _joined(
        engine.lines(
            f"SELECT at, line FROM records FINAL WHERE {commit.where} AND at >= {begin} AND at < {end} "
            f"AND {WHOLE} ORDER BY at"
        ),
        begin,
    )


def small_files(engine: Asks, commits: Sequence[Commit]) -> list[bytes]:
    """Return the lines of files of different runs before their ends, as `lines_of`, and raise as it does."""
    files = " OR ".join(f"({one.where} AND at < {one.end})" for one in commits)
    ids = ", ".join(quote(one.run_id) for one in commits)
    found: list[list[tuple[int, bytes]]] = [[] for _ in commits]
    for number, line in engine.lines(
        f"SELECT (indexOf([{ids}], run_id) - 1) * {_LARGEST_FILE} + at AS place, line FROM records FINAL "
        f"WHERE ({files}) AND {WHOLE} ORDER BY place"
    ):
        found[number // _LARGEST_FILE].append((number % _LARGEST_FILE, line))
    return [_joined(lines, 0) for lines in found]


WHOLE: Final = "next = at + length(line) + 1 AND NOT position(line, '\\n')"
"""What is true of a row whose line is one line, as those of a file are."""
_LARGEST_FILE: Final = 2**40


def _joined(lines: Iterable[tuple[int, bytes]], begin: int) -> bytes:
    parts = []
    for at, line in lines:
        if at != begin:
            break
        parts += [line, b"\n"]
        begin += len(line) + 1
    return b"".join(parts)
