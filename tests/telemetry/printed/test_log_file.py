"""output.log and its times: appended, cut in the middle, and put right after a kill or a full disk."""

from __future__ import annotations

import errno
import os

import pytest

from toolkit.telemetry.logger.printed import log_file
from toolkit.telemetry.logger.printed.log_file import Line, LogFile
from toolkit.telemetry.runfolder.evidence.output_log import NOTE, ROW, OutputLog


@pytest.fixture
def begin(tmp_path):
    def make(session=1, **limits):
        return LogFile(tmp_path / "output.log", mode=0o600, session=session, **limits)

    return make


def lines(*texts, time=1.7e9):
    return [Line(time + number, 0, text) for number, text in enumerate(texts)]


def read(tmp_path):
    with OutputLog(tmp_path) as log:
        return log.problem, log.lines(0, log.count)


def texts(tmp_path):
    return [line.text for line in read(tmp_path)[1]]


def test_lines_have_their_times_in_twelve_bytes_each(tmp_path, begin):
    begin().append(lines("one", "zwei ü", ""))
    numpy = pytest.importorskip("numpy")
    form = [("time", "<f8"), ("bytes", "<u2"), ("where", "<u2")]
    rows = numpy.fromfile(tmp_path / "output.times", dtype=form)

    assert rows["time"].tolist() == [1.7e9, 1.7e9 + 1, 1.7e9 + 2]
    assert rows["bytes"].tolist() == [4, 8, 1]
    assert (rows["where"] // 4).tolist() == [1, 1, 1]
    assert (tmp_path / "output.log").stat().st_mode & 0o777 == 0o600


def test_a_line_that_is_being_written_is_the_end_of_the_file_and_is_overwritten(tmp_path, begin):
    file = begin()
    for percent in (10, 50, 99):
        file.append([], f"{percent} %")
        assert (tmp_path / "output.log").read_text() == f"{percent} %"
    file.append(lines("done"), "next")

    assert (tmp_path / "output.log").read_text() == "done\nnext"
    assert read(tmp_path)[0] is None


def test_the_next_session_says_so_and_ends_the_line_that_a_kill_left(tmp_path, begin):
    begin().append(lines("one"), "killed in the middle")
    begin(session=2).append(lines("two"))

    problem, found = read(tmp_path)
    said = ["one", "killed in the middle", "[telemetry] session 2 begins", "two"]
    assert (problem, [line.text for line in found]) == (None, said)
    assert [line.time is None for line in found] == [False, True, False, False]
    assert [line.session for line in found] == [1, None, 2, 2]


def test_the_middle_is_cut_and_how_much_that_was_is_said(tmp_path, begin):
    file = begin(most_bytes=10_000)
    for number in range(3_000):
        file.append(lines(f"line {number}"))
    size = (tmp_path / "output.log").stat().st_size
    problem, found = read(tmp_path)
    shown = [line.text for line in found]

    assert size <= 10_000 + 100
    assert problem is None
    assert (shown[0], shown[-1]) == ("line 0", "line 2999")
    (note,) = [line for line in found if line.stream == "note"]
    gone = int(note.text.split()[1].replace(",", ""))
    whole = sum(len(f"line {number}\n") for number in range(3_000))
    assert gone + size - len(note.text) - 1 == whole
    assert all(line.time is not None for line in found)


@pytest.mark.parametrize("spoil", ["removed", "longer", "torn", "random"])
def test_times_that_do_not_fit_leave_lines_without_them_until_the_next_session(tmp_path, begin, spoil):
    begin().append(lines("one", "two"))
    times = tmp_path / "output.times"
    if spoil == "removed":
        times.unlink()
    else:
        more = {"longer": ROW.pack(1.0, 500, 4), "torn": b"12345", "random": os.urandom(24)}[spoil]
        times.write_bytes(times.read_bytes() + more if spoil != "random" else more)
    problem, found = read(tmp_path)
    assert [line.text for line in found] == ["one", "two"]
    if spoil != "torn":
        assert "no times" in problem
        assert {line.time for line in found} == {None}
    begin(session=2).append(lines("three"))

    problem, found = read(tmp_path)
    assert problem is None
    assert [line.text for line in found if line.stream != "note"] == ["one", "two", "three"]
    assert found[-1].time == 1.7e9


def test_a_disk_that_is_full_in_the_middle_takes_nothing_or_all(tmp_path, begin, monkeypatch):
    file = begin()
    file.append(lines("one"))

    def full(descriptor, data):
        os.write(descriptor, bytes(data)[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(log_file, "write_all", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                file.append(lines("two", "three"))
    assert (tmp_path / "output.log").read_text() == "one\n"
    file.append(lines("two", "three"))

    assert texts(tmp_path) == ["one", "two", "three"]
    assert read(tmp_path)[0] is None


def test_a_log_that_is_moved_or_emptied_is_begun_again(tmp_path, begin):
    file = begin()
    file.append(lines("one"), "bar")
    (tmp_path / "output.log").rename(tmp_path / "old.log")
    file.append(lines("two"))
    assert texts(tmp_path) == ["two"]
    os.truncate(tmp_path / "output.log", 0)
    file.append(lines("three"))

    assert texts(tmp_path) == ["three"]
    assert read(tmp_path)[0] is None


def test_what_another_process_writes_stays(tmp_path, begin):
    file = begin()
    file.append(lines("one"), "bar")
    with open(tmp_path / "output.log", "a") as other:
        other.write(" and theirs\nmore of theirs")
    file.append(lines("two"))

    assert texts(tmp_path) == ["one", "bar and theirs", "more of theirs", "two"]


def test_a_link_is_not_followed(tmp_path, begin):
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "output.log").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError):
        begin().append(lines("one"))

    assert (tmp_path / "mine").read_text() == "precious"
    with OutputLog(tmp_path) as log:
        assert not log.exists
        assert "cannot be read" in log.problem


def test_a_long_line_says_what_was_cut(tmp_path, begin):
    begin().append([Line(1.7e9, NOTE, "ü" * 20_000)])

    (line,) = read(tmp_path)[1]
    assert line.text.endswith("(24,000 more bytes of this line were cut)")


def test_the_times_of_very_short_lines_count_too(tmp_path, begin):
    file = begin(most_bytes=10_000)
    for _ in range(50):
        file.append(lines(*["."] * 50))

    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 11_000
    assert read(tmp_path)[0] is None
    assert any("were cut here" in text for text in texts(tmp_path))
