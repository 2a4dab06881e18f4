"""A figure keeps every point it is given, draws what is no number, and takes no one's text for markup."""

import base64
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.charts.curve_layout import ChartMark, ChartStyle, Curve
from dashboard.charts.curves import chart_label, curve_figure
from dashboard.charts.mean_and_spread import groups_figure, mean_and_spread
from dashboard.charts.packing import packed, window_from_chart, x_values
from dashboard.charts.palette import DARK, LIGHT, looks_of_runs, run_colour, shade
from dashboard.charts.spans import Bar, bars_figure
from tests.runfolder.plain_data import any_text, tries
from tests.runs.columns.test_series import columns_of, long_curve
from toolkit.runfolder.status import Status
from toolkit.runs.columns.series import SeriesBuilder
from toolkit.runs.columns.smoothing import AUTO_WIDTH
from toolkit.runs.columns.thinning import runs_of
from toolkit.runs.store import CurveSegment, NonFiniteRun, RunCard, Series

KINDS = {"i4": "<i4", "f4": "<f4", "f8": "<f8"}


def unpacked(values):
    """Return the numbers that a browser sees."""
    if isinstance(values, dict):
        return np.frombuffer(base64.b64decode(values["bdata"]), KINDS[values["dtype"]]).astype(np.float64)
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def series_of(values, *, window=None, buckets=600, smoothing=0.0, axis="step", steps=None):
    return SeriesBuilder(columns_of(values, steps=steps)).build("loss", axis, window, buckets, smoothing)


def figure(values, look=None, **options):
    return curve_figure([Curve(series=series_of(values, **options), label="loss")], look or ChartStyle())


def trace(figure, name):
    (found,) = [trace for trace in figure["data"] if trace["name"] == name]
    return found


def is_json(figure):
    """Say whether a browser can be given this: NaN and infinities are no JSON."""
    json.dumps(figure, allow_nan=False)
    return True


# ---------------------------------------------------------------- what never changes


CONSTANTS = (1e-4, 0.0, 1e8, -3.5, 1e-12, 2.0**-149, 1e300)


def is_inside(value, frame):
    """Whether a line at `value` is inside `frame`, and its distance from the edges fits its size."""
    low, high = frame
    return low < value < high and (high - low) <= max(0.5 * abs(value), 2.0 if value == 0 else 0.0)


@pytest.mark.parametrize(
    "look", [ChartStyle(), ChartStyle(window=(2, 30)), ChartStyle(clip=True)], ids=["whole", "window", "clip"]
)
@pytest.mark.parametrize("smoothing", [0.0, "auto", 0.1])
@pytest.mark.parametrize("value", CONSTANTS)
def test_a_constant_has_an_axis_around_itself(value, smoothing, look):
    drawn = figure([value] * 40, look, smoothing=smoothing, window=look.window)

    assert is_json(drawn)
    assert is_inside(value, drawn["layout"]["yaxis"]["range"])
    line = trace(drawn, "loss")
    assert set(unpacked(line["y"]).tolist()) == {value}
    assert line["mode"] == "lines+markers"


@pytest.mark.parametrize(
    ("values", "written"), [([8e-5, 1e-4], "e"), ([0.5, -0.7], "e"), ([1.0, 20_000.0], "SI"), ([], "e")]
)
def test_small_numbers_have_an_exponent_and_no_prefix(values, written):
    assert figure(values)["layout"]["yaxis"]["exponentformat"] == written


def test_noise_in_the_last_digit_is_not_all_there_is_to_see():
    drawn = figure([1e-4 * (1 + step % 2 * 1e-12) for step in range(40)])

    assert drawn["layout"]["yaxis"]["range"] == pytest.approx([0.8e-4, 1.2e-4])


@pytest.mark.parametrize(
    ("value", "frame"), [(5.0, [0.0, 6.0]), (0.0, [0.0, 1.0]), (1e-6, [0.0, 1.2e-6]), (-2.0, [-2.4, 0.0])]
)
def test_a_constant_that_is_drawn_from_zero_on_has_zero_at_one_edge(value, frame):
    drawn = figure([value] * 40, ChartStyle(from_zero=True))

    assert drawn["layout"]["yaxis"]["range"] == pytest.approx(frame)


