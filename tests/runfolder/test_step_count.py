"""A loop that counts its steps from 0 is done after its last one."""

import pytest

from toolkit.telemetry.runfolder.records import shows_count_from_zero, steps_done


@pytest.mark.parametrize(
    ("record", "shows"),
    [
        ({"event": "step", "global_step": 0}, True),
        ({"event": "start", "first_step": 0}, True),
        ({"event": "step", "global_step": 1}, False),
        ({"event": "step"}, False),
        ({"event": "step", "global_step": False}, False),
        ({"event": "eval", "global_step": 0}, False),
        ({"event": "start", "first_step": 1}, False),
        ({"event": "start"}, False),
        ({}, False),
    ],
)
def test_a_step_0_or_the_start_show_where_a_loop_counts_from(record, shows):
    assert shows_count_from_zero(record) is shows


def test_a_step_that_is_done_counts():
    assert (steps_done(17, from_zero=True), steps_done(17, from_zero=False)) == (18, 17)
