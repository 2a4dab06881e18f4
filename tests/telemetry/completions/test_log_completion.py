"""`log.log_completion`: what is written at once, what is counted, and what the end brings."""

from __future__ import annotations

import math
import sys
import threading

import numpy as np
import pytest

from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S, make_logger, records_of
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.runfolder.records import COMPLETION, COMPLETIONS_DROPPED


@pytest.fixture
def make(tmp_path, close_at_end):
    return lambda **options: close_at_end(make_logger(tmp_path, **options))


def texts(records):
    return [record["completion"] for record in records]


def drops(records):
    """Return how many each range of steps dropped, by the newest word on it."""
    return {
        record["from_step"]: record["dropped"] for record in records if record["event"] == COMPLETIONS_DROPPED
    }


def records_but_of_the_machine(log):
    """Return the records without the one about the machine: where a test takes half a second, it comes too."""
    return [record for record in records_of(log) if record["event"] != "environment"]


def closed(log):
    """Close the logger and return its completions and what it says of those dropped."""
    path = log.run_folder / "metrics.jsonl"
    log.close()
    records = read_records(path)
    return [record for record in records if record["event"] == COMPLETION], drops(records)


def test_a_completion_is_a_record_with_its_step_texts_and_reward(make):
    log = make()

    log.log_completion(7, prompt="Why?", completion="Because.", reward=0.5, finish_reason="stop")
    (record,) = records_of(log, COMPLETION)

    known = {
        "global_step": 7,
        "prompt": "Why?",
        "completion": "Because.",
        "reward": 0.5,
        "finish_reason": "stop",
    }
    assert known.items() <= record.items()
    assert [one["event"] for one in records_but_of_the_machine(log)] == ["start", "completion"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (
            {"chosen": "yes", "rejected": "no", "reward_diff": 1.5},
            {"chosen": "yes", "rejected": "no", "reward_diff": 1.5},
        ),
        (
            {"completion": "yes", "label": False, "reward": -1},
            {"completion": "yes", "label": False, "reward": -1},
        ),
        ({"chosen": "a", "rejected": "b", "log_odds_ratio": -0.7}, {"log_odds_ratio": -0.7}),
        ({"completion": "a", "reward": 1.0, "advantage": np.float32(0.5)}, {"reward": 1.0, "advantage": 0.5}),
        (
            {"completion": "a", "reward": {"format": 1.0, "maths": 0}},
            {"rewards/format": 1.0, "rewards/maths": 0},
        ),
        (
            {"completion": "a", "reward": 3, "rewards": {"format": 1, "maths": 2}},
            {"reward": 3, "rewards/format": 1, "rewards/maths": 2},
        ),
        ({"completion": [{"role": "assistant", "content": "hi"}]}, {"completion": "hi"}),
        ({"completion": b"bytes"}, {"completion": "bytes"}),
        (
            {"completion": "", "reward": math.nan},
            {"completion": "", "reward": None, "non_finite": {"reward": "NaN"}},
        ),
    ],
)
def test_every_form_of_it_keeps_its_fields(make, given, kept):
    log = make(diagnostics=False)

    log.log_completion(1, prompt="p", **given)
    (record,) = records_of(log, COMPLETION)

    assert kept.items() <= record.items()
    assert not any(value is None for name, value in record.items() if name != "reward")


def test_of_each_range_of_steps_the_first_are_written_and_the_rest_is_counted(make):
    log = make(completions={"interval": 10, "buffer": 2})

    for step in range(30):
        for number in range(3):
            log.log_completion(step, completion=f"{step}.{number}")
    found = records_but_of_the_machine(log)

    assert texts(record for record in found if record["event"] == COMPLETION) == [
        "0.0",
        "0.1",
        "10.0",
        "10.1",
        "20.0",
        "20.1",
    ]
    assert drops(found) == {0: 28, 10: 28, 20: 1}
    # The first one dropped is reported at once, before it is known how many there will be.
    assert [record["event"] for record in found[1:5]] == [
        "completion",
        "completion",
        "completions_dropped",
        "completions_dropped",
    ]
    said = found[4]
    assert (said["from_step"], said["to_step"], said["written"], said["dropped"]) == (0, 9, 2, 28)


