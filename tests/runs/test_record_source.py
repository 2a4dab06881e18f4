"""A record file is read the same way in blocks, in pieces and line by line."""

import pytest

from tests.made_runs import append, step_record, write_run
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.reader import Cursor, lines_of
from toolkit.telemetry.runfolder.records import MAX_LINE_BYTES
from toolkit.telemetry.runs.record_source import FileSource


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path, "r", [step_record(i, train_loss=float(i)) for i in range(500)])


@pytest.fixture
def source(folder):
    return FileSource(folder / METRICS_JSONL)


def places_in(source):
    return [(at, len(line)) for at, line in lines_of(source.read_block(Cursor(), max_bytes=1 << 24))]


def test_blocks_pieces_and_single_lines_are_the_same_bytes(folder, source):
    data = (folder / METRICS_JSONL).read_bytes()
    places = places_in(source)
    mixed = [*places[::-7], *places[::3], places[0], places[0]]

    assert source.read_block(Cursor(), max_bytes=1 << 24).data == data
    assert b"".join(source.pieces()) == data
    assert source.read_at(mixed) == [data[at : at + length] for at, length in mixed]


def test_a_line_that_is_still_being_written_is_left_out(folder, source):
    data = (folder / METRICS_JSONL).read_bytes()
    with (folder / METRICS_JSONL).open("ab") as file:
        file.write(b'{"event":"st')

    assert b"".join(source.pieces()) == data


def test_pieces_keep_lines_that_no_reader_takes(folder, source):
    append(folder, [step_record(500)])
    with (folder / METRICS_JSONL).open("ab") as file:
        file.write(b"\x00\xff\n\n" + b"x" * (MAX_LINE_BYTES + 5) + b"\n")

    assert b"".join(source.pieces()) == (folder / METRICS_JSONL).read_bytes()


def test_a_cursor_at_the_end_continues_there_and_notices_another_file(folder, source):
    cursor = source.read_block(Cursor(), max_bytes=1 << 24).cursor
    append(folder, [step_record(500)])
    block = source.read_block(cursor, max_bytes=1 << 20)

    assert (block.start, block.replaced) == (cursor.offset, False)
    assert len(list(lines_of(block))) == 1

    (folder / METRICS_JSONL).unlink()
    append(folder, [step_record(i, note="another run") for i in range(900)])

    assert source.read_block(block.cursor, max_bytes=1 << 20).replaced


def test_places_behind_the_end_are_empty(source):
    end = source.path.stat().st_size

    assert source.read_at([(end + 10, 5), (0, 1)]) == [b"", b"{"]


def test_sources_of_one_file_are_equal(folder, source, tmp_path):
    assert source == FileSource(folder / METRICS_JSONL)
    assert source != FileSource(tmp_path / METRICS_JSONL)


def test_what_is_no_file_is_an_error_of_the_system(tmp_path):
    missing = FileSource(tmp_path / "none.jsonl")
    for read in (lambda: missing.read_at([(0, 1)]), lambda: list(missing.pieces())):
        with pytest.raises(OSError, match="none.jsonl"):
            read()
