from __future__ import annotations

import pytest

from tests.lengths import in_make_faults
from toolkit.telemetry.runfolder.manifest import Session
from toolkit.telemetry.timing.ledger import LedgerBuilder
from toolkit.telemetry.timing.names import ENTRIES

BEGAN = 1_700_000_000.0


class Records(list):
    """Records of a run, each put by the time on its session's clock at which it came."""

    def __init__(self):
        super().__init__()
        self.session = 1
        self.origin = BEGAN

    def begin(self, session, origin, **start):
        self.session, self.origin = session, origin
        return self.put(0.0, "start", **start)

    def put(self, at, event, **fields):
        envelope = {"event": event, "time": self.origin + at, "elapsed": at, "session": self.session}
        self.append({**envelope, **fields})
        return self

    def step(self, at, step, **fields):
        seconds = {f"ledger/{name}" if name in ENTRIES else name: value for name, value in fields.items()}
        return self.put(at, "step", global_step=step, train_loss=0.5, **seconds)

    def span(self, begin, end, name, span_id="a", **fields):
        about = {"id": span_id, "name": name, "start": self.origin + begin, "duration": end - begin}
        return self.put(end, "span", clock="host", **about, **fields)


def ledger_of(records, sessions=(), **until):
    builder = LedgerBuilder()
    builder.take(records)
    ledger = builder.ledger(sessions, **until)
    assert sum(line.seconds for line in ledger.lines) == pytest.approx(ledger.wall_s, abs=1e-9)
    return ledger


def entries(ledger):
    """The entries that have any time."""
    return {line.entry: pytest.approx(line.seconds, abs=1e-6) for line in ledger.lines if line.seconds > 1e-6}


@pytest.fixture
def records():
    return Records()


def manifest_session(number=1, **fields):
    return Session(session=number, pid=1, **{"started": BEGAN, **fields})


# ------------------------------------------------------------ the wall clock


def test_nothing_read_is_an_empty_ledger():
    ledger = ledger_of([])

    assert [line.entry for line in ledger.lines] == list(ENTRIES)
    assert ledger.wall_s == 0.0
    assert ledger.goodput is None
    assert ledger.kwh is None
    assert ledger.notes == ()
    assert ledger.sessions == ()


def test_a_live_session_lasts_until_now(records):
    records.put(0.0, "start").step(10.0, 1, training=4.0)

    assert ledger_of(records, [manifest_session()], now=BEGAN + 25.0).wall_s == 25.0


def test_what_follows_the_last_record_of_a_killed_session_is_unaccounted(records):
    records.put(0.0, "start").step(10.0, 1).step(20.0, 2)
    ledger = ledger_of(records, [manifest_session()], last_sign=BEGAN + 23.0)

    assert ledger.wall_s == 23.0
    assert entries(ledger)["unaccounted"] == 3.0


def test_the_manifest_has_an_end_that_no_record_has(records):
    records.put(0.0, "start").step(10.0, 1)
    session = manifest_session(ended=BEGAN + 14.0, status="failed")

    assert ledger_of(records, [session], now=BEGAN + 900.0).wall_s == 14.0


def test_a_session_without_records_lasts_as_the_manifest_says():
    ledger = ledger_of([], [manifest_session(ended=BEGAN + 3.0, status="failed")])

    assert ledger.wall_s == 3.0
    assert entries(ledger) == {"unaccounted": 3.0}


def test_sleep_of_the_machine_is_noted_and_not_counted(records):
    records.put(0.0, "start").step(10.0, 1)
    records.origin += 3600.0
    records.step(20.0, 2).put(20.0, "end")
    ledger = ledger_of(records)

    assert ledger.wall_s == 20.0
    (note,) = ledger.notes
    assert note.startswith("The wall clock advanced 3,600 s more than the run's own clock: the machine slept")


def test_a_clock_that_was_set_back_is_noted(records):
    records.put(0.0, "start").step(10.0, 1)
    records.origin -= 60.0
    records.step(20.0, 2).put(20.0, "end")

    assert ledger_of(records).notes == ("The wall clock was set back by 60 s; the run's own clock is used.",)


# ------------------------------------------------------------ recorded seconds


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("checkpoint_save", "checkpoint"),
        ("SaveModel", "checkpoint"),
        ("val_epoch", "validation"),
        ("run-evaluation", "validation"),
        ("generate", "sampling"),
        ("load batch", "data_wait"),
        ("load_checkpoint", "startup"),
        ("sync", "other_spans"),
        ("evaluator_of_interval", "other_spans"),
        ("data", "other_spans"),
    ],
)
def test_a_span_of_the_user_counts_by_its_name_and_is_never_unaccounted(records, name, entry):
    records.put(0.0, "start").step(10.0, 1, startup=10.0, training=0.0)
    records.span(13.0, 19.0, name, global_step=1).step(20.0, 2, training=3.0).put(20.0, "end")

    found = entries(ledger_of(records))
    assert found.pop(entry) == 6.0 + 10.0 * (entry == "startup")
    assert {"startup": 10.0, **found} == {"startup": 10.0, "training": 3.0, "unaccounted": 1.0}


