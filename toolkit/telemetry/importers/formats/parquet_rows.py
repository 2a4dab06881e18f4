"""Rows of Parquet files, which only a library can read: in a child process, once for each file and change.

A file of a kilobyte may hold gigabytes, and nothing in it says so.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final

import orjson

from toolkit.telemetry.importers.files import OpenFile, open_below
from toolkit.telemetry.importers.json_text import loaded
from toolkit.telemetry.importers.limited_child import Limits, run_limited
from toolkit.telemetry.importers.source import MAX_TEXT_CHARS
from toolkit.telemetry.runfolder.codec import name_of_non_finite

LARGEST: Final = 1024**3
_LARGEST_END: Final = 16 * 1024**2
_MAGIC: Final = b"PAR1"
_PROGRAM: Final = "from toolkit.telemetry.importers.formats.parquet_rows import main; main(sys.argv[1:])"
_KEPT: Final = 8
_AT_ONCE: Final = 1024
_HEADER: Final = struct.Struct("<II")

_lock = threading.Lock()
_tables: OrderedDict[str, tuple[list[tuple[int, float]], ParquetRows]] = OrderedDict()


class ParquetRows:
    """The rows of some files, by file and run, in a temporary file."""

    def __init__(self, printed: IO[bytes], *, is_whole: bool) -> None:
        self.problem = (
            "" if is_whole else "a Parquet file that is damaged, or holds far more than its size explains"
        )
        self.runs: dict[str, str] = {}
        """Names by id, in the order of the first file."""
        self._printed = printed
        self._lock = threading.Lock()
        self._parts: dict[tuple[int, str], list[tuple[int, int]]] = {}
        while is_whole and len(sizes := printed.read(_HEADER.size)) == _HEADER.size:
            about, size = _HEADER.unpack(sizes)
            number, run, name = orjson.loads(printed.read(about))
            self.runs.setdefault(run, name) if number == 0 else None
            self._parts.setdefault((number, run), []).append((printed.tell(), size))
            printed.seek(size, os.SEEK_CUR)

    def rows(self, number: int, run: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a run in the file with this number."""
        for at, size in self._parts.get((number, run), ()):
            with self._lock:
                self._printed.seek(at)
                data = self._printed.read(size)
            yield from loaded(data, most=len(data)) or ()


def looks_like_a_log(file: OpenFile) -> bool:
    """Return whether the columns of a Parquet file are called as those of a log; nothing is parsed for it."""
    end = file.read(file.size - 8, 8)
    if not 12 <= file.size <= LARGEST or end[4:] != _MAGIC or file.read(0, 4) != _MAGIC:
        return False
    length = min(struct.unpack("<I", end[:4])[0], file.size - 12)
    about = file.read(file.size - 8 - length, length) if length <= _LARGEST_END else b""
    return b"run_name" in about and b"step" in about


def rows_of(root: Path, paths: Sequence[str]) -> ParquetRows:
    """Return the rows of Parquet files below `root`; of those that are not there none. Kept until one changes.

    Raises:
        OSError: the first cannot be opened.
    """
    key = os.path.abspath(root / paths[0])
    with _lock, ExitStack() as stack:
        files = [stack.enter_context(open_below(root, paths[0]))]
        numbers = [0]
        for number, path in enumerate(paths[1:], 1):
            if os.path.lexists(root / path):
                files.append(stack.enter_context(open_below(root, path)))
                numbers.append(number)
        signature = [(file.size, file.modified) for file in files]
        kept = _tables.get(key)
        if kept is None or kept[0] != signature:
            size = sum(file.size for file in files)
            limits = Limits(160 * 1024**2 + 2 * size, 1.0 + size / (256 * 1024), 32 * 1024**2 + 40 * size)
            # Nothing is said of how many rows there are that could be believed.
            most = 200_000 + size // 4
            given = [f"{limits.memory},{limits.seconds},{limits.output},{most}"]
            given += [f"{number}={file.fileno()}" for number, file in zip(numbers, files, strict=True)]
            printed, is_whole = run_limited(_PROGRAM, given, limits, files=[file.fileno() for file in files])
            _tables[key] = kept = (signature, ParquetRows(printed, is_whole=is_whole))
            while len(_tables) > _KEPT:
                _tables.popitem(last=False)
        _tables.move_to_end(key)
        return kept[1]


# ---------------------------------------------------------------- in the child


def main(given: Sequence[str]) -> None:
    """Print the rows of open files, a part for each run in some hundred rows."""
    import pyarrow as pa
    from pyarrow import parquet

    memory, seconds, output, most = given[0].split(",")
    Limits(int(memory), float(seconds), int(output)).apply()
    left = int(most)
    for number, descriptor in (pair.split("=") for pair in given[1:]):
        file = pa.PythonFile(os.fdopen(int(descriptor), "rb"))
        table = parquet.ParquetFile(file, pre_buffer=False, buffer_size=65536)
        if number == "0" and not {"run_name", "step"} <= set(table.schema_arrow.names):
            return
        for batch in table.iter_batches(_AT_ONCE, use_threads=False):
            left -= batch.num_rows
            if left < 0:
                sys.exit("more rows than the size of the file explains")
            _print(int(number), batch.to_pylist())


def _print(number: int, rows: Sequence[dict[str, Any]]) -> None:
    by_run: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        run = str(row.get("run_id") or row.get("run_name"))
        plain = {
            name: name_of_non_finite(value) if type(value) is float and value - value != 0.0 else value
            for name, value in row.items()
        }
        by_run.setdefault((run, str(row.get("run_name"))), []).append(plain)
    for (run, name), own in by_run.items():
        about = orjson.dumps((number, run[:MAX_TEXT_CHARS], name[:MAX_TEXT_CHARS]))
        data = orjson.dumps(own, default=str)
        sys.stdout.buffer.write(_HEADER.pack(len(about), len(data)) + about + data)
