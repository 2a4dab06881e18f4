"""metrics.csv: the records as one wide table that pandas can read at every moment.

The table is worked out from the records alone, so building it again gives the same bytes. A reader may come while a
row is being appended, and would see it up to the end of a page of the file; so a row is laid out to end before one
begins: the `time` of the row before it gets zeros after its fraction until the page is full, which changes no
number and no reader notices. A row that still crosses into the next page gets such zeros at the crossing, so that a
reader who comes at that moment sees its event and time alone; and one that is longer than a page is never appended,
but comes with a new file that is renamed over the old one.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.telemetry.runfolder.layout import PRIVATE
from toolkit.telemetry.runfolder.portable import SAFELY, pread
from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runfolder.safefile import (
    NO_FILE,
    identity_of,
    is_file,
    is_sharing_violation,
    open_regular,
    open_to_write,
    rename_over,
    write_all,
)
from toolkit.telemetry.runfolder.script_interrupts import pass_on_interrupt
from toolkit.telemetry.runfolder.table.columns import FIRST_COLUMNS, Columns
from toolkit.telemetry.runfolder.table.short_columns import ShortColumns

_PAGE = 4096
_ROOM = 512
"""The next row may be longer than the last one; with this much left of a page it mostly fits."""
_WRITE_BYTES = 1024 * 1024
_COUNTED_BYTES = 128 * 1024
"""Counting so much takes less than a millisecond, for which the training thread may have to wait."""
_MAX_HELD = 20_000
_MAX_HELD_SIZE = 4 * 1024 * 1024
"""Limit on characters of held records: a few thousand long texts would use more memory than everything else."""
_QUICK_S = 0.02
"""Rewriting the table is not deferred while it takes no more processor time than this."""
_SMALL_BYTES = 64 * 1024
"""Nor while the table is small, however busy the machine is."""


SHORT = "short"
"""What a person logs: steps, evaluations, checkpoints, findings and the like, with their numbers and short texts."""
ALL = "all"
"""Every record, with every field."""


def columns_for(form: str, names: Iterable[str] | None = None) -> Columns:
    """Return the columns of a table of this form: those of an empty one, or of one whose header names these."""
    kind = ShortColumns if form == SHORT else Columns
    return kind() if names is None else kind(names)


def form_of_header(names: list[str]) -> str | None:
    """Return the form of a table with these columns; None if it is not one of ours."""
    if names[: len(FIRST_COLUMNS)] != list(FIRST_COLUMNS):
        return None
    return SHORT if ShortColumns.is_header(names) else ALL


def _can_be(form: str, names: list[str]) -> bool:
    if names[: len(FIRST_COLUMNS)] != list(FIRST_COLUMNS):
        return False
    return form != SHORT or ShortColumns.can_be(names)


def form_of_table(path: Path) -> str | None:
    """Return the form of the table at `path`; None if there is no table of ours."""
    try:
        descriptor = open_regular(path)
    except OSError as error:
        pass_on_interrupt(error)
        return None
    try:
        head = pread(descriptor, _WRITE_BYTES, 0)
    finally:
        os.close(descriptor)
    try:
        return form_of_header(_parse_header(head.partition(b"\n")[0].decode("utf-8")))
    except (ValueError, csv.Error):
        return None


class ForeignTableError(ValueError):
    """A table with rows that are not ours: it must be rebuilt from the records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """What an existing table holds when it is continued."""

    rows: int
    last_seq: int
    """-1 if it has no row yet."""
    last_session: str
    """The session of the last row, as its cell has it."""


