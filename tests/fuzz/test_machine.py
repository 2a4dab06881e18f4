"""Logger, reader and control together keep every promise whatever is done to the run, and in whatever order."""

from __future__ import annotations

import os
import re
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import run_state_machine_as_test

from tests.fuzz import machine
from tests.fuzz.machine import Server, machine_for
from tests.fuzz.mutations import DIRECTED_MUTATIONS, MUTATIONS
from tests.lengths import in_make_faults, is_long, longer

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="sessions are forked processes")

_SEARCH = settings(
    max_examples=longer(8, 40),
    stateful_step_count=longer(30, 60),
    deadline=None,
    database=None,
    derandomize=not is_long(),
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


_LONG_S = 60.0 * float(os.environ.get("FUZZ_MINUTES", "10"))
"""How long a long run goes on; each round then begins with random numbers of its own."""


@pytest.mark.timeout(longer(240.0, 1_800.0 + _LONG_S))
def test_logger_reader_and_control_keep_their_promises_in_any_order_of_events(server, record_property):
    machine.COUNTED = machine.Counted()

    until = time.monotonic() + longer(0.0, _LONG_S)
    run_state_machine_as_test(machine_for(server), settings=_SEARCH)
    while time.monotonic() < until:
        run_state_machine_as_test(machine_for(server), settings=_SEARCH)

    did = asdict(machine.COUNTED)
    assert did["kills"]
    assert did["power_cuts"]
    assert did["requests"]
    assert did["looks"]
    record_property(
        "measured",
        f"{did['examples']:,} histories of {did['sessions']:,} sessions with {did['kills']:,} kills, "
        f"{did['power_cuts']:,} of them power cuts, and {did['requests']:,} requests: "
        f"{did['acknowledged']:,} records acknowledged, {did['looks']:,} reads, 0 lost, torn or invented",
    )


@pytest.mark.skipif(not is_long(), reason="how long a search takes to come upon it is a matter of luck")
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_logger_that_breaks_a_promise_is_caught(mutation):
    made = Server(mutation)
    tries = settings(
        _SEARCH,
        max_examples=400,
        stateful_step_count=30,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )

    # Real processes do not die twice at the same time, so the second try of a history may end otherwise.
    with pytest.raises((AssertionError, FlakyFailure)) as caught:
        run_state_machine_as_test(machine_for(made), settings=tries)
    made.close()

    assert re.search(MUTATIONS[mutation], "".join(traceback.format_exception(caught.value)))


_ENDS = {
    "closed": lambda history: history.close(),
    "killed": lambda history: history.kill(look_first=False),
    # The answer goes with the power, and the session's own beginning tells that the request is an old one.
    "cut off": lambda history: history.cut_the_power(kept=0.0, sectors=set(), table=0.0),
}


def _ask_again_in_every_session(server: Server) -> int:
    """Have one request obeyed, and put it back whenever it could be obeyed again; return how often it was found.

    A history of its own: whether a search comes upon these steps in this order is a matter of luck.
    """
    found_again = 0
    for end in _ENDS.values():
        history = machine_for(server)()
        try:
            history.begin()
            history.sync()
            history.ask("knob", knob=0.5)
            history.poll()
            assert history.model.asked["r0"].done == 1
            history.ask_again(0)
            history.poll()
            end(history)
            for _ in range(2):
                history.start_session()
                history.poll()
                history.ask_again(0)
                history.poll()
                history.close()
                found_again += 2
        finally:
            history.teardown()
    return found_again


def _cut_records_out_of_the_middle(server: Server) -> None:
    """Let a power cut leave zeros among the records and every row of the table, and go on."""
    history = machine_for(server)()
    try:
        history.begin()
        history.sync()
        history.log_event({"a": 1.0}, times=30)
        history.flush()
        history.cut_the_power(kept=1.0, sectors={2}, table=1.0)
        assert history.model.excused
        history.start_session()
        history.flush()
    finally:
        history.teardown()


def _try_directed_histories(server: Server) -> None:
    _cut_records_out_of_the_middle(server)
    _ask_again_in_every_session(server)


def test_a_request_is_obeyed_once_in_all_sessions_however_the_first_one_ends(server, record_property):
    found_again = _ask_again_in_every_session(server)

    record_property(
        "measured", f"{len(_ENDS)} requests found again {found_again} times by later sessions, 0 obeyed twice"
    )


def test_the_next_session_has_a_row_for_each_record_that_a_power_cut_left(server):
    _cut_records_out_of_the_middle(server)


@in_make_faults
@pytest.mark.parametrize("mutation", DIRECTED_MUTATIONS)
def test_a_logger_that_obeys_answers_or_shows_what_is_past_is_caught(mutation):
    made = Server(mutation)

    with pytest.raises(AssertionError) as caught:
        _try_directed_histories(made)
    made.close()

    assert re.search(DIRECTED_MUTATIONS[mutation], "".join(traceback.format_exception(caught.value)))


@pytest.mark.parametrize(
    ("command", "said"),
    [(("no such call",), "the training process raised"), (("die_in_a_write", 0, {}), "ended by itself")],
)
def test_a_failed_training_process_is_reported_and_not_waited_for(server, command, said):
    history = machine_for(server)()
    history.begin()

    with pytest.raises(AssertionError, match=said):
        history.server.ask(*command)
    history.how_it_ended = "lost"
    history.teardown()
