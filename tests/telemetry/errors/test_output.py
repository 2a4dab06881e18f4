"""The last lines of output: kept cheaply, given back exactly, and never in anybody's way."""

from __future__ import annotations

import contextlib
import io
import sys

import pytest

from tests.telemetry.logged import make_logger, records_of
from toolkit.telemetry.logger.errors.output import OutputTail

TOKEN = "hf_" + "a1B2" * 9


@pytest.fixture
def listen(streams):
    """Listen to two streams of ours."""
    tails = []

    def begin():
        ours = streams()
        tails.append(OutputTail(5))
        tails[0].follow()
        return tails[0], *ours

    yield begin
    for tail in tails:
        tail.release()


def test_the_last_lines_of_both_streams_are_kept_in_their_order(listen):
    tail, out, err = listen()
    for number in range(10):
        print("out", number)
        print("err", number, file=sys.stderr)
    sys.stdout.write("begun")

    assert tail.last_lines() == ["err 7", "out 8", "err 8", "out 9", "err 9", "begun"][-5:]
    assert out.getvalue().count("\n") == 10
    assert err.getvalue().count("\n") == 10


def test_each_stream_gets_its_own_write_back(streams):
    out, err = streams()

    def theirs(text):
        return io.StringIO.write(err, text)

    err.write = theirs
    tail = OutputTail(5)
    tail.follow()
    assert "write" in vars(out)
    assert err.write is not theirs
    tail.release()

    assert vars(out) == {}
    assert err.write is theirs
    print("still there", file=sys.stderr)
    assert err.getvalue() == "still there\n"


def test_a_write_that_someone_put_on_top_of_it_stays(streams):
    out, _ = streams()
    tail = OutputTail(5)
    tail.follow()
    ours = out.write
    seen = []

    def theirs(text):
        seen.append(text)
        return ours(text)

    out.write = theirs
    tail.release()
    print("x")

    assert out.write is theirs
    assert (seen, out.getvalue()) == (["x", "\n"], "x\n")


class Closed:
    """A stream of a class that has no room for anything."""

    __slots__ = ("text",)

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text


@pytest.mark.parametrize("stream", [None, Closed()])
def test_a_stream_that_cannot_be_followed_is_left_alone(monkeypatch, stream):
    monkeypatch.setattr(sys, "stdout", stream)
    tail = OutputTail(5)
    tail.follow()
    if stream is not None:
        print("said")
        assert stream.text == "said\n"
    tail.release()

    assert tail.last_lines() == []


def test_a_long_line_is_cut(listen):
    tail, _, _ = listen()
    print("word " * 300)

    assert len(tail.last_lines()[-1]) == 501


@pytest.mark.parametrize("before", ["", "x" * 3_990 + " ", "x" * 480 + " "])
def test_secrets_are_masked_before_a_line_is_cut(before, listen):
    tail, _, _ = listen()
    print(f"{before}{TOKEN} and more")

    assert TOKEN[:8] not in str(tail.last_lines())


# ---------------------------------------------------------------- of a run


def outputs_of(log):
    return [record.get("output") for record in records_of(log, "error")]


def fail():
    raise ValueError


def try_to_fail(log):
    with contextlib.suppress(ValueError):
        log.capture_errors()(fail)()


def test_nothing_is_listened_to_before_someone_asks_and_after_the_run(tmp_path, streams):
    out, err = streams()
    with make_logger(tmp_path) as log:
        untouched = dict(vars(out))
        log.capture_errors()
        listening = "write" in vars(out)

    assert untouched == {}
    assert listening
    assert vars(out) == vars(err) == {}


def test_a_run_that_wants_no_lines_leaves_the_output_alone(tmp_path, streams):
    out, _ = streams()
    with make_logger(tmp_path, errors={"output_lines": 0}) as log:
        try_to_fail(log)
        assert vars(out) == {}
        print("x")
        assert outputs_of(log) == [None]


def test_two_runs_share_one_capture_of_the_output_and_get_the_lines_they_asked_for(tmp_path, streams):
    out, _ = streams()
    few = make_logger(tmp_path, "few", errors={"output_lines": 2})
    many = make_logger(tmp_path, "many", errors={"output_lines": 4})
    few.capture_errors()
    many.capture_errors()
    for number in range(10):
        print(number)
    try_to_fail(few)
    try_to_fail(many)

    assert outputs_of(few) == [["8", "9"]]
    assert outputs_of(many) == [["6", "7", "8", "9"]]
    few.close()
    assert "write" in vars(out)
    many.close()
    assert vars(out) == {}
