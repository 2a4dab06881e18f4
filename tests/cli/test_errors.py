from __future__ import annotations

import contextlib
import json
import os
from functools import partial

import pytest

from tests.made_runs import append
from toolkit.telemetry import TelemetryLogger


@pytest.fixture
def errors(telemetry):
    return partial(telemetry, "show", "--errors")


def fail(number):
    raise ValueError(f"batch {number}\nis empty")


def log_run(folder, times, **options):
    with TelemetryLogger("run", log_dir=folder, log_every=1, system=False, csv=False, **options) as log:
        for number in range(times):
            log.log_step(number, train_loss=1.0)
            with contextlib.suppress(ValueError), log.span("loading"):
                log.capture_errors()(fail)(number)
    return folder / "run"


def write(folder, *records, name="metrics.jsonl"):
    return append(folder / "made", records, path=folder / "made" / name)


def hang(state, **fields):
    about = {
        "event": "finding",
        "kind": "hang",
        "id": "1-hang",
        "session": 1,
        "global_step": 7,
        "state": state,
    }
    return {**about, "message": f"it is {state}", **fields}


def test_a_run_without_errors_says_so(tmp_path, errors):
    assert errors(log_run(tmp_path, 0)) == (0, "run: no errors\n", "")


def test_an_error_is_printed_with_its_stack_place_and_count(tmp_path, errors):
    run = log_run(tmp_path, 12)
    code, out, _ = errors(run)

    assert code == 0
    assert out.startswith("run: 1 error, 12 times in total\n\n  ValueError: batch 9\n  is empty\n")
    assert "    step 9, 12 times\n    Stack, innermost call last:\n" in out
    assert (
        "    Context:\n      spans: loading\n      thread: MainThread\n      caught by: capture_errors\n"
        in out
    )
    assert " in fail\n" in out
    (record,) = json.loads(errors(run, "--json")[1])
    assert (record["type"], record["count"], record["spans"]) == ("ValueError", 12, ["loading"])


def test_a_hang_is_printed_with_its_first_stacks_and_last_state(tmp_path, errors):
    stacks = [{"threads": ["MainThread"], "stack": ["train.py:3 in main", "lock.py:1 in wait"]}]
    run = write(tmp_path, hang("open", stacks=stacks), hang("resolved"))

    _, out, _ = errors(run)

    assert out == (
        "made: no errors; 1 hang\n\n  it is resolved\n    step 7, resolved\n    Stack of MainThread:\n"
        "      train.py:3 in main\n      lock.py:1 in wait\n"
    )


def test_the_other_ranks_are_read_too(tmp_path, errors):
    write(tmp_path, hang("open"))
    run = write(tmp_path, hang("open", rank=3), name="ranks/00003.jsonl")
    os.symlink("/etc/passwd", run / "ranks" / "00004.jsonl")

    code, out, _ = errors(run)

    assert code == 0
    assert out.startswith("made: no errors; 2 hangs\n")
    assert "    rank 3, step 7, open\n" in out


def test_failures_of_telemetry_itself_are_counted(tmp_path, errors):
    own = {"event": "error", "source": "telemetry", "message": "disk full"}

    assert errors(write(tmp_path, own, own))[1] == "made: no errors; 2 in telemetry itself\n"


def test_causes_output_and_memory_are_printed(tmp_path, errors):
    record = {
        "event": "error",
        "message": "RuntimeError: b",
        "caused_by": [
            {"link": "cause", "message": "OSError: a", "stack": ["x.py:1 in f"]},
            {"message": "KeyError"},
        ],
        "output": ["last"],
        "memory": {"rss_mb": 1.5},
    }

    out = errors(write(tmp_path, record))[1]

    assert "    Cause:\n      raised from OSError: a\n          x.py:1 in f\n" in out
    assert "    Last output:\n      last\n    Memory:\n      rss_mb: 1.5\n" in out


def test_those_beyond_the_distinct_ones_are_counted_by_the_end_record(tmp_path, errors):
    others = {
        "event": "error",
        "session": 1,
        "id": "1-errors-of-other-kinds",
        "type": "KeyError",
        "count": 10,
    }
    end = {"event": "end", "session": 1, "errors_of_other_kinds": 18, "errors": [{"count": 3}, "no kind"]}

    code, printed, _ = errors(write(tmp_path, others, end))

    assert code == 0
    assert printed.startswith("made: 1 error, 18 times in total\n")
