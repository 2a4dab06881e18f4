"""Lines with the same fields, parsed into columns together: with pyarrow, where it is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, overload

from toolkit.runfolder.codec import RecordError, decode, decode_many
from toolkit.runfolder.reader import Block, records_in
from toolkit.runfolder.records import MAX_LINE_BYTES, FixedRecords, Record, RecordRuns, Run

_FEW_LINES: Final = 64
"""Fewer with the same number of fields, in a block, are parsed one by one."""
_FEWEST: Final = 8
"""As are fewer in a row."""
_MUCH: Final = 8 * 1024 * 1024
"""Bytes of a file for which loading pyarrow pays."""
_EXACT: Final = 2.0**53
_TIME: Final = "elapsed"


def runs_in(block: Block) -> tuple[FixedRecords | RecordRuns, int]:
    """Return what `records_in` does, with lines that are alike as columns where pyarrow is installed.

    For a small file it is not loaded.
    """
    alike = _find_alike(block.data, of_bytes=block.cursor.offset + block.pending_bytes)
    if alike is None:
        records, bad_lines = records_in(block)
        return FixedRecords(records), bad_lines
    runs, bad_lines = [], int(block.long_line is not None)
    for part in alike:
        if isinstance(part, bytes):
            records, bad = records_in(replace(block, data=part, long_line=None))
            bad_lines += bad
            runs += FixedRecords(records).runs
        else:
            runs.append(part)
    return RecordRuns(runs), bad_lines


class Lines(Sequence[Record]):
    """Records that are parsed when they are asked for."""

    __slots__ = ("_bounds", "_data")

    def __init__(self, data: bytes, bounds: Any) -> None:
        self._data = data
        self._bounds = bounds
        """Where each line begins and, last, the end of the last one."""

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, place: int) -> Record: ...

    @overload
    def __getitem__(self, place: slice) -> Lines: ...

    def __getitem__(self, place: int | slice) -> Record | Lines:
        if isinstance(place, slice):
            first, end, _ = place.indices(len(self))
            return Lines(self._data, self._bounds[first : max(first, end) + 1])
        place = range(len(self))[place]
        return decode(self._data[self._bounds[place] : self._bounds[place + 1] - 1])

    def __iter__(self) -> Iterator[Record]:
        for first in range(0, len(self), _FEW_LINES):
            bounds = self._bounds[first : first + _FEW_LINES + 1]
            lines = self._data[bounds[0] : bounds[-1] - 1].split(b"\n")
            yield from decode_many(lines) or map(decode, lines)


def _find_alike(data: bytes, *, of_bytes: int) -> Iterator[Run | bytes] | None:
    """Yield the lines of `data` in their order: as runs where many have the same fields, the others as they are.

    `data` is complete lines out of a file of `of_bytes`. None where pyarrow is not installed, or not worth loading.
    """
    if not data or (of_bytes < _MUCH and "pyarrow.csv" not in sys.modules):
        return None
    try:
        import numpy as np
        import pyarrow.csv  # noqa: F401 - whether it is there
    except ImportError:
        return None
    signs = np.frombuffer(data, dtype=np.uint8)
    bounds = np.concatenate(([0], np.flatnonzero(signs == ord("\n")) + 1))
    is_comma = (signs == ord(",")).view(np.uint8)
    if len(bounds) > _FEW_LINES and np.count_nonzero(is_comma) == data[: bounds[1]].count(b",") * (
        len(bounds) - 1
    ):
        # Most blocks of a long file.
        run = _parse(data, bounds)
        if run is not None:
            return iter((run,))
    # Modulo 256, which is enough to tell most groups apart.
    commas = np.add.reduceat(is_comma, bounds[:-1], dtype=np.uint8)
    changes = np.concatenate(([0], np.flatnonzero(np.diff(commas)) + 1, [len(commas)]))
    is_short = np.repeat(np.diff(changes) < _FEWEST, np.diff(changes))
    kinds = np.where(is_short, 256, commas)
    groups: dict[int, Run | None] = {}
    for count in np.flatnonzero(np.bincount(kinds, minlength=257)[:256] >= _FEW_LINES).tolist():
        places = np.flatnonzero(kinds == count)
        starts, ends = bounds[places], bounds[places + 1]
        lines = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        groups[count] = _parse(b"".join(lines), np.concatenate(([0], np.cumsum(ends - starts))))
    return _in_order(data, bounds, kinds, groups)


def _in_order(
    data: bytes, bounds: Any, kinds: Any, groups: Mapping[int, Run | None]
) -> Iterator[Run | bytes]:
    done = dict.fromkeys(groups, 0)
    first = others = 0
    for end in [*((kinds[1:] != kinds[:-1]).nonzero()[0] + 1).tolist(), len(kinds)]:
        run = groups.get(int(kinds[first]))
        if run is not None:
            if others < first:
                yield data[bounds[others] : bounds[first]]
            at = done[int(kinds[first])]
            done[int(kinds[first])] = at + end - first
            yield run if end - first == len(run.records) else run.part(at, at + end - first)
            others = end
        first = end
    if others < first:
        yield data[bounds[others] : bounds[first]]


def _parse(data: bytes, bounds: Any) -> Run | None:
    """Return these lines, with as many commas each, as columns; None if they differ in more than their numbers."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv as pc

    first, rows = data[: bounds[1] - 1], len(bounds) - 1
    try:
        record = decode(first)
    except RecordError:
        return None
    signs = np.frombuffer(data, dtype=np.uint8)
    ends = bounds[1:] - 2
    if (
        np.count_nonzero(signs == ord("}")) != rows
        or not (signs[ends] == ord("}")).all()
        or int(np.diff(bounds).max()) > MAX_LINE_BYTES
        or not _are_as_the_first(signs, bounds)
    ):
        return None
    # A line as cells between commas: the names of the fields and their values in turn.
    text = signs - (signs == ord(":")) * np.uint8(ord(":") - ord(","))
    text[ends] = ord(" ")
    cells = text[: len(first)].tobytes().split(b",")
    if len(cells) != 2 * len(record):
        return None
    # What is not a number has to be the same in all of them.
    types = [pa.binary(len(cell)) for cell in cells]
    for number, value in enumerate(record.values()):
        if type(value) is int or type(value) is float:
            types[2 * number + 1] = pa.float64()
    numbers = [str(number) for number in range(len(cells))]
    try:
        table = pc.read_csv(
            pa.BufferReader(pa.py_buffer(text)),
            read_options=pc.ReadOptions(use_threads=False, block_size=len(data), column_names=numbers),
            parse_options=pc.ParseOptions(quote_char=False),
            convert_options=pc.ConvertOptions(
                column_types=dict(zip(numbers, types, strict=True)), null_values=[], check_utf8=False
            ),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != rows:
        return None
    columns: dict[str, Any] = {}
    for (name, value), number in zip(record.items(), range(0, len(cells), 2), strict=True):
        if not _are_all(table.column(number), cells[number]):
            return None
        column = table.column(number + 1)
        if types[number + 1] == pa.float64():
            array = column.to_numpy()
            if not np.isfinite(array).all():
                return None
            # Readers ignore a time that is an integer, and a float is not what a large integer is.
            doubtful = abs(array) >= _EXACT
            is_whole = type(value) is int and not doubtful.any() and (np.floor(array) == array).all()
            if name == _TIME and not is_whole:
                doubtful |= array % 1.0 == 0.0
            if doubtful.any() and not _are_floats(name, data, bounds, doubtful.nonzero()[0]):
                return None
            columns[name] = array.astype(np.int64) if is_whole else array
        elif _are_all(column, cells[number + 1]):
            columns[name] = value
        else:
            return None
    return Run(tuple(record), Lines(data, bounds), columns)


def _are_as_the_first(signs: Any, bounds: Any) -> bool:
    """Return whether names and values are in turn as in the first line, and no number is one that only pyarrow reads.

    Those are such as `1.`, `.5`, `+1` and `01`. What looks like one in the first line, which is JSON, is in its texts,
    and these are the same in all lines.
    """
    marks = ((signs == ord(",")) | (signs == ord(":"))).nonzero()[0]
    turns, rows = signs[marks], len(bounds) - 1
    if len(turns) % rows or (turns.reshape(rows, -1) != turns[: len(turns) // rows]).any():
        return False
    begins = marks[turns == ord(":")] + 1
    begins += signs[begins] == ord(" ")
    begins += signs[begins] == ord("-")
    first, points = signs[begins], (signs == ord(".")).nonzero()[0]
    is_odd = (first == ord("+")) | (first == ord("."))
    is_odd |= (first == ord("0")) & (signs[begins + 1] - ord("0") < 10)
    odd, ends = begins[is_odd], points[signs[points + 1] - ord("0") >= 10]
    in_first = (odd < bounds[1]).sum() + (ends < bounds[1]).sum()
    return bool((first > ord(" ")).all() and len(odd) + len(ends) == rows * in_first)


def _are_floats(name: str, data: bytes, bounds: Any, places: Any) -> bool:
    """Return whether the values in these lines, which are whole numbers, are floats and not integers."""
    lines = (data[start:end] for start, end in zip(bounds[places], bounds[places + 1], strict=True))
    cells = (line.partition(b'"%b":' % name.encode())[2].partition(b",")[0] for line in lines)
    return all(b"." in cell or b"e" in cell for cell in cells)


def _are_all(column: Any, cell: bytes) -> bool:
    """Return whether each of these cells, which have the length of `cell`, is equal to it."""
    return all(
        chunk.buffers()[1].to_pybytes()[len(cell) * chunk.offset :][: len(cell) * len(chunk)]
        == cell * len(chunk)
        for chunk in column.chunks
    )
