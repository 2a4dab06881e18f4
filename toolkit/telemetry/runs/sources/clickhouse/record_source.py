"""A record file as the lines that the engine has of it."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolkit.telemetry.fleet.commits import WHOLE, Commit, lines_of, newest_commits, small_files
from toolkit.telemetry.fleet.engine import EngineError, chunks
from toolkit.telemetry.runfolder.layout import rank_file
from toolkit.telemetry.runfolder.reader import Block, Cursor, Identity, cut_block
from toolkit.telemetry.runfolder.records import MAX_LINE_BYTES, Record
from toolkit.telemetry.runs.record_source import Place, parse_event, records_in
from toolkit.telemetry.runs.sources.clickhouse.link import EngineLink
from toolkit.telemetry.runs.sources.store_queries import keep_recent

_COMMITS_EVERY_S: Final = 1.0
_PIECE_BYTES: Final = 4 * 1024 * 1024
_TOGETHER_BYTES: Final = 64 * 1024 * 1024
_PLACES_AT_ONCE: Final = 500
_KEPT_LINES: Final = 500
_KEPT_FILES: Final = 64
_MAX_RUNS: Final = 2_000


class Commits:
    """How far the engine has taken the files of each run; asked at most once a second for a run. Thread-safe."""

    def __init__(self, link: EngineLink) -> None:
        self._link = link
        self._known: dict[str, tuple[float, dict[int, Commit]]] = {}

    def of(self, run_id: str) -> dict[int, Commit]:
        """Return it by rank, ascending; while the engine does not answer, what is known.

        Raises:
            EngineError: nothing is known.
        """
        asked, known = self._known.get(run_id, (-_COMMITS_EVERY_S, {}))
        if time.monotonic() - asked < _COMMITS_EVERY_S:
            return known
        try:
            self.look_at([run_id])
        except EngineError:
            if not known:
                raise
            return known
        return self._known[run_id][1]

    def look_at(self, run_ids: Sequence[str]) -> None:
        """Ask for several runs at once.

        Raises:
            EngineError: the engine does not answer.
        """
        found: dict[str, dict[int, Commit]] = {run_id: {} for run_id in run_ids}
        for (run_id, rank), commit in newest_commits(self._link, run_ids).items():
            found[run_id][rank] = commit
        for run_id, taken in found.items():
            keep_recent(self._known, run_id, (time.monotonic(), taken), _MAX_RUNS)


@dataclass(frozen=True, slots=True)
class EngineSource:
    """A record file in the engine; a RecordSource."""

    link: EngineLink
    commits: Commits
    kept: dict[tuple[str, int, int, int], bytes]
    """Lines that were read lately, by place."""
    files: dict[tuple[str, int, int], bytes]
    """Whole small files that were read together and not asked for yet."""
    run_id: str
    rank: int

    @property
    def name(self) -> str:
        """The name of the file."""
        return rank_file(Path(), self.rank).name

    def taken(self) -> Commit:
        """Return how far the engine has it.

        Raises:
            OSError: the engine does not have it, or does not answer.
        """
        try:
            found = self.commits.of(self.run_id).get(self.rank)
        except EngineError as error:
            raise OSError(str(error)) from error
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "the engine has no records of it")
        return found

    def size(self) -> int:
        """Return how many bytes the engine has now."""
        return self.taken().end

    def read_block(self, cursor: Cursor, *, max_bytes: int) -> Block:
        """Return the complete lines after `cursor`, up to the first that is missing."""
        taken = self.taken()
        identity = Identity(0, taken.gen, 0, 0)
        is_replaced = cursor.offset > taken.end or cursor.identity not in (None, identity)
        cursor = (Cursor() if is_replaced else cursor)._replace(identity=identity)
        end = min(taken.end, cursor.offset + max(max_bytes, MAX_LINE_BYTES + 1))
        block = cut_block(self._bytes(taken, cursor.offset, end), cursor)
        return block._replace(replaced=is_replaced, pending_bytes=taken.end - block.cursor.offset)

    def records_in(self, block: Block) -> Iterator[tuple[list[Record], int]]:
        """Yield the records of a block."""
        return records_in(block)

    def read_records(self, places: Sequence[Place]) -> list[Record | None]:
        """Return the record at each of `places`; None where there is none."""
        return [parse_event(line) for line in self.read_at(places)]

    def read_at(self, places: Sequence[Place]) -> list[bytes]:
        """Return what is at each of `places`."""
        if not places:
            return []
        taken = self.taken()
        kept = {at: self.kept.get((*taken.key, taken.gen, at)) for at, _ in places}
        found = {at: line for at, line in kept.items() if line is not None}
        missing = [at for at in kept if at not in found and 0 <= at < 2**63]
        for begin in range(0, len(missing), _PLACES_AT_ONCE):
            wanted = ", ".join(map(str, missing[begin : begin + _PLACES_AT_ONCE]))
            try:
                rows = self.link.lines(
                    f"SELECT at, line FROM records FINAL WHERE {taken.where} AND at IN ({wanted}) AND {WHOLE}"
                )
            except EngineError as error:
                raise OSError(str(error)) from error
            for at, line in rows:
                found[at] = line
                keep_recent(self.kept, (*taken.key, taken.gen, at), line, _KEPT_LINES)
        return [found.get(at, b"")[:length] for at, length in places]

    def pieces(self) -> Iterator[bytes]:
        """Yield the file as far as the engine has it."""
        taken = self.taken()
        at = 0
        while at < taken.end:
            data = self._bytes(taken, at, min(taken.end, at + _PIECE_BYTES))
            if not data:
                raise OSError(
                    f"the engine lacks the lines from byte {at} on; `telemetry ship --verify` sends them"
                )
            at += len(data)
            yield data

    def _bytes(self, taken: Commit, begin: int, end: int) -> bytes:
        """Return the lines that begin between two offsets, up to the first that is missing."""
        if begin == 0 and (whole := self.files.pop((*taken.key, taken.gen), b"")):
            return whole
        try:
            return lines_of(self.link, taken, begin, end)
        except EngineError as error:
            raise OSError(str(error)) from error


def read_together(sources: Sequence[EngineSource]) -> None:
    """Read the first small ones of these files of one store with one question; raises as `Commits.look_at`."""
    small: list[Commit] = []
    size = 0
    for source in sources:
        taken = source.commits.of(source.run_id).get(source.rank)
        if taken is not None and 0 < taken.end <= _PIECE_BYTES and size + taken.end <= _TOGETHER_BYTES:
            small.append(taken)
            size += taken.end
    for some in chunks(small):
        for taken, data in zip(some, small_files(sources[0].link, some), strict=True):
            keep_recent(sources[0].files, (*taken.key, taken.gen), data, _KEPT_FILES)
