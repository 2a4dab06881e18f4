"""The records of a JSONL or CSV file that is named, as the detectors take them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from toolkit.telemetry.importers.as_records import records_in
from toolkit.telemetry.importers.files import open_below
from toolkit.telemetry.importers.formats.table_file import NO_HEADER, source_of_file
from toolkit.telemetry.importers.json_text import parsed
from toolkit.telemetry.importers.source import read_all
from toolkit.telemetry.runfolder.reader import blocks_of
from toolkit.telemetry.runfolder.reader import records_in as records_on
from toolkit.telemetry.runfolder.records import Record

_HEAD: Final = 64 * 1024
_BATCH: Final = 4 * 1024**2


class NoRecordsError(ValueError):
    """A file without readable records; the message says why."""


class ForeignFile:
    """The records of one file: those of a run of ours as they are, the rows of a table as records."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.bad_lines = 0
        self.notes: list[str] = []

    def chunks(self) -> Iterator[list[Record]]:
        """Yield the records in order, some thousand at a time; unreadable lines are counted.

        Raises:
            OSError: the file is missing, unreadable, or no regular file.
            NoRecordsError: it is a CSV file without a header.
        """
        path = Path(os.path.abspath(self.path))
        with open_below(path.parent, path.name) as file:
            head = file.read(0, _HEAD)
        first = parsed(head.split(b"\n")[0])
        if first is not None and type(first.get("event")) is str:
            for block in blocks_of(path):
                records, bad_lines = records_on(block)
                self.bad_lines += bad_lines
                yield records
            return
        source = source_of_file(path, head, is_any=True)
        if source is None:
            return
        for batch in read_all(source, max_bytes=_BATCH):
            if any(reason == NO_HEADER for _, reason in batch.passed_over):
                raise NoRecordsError(f"{path.name} has no header row: its first line names no columns")
            self.bad_lines += sum(batch.passed_over.values())
            yield records_in(source.info, batch)
        self.notes += source.info.notes
