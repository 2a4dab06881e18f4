"""Charts of curves: nothing is hidden at any zoom, and a lost route is a picture."""

import math
from pathlib import Path

import pytest

from tests.browser.browser_helpers import Dashboard, Watch, settle, wait_for_query
from tests.dashboard.serving import Started, fork_dashboard
from tests.made_runs import write_run
from tests.project.markdown import ROOT

SPIKE = 1_000
HERE = Path(__file__).parent


def loss(step):
    if step == 1_500 or 700 <= step < 720:
        return math.nan
    if step == 300:
        return math.inf
    if step == SPIKE:
        return 9.75
    return 1 + math.exp(-step / 400) + 0.05 * math.sin(step * 12.9898) * math.cos(step * 78.233)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    curves = {"train_loss": loss, "grad_norm": lambda step: math.sin(step * 1.7)}
    write_run(root, "spiky", curves=curves, sessions=[range(2_000), range(1_800, 2_600)])
    command = [str(HERE / "serve_curves.py"), str(HERE / "curves_page.py"), "--port", "0", "--no-browser"]
    started = Started(
        [*command, "--log-dir", str(root)],
        tmp_path_factory.mktemp("dashboard"),
        environ={"PYTHONPATH": str(ROOT)},
        start=fork_dashboard,
    )
    started.wait_until_ready()
    yield Dashboard(started, root)
    started.__exit__()


@pytest.fixture(scope="module")
def shared(served, contexts):
    """One tab for the tests that change nothing but the view: a page takes longer to open than all of them."""
    page = contexts().new_page()
    watch = Watch(page)
    yield page
    page.close()
    watch.check()


@pytest.fixture
def charts(served, shared):
    """Return a function that evaluates JavaScript with `chart` and `other`, both as they are at first."""
    if "run=spiky" not in shared.url:
        served.open(shared, "/", run="spiky")
        two = "() => document.querySelectorAll('.telemetry-curves[data-drawn]').length === 2"
        shared.wait_for_function(two)
    asking(shared)("view.set(plain, false); chart.showsAll = false; await rest();")
    return asking(shared)


def asking(page):
    return lambda script: page.evaluate(_WITH_CHARTS.replace("SCRIPT", script))


_WITH_CHARTS = """async () => {
    const [chart, other] = [...document.querySelectorAll('.telemetry-curves')].map((root) => root.__chart);
    const view = window.__telemetryView, store = window.__telemetryCurves;
    const plain = { axis: "step", smoothing: "auto", logX: false, logY: false, marks: true, window: null };
    const isPart = (feed) => feed.version === null || feed.whole < 1;
    const isReading = () => [...chart.feeds(), ...other.feeds()].some(isPart);
    const rest = async () => {
        for (let quiet = 0; quiet < 3; ) {
            await new Promise((go) => requestAnimationFrame(() => setTimeout(go, 20)));
            quiet = store.inFlight || store.timer || chart.isThinking || isReading() ? 0 : quiet + 1;
        }
        for (const one of [chart, other]) { one.draw(); clearTimeout(one.saying); one.say(one.lastFrame, true); }
    };
    SCRIPT
}"""

# Is there ink in the column of the spike, just below its top?
_INK = """
    const inkAt = (x, y, down = 3) => {
        const ratio = chart.canvas.width / chart.canvas.clientWidth;
        const px = Math.round((chart.xScale.toPx(x) - 4) * ratio);
        const py = Math.round((chart.yScale.toPx(y) + down) * ratio), tall = Math.max(3, -2 * down);
        const data = chart.canvas.getContext('2d').getImageData(px, py, Math.round(8 * ratio), tall).data;
        return data.some((value, place) => place % 4 === 3 && value > 30);
    };
"""


def test_a_chart_shows_every_kind_of_value_and_says_so(charts, shared):
    found = charts("await rest(); return chart.describe();")
    (curve,) = found["curves"]
    assert (curve["points"], curve["nonFinite"], curve["high"]) == (2_800, 22, 9.75)
    assert curve["pieces"] == [[1, False, 1_800], [1, True, 200], [2, False, 800]]
    assert curve["isSmoothed"]
    assert found["xRange"] == [0, 2_599]
    assert found["isFitted"]
    assert found["yRange"][1] < 3
    assert found["outside"].startswith("▲ up to 9.75")
    assert found["notes"] == ["1 Infinity, 21 NaN"]
    assert [mark["x"] for mark in found["marks"]] == [1_800]
    label = shared.locator(".telemetry-curves").first.get_attribute("aria-label")
    assert label.startswith("train_loss, 2,800 points, last ")
    assert label.endswith("to 9.75, 22 NaN or infinite")