def test_a_curve_that_changes_is_left_to_the_chart():
    assert "range" not in figure([1.0, 1.001, 1.0])["layout"]["yaxis"]
    assert "range" not in figure([1.0, math.nan, 2.0])["layout"]["yaxis"]
    assert "range" not in figure([math.nan, math.nan])["layout"]["yaxis"]
    assert "range" not in figure([1.7e308] * 3)["layout"]["yaxis"], "there is no number above it"


def test_a_limit_far_from_a_constant_stays_in_sight():
    assert "range" not in figure([5.0] * 40, ChartStyle(limits=((80.0, "80 GB"),)))["layout"]["yaxis"]


def test_on_a_logarithmic_axis_the_chart_does_it_well():
    assert "range" not in figure([1e-4] * 40, ChartStyle(log_y=True))["layout"]["yaxis"]


def test_two_constants_share_one_frame():
    curves = [Curve(series=series_of([value] * 40), label="lr") for value in (1e-4, 1e-4)]
    apart = [Curve(series=series_of([value] * 40), label="lr") for value in (1e-4, 2e-4)]

    assert curve_figure(curves, ChartStyle())["layout"]["yaxis"]["range"] == pytest.approx([0.8e-4, 1.2e-4])
    assert "range" not in curve_figure(apart, ChartStyle())["layout"]["yaxis"]


def test_a_group_of_runs_with_one_learning_rate_has_an_axis_around_it():
    group = mean_and_spread([series_of([1e-4] * 10), series_of([1e-4] * 10)])

    assert groups_figure([("a", group)])["layout"]["yaxis"]["range"] == pytest.approx([0.8e-4, 1.2e-4])
    assert "range" not in groups_figure([("a", group)], log_y=True)["layout"]["yaxis"]


# ---------------------------------------------------------------- numbers


@tries
@given(values=st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=40).map(np.array))
def test_packed_numbers_are_exact_to_a_millionth_of_the_range(values):
    back = unpacked(packed(values))

    room = float(values.max() - values.min())
    assert np.abs(back - values).max() <= room * 1e-6


@tries
@given(values=st.lists(st.integers(-(2**31) + 1, 2**31 - 1), min_size=1, max_size=40).map(np.array))
def test_packed_whole_numbers_are_exact(values):
    assert unpacked(packed(values.astype(np.float64))).tolist() == values.tolist()


@tries
@given(values=st.lists(st.integers(-(2**53), 2**53) | st.just(math.nan), min_size=1, max_size=40))
def test_packed_steps_beyond_single_precision_stay_within_the_range(values):
    numbers = np.array(values, dtype=np.float64)
    back = unpacked(packed(numbers))

    finite = np.isfinite(numbers)
    assert np.isnan(back[~finite]).all()
    if finite.any():
        room = float(numbers[finite].max() - numbers[finite].min())
        assert np.abs(back[finite] - numbers[finite]).max() <= room * 1e-6


@pytest.mark.parametrize(
    "values",
    [
        [1e-40, 2e-40] * 8,
        [1e300, -1e300] * 8,
        [1e9, 1e9 + 0.5] * 8,
        [0.1] * 16,
        [0.0, math.nan] * 8,
        [math.nan] * 16,
        [],
    ],
)
def test_odd_ranges_survive_packing(values):
    values = np.array(values, dtype=np.float64)
    finite = values[np.isfinite(values)]
    back = unpacked(packed(values))

    np.testing.assert_array_equal(np.isnan(back), np.isnan(values))
    if len(finite):
        assert np.abs(back[np.isfinite(values)] - finite).max() <= (finite.max() - finite.min()) * 1e-6


def test_a_short_list_stays_readable():
    assert packed(np.array([1.0, math.nan, math.inf])) == [1.0, None, None]


