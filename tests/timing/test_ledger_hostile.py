from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lengths import longer
from toolkit.telemetry.runfolder.manifest import Session
from toolkit.telemetry.timing.ledger import LedgerBuilder
from toolkit.telemetry.timing.names import ENTRIES, ENTRY_OF

tries = settings(max_examples=longer(30, 120), deadline=None, derandomize=True)

odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)
seconds = st.floats(0.0, 500.0) | st.integers(0, 500)
steps = st.integers(-5, 300)


def sometimes(usual):
    return st.one_of(usual, usual, usual, odd)


kinds = ["start", "step", "ledger", "span", "span_start", "checkpoint", "system", "end", "eval", "new_kind"]
records = st.fixed_dictionaries(
    {"event": sometimes(st.sampled_from(kinds)), "session": sometimes(st.integers(1, 3))},
    optional={
        "time": sometimes(st.floats(1.7e9, 1.7e9 + 1000.0)),
        "elapsed": sometimes(seconds),
        "global_step": sometimes(steps),
        "steps_folded": sometimes(st.integers(0, 9)),
        "resumed_from_step": sometimes(steps),
        "perf_tag": odd,
        "rank": sometimes(st.just(0)),
        "id": sometimes(st.sampled_from("abc")),
        "name": sometimes(st.sampled_from(["training_loop", "application", "my own", "save", *ENTRY_OF])),
        "start": sometimes(st.floats(1.7e9 - 100.0, 1.7e9 + 1000.0)),
        "duration": sometimes(seconds),
        "clock": sometimes(st.just("host")),
        "thread": odd,
        "seconds": sometimes(seconds),
        "gpu/0/power_w": sometimes(st.floats(0.0, 700.0)),
        **{f"ledger/{entry}": sometimes(st.floats(0.0, 20.0)) for entry in ENTRIES},
    },
)


@tries
@given(st.lists(records, max_size=40))
def test_whatever_the_records_say_the_ledger_adds_up(given_records):
    # Nearly everything is there nearly always, so that some of it gets past the door.
    complete = [{"time": 1.7e9 + 5.0, "elapsed": 5.0, **record} for record in given_records]
    session = Session(session=2, started=1.7e9, pid=1)
    builder = LedgerBuilder()
    for first in range(0, len(complete), 7):
        builder.take(complete[first : first + 7])
        builder.ledger()
    for ledger in (
        builder.ledger(),
        builder.ledger([session], now=1.7e9 + 2000.0),
        builder.ledger([session], last_sign=1.7e9 + 2000.0),
    ):
        assert math.isfinite(ledger.wall_s)
        assert sum(line.seconds for line in ledger.lines) == pytest.approx(ledger.wall_s, rel=1e-9, abs=1e-9)
        assert all(math.isfinite(line.seconds) and line.seconds >= 0.0 for line in ledger.lines)
        assert all(line.kwh is None or line.kwh >= -1e-12 for line in ledger.lines)
        assert ledger.goodput is None or 0.0 <= ledger.goodput <= 1.0 + 1e-9
        assert ledger.between_sessions_s >= 0.0


@pytest.mark.parametrize(
    "broken",
    [
        {"elapsed": None},
        {"elapsed": math.nan},
        {"elapsed": -1.0},
        {"elapsed": 1e30},
        {"elapsed": "10"},
        {"elapsed": True},
        {"session": None},
        {"session": "1"},
        {"session": -1},
        {"session": 1.5},
    ],
    ids=str,
)
def test_a_record_without_a_time_or_session_is_counted(broken):
    usual = {"event": "step", "time": 1.7e9, "elapsed": 10.0, "session": 1, "global_step": 1}
    builder = LedgerBuilder()
    builder.take([usual, {**usual, "elapsed": 20.0, "global_step": 2, **broken}])
    ledger = builder.ledger()

    assert ledger.wall_s == 10.0
    assert ledger.notes == ("1 record has no usable session or time and could not be counted.",)


def test_records_that_come_out_of_order_add_no_time():
    builder = LedgerBuilder()
    for at in (10.0, 30.0, 20.0, 40.0, 5.0):
        builder.take(
            [{"event": "step", "time": 1.7e9 + at, "elapsed": at, "session": 1, "global_step": int(at)}]
        )

    assert builder.ledger().wall_s == 40.0


def test_a_file_full_of_sessions_and_open_spans_is_read_to_its_end():
    builder = LedgerBuilder()
    builder.take(
        {"event": "start", "time": 1.7e9, "elapsed": 1.0, "session": number} for number in range(3_000)
    )
    builder.take(
        {"event": "span_start", "time": 1.7e9, "elapsed": 1.0, "session": 0, "start": 1.7e9, "id": str(number),
         "name": "validation_loop"}
        for number in range(5_000)
    )  # fmt: skip
    ledger = builder.ledger()

    assert len(ledger.sessions) == 2_000
    assert ledger.notes == ("1,000 records have no usable session or time and could not be counted.",)