def test_the_spike_is_painted_at_every_zoom_and_exact_at_the_last(charts):
    for window in ("null", "[500, 1500]", "[950, 1050]", "[995, 1005]"):
        painted = charts(
            _INK + f"chart.setWindow({window}, false); chart.showsAll = true; await rest();"
            f" return [inkAt({SPIKE}, 9.75), chart.yRange[1] > 9.75];"
        )
        assert painted == [True, True], window
    near = charts(f"return chart.near({SPIKE}).map((row) => [row.x, row.y, row.exact]);")
    assert near == [[SPIKE, 9.75, True]]


def test_a_zoom_is_in_the_address_and_in_all_charts_and_comes_back_with_the_link(charts, shared):
    page = shared
    charts("chart.setWindow([100, 200], true);")
    wait_for_query(page, "Number(q.get('from')) === 100 && Number(q.get('to')) === 200")
    assert charts("await rest(); return other.xRange;") == [100, 200]
    page.reload()
    settle(page)
    page.wait_for_selector(".telemetry-curves[data-drawn]")
    assert charts("await rest(); return [chart.xRange, chart.describe().level];") == [[100, 200], 0]


def test_log_axes_show_what_is_positive_and_count_the_rest(charts):
    found = charts("view.set({logX: true, logY: true}, false); await rest(); return other.describe();")

    assert (found["logX"], found["logY"]) == (True, True)
    assert found["xRange"] == [1, 2_599]
    assert 0 < found["yRange"][0] < found["yRange"][1]
    assert any(note.endswith("values ≤ 0 are not shown on a log axis") for note in found["notes"])
    assert charts("return chart.near(1)[0].x;") == 1


def test_other_axes_have_the_same_values_at_other_places(charts):
    time = charts("view.set({axis: 'time'}, false); await rest(); return chart.describe();")
    assert time["xRange"][0] == 1_700_000_000.0
    assert [mark["x"] for mark in time["marks"]] == [1_700_001_000.0]
    elapsed = charts("view.set({axis: 'elapsed'}, false); await rest(); return chart.describe();")
    assert elapsed["xRange"][0] == 0
    assert elapsed["curves"][0]["points"] == 2_800
    said = "await rest(); return [chart.message.textContent, chart.describe().notes];"
    assert charts(f"view.set({{axis: 'epoch'}}, false); {said}") == ["This run has logged no epochs.", []]
    assert charts(f"view.set(plain, false); {said}")[0] == ""


def test_a_hidden_curve_leaves_the_axis_to_the_others(charts, shared):
    before = charts("await rest(); return other.yRange;")
    entry = shared.get_by_role("button", name="train_loss", exact=True)
    entry.click()
    after = charts("await rest(); return [other.yRange, other.describe().curves.map((one) => one.hidden)];")

    assert before[1] > 9
    assert after[0][1] < 2
    assert after[1] == [True, False]
    entry.click()


def test_without_the_route_the_page_says_so_and_shows_a_picture_until_it_is_back(served, new_page):
    page = new_page()
    page.route("**/curves?*", lambda route: route.abort())
    served.open(page, "/", run="spiky")
    page.wait_for_selector(".telemetry-curves-picture svg path.line")

    said = page.locator(".telemetry-curves-message").first.inner_text()
    assert said == "The curves could not be loaded: the server did not answer. A picture is shown instead."
    page.unroute("**/curves?*")
    page.wait_for_selector(".telemetry-curves:not(.telemetry-curves-broken)[data-drawn]")
    new_page.watches[-1][1].trouble.clear()


# ---------------------------------------------------------------- any values: last, because the charts keep them

