"""A drawn curve shows every extreme and every NaN, once each, whichever way its points came in."""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import tries
from toolkit.telemetry.runs.columns.line_parser import Parsed
from toolkit.telemetry.runs.columns.run_columns import RunColumns
from toolkit.telemetry.runs.columns.tiles import CurveBuilder

numbers = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0]), st.floats(-1e100, 1e100, width=64)
)


def long_curve(seed, count, odd):
    """Return a curve that goes up and down, with a value that is no number here and there."""
    random = np.random.default_rng(seed)
    values = random.normal(size=count).round(2)
    values[random.random(count) < odd] = random.choice([np.nan, np.inf, -np.inf])
    return values


# Lists that are made value by value stay short: a bucket with an inside takes long ones.
curves = st.lists(numbers, max_size=30).map(lambda values: np.array(values, dtype=np.float64)) | st.builds(
    long_curve, st.integers(0, 10**6), st.integers(0, 300), st.sampled_from([0.0, 0.05, 0.7])
)


AXES = ("step", "time", "elapsed", "epoch")


@dataclass(frozen=True)
class Row:
    """One record that carries metrics."""

    session: int
    kind: str
    step: float
    time: float
    elapsed: float
    epoch: float
    metrics: dict


def parsed(rows):
    """Return what a parser makes of the records of `rows`."""
    metrics, kinds = {}, {}
    for i, row in enumerate(rows):
        for name, value in row.metrics.items():
            places, values = metrics.setdefault(name, ([], []))
            places.append(i)
            values.append(value)
            kinds.setdefault(name, row.kind)
    return Parsed(
        time=np.array([row.time for row in rows], dtype=np.float64),
        elapsed=np.array([row.elapsed for row in rows], dtype=np.float64),
        step=np.array([row.step for row in rows], dtype=np.float64),
        epoch=np.array([row.epoch for row in rows], dtype=np.float64),
        session=np.array([row.session for row in rows], dtype=np.int32),
        is_step=np.array([row.kind == "step" for row in rows], dtype=bool),
        kind=np.zeros(len(rows), dtype=np.int8),
        at=np.full(len(rows), -1, dtype=np.int64),
        metrics={
            name: (np.array(places, dtype=np.int32), np.array(values, dtype=np.float64))
            for name, (places, values) in metrics.items()
        },
        kinds=kinds,
        records=len(rows),
    )


def columns_of(values, *, steps=None, times=None, elapsed=None, folded=None):
    """Return the columns of a run of one session that logs `values`, one a step."""
    count = len(values)
    columns = RunColumns()
    columns.add(
        Parsed(
            time=1000.0 + np.arange(count) if times is None else times,
            elapsed=np.arange(count, dtype=np.float64) if elapsed is None else elapsed,
            step=np.arange(count, dtype=np.float64) if steps is None else steps,
            epoch=np.full(count, np.nan),
            session=np.ones(count, dtype=np.int32),
            is_step=np.ones(count, dtype=bool),
            kind=np.zeros(count, dtype=np.int8),
            at=np.full(count, -1, dtype=np.int64),
            metrics={
                name: (np.arange(count, dtype=np.int32), np.asarray(column, dtype=np.float64))
                for name, column in {"loss": values, "steps_folded": folded}.items()
                if column is not None
            },
            kinds={"loss": "step", "steps_folded": "step"},
            records=count,
        )
    )
    return columns


def build(columns, *, metric="loss", axis="step", window=None, buckets=600):
    return series_of(CurveBuilder(columns), metric, axis, window, buckets)


def series_of(builder, metric, axis, window, buckets):
    columns = builder._columns
    return builder.series(metric, columns.column(metric), axis, None, buckets, (None, False), window)


def xs(segments):
    return np.concatenate([segment.x for segment in segments]) if segments else np.empty(0)


def ys(segments):
    return np.concatenate([segment.y for segment in segments]) if segments else np.empty(0)


# ---------------------------------------------------------------- nothing is hidden