def test_a_span_of_the_user_within_a_step_is_training(records):
    records.put(0.0, "start").step(10.0, 1, startup=10.0, training=0.0)
    records.span(11.0, 12.0, "attention", global_step=2).step(20.0, 2, training=8.0).put(20.0, "end")

    assert entries(ledger_of(records)) == {"startup": 10.0, "training": 8.0, "unaccounted": 2.0}


def test_a_span_of_the_user_gets_only_time_of_no_entry(records):
    records.put(0.0, "start").step(10.0, 1, startup=10.0, training=0.0)
    records.span(12.0, 13.0, "validation_loop", "b").span(11.0, 17.0, "epoch_end", global_step=1)
    records.step(20.0, 2, training=3.0, validation=1.0).put(20.0, "end")

    assert entries(ledger_of(records)) == {
        "startup": 10.0,
        "training": 3.0,
        "validation": 1.0,
        "other_spans": 5.0,
        "unaccounted": 1.0,
    }


def test_a_span_of_the_user_that_lasts_longer_than_a_ledger_record_counts_as_a_whole(records):
    records.put(0.0, "start").step(10.0, 1, startup=10.0, training=0.0)
    records.put(15.0, "ledger", **{"ledger/training": 1.0}).put(20.0, "ledger")
    records.span(11.0, 24.0, "save", global_step=1).step(25.0, 2, training=1.0).put(25.0, "end")

    assert entries(ledger_of(records)) == {"startup": 10.0, "training": 2.0, "checkpoint": 13.0}


def test_a_span_of_the_user_around_a_checkpoint_takes_nothing_from_the_training_before(records):
    records.put(0.0, "start").step(10.0, 1, startup=10.0, training=0.0)
    records.span(15.0, 19.0, "checkpoint_save_sync", global_step=1)
    records.span(14.0, 20.0, "epoch_end", "b", global_step=1)
    records.step(24.0, 2, training=8.0, checkpoint=4.0).put(24.0, "end")

    assert entries(ledger_of(records)) == {
        "startup": 10.0,
        "training": 8.0,
        "checkpoint": 4.0,
        "other_spans": 2.0,
    }


def test_a_span_of_the_user_around_a_long_one_takes_nothing_from_what_was_before(records):
    records.put(0.0, "start").step(10.0, 1, startup=10.0, training=0.0)
    records.put(20.0, "ledger", **{"ledger/training": 2.0, "ledger/validation": 5.0})
    records.put(25.0, "ledger", **{"ledger/validation": 5.0})
    records.span(15.0, 29.0, "validation_loop").span(14.0, 30.0, "epoch_end", "b", global_step=1)
    records.step(31.0, 2, training=1.0, validation=4.0).put(31.0, "end")

    assert entries(ledger_of(records)) == {
        "startup": 10.0,
        "training": 3.0,
        "validation": 14.0,
        "other_spans": 2.0,
        "unaccounted": 2.0,
    }


def test_an_open_span_of_the_user_counts_until_now(records):
    records.put(0.0, "start").step(10.0, 1, startup=10.0, training=0.0)
    records.put(15.0, "span_start", id="a", name="save", start=BEGAN + 11.0, age=4.0)

    assert entries(ledger_of(records, [manifest_session()], now=BEGAN + 18.0)) == {
        "startup": 10.0,
        "checkpoint": 7.0,
        "unaccounted": 1.0,
    }


def test_seconds_of_a_record_completed_late_are_carried_into_the_next_segment(records):
    records.put(0.0, "start").step(10.0, 1, training=0.5)
    records.step(11.0, 2, training=1.4).step(12.0, 3, training=0.5).put(12.0, "end")

    assert entries(ledger_of(records)) == {"startup": 9.5, "training": 2.4, "unaccounted": 0.1}


def test_seconds_that_fit_in_no_segment_are_left_out_and_noted(records):
    records.put(0.0, "start").step(10.0, 1, training=1e6).step(11.0, 2, training=0.5).put(11.0, "end")
    ledger = ledger_of(records)

    assert ledger.wall_s == 11.0
    assert entries(ledger) == {"training": 11.0}
    assert "more seconds than had passed" in ledger.notes[0]


# ------------------------------------------------------------ runs without recorded seconds


def test_of_nested_spans_the_inner_one_has_its_seconds(records):
    records.put(0.0, "start").step(10.0, 1).step(20.0, 2)
    records.span(23.0, 25.0, "sampling", "b").span(21.0, 29.0, "validation_loop", "a").step(30.0, 3)
    records.put(30.0, "end")
    found = entries(ledger_of(records))

    assert found["sampling"] == 2.0
    assert found["validation"] == 6.0