# Draws `values` (null for NaN) at the steps 0, 1, 2 … as if the server had sent them, and returns what is shown.
_SHOW = """
    let sent = 0;
    const show = (values, changes = {}, look = {}) => {
        const feed = chart.curves[0].feed, count = values.length, room = Math.ceil(count / 2) * 8;
        const buffer = new ArrayBuffer(16 * count + room);
        new Float64Array(buffer, 0, count).set(values.map((_, step) => step));
        new Float64Array(buffer, 8 * count, count).set(values.map((value) => (value === null ? NaN : value)));
        new Float32Array(buffer, 16 * count, count).fill(1);
        feed.isTimed = false;
        const finite = values.filter((value) => value !== null);
        sent += 1;
        const pieces = count ? [[1, 0, count, 0, count - 1]] : [];
        const blocks = count ? [{ piece: 0, level: 0, first: 0, count, type: "f8", at: 0 }] : [];
        feed.take({
            version: `made ${sent}`, pieces, blocks, smooth: false, whole: 1, problem: null,
            non_finite: [], ranges: [],
            low: finite.length ? Math.min(...finite) : null, high: finite.length ? Math.max(...finite) : null,
        }, { buffer, start: 0 }, { fit: 800 });
        feed.again = false;
        Object.assign(chart.spec, { fit: false, from_zero: false, limits: [], levels: [], marks: [] }, changes);
        Object.assign(view, { logX: false, logY: false, window: null }, look);
        Object.assign(chart, { yWindow: null, showsAll: false });
        chart.draw();
        return chart.describe();
    };
"""


def test_ranges_of_the_y_axis_keep_their_promises(charts):
    found = charts(
        _SHOW
        + """
        await rest();
        const out = { constants: [] };
        for (const value of [1e-4, 0, 1e8, -3.5, 1e-12, 1e300]) for (const window of [null, [2, 30]]) {
            const { yRange } = show(Array(40).fill(value), {}, { window });
            out.constants.push([value, ...yRange]);
        }
        out.noise = show(Array.from({ length: 40 }, (_, i) => 1e-4 * (1 + (i % 2) * 1e-12))).yRange;
        out.zero = [5, 0, 1e-6, -2].map((value) => show(Array(40).fill(value), { from_zero: true }).yRange);
        out.limit = show(Array(40).fill(5), { limits: [[80, "80 GB"]] }).yRange;
        const falling = Array.from({ length: 2000 }, (_, i) => 1 + Math.exp(-i / 400) + 0.02 * Math.sin(i * 12.9898));
        const spiky = [...falling]; spiky[3] = 60; spiky[900] = 9;
        out.fitted = show(spiky, { fit: true });
        const rising = [...falling]; rising.fill(50, 1960);
        out.end = show(rising, { fit: true }).isFitted;
        out.plain = show(falling, { fit: true }).isFitted;
        out.few = show([100, ...Array(20).fill(1)], { fit: true }).isFitted;
        out.empty = [[], [null, null], [1], [Infinity, 1, -Infinity]].map((values) => show(values).yRange);
        const decades = Array.from({ length: 200 }, (_, i) => 10 ** (-8 + (11 * i) / 199));
        out.log = show([-5, 0, ...decades], {}, { logY: true });
        return out;
        """
    )

    for value, low, high in found["constants"]:
        assert low < value < high
        assert high - low <= max(0.5 * abs(value), 2.0 if value == 0 else 0.0)
    assert found["noise"] == pytest.approx([0.8e-4, 1.2e-4])
    assert found["zero"] == [pytest.approx(frame) for frame in ([0, 6], [0, 1], [0, 1.2e-6], [-2.4, 0])]
    assert found["limit"][0] < 5 < 80 < found["limit"][1]
    assert found["fitted"]["outside"].startswith("▲ up to 60")
    assert 1.8 < found["fitted"]["yRange"][1] < 4
    assert found["fitted"]["marked"] == 2
    assert (found["end"], found["plain"], found["few"]) == (False, False, False)
    assert all(low < high for low, high in found["empty"])
    assert found["log"]["yRange"][0] <= 1e-8
    assert found["log"]["yRange"][1] >= 1e3


def test_nothing_leaves_a_fitted_range_without_a_mark_and_any_values_have_an_ascending_axis(charts):
    wrong = charts(
        _SHOW
        + """
        await rest();
        let seed = 1;
        const random = () => { seed = (seed * 16807) % 2147483647; return seed / 2147483647; };
        const odd = [0, -1, 1, null, 5e-324, 1e30, -1e30, 1.7e308];
        for (let round = 0; round < 150; round += 1) {
            const size = 1 + Math.floor(random() * 90), scale = 10 ** (random() * 12 - 6);
            const values = Array.from({ length: size }, () => {
                const kind = random();
                if (round % 2 && kind < 0.1) return odd[Math.floor(random() * odd.length)];
                return (random() - (round % 3 ? 0 : 0.5)) * scale * (kind > 0.97 ? 1e4 : 1);
            });
            const shown = show(values, { fit: true, from_zero: round % 5 === 0 }, { logY: round % 7 === 0 });
            const [low, high] = shown.yRange;
            if (!(low < high)) return ["range", values, shown.yRange];
            if (!shown.isFitted) continue;
            const outside = values.filter((value) => value !== null && (value < low || value > high)).length;
            if (shown.marked !== outside) return ["marks", values, shown];
            if (/▲/.test(shown.outside) !== values.some((value) => value > high)) return ["up", values, shown];
        }
        return null;
        """
    )

    assert wrong is None