def test_wall_time_goes_to_the_browser_and_back():
    window = (1_700_000_000.0, 1_700_003_600.0)

    for axis in ("time", "step", "elapsed", "epoch"):
        there = x_values(np.array(window), axis)
        assert window_from_chart(there[::-1].tolist(), axis) == pytest.approx(window)


# ---------------------------------------------------------------- what is drawn


def test_every_point_of_a_series_is_in_the_figure():
    values = np.random.default_rng(0).normal(size=5000)
    values[1234] = 1e5
    series = series_of(values)

    line = trace(curve_figure([Curve(series=series, label="loss")], ChartStyle()), "loss")

    x, y = unpacked(line["x"]), unpacked(line["y"])
    assert len(x) == len(y) == series.drawn
    assert y[x == 1234] == pytest.approx(1e5)


def test_nan_and_infinities_are_drawn_where_they_are():
    values = [1.0] * 50
    values[10], values[20:23], values[30] = math.nan, [math.inf] * 3, -math.inf

    found = figure(values)

    assert unpacked(trace(found, "NaN")["x"]).tolist() == [10]
    assert sorted(unpacked(trace(found, "Infinity")["x"]).tolist()) == [20, 22]
    assert unpacked(trace(found, "-Infinity")["x"]).tolist() == [30]
    assert trace(found, "Infinity")["text"][0] == "loss: Infinity, 3 in a row"
    assert {trace(found, kind)["yaxis"] for kind in ("NaN", "Infinity", "-Infinity")} == {"y2"}
    assert is_json(found)
    assert np.isnan(unpacked(trace(found, "loss")["y"])).sum() == 5


def test_a_curve_of_nothing_but_nan_is_still_a_figure():
    for look in (ChartStyle(), ChartStyle(clip=True, log_y=True), ChartStyle(window=(0.0, 5.0), log_y=True)):
        found = figure([math.nan] * 20, look, window=look.window)

        assert len(unpacked(trace(found, "NaN")["x"])) >= 1
        assert is_json(found)


def test_one_point_is_a_dot():
    line = trace(figure([3.0]), "loss")

    assert line["mode"] == "lines+markers"
    assert (line["x"], line["y"]) == ([0.0], [3.0])


def test_no_points_are_no_failure():
    for look in (ChartStyle(), ChartStyle(clip=True, log_y=True, window=(0.0, 1.0))):
        assert is_json(figure([], look))
    assert is_json(curve_figure([], ChartStyle()))


def test_a_smoothed_curve_lies_over_the_pale_one_which_names_both_values():
    values = np.random.default_rng(0).normal(size=500)
    found = figure(values, smoothing="auto")

    raw, smooth = trace(found, "loss (as logged)"), trace(found, "loss")
    assert raw["line"]["color"] == "@series-0/0.2"
    assert smooth["line"]["color"] == "@series-0"
    assert (raw["showlegend"], smooth["showlegend"]) == (False, True)
    assert raw["legendgroup"] == smooth["legendgroup"]
    assert raw["hovertemplate"].startswith("logged %{y:.6~g} · smoothed %{customdata:.4~g}")
    assert smooth["hoverinfo"] == "skip"
    alone = curve_figure(
        [Curve(series=series_of(values, smoothing="auto"), label="a", raw=False)], ChartStyle()
    )
    assert [trace["name"] for trace in alone["data"]] == ["a"]


