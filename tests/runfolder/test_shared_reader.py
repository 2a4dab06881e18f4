"""Followers of one file get the same records, whoever reads them first."""

from __future__ import annotations

import pytest

from toolkit.telemetry.runfolder import reader as shared_reader
from toolkit.telemetry.runfolder.reader import Cursor, read_shared


@pytest.fixture
def reads(monkeypatch):
    """The cursors that were really read from."""
    read, found = shared_reader.read_from, []

    def counting(path, cursor, *, max_bytes):
        found.append(cursor.offset)
        return read(path, cursor, max_bytes=max_bytes)

    monkeypatch.setattr(shared_reader, "read_from", counting)
    return found


def follow(path, cursor):
    records = []
    while (chunk := read_shared(path, cursor, max_bytes=10_000)).cursor.offset != cursor.offset:
        records += chunk.records
        cursor = chunk.cursor
    return records, cursor


def test_a_second_follower_gets_what_the_first_has_read(tmp_path, reads):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"seq":0}\n{"seq":1}\n')
    first, at = follow(path, Cursor())
    count = len(reads)
    assert follow(path, Cursor()) == (first, at)
    assert len(reads) == count + 1, "only whether there is more"

    with path.open("ab") as file:
        file.write(b'{"seq":2}\n')

    assert [follow(path, at)[0] for _ in range(3)] == [[{"seq": 2}]] * 3


def test_a_line_that_cannot_be_read_is_looked_at_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"seq":0}\nnonsense!\n')
    assert read_shared(path, Cursor(), max_bytes=10_000).bad_count == 1

    path.write_bytes(b'{"seq":0}\n{"seq":1}\n')

    assert read_shared(path, Cursor(), max_bytes=10_000).records == [{"seq": 0}, {"seq": 1}]


def test_another_file_at_the_same_place_is_another_file(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b'{"run":"%b"}\n' % name.encode())

    assert [read_shared(tmp_path / name, Cursor(), max_bytes=100).records for name in "abab"] == [
        [{"run": "a"}],
        [{"run": "b"}],
    ] * 2
