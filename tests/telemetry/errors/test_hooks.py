"""The hook of `sys.exit`: called before the function that was there, which is restored if the hook is still ours."""

from __future__ import annotations

import sys

import pytest

from tests.telemetry.logged import make_logger


@pytest.fixture
def exits(monkeypatch):
    """Stand in for the function that would end the process, and tell what reached it."""
    seen = []
    monkeypatch.setattr(sys, "exit", lambda *given: seen.append(given))
    return seen


def status_noted_by(log):
    left = log._run.errors.recorder._exit
    return None if left is None else left.status


def test_nothing_is_hooked_without_being_enabled(tmp_path, exits):
    before = sys.exit
    with make_logger(tmp_path, errors={"exit_code": False}) as log:
        log.capture_errors()
        assert sys.exit is before


def test_a_hook_that_someone_put_on_top_stays_and_ours_then_only_hands_on(tmp_path, exits):
    log = make_logger(tmp_path)
    ours, theirs_saw = sys.exit, []

    def theirs(*given):
        theirs_saw.append(given)
        ours(*given)

    sys.exit = theirs
    log.close()
    sys.exit(3)

    assert sys.exit is theirs
    assert theirs_saw == exits == [(3,)]
    assert status_noted_by(log) is None


def test_two_runs_both_note_it_and_the_last_one_gives_back(tmp_path, exits):
    before = sys.exit
    one, other = (make_logger(tmp_path, name) for name in ("one", "other"))
    sys.exit(3)
    found = [status_noted_by(one), status_noted_by(other)]
    one.close("finished")
    sys.exit(4)
    found.append(status_noted_by(other))
    other.close("finished")

    assert found == [3, 3, 4]
    assert sys.exit is before


def test_a_bug_of_ours_does_not_keep_theirs_from_being_called(tmp_path, exits, monkeypatch):
    def bug(*_, **__):
        raise KeyError("ours")

    with make_logger(tmp_path):
        monkeypatch.setattr("toolkit.telemetry.logger.errors.error_recorder.ErrorRecorder.note_exit", bug)
        sys.exit(3)

    assert exits == [(3,)]