@tries
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 900),
    holes=st.floats(0, 0.3),
    buckets=st.integers(1, 60),
    smoothing=st.sampled_from([0.0, "auto", 0.01, 0.2]),
)
def test_every_drawn_value_was_logged_and_a_smoothed_one_lies_within_its_window(
    seed, count, holes, buckets, smoothing
):
    values = long_curve(seed, count, holes)
    steps = np.cumsum(np.random.default_rng(seed).integers(1, 9, count)).astype(np.float64)
    series = series_of(values, buckets=buckets, smoothing=smoothing, steps=steps)
    found = curve_figure([Curve(series=series, label="loss")], ChartStyle())
    logged = dict(zip(steps.tolist(), values.tolist(), strict=True))

    raw = trace(found, "loss (as logged)" if series.smooth else "loss")
    x, y = unpacked(raw["x"]), unpacked(raw["y"])
    record = np.array([logged[step] for step in x.tolist()])
    finite = np.isfinite(record)
    assert np.isnan(y[~finite]).all()
    # The six digits that hovering shows.
    np.testing.assert_allclose(y[finite], record[finite], rtol=1e-7, atol=1e-40)
    counted = sum(stretch.count for stretch in series.stretches)
    alone = sum(a == b for a, b in runs_of(~np.isfinite(values)))
    assert counted + alone == count - np.isfinite(values).sum()
    if not series.smooth:
        return
    # Twice the width at the ends, and a little for the cells.
    width = 2 * (AUTO_WIDTH if smoothing == "auto" else smoothing)
    reach = (width + 0.01) * (steps[-1] - steps[0])
    said = unpacked(raw["customdata"])
    np.testing.assert_array_equal(np.isfinite(said), finite)
    for place, value in zip(x[finite].tolist(), said[finite].tolist(), strict=True):
        near = values[(steps >= place - reach) & (steps <= place + reach)]
        near = near[np.isfinite(near)]
        room = 1e-6 * max(abs(near).max(), 1e-30)
        assert near.min() - room <= value <= near.max() + room


def times_in(tip):
    """Return the wall times, in whole seconds of local time, and the starts that a browser reads from a tooltip."""
    when = tip["when"]
    steps = np.frombuffer(base64.b64decode(when["steps"]), f"<i{when['bits'] // 8}")
    return (when["from"] + np.concatenate(([0], np.cumsum(steps, dtype=np.float64)))).tolist(), when["starts"]


@tries
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 900),
    pace=st.sampled_from([0.01, 0.7, 90.0, 4e4]),
    window=st.none() | st.tuples(st.integers(0, 400), st.integers(500, 900)),
)
def test_the_tooltip_has_the_wall_time_of_each_record(seed, count, pace, window):
    elapsed = np.cumsum(np.random.default_rng(seed).random(count)) * pace
    columns = columns_of(long_curve(seed, count, 0.1), times=1_700_000_000.25 + elapsed, elapsed=elapsed)
    series, around = (
        SeriesBuilder(columns).build("loss", "step", part, 40, "auto") for part in (window, None)
    )
    look = ChartStyle(times=True, window=window)
    (raw,) = [
        trace
        for trace in curve_figure([Curve(series=series, around=around, label="loss")], look)["data"]
        if "tip" in trace.get("meta", {})
    ]
    times, starts = times_in(raw["meta"]["tip"])

    places = unpacked(raw["x"]).astype(int)
    local = x_values(1_700_000_000.25 + elapsed, "time") / 1000
    assert times == np.floor(local[places]).tolist()
    assert starts == [[0, np.floor(local[0] - elapsed[0])]]


def test_a_session_that_resumes_later_counts_from_its_own_start():
    def part(first, began, before):
        at = np.arange(first, first + 10.0)
        return CurveSegment(x=at, y=at, session=1, time=began + at - first, elapsed=before + at - first)

    series = Series(
        metric="loss", axis="step", segments=(part(0, 1e9, 0.0), part(10, 2e9, 10.0)), total=20, drawn=20
    )
    (raw,) = curve_figure([Curve(series=series, label="loss")], ChartStyle(times=True))["data"]
    times, starts = times_in(raw["meta"]["tip"])

    # Ten seconds of the first session count, the time between the two does not.
    assert times[10] - starts[1][1] == 10
    assert starts[1][0] == 10


@pytest.mark.parametrize("times", [None, np.full(3, np.nan), np.array([0.0, 1e12, 2.0])])
def test_without_usable_times_the_tooltip_has_none(times):
    piece = CurveSegment(x=np.arange(3.0), y=np.ones(3), session=1, time=times, elapsed=times)
    series = Series(metric="loss", axis="step", segments=(piece,), total=3, drawn=3)
    (raw,) = curve_figure([Curve(series=series, label="loss")], ChartStyle(times=True))["data"]

    assert "when" not in raw["meta"]["tip"]


