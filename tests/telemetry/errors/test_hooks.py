"""The interpreter's hooks: called before the previous ones, and restored if they are still ours."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from tests.records import read_records
from tests.telemetry.logged import make_logger, records_of

ALL = {"excepthook": True, "threads": True, "signals": True}


@pytest.fixture
def quiet(monkeypatch):
    """Stand in for the hooks that would print, and tell what reached them."""
    seen = []
    monkeypatch.setattr(sys, "excepthook", lambda *given: seen.append(given))
    monkeypatch.setattr(threading, "excepthook", lambda given: seen.append(given))
    return seen


def now():
    numbers = [number for number in signal.valid_signals() if number != signal.SIGCHLD]
    return (sys.excepthook, threading.excepthook, *(signal.getsignal(number) for number in numbers))


def raised(error):
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - whatever it is
        return caught


def call_excepthook(error):
    sys.excepthook(type(error), error, error.__traceback__)


def errors_of(log):
    return [(record["type"], record["caught_by"]) for record in records_of(log, "error")]


def test_all_are_given_back_exactly(tmp_path, quiet):
    before = now()
    with make_logger(tmp_path, errors=ALL):
        during = now()

    assert now() == before
    assert during[0] is not before[0]
    assert during[1] is not before[1]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_nothing_is_hooked_without_being_enabled(tmp_path, quiet):
    before = now()
    with make_logger(tmp_path) as log:
        log.capture_errors()
        assert now() == before


def test_the_exception_is_reported_and_handed_on(tmp_path, quiet):
    error = raised(ValueError("bad"))
    with make_logger(tmp_path, errors={"excepthook": True}) as log:
        call_excepthook(error)
        found = errors_of(log)

    assert found == [("ValueError", "excepthook")]
    assert quiet == [(ValueError, error, error.__traceback__)]


def test_a_thread_s_exception_is_recorded_with_its_name_and_system_exit_is_not(tmp_path, quiet):
    def work(error):
        raise error

    with make_logger(tmp_path, errors={"threads": True}) as log:
        for error in (ValueError("bad"), SystemExit(3)):
            thread = threading.Thread(target=work, args=(error,), name="worker")
            thread.start()
            thread.join()
        found = [(record["type"], record["thread"]) for record in records_of(log, "error")]

    assert found == [("ValueError", "worker")]
    assert len(quiet) == 2


def test_a_hook_that_someone_put_on_top_stays_and_ours_then_only_hands_on(tmp_path, quiet):
    log = make_logger(tmp_path, errors={"excepthook": True})
    ours = sys.excepthook
    theirs_saw = []

    def theirs(*given):
        theirs_saw.append(given)
        ours(*given)

    sys.excepthook = theirs
    log.close()
    call_excepthook(raised(ValueError("bad")))

    assert sys.excepthook is theirs
    assert len(theirs_saw) == len(quiet) == 1
    assert read_records(log.run_folder / "metrics.jsonl", "error") == []


def test_two_runs_are_both_reported_and_the_last_one_gives_back(tmp_path, quiet):
    before = now()
    one, other = (make_logger(tmp_path, name, errors=ALL) for name in ("one", "other"))
    call_excepthook(raised(ValueError("bad")))
    found = errors_of(one) + errors_of(other)
    one.close()
    call_excepthook(raised(OSError("gone")))
    found += errors_of(other)[1:]
    other.close()

    assert found == [("ValueError", "excepthook")] * 2 + [("OSError", "excepthook")]
    assert now() == before


def test_a_bug_of_ours_does_not_keep_theirs_from_being_printed(tmp_path, quiet, monkeypatch):
    def bug(*_, **__):
        raise KeyError("ours")

    with make_logger(tmp_path, errors={"excepthook": True}):
        monkeypatch.setattr("toolkit.telemetry.errors.recorder.ErrorRecorder.take", bug)
        call_excepthook(raised(ValueError("bad")))

    assert [given[0] for given in quiet] == [ValueError]


# ---------------------------------------------------------------- signals


@pytest.fixture
def handled():
    """Have the script handle SIGTERM itself, and tell what reached it."""
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    yield seen
    signal.signal(signal.SIGTERM, before)


def test_a_signal_that_the_script_handles_is_reported_and_handed_on(tmp_path, handled):
    theirs = signal.getsignal(signal.SIGTERM)
    with make_logger(tmp_path, errors={"signals": True}) as log:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        found = records_of(log, "error")

    assert handled == [signal.SIGTERM] * 3
    assert [(record["type"], record["severity"], record["count"]) for record in found] == [
        ("SIGTERM", "info", 1)
    ]
    assert read_records(log.run_folder / "metrics.jsonl", "end")[0]["errors"][0]["count"] == 3
    assert signal.getsignal(signal.SIGTERM) is theirs


def test_a_handler_that_someone_put_on_top_stays_and_calls_through_to_the_one_before_us(tmp_path, handled):
    log = make_logger(tmp_path, errors={"signals": True})
    ours = signal.getsignal(signal.SIGTERM)
    on_top = []

    def theirs(number, frame):
        on_top.append(number)
        ours(number, frame)

    signal.signal(signal.SIGTERM, theirs)
    log.close()
    again = make_logger(tmp_path, "again", errors={"signals": True})
    os.kill(os.getpid(), signal.SIGTERM)
    again.close()

    assert signal.getsignal(signal.SIGTERM) is theirs
    assert (on_top, handled) == ([signal.SIGTERM], [signal.SIGTERM])


def test_a_signal_that_is_ignored_is_left_alone(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with make_logger(tmp_path, errors={"signals": True}):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_logger_of_another_thread_says_that_it_cannot_have_them(tmp_path):
    before = now()
    made = []
    thread = threading.Thread(target=lambda: made.append(make_logger(tmp_path, errors={"signals": True})))
    thread.start()
    thread.join()
    (log,) = made

    assert now() == before
    assert log.guard.counts == {"recording signals: RuntimeError": 1}
    log.close()


def test_an_event_loop_s_own_way_of_noticing_signals_is_left_to_it(tmp_path):
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    try:
        with make_logger(tmp_path, errors={"signals": True}):
            during = signal.set_wakeup_fd(write)
        after = signal.set_wakeup_fd(-1)
    finally:
        signal.set_wakeup_fd(-1)
        os.close(read)
        os.close(write)

    assert during == after == write


def test_what_we_listen_with_is_given_back(tmp_path):
    with make_logger(tmp_path, errors={"signals": True}):
        during = signal.set_wakeup_fd(-1)
        if during != -1:
            signal.set_wakeup_fd(during, warn_on_full_buffer=False)

    assert signal.set_wakeup_fd(-1) == -1
