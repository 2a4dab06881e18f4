"""What a process prints is in output.log however it ends, and printing is never held up or changed by that."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from pathlib import Path

import pytest

from tests.fork_server import ROOT, run_python
from tests.telemetry.logged import make_logger
from tests.waiting import wait_until
from toolkit.telemetry.logger.printed import output_writer
from toolkit.telemetry.logger.printed.taps import TAPS
from toolkit.telemetry.runfolder.evidence.output_log import OutputLog

PROGRAM = Path(__file__).parent / "programs" / "print_and_end.py"
TOKEN = "hf_" + "a1B2" * 9


def read(log):
    with OutputLog(log.run_folder) as found:
        return found.lines(0, found.count)


def said(log):
    return [line.text for line in read(log) if not line.text.startswith("[telemetry] ")]


@pytest.mark.parametrize("how", ["failed", "failed in with", "ended", "killed"])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")
def test_the_last_lines_are_there_however_the_process_ends(tmp_path, how):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run_python([PROGRAM, how, tmp_path], env=environment)
    with OutputLog(tmp_path / "run") as log:
        assert log.problem is None
        found = {line.text: line for line in log.lines(0, log.count)}

    for text, stream in {
        "on stdout": "stdout",
        "on stderr": "stderr",
        "token ***": "stdout",
        "100 %": "stderr",
    }.items():
        assert found[text].stream == stream
        assert found[text].time > 1.7e9
    assert "50 %" not in found
    if how.startswith("failed"):
        assert found["ValueError: the last words"].stream == "stderr"


def test_a_run_that_wants_no_log_has_none_and_leaves_the_streams_alone(tmp_path, streams):
    out, _ = streams()
    with make_logger(tmp_path, output=False) as log:
        print("x")
        assert vars(out) == {}
    assert not (log.run_folder / "output.log").exists()
    with OutputLog(log.run_folder) as found:
        assert "`output: false`" in found.problem


def test_streams_that_a_notebook_puts_there_are_followed_and_restored(tmp_path, streams):
    out, err = streams()
    with make_logger(tmp_path, output=True, quiet=True) as log:
        print("said", file=sys.stderr)
        assert sys.stdout.write("four") == 4
        assert out.isatty() is False
    assert (out.getvalue(), err.getvalue()) == ("four", "said\n")
    assert vars(out) == vars(err) == {}
    assert said(log) == ["said", "four"]


def test_what_one_stream_hands_on_to_another_is_there_once(tmp_path, streams):
    out, _ = streams()

    class Tee(io.StringIO):
        def write(self, text):
            return out.write(text)

    sys.stdout = Tee()
    log = make_logger(tmp_path, output=True, quiet=True)
    sys.stdout, tee = out, sys.stdout
    wait_until(lambda: "write" in vars(out))
    tee.write("once\n")
    log.close()

    assert said(log) == ["once"]


def test_two_loggers_have_each_what_was_printed_while_they_were_open(tmp_path, streams):
    out, _ = streams()
    first = make_logger(tmp_path, "first", output=True, quiet=True)
    print("one")
    second = make_logger(tmp_path, "second", output=True, quiet=True, errors={"output_lines": 3})
    print("two")
    first.close()
    print("three")
    second.close()

    assert said(first) == ["one", "two"]
    assert said(second) == ["two", "three"]
    assert vars(out) == {}


def test_secrets_are_masked_also_over_several_lines_and_in_the_line_that_is_being_written(tmp_path, streams):
    streams()
    key = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEF\n" * 3 + "-----END PRIVATE KEY-----"
    log = make_logger(tmp_path, output=True, quiet=True)
    print(f"before\n{key}\nafter {TOKEN}")
    for part in ("." * 12_001, " password=", "hunter2\n", "x" * 15_000, " " + TOKEN[:9], TOKEN[9:] + "\n"):
        sys.stdout.write(part)
    sys.stdout.write(f"open {TOKEN} line")
    wait_until(lambda: "open" in (log.run_folder / "output.log").read_text())
    text = (log.run_folder / "output.log").read_text()
    log.close()

    assert TOKEN[9:] not in text
    assert "hunter2" not in text
    assert "MIIEvQ" not in text
    assert "after ***" in text


def test_a_flood_is_dropped_with_a_note_and_the_last_lines_are_kept(tmp_path, streams, monkeypatch):
    streams()
    monkeypatch.setattr(output_writer, "TAKEN_UP_S", 3600.0)
    log = make_logger(tmp_path, output=True, quiet=True)
    count = 3 * output_writer._MOST_WAITING
    for number in range(count):
        sys.stdout.write(f"{number}\n")
    log.close()

    lines = [line.text for line in read(log)]
    assert sum("came too fast" in line for line in lines) == 1
    kept = [int(line.lstrip("… ")) for line in lines if line.lstrip("… ").isdecimal()]
    assert kept == list(range(count - len(kept), count))
    assert 0 < len(kept) <= output_writer._MOST_WAITING


def test_a_line_is_whole_or_marked_as_cut_where_writes_were_lost(tmp_path, streams, monkeypatch):
    streams()
    monkeypatch.setattr(output_writer, "TAKEN_UP_S", 3600.0)
    monkeypatch.setattr(output_writer, "_REST", 0)
    log = make_logger(tmp_path, output=True, quiet=True)
    output, parts, printed = log._run.output, 5, set()
    for burst in range(3):
        for number in range(output_writer._MOST_WAITING // parts + burst + 2):
            printed.add("-".join(f"{burst}.{number}.{part}" for part in range(parts)))
            for part in range(parts):
                sys.stdout.write(f"{burst}.{number}.{part}" + "-\n"[part == parts - 1])
        while TAPS._written or output._waiting:
            output._turn()
        sys.stderr.write("half of a line")
        output._turn()
    log.close()

    lines = [line.text for line in read(log)]
    assert len(lines) > output_writer._MOST_WAITING // parts
    assert all(
        line in printed or "…" in line or "telemetry" in line or line == "half of a line" for line in lines
    )
    assert any("half of a line …" in line for line in lines)


def test_a_flood_is_taken_from_the_buffer_and_what_comes_after_it_from_each_write(tmp_path, monkeypatch):
    monkeypatch.setattr(output_writer, "TAKEN_UP_S", 3600.0)
    monkeypatch.setattr(output_writer, "_REST", 0)
    count, printed = output_writer._MOST_WAITING, []

    def flood():
        for _ in range(count):
            printed.append(f"{len(printed)} é")
            sys.stdout.write(printed[-1])
            sys.stdout.write("\n")

    def turn(output):
        output._turn()
        while output._waiting:
            output._turn()

    with (tmp_path / "out").open("w", encoding="utf-8") as out:
        monkeypatch.setattr(sys, "stdout", out)
        log = make_logger(tmp_path, output=True, quiet=True)
        flood()
        turn(log._run.output)
        in_flood = "write" in vars(out), "write" in vars(out.buffer)
        flood()
        turn(log._run.output)
        sys.stdout.write("the first of few\n")
        turn(log._run.output)
        after = "write" in vars(out), "write" in vars(out.buffer)
        sys.stdout.write("the last")
        log.close()

        assert (in_flood, after) == ((False, True), (True, False))
        assert "write" not in {*vars(out), *vars(out.buffer)}
    assert (tmp_path / "out").read_text(encoding="utf-8").split("\n") == [
        *printed,
        "the first of few",
        "the last",
    ]
    lines = said(log)
    kept = [line for line in lines if "…" not in line]
    assert kept[-2:] == ["the first of few", "the last"]
    assert kept[-3] == printed[-1]
    assert {*kept[:-2]} <= {*printed}
    assert len(kept) == len({*kept}) > 1000


def test_memory_for_huge_texts_is_bounded_and_what_is_cut_is_said(streams):
    streams()
    TAPS.join(streams, lambda _: None)
    for _ in range(20):
        sys.stdout.write("begin " + "x" * 5_000_000 + " end")
    kept = [text for _, text in TAPS._written]
    TAPS.leave(streams)

    assert sum(map(len, kept)) < 2_000_000
    assert kept[-1] == "begin … (5,000,002 characters were cut) … end"


def test_a_folder_that_cannot_be_written_is_reported_once_and_hurts_nothing(tmp_path, caplog):
    log = make_logger(tmp_path, output=True, quiet=True)
    (log.run_folder / "output.log").mkdir()
    print("goes on")
    log.close()

    assert caplog.text.count("keeping the output failed") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_prints_for_itself(tmp_path, streams):
    out, _ = streams()
    log = make_logger(tmp_path, output=True, quiet=True)
    print("before")
    child = os.fork()
    if child == 0:
        print("in the child")
        os._exit(0 if vars(out) == {} else 1)
    assert os.waitpid(child, 0)[1] == 0
    print("after")
    log.close()

    assert said(log) == ["before", "after"]


def test_lines_of_many_threads_are_all_there(tmp_path, streams):
    streams()
    with make_logger(tmp_path, output=True, quiet=True) as log:
        threads = [
            threading.Thread(target=lambda name=name: [sys.stdout.write(f"{name} {n}\n") for n in range(200)])
            for name in "abcd"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sorted(said(log)) == sorted(f"{name} {n}" for name in "abcd" for n in range(200))


def test_a_stream_that_is_closed_or_none_is_no_trouble(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with make_logger(tmp_path, output=True, quiet=True) as log:
        pass
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    with make_logger(tmp_path, "again", output=True, quiet=True), contextlib.suppress(ValueError):
        print("x")
    assert log.run_folder.is_dir()


def test_a_stream_that_sets_its_attributes_on_another_one_does_not_call_itself(tmp_path, streams):
    class Wrapper:
        def __init__(self, wrapped):
            object.__setattr__(self, "wrapped", wrapped)

        def __setattr__(self, name, value):
            setattr(self.wrapped, name, value)

        def write(self, text):
            return self.wrapped.write(text)

        def flush(self):
            pass

    out, _ = streams()
    with make_logger(tmp_path, output=True) as log:
        sys.stdout = Wrapper(out)
        TAPS.follow()
        print("handed on")

    assert "handed on" in out.getvalue()
    assert said(log).count("handed on") == 1
    assert "write" not in vars(out)


def test_the_same_text_on_both_streams_is_there_twice(tmp_path, streams):
    streams()
    with make_logger(tmp_path, output=True) as log:
        sys.stdout.write("the same\n")
        sys.stderr.write("the same\n")

    assert said(log).count("the same") == 2


def test_dots_without_end_are_broken_into_lines(tmp_path, streams):
    streams()
    with make_logger(tmp_path, output=True) as log:
        for _ in range(100):
            sys.stdout.write("." * 1000)

    assert sum(len(text) for text in said(log)) == 100_000
