"""What tests of loggers share."""

from __future__ import annotations

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