@tries
@given(
    values=curves.filter(len),
    buckets=st.integers(1, 40),
    window=st.none() | st.tuples(st.floats(-10, 310), st.floats(-10, 310)),
)
def test_no_extreme_no_end_and_nothing_non_finite_is_hidden(values, buckets, window):
    columns = columns_of(values)

    series = build(columns, window=window, buckets=buckets)

    low, high = (0.0, 1e9) if window is None else (min(window), max(window))
    inside = [i for i in range(len(values)) if low <= i <= high]
    drawn = dict(zip(xs(series.segments).tolist(), ys(series.segments).tolist(), strict=True))
    assert len(drawn) == series.drawn <= min(series.total, 4 * buckets + 8)
    assert all(_same(values[int(step)], value) for step, value in drawn.items())
    if not inside:
        assert series.empty
        return
    assert inside[0] in drawn or inside[0] - 1 in drawn
    assert inside[-1] in drawn or inside[-1] + 1 in drawn
    finite = values[inside][np.isfinite(values[inside])]
    if len(finite):
        numbers_drawn = [value for value in drawn.values() if math.isfinite(value)]
        assert min(numbers_drawn) <= finite.min()
        assert max(numbers_drawn) >= finite.max()
        # What the window borrows beyond its edges never replaces an extreme inside of it.
        if window is None:
            assert (min(numbers_drawn), max(numbers_drawn)) == (finite.min(), finite.max())
        else:
            within = [value for step, value in drawn.items() if low <= step <= high and math.isfinite(value)]
            borrowed = [i for i in (inside[0] - 1, inside[-1] + 1) if 0 <= i < len(values)]
            beyond = [values[i] for i in borrowed if math.isfinite(values[i])]
            assert min(within + beyond) <= finite.min()
            assert max(within + beyond) >= finite.max()
    for i in inside:
        if not math.isfinite(values[i]):
            assert any(
                run.kind == _kind(values[i]) and run.first_x <= i <= run.last_x for run in series.non_finite
            )
    if window is None:
        assert sum(run.count for run in series.non_finite) == len(values) - np.isfinite(values).sum()


def _same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


def _kind(value):
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


# ---------------------------------------------------------------- sessions


@st.composite
def resumed_runs(draw):
    """Return the rows of a run that was resumed, now and then from an earlier step."""
    rows, clock, reached = [], 1000.0, 0
    whole_epochs = draw(st.booleans())
    for session in range(1, draw(st.integers(1, 4)) + 1):
        step = draw(st.integers(0, reached + 3))
        elapsed = 0.0
        clock += draw(st.integers(0, 50))
        for _ in range(draw(st.integers(0, 25))):
            kind = draw(st.sampled_from(["step", "step", "step", "system", "eval"]))
            metrics = {}
            if draw(st.integers(0, 9)):
                name = {"step": "loss", "system": "gpu", "eval": "loss"}[kind]
                metrics[name] = draw(numbers)
            epoch = step // 10 if whole_epochs else step / 10
            rows.append(
                Row(
                    session=session,
                    kind=kind,
                    step=math.nan if kind == "system" else float(step),
                    time=clock,
                    elapsed=elapsed,
                    epoch=math.nan if kind == "system" else float(epoch),
                    metrics=metrics,
                )
            )
            reached = max(reached, step)
            clock += 1.0
            elapsed += 1.0
            # An evaluation is at the step before it.
            step += draw(st.integers(1, 2)) if kind == "step" else 0
    return rows


def filled(rows):
    """Return the step each row is at: its own, or the session's last one, or the session's first to come."""
    steps, last = [], 0.0
    for i, row in enumerate(rows):
        if math.isfinite(row.step):
            last = row.step
        elif i == 0 or rows[i - 1].session != row.session:
            last = next(
                (r.step for r in rows[i:] if r.session == row.session and math.isfinite(r.step)), last
            )
        steps.append(last)
    return steps