def test_at_the_end_the_newest_of_those_beyond_it_are_written(make):
    log = make(completions={"interval": 100, "buffer": 3})
    for number in range(20):
        log.log_completion(5, completion=f"{number}")

    written, dropped = closed(log)

    assert texts(written) == ["0", "1", "2", "17", "18", "19"]
    assert dropped == {0: 14}


def test_what_is_written_at_the_end_keeps_the_time_of_its_call(make):
    log = make(completions={"buffer": 1})
    for number in range(3):
        log.log_completion(1, completion=f"{number}")
    log.flush(PATIENCE_S)
    log.log_event("later")
    (later,) = records_of(log, "later")

    written, _ = closed(log)

    assert all(record["time"] <= later["time"] for record in written)
    assert written[-1]["seq"] > later["seq"]


def test_every_completion_is_written_or_counted_whatever_the_steps_are(make):
    steps = [
        0,
        250,
        10,
        255,
        20,
        -5,
        10**9,
        30,
        None,
        2.5,
        math.nan,
        "x",
        True,
        np.int64(40),
        99,
        100,
        7,
    ] * 30
    log = make(completions={"interval": 100, "buffer": 4})
    for number, step in enumerate(steps):
        log.log_completion(step, completion=f"{number}")

    written, dropped = closed(log)

    assert len(written) + sum(dropped.values()) == len(steps)
    assert len(set(texts(written))) == len(written)
    # Steps that come late count where they belong: going back and forth between ranges brings no more of them.
    assert len(written) <= 4 * (len(dropped) + 1) + 4


def test_what_was_held_through_many_ranges_is_not_counted_as_missing(make):
    log = make(completions={"interval": 10, "buffer": 2})
    for number in range(4):
        log.log_completion(0, completion=f"{number}")
    for step in range(0, 1000, 10):
        internals(log).completions.put(step, {"completion": "collected"}, source="train")
    path = log.run_folder / "metrics.jsonl"
    log.close()

    records = [record for record in read_records(path) if record.get("split") != "train"]
    assert texts(
        record for record in records if record.get("completion", "collected") != "collected"
    ) == list("0123")
    assert drops(records) == {0: 0}


def test_one_that_is_held_while_another_thread_begins_a_range_is_not_lost(make):
    """Many are held, which takes long to look through; the other thread holds more of them meanwhile."""
    log = make(completions={"interval": 1, "buffer": 2_000})
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(4_000):
            internals(log).completions.put(0, {"completion": "a"}, source="eval")
        over = threading.Event()

        def hold_more():
            while not over.is_set():
                internals(log).completions.put(0, {"completion": "b"}, source="eval")

        other = threading.Thread(target=hold_more)
        other.start()
        try:
            for step in range(50):
                log.log_completion(step, completion=f"{step}")
        finally:
            over.set()
            other.join()
    finally:
        sys.setswitchinterval(usual)

    written, _ = closed(log)
    assert {f"{step}" for step in range(50)} <= set(texts(written))
    assert log.guard.total == 0


def test_what_is_logged_later_does_not_change_what_was(make):
    log = make(completions={"buffer": 1})
    chat = [{"role": "user", "content": "a"}]
    for _ in range(2):
        log.log_completion(1, prompt=chat, completion="x", reward=1)
    chat[0]["content"] = "changed"

    written, _ = closed(log)

    assert [record["prompt"] for record in written] == ["a", "a"]


def test_switched_off_nothing_is_written(make):
    log = make(completions=False)
    log.log_completion(1, prompt="p", completion="c")

    assert internals(log).completions is None
    assert [record["event"] for record in records_of(log)] == []
