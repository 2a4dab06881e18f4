"""What tests of loggers share."""

from __future__ import annotations

import io
import sys

import pytest


@pytest.fixture
def close_at_end():
    """A function that takes a logger, returns it, and closes it after the test."""
    opened = []

    def keep(log):
        opened.append(log)
        return log

    yield keep
    for log in opened:
        log.close()


class Stream(io.StringIO):
    """A stream of a class of Python's."""


@pytest.fixture
def streams(monkeypatch):
    """A function that puts streams of ours in the place of the real ones, as a notebook does.

    In the test itself, for pytest replaces them before it.
    """

    def replace():
        out, err = Stream(), Stream()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        return out, err

    return replace