def test_labels_of_marks_neither_overlap_nor_leave_the_chart(charts):
    wrong = charts(
        _SHOW
        + """
        await rest();
        let seed = 7;
        const random = () => { seed = (seed * 16807) % 2147483647; return seed / 2147483647; };
        for (let round = 0; round < 40; round += 1) {
            const text = round % 2 ? "Slower than before" : "lr", count = 1 + Math.floor(random() * 10);
            const marks = Array.from({ length: count }, (_, i) => ({ step: random() * 99, text: `${text} ${i}` }));
            const { labels } = show(Array.from({ length: 100 }, (_, i) => i), { marks });
            const spans = labels.map((one) => [one.start, one.end]).sort((a, b) => a[0] - b[0]);
            let free = chart.plot.left - 1;
            for (const [start, end] of spans) {
                if (start < free || end > chart.plot.left + chart.plot.width + 1) return [marks, spans];
                free = end;
            }
            if (labels.flatMap((one) => one.texts).length !== marks.length) return ["lost", marks, labels];
        }
        const many = Array.from({ length: 60 }, (_, i) => ({ step: i, text: String(i) }));
        const shown = show(Array.from({ length: 100 }, (_, i) => i), { marks: many });
        return shown.marks.length === 60 && shown.labels.length === 0 ? null : shown;
        """
    )

    assert wrong is None


# Gives the first chart's curve made pieces: each has blocks {level, x, y} or {level, x, low, high, bad}, and `points`.
_GIVE = (
    _SHOW
    + """
    const give = (pieces, { ask = { fit: 800 }, version = "", changes = {}, look = {}, ...more } = {}) => {
        const feed = chart.curves[0].feed, data = [], blocks = [], add = (list, kind) => {
            const padded = new Uint8Array(Math.ceil((list.length * kind.BYTES_PER_ELEMENT) / 8) * 8);
            new kind(padded.buffer, 0, list.length).set(list.map((value) => (value === null ? NaN : value)));
            data.push(...padded);
        };
        const named = pieces.map(([session, superseded, points, ends, ...own], piece) => {
            for (const { level, first = 0, x, y, low, high, bad } of own) {
                blocks.push({ piece, level, first, count: x.length, type: "f8", at: data.length });
                add(x, Float64Array);
                for (const list of level ? [low, high, low] : [y]) add(list, Float64Array);
                add(x.map(() => 1), Float32Array);
                if (level) add(bad || x.map(() => 0), Uint32Array);
            }
            return [session, superseded, points, ...ends];
        });
        feed.isTimed = false;
        const answer = { pieces: named, blocks, smooth: false, whole: 1, problem: null, low: 0, high: 1,
            non_finite: [], ranges: [], ...more };
        feed.take({ version: version || `given ${sent += 1}`, ...answer },
            { buffer: Uint8Array.from(data).buffer, start: 0 }, ask);
        Object.assign(feed, { again: false, asked: new Set() });
        Object.assign(chart.spec, { fit: false, levels: [], marks: [] }, changes);
        Object.assign(view, { logX: false, logY: false, window: null }, look);
        Object.assign(chart, { yWindow: null, showsAll: false });
        chart.draw();
        return chart.describe();
    };
    const count = (to, from = 0) => Array.from({ length: to - from }, (_, i) => from + i);
"""
)


def test_much_that_is_new_comes_in_buckets_and_none_of_them_is_taken_for_a_point(charts):
    found = charts(
        _GIVE
        + """
        await rest();
        const bucket = (many) => ({ level: 3, x: count(many).map((i) => 64 * i), low: count(many), high: count(many) });
        give([[1, 0, 6400, [0, 6399], bucket(100)]], { version: "same" });
        give([[1, 0, 64000, [0, 63999], bucket(1000)]], { version: "same", ask: { after: [6400], version: "same" } });
        const { xRange, curves } = chart.describe();
        return [xRange, curves[0].points, chart.curves[0].feed.pieces[0].tail];
        """
    )

    assert found == [[0, 63_999], 64_000, None]