def counting(rows):
    """Return of each row whether it counts: no later session began at its step or before."""
    first = {}
    for row in rows:
        if row.kind == "step":
            first.setdefault(row.session, row.step)
    return [
        not any(later > row.session and begun <= step for later, begun in first.items())
        for row, step in zip(rows, filled(rows), strict=True)
    ]


def elapsed_of(rows):
    """Return the seconds each row is at when the sessions are put end to end, as far as they count."""
    counts, last = counting(rows), {}
    for row, counted in zip(rows, counts, strict=True):
        if counted:
            last[row.session] = row.elapsed
    return [
        row.elapsed + sum(seconds for session, seconds in last.items() if session < row.session)
        for row in rows
    ]


@tries
@given(rows=resumed_runs(), metric=st.sampled_from(["loss", "gpu"]))
def test_a_row_counts_until_a_later_session_begins_at_or_before_its_step(rows, metric):
    columns = RunColumns()
    if rows:
        columns.add(parsed(rows))

    expected = {"step": filled(rows), "time": [row.time for row in rows], "elapsed": elapsed_of(rows)}
    counts = counting(rows)
    for axis, places in expected.items():
        series = build(columns, metric=metric, axis=axis, buckets=1000)
        for segments, wanted in ((series.segments, True), (series.superseded, False)):
            found = [
                (segment.session, x, y)
                for segment in segments
                for x, y in zip(segment.x.tolist(), segment.y.tolist(), strict=True)
            ]
            reference = [
                (row.session, place, row.metrics[metric])
                for row, place, counted in zip(rows, places, counts, strict=True)
                if metric in row.metrics and counted is wanted
            ]
            assert [item[:2] for item in found] == [item[:2] for item in reference]
            np.testing.assert_array_equal([item[2] for item in found], [item[2] for item in reference])
        assert series.total == len(xs(series.segments))


@tries
@given(rows=resumed_runs())
def test_epochs_spread_out_inside_themselves_and_in_order(rows):
    columns = RunColumns()
    if rows:
        columns.add(parsed(rows))

    whole = build(columns, axis="epoch", buckets=1000)
    logged = [row for row in rows if "loss" in row.metrics]

    if len({row.session for row in rows}) <= 1:
        x = xs(whole.segments)
        assert (np.diff(x) >= 0).all()
        for place, row in zip(x.tolist(), logged, strict=True):
            assert row.epoch <= place < math.floor(row.epoch) + 1
    thinned = build(columns, axis="epoch", buckets=1)
    assert set(xs(thinned.segments).tolist()) <= set(xs(whole.segments).tolist())


# ---------------------------------------------------------------- growing


@tries
@given(
    rows=resumed_runs(),
    cuts=st.lists(st.integers(0, 100), max_size=6),
    axis=st.sampled_from(AXES),
    buckets=st.integers(1, 12),
    window=st.none() | st.tuples(st.floats(0, 30), st.floats(0, 30)),
)
def test_appending_gives_what_reading_at_once_gives(rows, cuts, axis, buckets, window):
    edges = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    grown, at_once = RunColumns(), RunColumns()
    at_once.add(parsed(rows))
    builder = CurveBuilder(grown)
    for start, stop in itertools.pairwise(edges):
        grown.add(parsed(rows[start:stop]))
        # A page looks while the run grows, and what it remembers must not show in what it sees later.
        for metric in ("loss", "gpu"):
            series_of(builder, metric, axis, None, buckets)
            series_of(builder, metric, axis, window, buckets)

    for metric in ("loss", "gpu"):
        for part in (None, window):
            one = series_of(builder, metric, axis, part, buckets)
            other = build(at_once, metric=metric, axis=axis, window=part, buckets=buckets)
            assert_same(one, other)


def assert_same(one, other):
    for mine, theirs in ((one.segments, other.segments), (one.superseded, other.superseded)):
        assert [segment.session for segment in mine] == [segment.session for segment in theirs]
        np.testing.assert_array_equal(xs(mine), xs(theirs))
        np.testing.assert_array_equal(ys(mine), ys(theirs))
    assert repr(replace(one, segments=(), superseded=())) == repr(replace(other, segments=(), superseded=()))