class CsvTable:
    """One table on disk. `append` is the only way it changes, and each change is one write or one rename."""

    def __init__(self, path: Path, *, mode: int = PRIVATE.file, form: str = ALL) -> None:
        self.path = path
        self.form = form
        self._mode = mode
        self._next_rewrite = 0.0
        self._reset()

    def _reset(self) -> None:
        self.last_seq = -1
        self._columns = columns_for(self.form)
        self._size = 0
        self._descriptor: int | None = None
        self._identity = NO_FILE
        self._held: list[Record] = []
        self._held_size = 0
        """Bytes held; counted only if they are held for longer than one call."""
        self._must_rewrite = False
        """Whether the held rows need new columns, or one is too long to be appended."""

    @property
    def columns_left_out(self) -> int:
        """How many metrics have no column because the table is at its limit."""
        return len(self._columns.left_out)

    def adopt(self) -> Adopted | None:
        """Continue the existing table; None if it does not exist or cannot be continued.

        A last row without its newline was cut by a kill: it is removed and written again from the records. A table
        that was edited, or that a power cut left zeros in, would hide later rows from its readers.
        """
        self.close()
        self._reset()
        try:
            descriptor = open_to_write(self.path, os.O_RDWR | os.O_APPEND)
        except OSError:
            return None
        ends = _read_ends(descriptor)
        rows = None
        # A table of the other form has another number of rows, which is checked against the records.
        if ends is not None and _can_be(self.form, ends.names):
            rows = _count_rows(descriptor, size=ends.size, columns=len(ends.names))
        if ends is None or rows is None:
            os.close(descriptor)
            return None
        self.last_seq, self._size = ends.last_seq, ends.size
        os.ftruncate(descriptor, self._size)
        self._columns = columns_for(self.form, ends.names)
        self._take(descriptor)
        return Adopted(rows=rows, last_seq=ends.last_seq, last_session=ends.last_session)

    def append(self, records: Sequence[Record]) -> None:
        """Add a row for each of `records` that is newer than the last row.

        Rows that could not be written are held, and come with the next call. A table that gets new columns or a very
        long row is rewritten; a large one only now and then, and its newest rows are held until then.

        Raises:
            OSError: writing failed.
            ForeignTableError: new columns cannot be added because an existing table has a row that is not ours.
        """
        # A caller may retry rows that could not be written. What another program put between our
        # records has no number, or an old one, and has no row in a table that is built again either.
        if not self._held and self._descriptor is not None:
            records = self._append_plain(records)
        newest = self._hold(records)
        is_too_early = (
            time.monotonic() < self._next_rewrite
            and self._size > _SMALL_BYTES
            and len(self._held) < _MAX_HELD
            and self._held_size < _MAX_HELD_SIZE
        )
        if not self._held or (self._must_rewrite and is_too_early):
            return
        before = self._columns.snapshot() if self._size else None
        grown = sum([self._columns.add_new_of(record) for record in self._held])
        rows = None if self._descriptor is None or grown else self._rows_to_append()
        if rows is not None:
            self._append_rows(rows)
        elif self._size and is_too_early:
            self._columns.restore(before)
            self._must_rewrite = True
            self._held_size = sum(map(_size, self._held))
            return
        else:
            try:
                self._rewrite(self._held)
            except BaseException:
                # The next try must add the columns again, or it would append rows without a header.
                if before is not None:
                    self._columns.restore(before)
                raise
        self.last_seq = newest
        self._held = []
        self._held_size = 0
        self._must_rewrite = False

    def _append_plain(self, records: Sequence[Record]) -> Sequence[Record]:
        """Append rows up to the first that needs a new column or a closer look; return the records from there on."""
        layout, newest = _RowLayout(self._size), self.last_seq
        rows: list[str] = []
        rest: Sequence[Record] = ()
        for count, record in enumerate(records):
            seq = _seq(record)
            if seq <= newest or not self._columns.has_row(record):
                continue
            parts = self._columns.plain_parts(record)
            row = layout.place(parts) if parts is not None else ""
            if parts is None or layout.has_long_rows:
                rest = records[count:]
                break
            rows.append(row)
            newest = seq
        if rows:
            try:
                self._append_rows("".join(rows).encode("ascii"))
            except OSError:
                self._hold(records)
                raise
            self.last_seq = newest
        return rest

    def _hold(self, records: Sequence[Record]) -> int:
        """Hold the records that have a row and are newer than it; return the number of the newest."""
        newest = _seq(self._held[-1]) if self._held else self.last_seq
        for record in records:
            if _seq(record) > newest and self._columns.has_row(record):
                newest = _seq(record)
                self._held.append(record)
                self._held_size += _size(record) if self._must_rewrite else 0
        return newest

    def settle(self) -> None:
        """Write the held rows, however large the table is."""
        self._next_rewrite = 0.0
        self.append(())

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None and is_file(descriptor, self._identity):
            os.close(descriptor)

    def is_intact(self) -> bool:
        """Return whether the file at our path is still the one we write, at the length we left it."""
        if self._descriptor is None:
            return True
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        # Our descriptor's number may name another file by now, if a script closed what was not its own.
        is_ours = is_file(self._descriptor, self._identity)
        return is_ours and identity_of(there) == self._identity and there.st_size == self._size

    def _take(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._identity = identity_of(os.fstat(descriptor))

    def _rows_to_append(self) -> bytes | None:
        """Return the held rows, laid out for the end of the table; None if one is too long for that."""
        layout = _RowLayout(self._size)
        rows = "".join([layout.place(self._columns.parts(record)) for record in self._held])
        return None if layout.has_long_rows else rows.encode("utf-8", "replace")

    def _append_rows(self, rows: bytes) -> None:
        assert self._descriptor is not None
        try:
            write_all(self._descriptor, rows)
        except OSError:
            # A truncated row would read as a smaller number: remove what did not fit.
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(rows)

    def _rewrite(self, batch: Sequence[Record]) -> None:
        """Rewrite the table with its current columns and replace the old one."""
        # Processor time, which is what a training notices: while one is busy, the clock says little of the work.
        began = time.thread_time()
        temporary = self.path.with_name(f".{self.path.name}.{os.urandom(6).hex()}")
        descriptor: int | None = None
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | SAFELY
            descriptor = os.open(temporary, flags, self._mode)
            size = self._write_widened(descriptor, batch)
            try:
                os.replace(temporary, self.path)
            except PermissionError as error:
                if not is_sharing_violation(error):
                    raise
                # Windows: neither of the two may be open.
                self.close()
                open_now, descriptor = descriptor, None
                os.close(open_now)
                rename_over(temporary, self.path)
                descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | SAFELY)
        except BaseException:
            if descriptor is not None:
                os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        self.close()
        self._take(descriptor)
        self._size = size
        took = time.thread_time() - began
        self._next_rewrite = time.monotonic() + (20.0 * took if took > _QUICK_S else 0.0)

    def _write_widened(self, descriptor: int, batch: Sequence[Record]) -> int:
        """Write the rows so far, widened for the new columns, and those of `batch`; return the size."""
        rows = (self._columns.parts(record) for record in batch)
        return write_rows(descriptor, self._columns, rows, older=self._old_rows())

    def _old_rows(self) -> Iterator[list[bytes]]:
        """Yield the rows written so far with empty cells for the new columns and without the zeros after `time`."""
        if self._descriptor is None:
            return
        old = _parse_header(_first_line(self._descriptor))
        commas, widen = self._columns.commas_behind(old), self._columns.widened(old)
        for rows in _unpadded_rows(self._descriptor, self._size):
            if commas is not None:
                yield [row + commas for row in rows]
            else:
                yield [_with_rest(row, widen) for row in rows]
            # Let the training thread have the interpreter: this is not urgent.
            time.sleep(0.0005)