def test_points_without_a_place_at_either_end_hide_no_other(charts):
    found = charts(
        _GIVE
        + """
        await rest();
        const out = [];
        // Not logged yet, as coarse and as single points; NaN at the end of a run that diverged.
        const [x, one, two] = [[null, 0, 16, 32], [1, 2, 3, 4], [2, 3, 4, 9]];
        out.push(give([[1, 0, 64, [null, 48], { level: 2, x, low: one, high: two }]]));
        out.push(give([[1, 0, 4, [null, 32], { level: 0, x, y: one }]]));
        out.push(give([[1, 0, 64, [0, null], { level: 2, x: [0, 16, 32, 48], low: one, high: two }]],
            { look: { window: [10, 40] } }));
        out.push(give([[1, 0, 2, [null, null], { level: 0, x: [null, null], y: [1, 2] }]]));
        return out.map(({ xRange, yRange, curves }) => [xRange, yRange[1] > 3, curves[0].drawn > 2]);
        """
    )

    assert found == [
        [[0, 48], True, True],
        [[0, 32], True, True],
        [[10, 40], True, True],
        [[0, 1], False, False],
    ]
    assert charts("await rest(); chart.say(chart.lastFrame, true); return chart.message.textContent;") == (
        "This run has logged no step."
    )


def test_a_clock_that_was_set_back_once_leaves_the_zoom_exact(charts):
    wanted = charts(
        _GIVE
        + """
        await rest();
        const x = count(1000).map((i) => 64 * i);
        x[500] -= 100;
        give([[1, 0, 64000, [0, 63999], { level: 3, x, low: x, high: x }]], { look: { window: [6400, 6500] } });
        const feed = chart.curves[0].feed, wanted = [...feed.wanted.values()];
        feed.wanted.clear();
        return wanted;
        """
    )

    assert wanted == [[0, 0, 12]]


def test_between_two_points_the_line_is_where_it_belongs(charts):
    found = charts(
        _INK
        + _GIVE
        + """
        await rest();
        const points = { level: 0, x: [0, 100000], y: [5, 15] };
        const { yRange } = give([[1, 0, 2, [0, 100000], points]], { look: { window: [20000, 20010] } });
        return [yRange, inkAt(20005, 7.0005, -5), inkAt(20005, 11.3, -5)];
        """
    )

    assert found[0][0] < 7 < found[0][1]
    assert found[1:] == [True, False]


def test_a_group_loses_nothing_on_a_log_axis(charts):
    found = charts(
        _INK
        + _GIVE
        + """
        await rest();
        give([[1, 0, 101, [0, 100], { level: 0, x: count(101), y: count(101) }]]);
        const result = { x: [0, 50, 100], middle: [1, 1, 1], low: [0.5, -0.5, 0.5], high: [2, 2, 2], count: [2, 2, 2] };
        const group = { label: "g", colour: "#000000", curves: [], spec: { curves: [] }, hidden: false, result };
        Object.assign(chart, { groups: [group], members: [{ ...chart.curves[0], group }] });
        chart.smoothKey = null;
        chart.think = () => {};
        Object.assign(view, { logY: true });
        chart.draw();
        const g = chart.canvas.getContext("2d"), ratio = chart.canvas.width / chart.canvas.clientWidth;
        const at = (x, y) => g.getImageData(chart.xScale.toPx(x) * ratio, chart.yScale.toPx(y) * ratio, 1, 1).data[3];
        const band = at(50, chart.yRange[0] * 1.02) > 20;
        delete chart.think;
        Object.assign(chart, { groups: [], members: [], smoothKey: "" });
        return band;
        """
    )

    assert found


def test_every_one_of_very_many_nan_is_marked_and_a_bucket_says_how_many_it_has(charts):
    found = charts(
        _GIVE
        + """
        await rest();
        const joined = count(600).map((i) => ["NaN", 100 * i, 100 * i + 50, 5]), x = count(60000, 0);
        const y = x.map((i) => (i % 10 ? 1 : null));
        const exact = { level: 0, x: x.slice(0, 1000), y: y.slice(0, 1000) };
        const { markedNonFinite } = give([[1, 0, 1000, [0, 999], exact]],
            { look: { window: [1, 49] }, non_finite: joined, ranges: [] });
        const coarse = { level: 1, x: [0, 4], low: [123456792, 5], high: [987654336, 5], bad: [3, 0] };
        give([[1, 0, 5, [0, 4], coarse]], { non_finite: [], ranges: [] });
        return [markedNonFinite, ...[0, 4].map((at) => chart.near(at)[0]).map((row) => [row.count, row.bad])];
        """
    )

    assert found == [4, [4, 3], [1, 0]]
