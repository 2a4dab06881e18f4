"""Records are read from a growing file once each and in order, however it grows and even with other content."""

import json
import os
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import line, tries
from toolkit.telemetry.runfolder import reader
from toolkit.telemetry.runfolder.reader import Cursor, last_record, offset_after, read_from, read_shared
from toolkit.telemetry.runfolder.records import MAX_LINE_BYTES

posix = pytest.mark.skipif(os.name != "posix", reason="links and FIFOs are POSIX's")


def append(path, data):
    with path.open("ab") as file:
        file.write(data)


def seqs(chunk):
    return [record["seq"] for record in chunk.records]


# ---------------------------------------------------------------- reading on


def test_lines_that_are_no_record_are_counted_and_their_position_kept(tmp_path):
    path = tmp_path / "metrics.jsonl"
    good, bad = line(0), b'{"seq":1,"loss":nan}\n'
    append(path, good + bad + line(2) + b"\x00\x00\n" + line(3))
    chunk = read_from(path)

    assert seqs(chunk) == [0, 2, 3]
    assert chunk.bad_count == 2
    assert [(bad_line.offset, bad_line.length) for bad_line in chunk.bad_lines] == [
        (len(good), len(bad) - 1),
        (len(good) + len(bad) + len(line(2)), 2),
    ]
    assert "strict JSON" in chunk.bad_lines[0].reason

    path.write_bytes(b"nonsense\n" * 1000)
    chunk = read_from(path)
    assert (chunk.bad_count, len(chunk.bad_lines)) == (1000, 100), "the first hundred are kept"


# Small limits, so that a few hundred bytes show what a few hundred megabytes would.
_lines = st.one_of(
    st.integers(0, 9).map(lambda number: b'{"n":%d}\n' % number),
    st.sampled_from([b"\n", b"nonsense\n", b'["a"]\n', b'{"n":NaN}\n', b'{"t":"\xe2\x80\xa8"}\n', b"\x00\n"]),
    st.integers(50, 400).map(lambda length: b"x" * length + b"\n"),
    st.integers(40, 90).map(lambda length: b'{"t":"' + b"y" * length + b'"}\n'),
)


@tries
@given(
    lines=st.lists(_lines, max_size=15),
    tail=st.binary(max_size=5).map(lambda tail: tail.replace(b"\n", b"")),
    cuts=st.lists(st.integers(0, 1500), max_size=12),
    max_bytes=st.integers(1, 300),
)
def test_however_a_file_grows_and_is_read_the_same_records_come_out(
    tmp_path_factory, lines, tail, cuts, max_bytes
):
    data = b"".join(lines) + tail
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "MAX_LINE_BYTES", 64)
        path.write_bytes(data)
        at_once = read_from(path, max_bytes=10_000)

        path.write_bytes(b"")
        cursor, records, bad, count = Cursor(), [], [], 0
        for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
            append(path, data[start:end])
            chunk = read_from(path, cursor, max_bytes=max_bytes)
            while True:
                assert not chunk.replaced
                records += chunk.records
                bad += chunk.bad_lines
                count += chunk.bad_count
                if chunk.cursor.offset == cursor.offset:
                    break
                cursor = chunk.cursor
                chunk = read_from(path, cursor, max_bytes=max_bytes)

    assert records == at_once.records
    assert bad == list(at_once.bad_lines)
    assert count == at_once.bad_count
    assert cursor.offset == at_once.cursor.offset
    assert cursor.long_line_at == at_once.cursor.long_line_at


# ---------------------------------------------------------------- over-long lines


@pytest.mark.parametrize("length", [MAX_LINE_BYTES, MAX_LINE_BYTES + 1, 5 * MAX_LINE_BYTES])
def test_a_line_that_is_too_long_is_skipped_and_reported(tmp_path, length):
    path = tmp_path / "metrics.jsonl"
    append(path, line(0) + b'{"seq":1,"t":"' + b"x" * (length - 16) + b'"}\n' + line(2))
    cursor, found, bad = Cursor(), [], []
    for _ in range(20):
        chunk = read_from(path, cursor, max_bytes=1)
        found += seqs(chunk)
        bad += chunk.bad_lines
        cursor = chunk.cursor

    if length == MAX_LINE_BYTES:
        assert (found, bad) == ([0, 1, 2], [])
    else:
        assert found == [0, 2]
        assert [(bad_line.offset, bad_line.length) for bad_line in bad] == [(len(line(0)), length)]
        assert "longer than 1048576 bytes" in bad[0].reason