def test_the_tooltip_lists_what_was_logged_and_no_smoothed_curve_twice():
    values = np.random.default_rng(0).normal(size=500)
    found = figure(values, smoothing="auto")

    listed = [trace["name"] for trace in found["data"] if "tip" in trace["meta"]]
    assert listed == ["loss (as logged)"]
    assert trace(found, "loss (as logged)")["meta"]["tip"] == {
        "label": "loss",
        "color": "@series-0",
        "unit": "",
        "kind": "logged",
    }
    # Both are highlighted together.
    assert {trace["meta"]["run"] for trace in found["data"]} == {"loss"}


def test_a_stretch_of_nan_is_a_band_with_its_ends_and_its_count():
    values = np.random.default_rng(0).normal(1.0, 0.1, 400)
    values[338:] = np.nan
    values[350::2] = np.inf
    values[100] = np.nan
    found = figure(values, smoothing=0.05)

    (band,) = [shape for shape in found["layout"]["shapes"] if shape["type"] == "rect"]
    assert (band["x0"], band["x1"]) == (338, 399)
    (label,) = found["layout"]["annotations"]
    assert label["text"] == "37 NaN, 25 Infinity"
    assert max(unpacked(trace(found, "loss")["x"])) <= 337
    assert 100 in unpacked(trace(found, "NaN")["x"])


def test_what_was_begun_again_is_pale_and_dotted():
    old = CurveSegment(x=np.array([5.0, 6.0]), y=np.array([1.0, 2.0]), session=1)
    new = CurveSegment(x=np.array([0.0, 5.0]), y=np.array([3.0, 4.0]), session=2)
    series = Series(metric="loss", axis="step", segments=(new,), superseded=(old,), total=2, drawn=2)

    found = curve_figure([Curve(series=series, label="loss")], ChartStyle())

    pale = trace(found, "loss (session 1, superseded)")
    assert pale["line"]["dash"] == "dot"
    assert pale["line"]["color"].startswith("@series-0/0.")
    assert pale["x"] == [5.0, 6.0]


def test_a_band_is_filled_between_lowest_and_highest():
    low, high = series_of([1.0, 1.0]), series_of([3.0, 3.0])
    found = curve_figure([Curve(series=series_of([2.0, 2.0]), label="a", band=(low, high))], ChartStyle())

    assert trace(found, "max between records")["fill"] == "tonexty"
    assert trace(found, "min between records")["y"] == [1.0, 1.0]


# ---------------------------------------------------------------- windows


@tries
@given(
    low=st.floats(0, 9000),
    width=st.floats(1, 3000),
    smoothing=st.sampled_from([0.0, 0.1]),
)
def test_inside_the_window_is_its_detail_and_around_it_the_whole_run(low, width, smoothing):
    builder = SeriesBuilder(columns_of(np.random.default_rng(1).normal(size=10_000)))
    window = (low, low + width)
    series = builder.build("loss", "step", window, 600, smoothing)
    around = builder.build("loss", "step", None, 50, smoothing)

    found = curve_figure([Curve(series=series, around=around, label="loss")], ChartStyle(window=window))

    for name, segments in (
        ("loss (as logged)" if smoothing else "loss", series.segments),
        ("loss", series.smooth),
    ):
        if not segments:
            continue
        x = unpacked(trace(found, name)["x"])
        assert (np.diff(x) > 0).all()
        assert set(segments[0].x.tolist()) <= set(x.tolist())
        # A smoothed point lies in the middle of those that it was made from.
        assert x[0] <= 50
        assert x[-1] >= 9949
    assert found["layout"]["xaxis"]["range"] == list(window)
    bottom, top = found["layout"]["yaxis"]["range"]
    assert bottom < series.low <= series.high < top


def test_a_window_between_two_points_shows_what_is_around():
    builder = SeriesBuilder(columns_of(np.arange(10.0)))
    series = builder.build("loss", "step", (3.2, 3.8), 600, 0.0)
    around = builder.build("loss", "step", None, 600, 0.0)

    found = curve_figure([Curve(series=series, around=around, label="loss")], ChartStyle(window=(3.2, 3.8)))

    assert unpacked(trace(found, "loss")["x"]).tolist() == list(range(10))


