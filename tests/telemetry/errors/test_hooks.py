"""The interpreter's hooks: called before the previous ones, and restored if they are still ours."""

from __future__ import annotations

import sys
import threading

import pytest

from tests.records import read_records
from tests.telemetry.logged import make_logger, records_of

ALL = {"excepthook": True, "threads": True}


@pytest.fixture
def quiet(monkeypatch):
    """Stand in for the hooks that would print, and tell what reached them."""
    seen = []
    monkeypatch.setattr(sys, "excepthook", lambda *given: seen.append(given))
    monkeypatch.setattr(threading, "excepthook", lambda given: seen.append(given))
    return seen


def now():
    return (sys.excepthook, threading.excepthook)


def raised(error):
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - whatever it is
        return caught


def call_excepthook(error):
    sys.excepthook(type(error), error, error.__traceback__)


def errors_of(log):
    return [(record["type"], record["caught_by"]) for record in records_of(log, "error")]


def test_nothing_is_hooked_without_being_enabled(tmp_path, quiet):
    before = now()
    with make_logger(tmp_path) as log:
        log.capture_errors()
        assert now() == before


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
        monkeypatch.setattr("toolkit.telemetry.logger.errors.error_recorder.ErrorRecorder.take", bug)
        call_excepthook(raised(ValueError("bad")))

    assert [given[0] for given in quiet] == [ValueError]