def write_rows(
    descriptor: int, columns: Columns, rows: Iterable[list[str]], *, older: Iterable[list[bytes]] = ()
) -> int:
    """Write a whole table, header first, to an empty file; return its size.

    `older` are rows as they are in a file, without their newlines; they come first.
    """
    header = columns.header().encode("utf-8", "replace") + b"\n"
    layout = _RowLayout(len(header))
    parts, held = [header], len(header)
    for lines in older:
        write_all(descriptor, b"".join([*parts, b"\n".join([*layout.place_lines(lines), b""])]))
        parts, held = [], 0
    for row in rows:
        parts.append(layout.place(row).encode("utf-8", "replace"))
        held += len(parts[-1])
        if held > _WRITE_BYTES:
            write_all(descriptor, b"".join(parts))
            parts, held = [], 0
    write_all(descriptor, b"".join(parts))
    return layout.size


class _RowLayout:
    """Places rows so that none crosses from one page of the file into the next where a reader could notice it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.has_long_rows = False
        """Whether a row came that can be seen in part while it is appended."""

    def place(self, cells: list[str]) -> str:
        row = ",".join(cells) + "\n"
        length = len(row) if row.isascii() else len(row.encode("utf-8", "replace"))
        used = self.size % _PAGE
        if used + length + max(_ROOM, length + 64) <= _PAGE:
            # The next row fits after this one: nothing to be filled up.
            self.size += length
            return row
        zeros = 0
        if used + length > _PAGE:
            zeros = self._zeros_over_the_crossing(cells, _PAGE - used, length)
        left = -(used + length + zeros) % _PAGE
        if left < min(max(_ROOM, length + 64), _PAGE // 2) and _takes_zeros(cells[1]):
            zeros += left
        if zeros:
            row = ",".join([cells[0], cells[1] + "0" * zeros, *cells[2:]]) + "\n"
        self.size += length + zeros
        return row

    def place_lines(self, rows: list[bytes]) -> list[bytes]:
        """Place rows that have no newlines."""
        ends = list(itertools.accumulate([len(row) + 1 for row in rows], initial=self.size))
        are_short = max(map(len, rows), default=0) + 1 < _ROOM - 64
        at, more = 0, 0
        while at < len(rows):
            begin = ends[at] + more
            used, length = begin % _PAGE, ends[at + 1] - ends[at]
            # As in `place`: after such a row the next one fits. Of short rows this can be said of many at once.
            if used + length + max(_ROOM, length + 64) <= _PAGE:
                last = bisect_right(ends, begin - used + _PAGE - _ROOM - more) - 1 if are_short else 0
                at = max(at + 1, last)
                continue
            self.size = begin
            cells = [*_split_first_two(rows[at].decode("utf-8", "replace"))]
            rows[at] = self.place(cells)[:-1].encode("utf-8", "replace")
            at += 1
            more = self.size - ends[at]
        self.size = ends[-1] + more
        return rows

    def _zeros_over_the_crossing(self, cells: list[str], left: int, length: int) -> int:
        in_front = len(f"{cells[0]},{cells[1]}".encode("utf-8", "replace"))
        if length - in_front > _PAGE or in_front > left or not _takes_zeros(cells[1]):
            self.has_long_rows = True
            return 0
        return left - in_front


def _first_line(descriptor: int) -> str:
    size = _WRITE_BYTES
    while True:
        head, newline, _ = pread(descriptor, size, 0).partition(b"\n")
        if newline or len(head) < size:
            return head.decode("utf-8", "replace")
        size *= 2


def _unpadded_rows(descriptor: int, size: int) -> Iterator[list[bytes]]:
    """Yield the rows up to `size`, without their newlines and without the zeros after `time`, some at a time."""
    at = 0
    while at < size:
        end, length = 0, _COUNTED_BYTES
        while not end:
            block = pread(descriptor, min(length, size - at), at)
            end = block.rfind(b"\n") + 1
            if not end and len(block) < length:
                raise ForeignTableError("a row of the table is never ended")
            # A row that is longer than the block.
            length *= 2
        # Only a row that has the last byte of a page may have such zeros.
        done, parts = 0, []
        for last in range(_PAGE - 1 - at % _PAGE, end, _PAGE):
            begin = block.rfind(b"\n", 0, last) + 1
            if begin >= done:
                behind = block.index(b"\n", last) + 1
                parts += [block[done:begin], _without_zeros(block[begin:behind])]
                done = behind
        rows = b"".join([*parts, block[done:end]])[:-1].split(b"\n")
        yield rows[1:] if at == 0 else rows
        at += end


def _without_zeros(row: bytes) -> bytes:
    event, when, rest = _split_first_two(row.decode("utf-8", "replace"))
    return f"{event},{_without_padding(when)},{rest}".encode("utf-8", "replace")


def _with_rest(row: bytes, change: Callable[[str], str]) -> bytes:
    """Return a row with the cells after its first two changed."""
    event, when, rest = _split_first_two(row.decode("utf-8", "replace"))
    return f"{event},{when},{change(rest)}".encode("utf-8", "replace")


def _takes_zeros(when: str) -> bool:
    whole, point, fraction = when.partition(".")
    return point == "." and whole.isdecimal() and fraction.isdecimal()


def _without_padding(when: str) -> str:
    if not _takes_zeros(when):
        return when
    stripped = when.rstrip("0")
    return stripped + "0" if stripped.endswith(".") else stripped


def _split_first_two(line: str) -> tuple[str, str, str]:
    if line.startswith('"'):
        # The event's own name is quoted: a quote inside is doubled, so the cell ends at a quote followed by a comma.
        end = 1
        while True:
            end = line.find('"', end)
            if end < 0:
                raise ForeignTableError("a row of the table has a quote that is never closed")
            if line[end : end + 2] == '""':
                end += 2
                continue
            break
        event, rest = line[: end + 1], line[end + 2 :]
    else:
        event, _, rest = line.partition(",")
    when, _, rest = rest.partition(",")
    return event, when, rest


def _parse_header(line: str) -> list[str]:
    return next(csv.reader([line.rstrip("\n")]), [])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    names: list[str]
    size: int
    """Where the last whole row ends."""
    last_seq: int = -1
    last_session: str = ""


def _read_ends(descriptor: int) -> _Ends | None:
    """Return what the header and the last whole row say; None if there is no table."""
    size = os.fstat(descriptor).st_size
    head = pread(descriptor, min(size, 4 * _WRITE_BYTES), 0)
    header, newline, _ = head.partition(b"\n")
    if not newline:
        return None
    start = max(0, size - _WRITE_BYTES)
    tail = pread(descriptor, size - start, start)
    end = tail.rfind(b"\n") + 1
    try:
        names = _parse_header(header.decode("utf-8"))
        if start + end <= len(header) + 1:
            return _Ends(names=names, size=len(header) + 1)
        cells = _parse_header(tail[: end - 1].rpartition(b"\n")[2].decode("utf-8"))
        seq, session = (cells[FIRST_COLUMNS.index(name)] for name in ("seq", "session"))
        return _Ends(names=names, size=start + end, last_seq=int(seq), last_session=session)
    except (ValueError, IndexError, csv.Error):
        # It was edited, or a power cut left zeros.
        return None


def _count_rows(descriptor: int, *, size: int, columns: int) -> int | None:
    """Return the number of rows up to `size`; None if a row does not have one cell per column on one line."""
    at = 0
    rows = -1  # the header
    while at < size:
        block = pread(descriptor, min(_COUNTED_BYTES, size - at), at)
        block = block[: block.rfind(b"\n") + 1]
        at += len(block)
        if not block or b"\0" in block or b"\r" in block:
            return None
        count = block.count(b"\n")
        rows += count
        # All rows at once: to parse them one by one would take many times as long. Between quotes is every other part;
        # of one that is doubled an empty part is taken for outside, which changes nothing.
        parts = block.split(b'"')
        bare, quoted = b"".join(parts[::2]), b"".join(parts[1::2])
        if len(parts) % 2 == 0 or b"\n" in quoted or bare.count(b",") != count * (columns - 1):
            return None
        # Let the training thread have the interpreter: this is not urgent.
        time.sleep(0.0005)
    return rows


def _seq(record: Record) -> int:
    seq = record.get("seq")
    return seq if type(seq) is int else -1


def _size(record: Record) -> int:
    """Return the approximate number of characters in `record`."""
    return sum(
        len(value) if type(value) is str else len(str(value)) if type(value) in (list, dict) else 8
        for value in record.values()
    )


assert FIRST_COLUMNS[:2] == ("event", "time"), "rows are laid out by padding the second cell"