# ---------------------------------------------------------------- clipping and logarithms


def test_clipping_marks_what_lies_beyond_the_frame_with_its_true_value():
    values = np.random.default_rng(0).normal(size=2000)
    values[700], values[900] = 1e6, -1e6
    found = figure(values, ChartStyle(clip=True))

    low, high = found["layout"]["yaxis"]["range"]
    beyond = [trace for trace in found["data"] if trace["name"] == "outside the range"]
    by_symbol = {trace["marker"]["symbol"]: trace for trace in beyond}
    up, down = by_symbol["triangle-up"], by_symbol["triangle-down"]
    assert high < 10
    assert low > -10
    assert up["customdata"][unpacked(up["x"]).tolist().index(700)] == "1e6"
    assert down["customdata"][unpacked(down["x"]).tolist().index(900)] == "-1e6"
    assert set(unpacked(up["y"]).round(6).tolist()) == {round(high, 6)}
    # The curve itself still goes there: clipping is a frame and no filter.
    line = trace(found, "loss")
    assert unpacked(line["y"])[unpacked(line["x"]) == 700] == pytest.approx(1e6)


def falling(count=2000):
    return 1.0 + np.exp(-np.arange(count) / (count / 5)) + np.random.default_rng(0).normal(0, 0.02, count)


def test_a_fitted_range_leaves_out_a_spike_and_says_so():
    values = falling()
    values[3], values[900] = 60.0, 9.0
    found = figure(values, ChartStyle(fit=True), smoothing="auto")

    low, high = found["layout"]["yaxis"]["range"]
    assert low < 1.0
    assert 1.8 < high < 3.0
    assert "▲ up to 60 · double-click shows all" in [note["text"] for note in found["layout"]["annotations"]]
    beyond = trace(found, "outside the range")
    assert {3.0, 900.0} <= set(unpacked(beyond["x"]).tolist())
    assert "60" in beyond["customdata"]


def test_a_fitted_range_always_holds_the_end_of_a_curve_and_what_is_not_far_off():
    rising = falling()
    rising[-40:] = 50.0
    assert "range" not in figure(rising, ChartStyle(fit=True))["layout"]["yaxis"]
    assert "range" not in figure(falling(), ChartStyle(fit=True))["layout"]["yaxis"]
    few = np.append(np.ones(20), 100.0)[::-1]
    assert "range" not in figure(few, ChartStyle(fit=True))["layout"]["yaxis"], "each of a few points matters"


@tries
@given(
    values=st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=41, max_size=90).map(np.array),
    from_zero=st.booleans(),
)
def test_nothing_leaves_a_fitted_range_without_a_mark(values, from_zero):
    found = figure(values, ChartStyle(fit=True, from_zero=from_zero))
    frame = found["layout"]["yaxis"].get("range")
    if frame is None:
        return
    finite = values[np.isfinite(values)]
    outside = ((finite < frame[0]) | (finite > frame[1])).sum()
    marked = sum(len(one["customdata"]) for one in found["data"] if one["name"] == "outside the range")
    assert marked == outside
    said = " ".join(note["text"] for note in found["layout"]["annotations"])
    assert ("▲" in said) is bool((finite > frame[1]).any())
    assert ("▼" in said) is bool((finite < frame[0]).any())


@tries
@given(places=st.lists(st.floats(0, 99), min_size=1, max_size=10), long=st.booleans())
def test_labels_of_marks_neither_overlap_nor_leave_the_chart(places, long):
    text = "Slower than before" if long else "lr"
    marks = tuple(ChartMark(x=x, text=f"{text} {number}") for number, x in enumerate(places))
    notes = figure(np.arange(100.0), ChartStyle(marks=marks))["layout"]["annotations"]

    spans = []
    for note in notes:
        width = 1.1 * len(note["text"])
        spans.append(
            (note["x"] - width, note["x"]) if note["xanchor"] == "right" else (note["x"], note["x"] + width)
        )
    spans.sort()
    assert all(first[1] <= later[0] + 1e-9 for first, later in itertools.pairwise(spans))
    assert all(start >= 0 and end <= 100 for start, end in spans)