def test_spans_of_other_threads_and_of_the_device_take_nothing_from_the_loop(records):
    records.put(0.0, "start").step(10.0, 1)
    records.span(11.0, 19.0, "checkpoint_save_async", thread="saver").step(20.0, 2)
    records.put(21.0, "span", id="c", name="validation_loop", duration=9.0, clock="cuda").put(30.0, "end")
    found = entries(ledger_of(records))

    assert "checkpoint" not in found
    assert "validation" not in found


# ------------------------------------------------------------ stalled


def steady(records, steps, seconds=1.0, **fields):
    records.put(0.0, "start")
    for number in range(1, steps + 1):
        records.step(number * seconds, number, **fields)
    return records


def test_under_a_minute_nothing_is_a_stall(records):
    steady(records, 10).step(69.0, 11).put(69.0, "end")

    assert "stalled" not in entries(ledger_of(records))


def test_a_run_that_hangs_now_is_stalled_now(records):
    steady(records, 10)
    builder = LedgerBuilder()
    builder.take(records)
    hanging = builder.ledger([manifest_session()], now=BEGAN + 310.0)
    builder.take(Records().step(311.0, 11).put(311.0, "end"))
    after = builder.ledger()

    assert entries(hanging)["stalled"] == 299.0
    assert entries(after)["stalled"] == 300.0


# ------------------------------------------------------------ lost and done again


def test_inside_a_segment_the_loss_is_in_proportion_to_the_steps(records):
    records.put(0.0, "start").step(1.0, 1, training=1.0).step(100.0, 100, training=99.0)
    records.begin(2, BEGAN + 200.0, resumed_from_step=60).put(0.0, "end")

    assert entries(ledger_of(records)) == {"training": 60.0, "redone": 40.0}


def test_a_checkpoint_recorded_within_its_span_is_not_rework_either(records):
    records.put(0.0, "start").step(1.0, 1, training=1.0)
    records.put(10.0, "span_start", id="a", name="checkpoint_save_sync", start=BEGAN + 10.0, age=0.0)
    records.put(14.0, "checkpoint", global_step=1).span(10.0, 14.0, "checkpoint_save_sync", global_step=1)
    records.step(24.0, 2, training=19.0, checkpoint=4.0)
    records.begin(2, BEGAN + 200.0, resumed_from_step=1).put(0.0, "end")

    assert entries(ledger_of(records)) == {"training": 10.0, "checkpoint": 4.0, "redone": 10.0}


def test_an_abandoned_session_takes_nothing_from_the_one_that_was_resumed(records):
    steady(records, 100, training=1.0)
    records.put(100.0, "checkpoint", global_step=100)
    records.begin(2, BEGAN + 200.0, resumed_from_step=50).step(5.0, 55, training=5.0)
    records.begin(3, BEGAN + 300.0, resumed_from_step=100).step(5.0, 105, training=5.0).put(5.0, "end")

    assert entries(ledger_of(records)) == {"training": 105.0, "redone": 5.0}


# ------------------------------------------------------------ energy


def test_a_power_sample_is_valid_for_a_minute_and_the_rest_is_noted_as_unknown(records):
    records.put(0.0, "start").step(20.0, 1, startup=20.0)
    records.put(20.0, "system", **{"gpu/0/power_w": 100.0})
    records.step(100.0, 2, validation=80.0).put(100.0, "end")
    ledger = ledger_of(records)
    kwh = {line.entry: line.kwh for line in ledger.lines}

    assert kwh["validation"] == pytest.approx(6000.0 / 3.6e6)
    assert kwh["startup"] is None
    assert ledger.notes == ("Power is known for 60 % of the time; kWh cover only that part.",)


# ------------------------------------------------------------ sessions


@pytest.mark.parametrize(
    ("given", "shown"), [("h200", "h200"), (["h200", "fp8"], "h200,fp8"), (None, None), ([1], None)]
)
def test_a_session_has_the_tag_of_its_start_record(records, given, shown):
    records.put(0.0, "start", perf_tag=given)

    assert ledger_of(records).sessions[0].perf_tag == shown


def test_other_ranks_are_not_counted(records):
    records.put(0.0, "start").step(10.0, 1).put(500.0, "step", global_step=2, rank=3).put(20.0, "end")

    assert ledger_of(records).wall_s == 20.0


@in_make_faults
def test_a_long_run_is_kept_in_bounded_memory_and_loses_no_second(records):
    builder = LedgerBuilder()
    for first in range(0, 60_000, 1_000):
        chunk = Records()
        for step in range(first + 1, first + 1_001):
            chunk.step(float(step), step, training=0.75)
            if step % 7 == 0:
                chunk.put(float(step), "checkpoint", global_step=step)
        builder.take(chunk)
    late = Records().begin(2, BEGAN + 1e6, resumed_from_step=30_000)
    segments = len(builder._sessions[1].timeline.segments)
    builder.take(late)

    assert segments < 25_000
    assert entries(builder.ledger())["training"] == pytest.approx(0.75 * 30_000, abs=10.0)
    assert entries(builder.ledger())["redone"] == pytest.approx(0.75 * 30_000, abs=10.0)
