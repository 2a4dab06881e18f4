from __future__ import annotations

import io
import logging

import pytest

from dashboard.terminal_log import MAX_PER_KIND, PERIOD_S, concise_logging


@pytest.fixture
def printed(clock):
    """What a library's own handler prints."""
    text = io.StringIO()
    logger = logging.getLogger("tests.some_library")
    handler = logging.StreamHandler(text)
    logger.addHandler(handler)
    logger.propagate = False
    with concise_logging(clock.monotonic):
        yield text
    logger.removeHandler(handler)


def complain(number=1, error=None):
    for _ in range(number):
        logging.getLogger("tests.some_library").error("%s is out of reach", "it", exc_info=error)


def test_later_it_is_printed_again_with_how_many_there_were(printed, clock):
    complain(1_000)
    clock.advance(PERIOD_S)
    complain()

    assert printed.getvalue().endswith(f"reach ({1_000 - MAX_PER_KIND} more of this kind were not printed)\n")


def test_other_errors_are_printed_next_to_it(printed):
    complain(1_000)
    complain(error=ValueError("another one"))
    logging.getLogger("tests.some_library").warning("something else")

    assert "ValueError: another one" in printed.getvalue()
    assert printed.getvalue().endswith("something else\n")
