"""Spans as columns: read as the file grows, put in order, counted, and cut to a window."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pyarrow")

from tests.made_runs import append, write_run
from tests.timing.span_run import SpanRun, many_spans, write_span_run
from tests.timing.test_span_record import begun, span
from toolkit.telemetry.runs.columns.column_cache import ColumnCache
from toolkit.telemetry.runs.columns.run_log import RunLog
from toolkit.telemetry.runs.spans import (
    SpanTable,
    last_steps,
    steps_in,
    totals,
)


def read(log, wait_s=60.0):
    while not log.refresh(1.0).complete:
        pass
    return log.spans(wait_s)


@pytest.fixture
def write(tmp_path):
    """Write records as a run and return its log."""

    def write_records(records):
        return RunLog(write_run(tmp_path, "r", records) / "metrics.jsonl", None)

    return write_records


def test_what_is_appended_is_added_and_an_end_closes_its_beginning(write):
    log = write([begun("aa", start=100.0, session=1), span("bb", "aa", start=101.0, session=1)])
    before = read(log).duration.tolist()
    append(log.path.parent, [span("aa", start=100.0, duration=7.0, session=1), span("cc", start=108.0)])
    after = read(log)

    assert np.isnan(before[0])
    assert before[1:] == [1.0]
    assert after.duration.tolist() == [7.0, 1.0, 1.0]
    assert after.start.tolist() == [100.0, 101.0, 108.0]


def test_spans_of_a_cached_log_are_the_same(tmp_path):
    folder = write_span_run(tmp_path / "logs", "r")
    cache = ColumnCache(tmp_path / "cache")
    fresh = RunLog(folder / "metrics.jsonl", cache)
    first = read(fresh)
    cache.prepare(fresh.path, fresh._columns, fresh._cursor)()

    again = RunLog(folder / "metrics.jsonl", cache)
    table = read(again)

    assert again.health().from_cache
    assert table.names == first.names
    assert table.start.tolist() == first.start.tolist()
    assert table.summaries == first.summaries


def test_a_large_log_is_taken_in_parts_and_nothing_is_read_twice(write):
    log = write(many_spans(3_000))
    parts = [read(log, 0.0)]
    while parts[-1].fraction_read < 1.0:
        parts.append(log.spans(0.0))

    assert len(parts) > 2
    assert [len(part) for part in parts] == sorted({len(part) for part in parts})
    assert len(parts[-1]) == 15_001
    assert len(log.spans(0.0)) == 15_001


def test_a_neighbour_that_reaches_into_the_window_is_not_counted_to_it(write):
    run = SpanRun(keep_all=True)
    run.begin_session()
    for step in range(1, 9):
        run.step(step, kept=None)
    table = read(write(run.records))
    low, high = last_steps(table, 5)

    assert steps_in(table, (low - 0.05, high + 0.05)) == (4, 8)


def test_without_short_spans_the_last_ones_are_looked_at(write):
    own = [span(f"{n:x}", start=1_000.0 + n, duration=0.5, name="encode") for n in range(200)]
    table = read(write([begun("ffff", start=0.0), *own]))

    low, high = last_steps(table, 5)

    assert high == 1_199.5
    assert low > 1_100
    assert last_steps(SpanTable(), 5) is None


def test_the_sums_of_a_session_count_and_kept_spans_where_it_wrote_none(write):
    about = {"count": 100, "total": 50.0, "p50": 0.4, "p95": 0.9, "max": 2.0}
    older = {"event": "span_summary", "session": 2, "span_times": {"work": {**about, "count": 10}}}
    table = read(
        write(
            [
                span("aa", session=1, duration=1.0),
                span("bb", session=1, duration=3.0),
                span("cc", session=2, duration=2.0),
                older,
                {"event": "span_summary", "session": 2, "span_times": {"work": about}},
            ]
        )
    )
    found = totals(table)

    assert (found.sessions_summed, found.sessions_counted) == (1, 1)
    assert found.by_name["work"].count == 102
    assert found.by_name["work"].total == pytest.approx(54.0)
    assert found.by_name["work"].longest == 3.0
    assert found.by_name["work"].p50 == pytest.approx((0.4 * 100 + 2.0 * 2) / 102)


def test_an_open_span_reaches_the_last_record_of_its_session(write):
    records = [
        begun("aa", start=100.0, session=1, time=100.0),
        {"event": "step", "time": 130.0, "session": 1, "global_step": 1},
        {"event": "step", "time": 500.0, "session": 2, "global_step": 1},
    ]

    assert read(write(records)).ends().tolist() == [130.0]