numbers = st.one_of(
    st.sampled_from([0.0, -1.0, 1.0, math.nan, math.inf, -math.inf, 5e-324]), st.floats(-1e30, 1e30)
)


@tries
@given(
    values=st.lists(numbers, max_size=60).map(lambda values: np.array(values, dtype=np.float64)),
    log_y=st.booleans(),
    clip=st.booleans(),
    window=st.none() | st.tuples(st.integers(-5, 70), st.integers(-5, 70)),
)
def test_any_values_make_a_figure_with_an_ascending_axis(values, log_y, clip, window):
    window = None if window is None else (float(min(window)), float(max(window)))

    found = figure(values, ChartStyle(log_y=log_y, clip=clip, window=window), window=window)

    assert is_json(found)
    frame = found["layout"]["yaxis"].get("range")
    if frame is not None:
        assert frame[0] < frame[1]


def test_a_logarithmic_frame_holds_all_that_is_positive():
    values = np.concatenate(([-5.0, 0.0], np.geomspace(1e-8, 1e3, 200)))
    found = figure(values, ChartStyle(log_y=True, window=(0.0, 300.0)), window=(0.0, 300.0))

    bottom, top = found["layout"]["yaxis"]["range"]
    assert bottom <= -8
    assert top >= 3
    assert found["layout"]["yaxis"]["type"] == "log"
    assert figure(values[2:], ChartStyle(log_y=True))["layout"]["yaxis"]["dtick"] == 1


# ---------------------------------------------------------------- other people's text


NASTY = '<img src=x onerror="alert(1)"><b>&\u202e'


def test_names_and_marks_are_text_and_no_markup():
    series = series_of([1.0, math.nan, 1e9] + [1.0] * 60, smoothing=0.2)
    look = ChartStyle(
        clip=True, unit=NASTY, marks=(ChartMark(x=1.0, text=NASTY),), limits=((5.0, NASTY),), legend=True
    )

    found = curve_figure([Curve(series=series, label=NASTY)], look)

    text = json.dumps(found)
    assert "<img" not in text
    assert "<b>" not in text
    assert "\\u202e" not in text
    assert "&lt;img" in text
    assert len(found["layout"]["annotations"]) == 2


@tries
@given(text=any_text)
def test_any_text_makes_a_figure(text):
    look = ChartStyle(marks=(ChartMark(x=0.0, text=text),), unit=text)

    found = curve_figure([Curve(series=series_of([1.0, 2.0]), label=text)], look)

    json.dumps(found).encode("utf-8")
    assert "<" not in found["data"][0]["name"]


def test_many_marks_are_drawn_without_their_words_and_the_oldest_not_at_all():
    marks = tuple(ChartMark(x=float(i), text=str(i)) for i in range(200))

    few = figure([1.0], ChartStyle(marks=marks[:10]))["layout"]
    many = figure([1.0], ChartStyle(marks=marks))["layout"]

    assert (len(few["shapes"]), len(few["annotations"])) == (10, 10)
    assert (len(many["shapes"]), len(many["annotations"])) == (60, 0)
    assert many["shapes"][-1]["x0"] == 199.0


def test_a_chart_says_in_words_what_it_shows():
    said = chart_label("loss", series_of([3.0, math.nan, 1.0, 2.0]))

    assert said == "loss, 4 points, last 2, from 1 to 3, 1 NaN or infinite"
    assert chart_label("loss", series_of([])) == "loss, 0 points"


# ---------------------------------------------------------------- colours


def cards_called(names):
    status = Status(name="finished", why="", sure=True)
    return [RunCard(key=name, place=name, name=name, status=status) for name in names]


@tries
@given(names=st.lists(any_text, min_size=1, max_size=24, unique=True))
def test_no_two_runs_of_a_chart_look_the_same(names):
    found = looks_of_runs(cards_called(names))

    assert len(set(found.values())) == len(names)
    assert looks_of_runs(cards_called(names)) == found


