"""Reading what a run printed: any part of it, found by text, stream or time, whatever state the files are in."""

from __future__ import annotations

import pytest

from toolkit.telemetry.runfolder.evidence.output_log import NOTE, STDERR, STDOUT, OutputLog, packed

BEGAN = 1_700_000_000.0


@pytest.fixture
def write(tmp_path):
    """Write a log of one line a second."""

    def make(texts, *, streams=(STDOUT,), times=True):
        (tmp_path / "output.log").write_bytes(b"".join(f"{text}\n".encode() for text in texts))
        rows = [
            packed(BEGAN + number, len(text.encode()) + 1, 1, streams[number % len(streams)])
            for number, text in enumerate(texts)
        ]
        (tmp_path / "output.times").write_bytes(b"".join(rows) if times else b"")
        return OutputLog(tmp_path)

    return make


def test_any_lines_are_read_by_number_and_by_time(write):
    with write([f"line {number} ü" for number in range(1_000)]) as log:
        assert (log.problem, log.count, log.is_last_open) == (None, 1_000, False)
        assert [line.text for line in log.tail(2)] == ["line 998 ü", "line 999 ü"]
        assert [line.number for line in log.lines(-5, 3)] == [0, 1, 2]
        assert log.lines(990, 2_000)[-1].time == BEGAN + 999
        for time_s, number in (
            (BEGAN - 9, 0),
            (BEGAN + 500, 500),
            (BEGAN + 500.5, 501),
            (BEGAN + 9e9, 1_000),
        ):
            assert log.at_time(time_s) == number
        assert [line.text for line in log.newest_first(2)] == ["line 1 ü", "line 0 ü"]


def test_text_and_streams_are_found_newest_first_across_blocks(write):
    texts = [
        f"{'x' * 3_000} {number}{' NaN here NAN' if number % 300 == 7 else ''}" for number in range(1_000)
    ]
    with write(texts, streams=(STDOUT, STDERR, NOTE)) as log:
        assert list(log.find("nan")) == [907, 607, 307, 7]
        assert list(log.find("nan", upto=607)) == [307, 7]
        assert list(log.find("", ["stderr"], upto=8)) == [7, 4, 1]
        assert list(log.find("nan", ["stdout"])) == [
            number for number in (907, 607, 307, 7) if number % 3 == 0
        ]
        assert list(log.find("nowhere")) == []


@pytest.mark.parametrize("data", [b"", b"\x00\xff\x1b[31m\n\n\xe2\x82", b"one\ntwo", bytes(range(256)) * 20])
@pytest.mark.parametrize("times", [None, b"", b"torn", bytes(range(250)), bytes(60)])
def test_no_contents_of_the_files_are_too_odd(tmp_path, data, times):
    (tmp_path / "output.log").write_bytes(data)
    if times is not None:
        (tmp_path / "output.times").write_bytes(times)
    with OutputLog(tmp_path) as log:
        lines = log.lines(0, log.count)
        list(log.find("o"))
        log.at_time(BEGAN)
        assert len(lines) == log.count == data.count(b"\n") + log.is_last_open
        assert "\x1b" not in "".join(line.text for line in lines)
        assert log.is_last_open == (data[-1:] not in (b"", b"\n"))


def test_a_folder_of_ranks_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "00001.output.log").write_text("private\n")
    run = tmp_path / "run"
    run.mkdir()
    (run / "ranks").symlink_to(tmp_path / "elsewhere")
    with OutputLog(run, rank=1) as log:
        assert not log.exists
        assert "link" in log.problem


def test_of_a_log_of_a_tebibyte_the_end_is_read_and_what_is_left_out_is_said(write, tmp_path):
    write(["first"]).close()
    with (tmp_path / "output.log").open("ab") as file:
        file.truncate(1 << 40)
        file.write(b"\nlast but one\nlast\n")

    with OutputLog(tmp_path) as log:
        assert [line.text for line in log.tail(2)] == ["last but one", "last"]
        assert "its first 1,099,444,518,931 bytes are not read" in log.problem
        assert len(log.lines(0, 1)[0].text) == 100_000