# ---------------------------------------------------------------- another file under the same name


@pytest.mark.parametrize(
    ("before", "change", "found"),
    [
        pytest.param((0, 1, 2), lambda path: os.truncate(path, len(line(0))), [0], id="truncated"),
        pytest.param(
            (0,), lambda path: path.write_bytes(line(10) + line(11, text="x" * 99)), [10, 11], id="rewritten"
        ),
        pytest.param(
            (0,), lambda path: os.replace(another(path, line(0) + line(1)), path), [0, 1], id="replaced"
        ),
    ],
)
def test_another_file_under_the_same_name_is_read_from_its_start(tmp_path, before, change, found):
    path = tmp_path / "metrics.jsonl"
    append(path, b"".join(map(line, before)))
    cursor = read_from(path).cursor
    change(path)
    chunk = read_from(path, cursor)

    assert chunk.replaced
    assert seqs(chunk) == found
    assert not read_from(path, chunk.cursor).replaced
    assert read_from(path, 5).replaced, "no line begins there"


def another(path, data):
    other = path.with_name("other")
    other.write_bytes(data)
    return other


@posix
def test_no_descriptor_is_left_open(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append(path, line(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Above what is open already, which other tests of this process may have left.
    highest = max(map(int, os.listdir("/dev/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(highest + 100, soft), hard))
    try:
        for _ in range(400):
            read_from(path)
            last_record(path)
            offset_after(path, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---------------------------------------------------------------- the last record, and the place after one


_garbage = st.sampled_from(
    [b"\n", b"nonsense\n", b'{"seq":"7"}\n', b'{"no":1}\n', b'{"seq":1.5}\n', b"x" * 150 + b"\n"]
)


@tries
@given(
    gaps=st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 90), st.lists(_garbage, max_size=3)), max_size=25
    ),
    front=st.lists(_garbage, max_size=3),
    torn=st.sampled_from([b"", b'{"seq":99', b"rubbish", b"y" * 200]),
    seq=st.integers(-2, 80),
)
def test_the_place_after_a_record_is_the_one_a_search_from_the_start_finds(
    tmp_path_factory, gaps, front, torn, seq
):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    parts, present, number = [*front], [], -1
    for gap, length, garbage in gaps:
        number += gap
        present.append(number)
        parts += [b'{"seq":%d,"t":"%s"}\n' % (number, b"z" * length), *garbage]
    path.write_bytes(b"".join(parts) + torn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "MAX_LINE_BYTES", 128)
        patch.setattr(reader, "_BLOCK_BYTES", 48)
        offset = offset_after(path, seq)
        with path.open("rb") as file:
            file.seek(offset)
            after = file.read()
        last = last_record(path)

    assert offset == 0 or path.read_bytes()[offset - 1 : offset] == b"\n"
    found = [json.loads(text).get("seq") for text in after.split(b"\n")[:-1] if text.startswith(b'{"seq"')]
    assert [number for number in found if type(number) is int] == [
        number for number in present if number > seq
    ]
    assert (last and last["seq"]) == (present[-1] if present else None)


def test_the_last_record_is_looked_for_no_further_than_allowed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append(path, line(0) + b"nonsense\n" * 100_000)

    assert last_record(path)["seq"] == 0
    assert last_record(path, within_bytes=100_000) is None


def test_the_records_from_a_session_on_are_found_without_reading_those_before(tmp_path):
    path = tmp_path / "metrics.jsonl"
    sessions = [1] * 300 + [2] * 5 + [4] * 300
    path.write_bytes(b"".join(line(seq, session=session) for seq, session in enumerate(sessions)))

    for session in range(6):
        found = read_from(path, offset_after(path, session - 1, field="session")).records
        assert [record["seq"] for record in found] == [
            seq for seq, of in enumerate(sessions) if of >= session
        ]


# ---------------------------------------------------------------- several readers of one file


@pytest.fixture
def reads(monkeypatch):
    """The cursors that were really read from."""
    read, found = reader.read_from, []

    def counting(path, cursor, *, max_bytes):
        found.append(cursor.offset)
        return read(path, cursor, max_bytes=max_bytes)

    monkeypatch.setattr(reader, "read_from", counting)
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