def test_a_run_keeps_its_colour_in_any_company():
    cards = cards_called([f"run-{i}" for i in range(50)])
    found = looks_of_runs(cards)

    assert len(set(found.values())) == 50
    assert {key: colour for key, (colour, _) in found.items()} == {
        card.key: run_colour(card) for card in cards
    }


def test_a_chosen_colour_is_drawn_as_it_is():
    assert shade("#ff8000", 0.5) == "rgba(255,128,0,0.5)"
    assert shade("run-1") == "@run-1"


def test_both_themes_know_every_colour():
    assert set(LIGHT) == set(DARK)


# ---------------------------------------------------------------- the other figures


def test_a_group_has_its_mean_and_spread():
    group = mean_and_spread([series_of([1.0, 1.0, 1.0]), series_of([3.0, 3.0, math.nan]), series_of([])])
    found = groups_figure([("a", group)], log_y=True)

    assert group.mean[0] == 2.0
    assert group.deviation[0] == 1.0
    assert unpacked(found["data"][-1]["y"])[0] == 2.0
    assert is_json(found)
    assert is_json(groups_figure([("a", mean_and_spread([]))]))


def test_bars_and_moments_are_drawn_on_rows_of_their_own():
    bars = [Bar(NASTY, 10.0, 2.0, NASTY), Bar("save", 20.0, 0.0, "x"), Bar("save", 30.0, 1.0, "y")]
    found = bars_figure(bars, "r")

    assert [trace["type"] for trace in found["data"]] == ["bar", "bar", "scatter"]
    assert "<img" not in json.dumps(found)
    assert is_json(bars_figure([], "r"))


def test_non_finite_points_of_several_curves_say_whose_they_are():
    run = NonFiniteRun(kind="NaN", first_x=1.0, last_x=1.0, count=1)
    curves = [
        Curve(series=Series(metric=name, axis="step", segments=(), non_finite=(run,), total=1), label=name)
        for name in ("a", "b")
    ]

    assert trace(curve_figure(curves, ChartStyle()), "NaN")["text"] == ["a: NaN", "b: NaN"]


def _plain(x, y, **more):
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    piece = CurveSegment(x=x, y=y, session=1)
    return Series(
        metric="m",
        axis="step",
        segments=(piece,),
        drawn=len(x),
        total=len(x),
        low=float(y.min()),
        high=float(y.max()),
        percentiles=(float(np.percentile(y, 1)), float(np.percentile(y, 99))),
        **more,
    )


def test_a_spike_between_two_records_is_inside_the_frame_of_a_zoom():
    x = np.arange(400, 601)
    low, high = _plain(x, np.ones(201)), _plain(x, np.where(x == 500, 50.0, 1.1))
    curve = Curve(series=_plain(x, np.linspace(1.0, 1.1, 201)), label="loss", band=(low, high))

    figure = curve_figure([curve], ChartStyle(window=(400.0, 600.0)))

    assert figure["layout"]["yaxis"]["range"][1] > 50


def test_a_spike_between_two_records_is_marked_when_outliers_are_clipped():
    x = np.arange(400, 601)
    low, high = _plain(x, np.ones(201)), _plain(x, np.where(x == 500, 50.0, 1.1))
    curve = Curve(series=_plain(x, np.linspace(1.0, 1.1, 201)), label="loss", band=(low, high))

    figure = curve_figure([curve], ChartStyle(clip=True))

    beyond = [trace for trace in figure["data"] if trace["name"] == "outside the range"]
    assert "50" in [text for trace in beyond for text in trace["customdata"]]


def test_what_was_begun_again_is_not_cut_off_at_the_end():
    again = CurveSegment(x=np.arange(1000.0, 1991.0), y=np.ones(991), session=1)
    series = _plain(np.arange(1101), np.ones(1101), superseded=(again,))

    figure = curve_figure([Curve(series=series, label="loss")], ChartStyle())

    assert figure["layout"]["xaxis"]["autorangeoptions"]["clipmax"] == 1990
