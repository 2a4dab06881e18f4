"""A script that is left with a code other than 0 has failed; one that continues after its exit has not."""

from __future__ import annotations

import builtins
import sys

import pytest

from tests.telemetry.logged import make_logger, records_of
from toolkit.telemetry.core.lifetime import code_of, exit_code


@pytest.mark.parametrize(
    ("status", "code"),
    [(None, 0), (0, 0), (False, 0), (3, 3), (True, 1), (-1, -1), ("no", 1), ("", 1), (0.0, 1)],
)
def test_the_code_is_the_interpreters(status, code):
    assert exit_code(status) == code
    assert code_of(SystemExit(status)) == code
    assert code_of(ValueError(status)) is None
    assert code_of(None) is None


def call(function, *given):
    with pytest.raises(SystemExit) as caught:
        function(*given)
    return caught.value


def how_it_ends(log):
    reason, error = log._run.errors.recorder.how_it_ends("exit", None)
    return reason, code_of(error)


def test_an_exit_that_the_training_survived_does_not_count(tmp_path):
    with make_logger(tmp_path, log_every=1) as log:
        call(sys.exit, 3)
        log.log_step(1, train_loss=1.0)

        assert how_it_ends(log) == ("exit", None)


def test_everything_is_given_back(tmp_path):
    quitter = type(builtins.exit)
    before = (sys.exit, quitter.__call__)
    with make_logger(tmp_path / "a"), make_logger(tmp_path / "b"):
        during = (sys.exit, quitter.__call__)
    with make_logger(tmp_path / "c", errors={"exit_code": False}):
        assert (sys.exit, quitter.__call__) == before

    assert (sys.exit, quitter.__call__) == before
    assert all(one is not other for one, other in zip(before, during, strict=True))


def test_a_run_that_is_closed_on_the_way_out_has_failed_with_the_code(tmp_path):
    log = make_logger(tmp_path)

    def leave():
        try:
            sys.exit(3)
        finally:
            log.close()

    call(leave)

    (end,), (error,) = records_of(log, "end"), records_of(log, "error")
    assert (end["status"], end["exit_code"]) == ("failed", 3)
    assert error["message"] == "SystemExit: 3"
