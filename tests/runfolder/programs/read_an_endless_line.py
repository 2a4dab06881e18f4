"""Reads a file whose second line is endless, and prints how much memory that took.

python read_an_endless_line.py RECORDS
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from toolkit.telemetry.runfolder.reader import Cursor, last_record, offset_after, read_from

path = Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
cursor, seqs, bad = Cursor(), [], 0
while True:
    chunk = read_from(path, cursor, max_bytes=4 * 1024 * 1024)
    seqs += [record["seq"] for record in chunk.records]
    bad += chunk.bad_count
    if chunk.next_offset == cursor.offset:
        break
    cursor = chunk.cursor
assert (seqs, bad) == ([0, 1], 1), (seqs, bad)
assert last_record(path)["seq"] == 1
assert read_from(path, offset_after(path, 0)).bad_count == 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
