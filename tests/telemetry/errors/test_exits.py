"""The code that a script is left with, and what is put in the place of `sys.exit` to know it."""

from __future__ import annotations

import builtins
import sys

import pytest

from tests.telemetry.logged import make_logger
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


def test_everything_is_given_back(tmp_path):
    quitter = type(builtins.exit)
    before = (sys.exit, quitter.__call__)
    with make_logger(tmp_path / "a"), make_logger(tmp_path / "b"):
        during = (sys.exit, quitter.__call__)
    with make_logger(tmp_path / "c", errors={"exit_code": False}):
        assert (sys.exit, quitter.__call__) == before

    assert (sys.exit, quitter.__call__) == before
    assert all(one is not other for one, other in zip(before, during, strict=True))
