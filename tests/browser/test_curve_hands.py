"""Curves under mouse, fingers and keys, their tooltip and files: charts and server are real, the page is bare."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

import dashboard.components
from dashboard.assets import page_script_url, page_style
from tests.browser.browser_helpers import wait_in
from tests.lengths import in_make_faults
from tests.made_runs import append, step_record, write_run

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
VALUES = np.random.default_rng(4).normal(1.0, 0.1, 3000)
SPIKED = VALUES.copy()
SPIKED[1000] = 6.0
HOSTILE = "<b>&amp; \x01\"']]> \u202e=cmd()"
PLAIN_VIEW = {
    "axis": "step",
    "smoothing": "auto",
    "logX": False,
    "logY": False,
    "marks": True,
    "window": None,
    "statistic": "mean",
}

# A document of the same origin: the charts ask the real route, under the real policy for scripts.
_DOCUMENT = """<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<style>STYLE body { margin: 0; --st-background-color: #fff; --st-text-color: #111; --st-border-color: #ccc; }</style>
<p style="margin: 40px 0"></p><div id="switches"><div class="telemetry-switches"></div></div><div id="charts"></div>
<div style="height: 2000px"></div>
<script type="module">
  import * as page from "URL";
  window.sent = [];
  const component = (parentElement, data) => ({
    data, parentElement, setTriggerValue() {}, setStateValue: (name, value) => window.sent.push([name, value]),
  });
  window.show = (specs, view, answered) => {
    const axes = [["step", "Step"], ["time", "Time"], ["metric:lr", "lr"]];
    page.curve_switches(component(document.getElementById("switches"), { axes, statistics: [], view, answered }));
    for (const spec of specs) {
      const holder = document.createElement("div");
      holder.style.marginTop = "40px";
      holder.appendChild(document.createElement("div")).className = "telemetry-curves";
      document.getElementById("charts").appendChild(holder);
      page.curve_chart(component(holder, spec));
    }
  };
</script>"""


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    for number in range(15):
        level = [number * 0.2] * 50
        write_run(root, f"flat-{number:02}", curves={"train_loss": level}, sessions=[range(50)])
    diverged = [1.0] * 25 + [1e6] * 25
    write_run(root, "diverged", curves={"train_loss": diverged}, sessions=[range(50)])
    write_run(root, "spiked", curves={"train_loss": SPIKED.tolist()}, sessions=[range(3000)])
    write_run(
        root, "live", curves={"train_loss": VALUES[:300].tolist()}, sessions=[range(300)], status="running"
    )
    return serve(root)


def spec(*runs, **more):
    curves = [
        {"run": run, "metric": "train_loss", "label": label, "colour": ["#0072B2", "#56B4E9"], "name": run}
        for run, label in runs
    ]
    return {"title": "train_loss", "curves": curves, "height": 260, "zoom_group": "page", **more}


def open_charts(shown, page, *specs, **view):
    page.goto(shown.url("/_stcore/health"))
    page.set_content(_DOCUMENT.replace("URL", page_script_url()).replace("STYLE", page_style()))
    page.wait_for_function("() => Boolean(window.show)")
    page.evaluate("([specs, view]) => show(specs, view)", [specs, PLAIN_VIEW | view])
    for number, one in enumerate(specs):
        points = len(one["curves"]) + sum(len(group["curves"]) for group in one.get("groups", ()))
        page.wait_for_function(
            """([number, curves]) => {
                const { __chart: chart } = document.querySelectorAll(".telemetry-curves")[number];
                return chart.plot && chart.describe().curves.filter((curve) => curve.points).length === curves;
            }""",
            arg=[number, points],
        )


def seen(page, number=0):
    return page.locator(".telemetry-curves").nth(number).evaluate("root => root.__chart.describe()")


def place_of(page, x_share, y_share=0.5, number=0):
    """Return where in the window a part of a plot is."""
    return (
        page.locator(".telemetry-curves")
        .nth(number)
        .evaluate(
            """(root, [x, y]) => {
            const { plot, overlay } = root.__chart, frame = overlay.getBoundingClientRect();
            return [frame.left + plot.left + x * plot.width, frame.top + plot.top + y * plot.height];
        }""",
            [x_share, y_share],
        )
    )


def wait_for_range(page, condition, number=0):
    page.wait_for_function(
        f"""number => {{
            const chart = document.querySelectorAll(".telemetry-curves")[number].__chart;
            const [low, high] = chart.describe().xRange;
            return {condition};
        }}""",
        arg=number,
    )


def test_a_refresh_in_the_middle_of_a_drag_keeps_the_zoom_and_so_do_the_others(shown, page):
    live = spec(("live", "live"), live=True, refresh=0.1)
    open_charts(shown, page, live, spec(("spiked", "spiked")))
    page.mouse.move(*place_of(page, 0.5))
    page.mouse.down()
    page.mouse.move(*place_of(page, 0.6))
    append(shown.root / "live", [step_record(step, train_loss=1.0) for step in range(300, 400)])
    page.wait_for_function(
        "() => document.querySelector('.telemetry-curves').__chart.describe().curves[0].points === 400"
    )
    page.mouse.move(*place_of(page, 0.75))
    page.mouse.up()

    # It began where step 150 was; that the axis has grown since does not move it.
    wait_for_range(page, "Math.abs(low - 149.5) < 3 && Math.abs(high - 299) < 3")
    wait_for_range(page, "Math.abs(low - 149.5) < 3 && Math.abs(high - 299) < 3", number=1)
    wait_in(page, lambda: page.evaluate("sent.length"))
    [name, view] = page.evaluate("sent.at(-1)")
    assert name == "view"
    assert view["window"] == seen(page)["xRange"]

    page.mouse.dblclick(*place_of(page, 0.5))
    wait_for_range(page, "low === 0 && high === 399")


def test_the_wheel_zooms_with_the_control_key_or_focus_and_else_scrolls_the_page(shown, page):
    open_charts(shown, page, spec(("spiked", "spiked")))
    page.mouse.move(*place_of(page, 0.25))
    page.mouse.wheel(0, 60)
    wait_in(page, lambda: page.evaluate("scrollY") == 60)
    assert seen(page)["xRange"] == [0, 2999]

    page.evaluate("scrollTo(0, 0)")
    page.mouse.move(*place_of(page, 0.25))
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")

    # What was below the cursor stays there.
    wait_for_range(page, "high - low < 2000 && Math.abs(low + 0.25 * (high - low) - 749.75) < 5")
    page.keyboard.down("Shift")
    page.mouse.move(*place_of(page, 0.5))
    page.mouse.down()
    page.mouse.move(*place_of(page, 0.0))
    page.mouse.up()
    page.keyboard.up("Shift")
    wait_for_range(page, "low > 1000")


def test_keys_move_a_cursor_zoom_and_say_the_values(shown, page):
    open_charts(shown, page, spec(("spiked", "loss"), ("flat-03", "flat")))
    root = page.locator(".telemetry-curves")
    said = root.locator("[aria-live]")
    page.keyboard.press("Tab")
    for _ in range(12):
        if root.evaluate("root => document.activeElement === root"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Home")
    wait_in(page, lambda: "step 0" in said.inner_text())
    for _ in range(7):
        page.keyboard.press("+")
    wait_for_range(page, "high - low < 30 && low === 0")
    page.wait_for_function("() => document.querySelector('.telemetry-curves').__chart.near(0)[0].exact")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")

    wait_in(page, lambda: said.inner_text().startswith("loss, step 11: "))
    assert f"{SPIKED[11]:.9g}" in said.inner_text()
    page.keyboard.press("ArrowDown")
    wait_in(page, lambda: said.inner_text() == "flat, step 11: 0.6")
    page.keyboard.press("h")
    wait_in(page, lambda: [curve["hidden"] for curve in seen(page)["curves"]] == [False, True])
    page.keyboard.press("Escape")
    wait_for_range(page, "low === 0 && high === 2999")


def test_two_fingers_zoom_and_pan_one_scrolls_and_a_double_tap_resets(shown, new_page):
    page = new_page(**PHONE)
    open_charts(shown, page, spec(("spiked", "spiked")))
    touch = page.context.new_cdp_session(page)
    x, y = place_of(page, 0.5)

    def fingers(kind, *places):
        touches = [{"x": x + dx, "y": y + dy, "id": number} for number, (dx, dy) in enumerate(places)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})

    fingers("touchStart", (-25, 0), (25, 0))
    for way in range(30, 80, 10):
        fingers("touchMove", (-way, 0), (way, 0))
    fingers("touchEnd")
    wait_for_range(page, "high - low < 1200 && Math.abs(low + high - 2999) < 60")
    [low, _] = seen(page)["xRange"]
    fingers("touchStart", (-25, 0), (25, 0))
    for way in range(10, 60, 10):
        fingers("touchMove", (-25 - way, 0), (25 - way, 0))
    fingers("touchEnd")
    wait_for_range(page, f"low > {low} + 50 && high - low < 1200")
    for _ in range(2):
        page.touchscreen.tap(x, y)
    wait_for_range(page, "low === 0 && high === 2999")
    fingers("touchStart", (0, 0))
    page.locator(".telemetry-tip").wait_for()
    fingers("touchEnd")
    fingers("touchStart", (60, 40))
    for way in range(0, 100, 20):
        fingers("touchMove", (60, 40 - way))
    fingers("touchEnd")
    wait_in(page, lambda: page.evaluate("scrollY") > 20)
    assert seen(page)["xRange"] == [0, 2999]


def test_the_tooltip_lists_runs_by_value_around_the_nearest_as_text(shown, page):
    runs = [(f"flat-{number:02}", HOSTILE if number == 7 else f"run {number}") for number in range(15)]
    open_charts(shown, page, spec(*runs), spec(("spiked", "spiked")))
    # The runs are at 0 to 2.8, with a little room around.
    page.mouse.move(*place_of(page, 0.98, 0.95))
    tip = page.locator(".telemetry-tip")
    tip.wait_for()
    names = tip.locator(".telemetry-tip-name").all_inner_texts()

    assert names == [runs[number][1] for number in range(11, -1, -1)]
    assert tip.locator(".telemetry-tip-nearest").all_inner_texts() == ["run 0", "0"]
    assert "and 3 more" in tip.inner_text()
    assert tip.locator("b").count() == 0
    box = tip.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= page.viewport_size["width"]
    # The chart next to it says what it has at the same step.
    wait_in(page, lambda: page.locator(".telemetry-chip").nth(1).inner_text() != "")


def test_the_tooltip_says_what_was_logged_and_at_a_coarse_level_between_what(shown, page):
    open_charts(shown, page, spec(("spiked", "loss")), window=[990, 1010])
    page.wait_for_function("() => document.querySelector('.telemetry-curves').__chart.near(1000)[0].exact")
    page.mouse.move(*place_of(page, 0.5, 0.1))
    tip = page.locator(".telemetry-tip")
    tip.wait_for()
    assert "step 1,000" in tip.inner_text()
    assert "since the start" in tip.inner_text()
    wait_in(page, lambda: tip.locator(".telemetry-tip-value").inner_text().startswith("6"))

    page.evaluate("window.scrollTo(0, 0)")
    page.mouse.dblclick(*place_of(page, 0.5))
    wait_for_range(page, "low === 0 && high === 2999")
    page.mouse.move(*place_of(page, 0.7))
    wait_in(page, lambda: " in 4 records · smoothed " in tip.inner_text() or "logged" in tip.inner_text())


def test_one_diverged_run_squeezes_no_group_and_a_run_is_subtracted_from_all(shown, page):
    colour = ["#0072B2", "#56B4E9"]
    groups = [
        {"label": label, "colour": colour, "curves": spec(*[(run, run) for run in runs])["curves"]}
        for label, runs in (("one", ("flat-03", "flat-05", "diverged")), ("two", ("flat-01", "flat-02")))
    ]
    grouped = {**spec(), "groups": groups, "fit": True}
    open_charts(shown, page, grouped, {**grouped, "base": "flat-01"})
    charts = page.locator(".telemetry-curves")
    wait_in(page, lambda: charts.nth(0).evaluate("root => root.__chart.describe().isFitted"))
    wait_in(page, lambda: charts.nth(1).evaluate("root => root.__chart.describe().isFitted"))

    assert seen(page)["yRange"][1] < 10
    assert "up to" in seen(page)["outside"]
    middle = "root => root.__chart.groups[1].result.middle[10]"
    assert charts.nth(0).evaluate(middle) == pytest.approx(0.3)
    assert charts.nth(1).evaluate(middle) == pytest.approx(0.1)


def test_a_spike_of_one_step_bends_no_smoothed_line(shown, page):
    open_charts(shown, page, spec(("spiked", "loss")))
    page.wait_for_function("() => document.querySelector('.telemetry-curves').__chart.curves[0].smoothed")
    line = page.locator(".telemetry-curves").evaluate("root => Array.from(root.__chart.curves[0].smoothed.y)")

    assert 0.9 < min(line) < max(line) < 1.1
    assert seen(page)["curves"][0]["high"] == 6.0


def job(x, y, width, cell, weight=None):
    """Return what smooth.js is asked for: half the width, and the length of a cell, in units of x."""
    size = float(x[-1] - x[0])
    ask = {"halfWidth": width, "cells": size / cell, "from": float(x[0]), "to": float(x[-1])}
    return {"x": x.tolist(), "y": y.tolist(), "weight": None if weight is None else weight.tolist(), **ask}


def test_smoothing_takes_away_noise_and_nothing_else(shown, page):
    random = np.random.default_rng(9)
    x = np.arange(1001.0)
    # Every step, then every 50th, and a few records twice as often.
    uneven = np.unique(np.concatenate((x, np.arange(1_000.0, 20_000, 50), np.arange(9_000.0, 9_500, 25))))
    noise = random.normal(1.0, 0.1, 1001)
    spiked = np.where(x == 500, 1e30, noise)
    all_steps = np.arange(20_000.0)
    values = 20 * np.exp(-all_steps / 8_000) + random.exponential(1, 20_000)
    mean_x, means = (one.reshape(-1, 20).mean(axis=1) for one in (all_steps, values))
    jobs = {
        "line": job(uneven, 3 * uneven - 5, 600, 50, np.diff(uneven, prepend=-1)),
        "step": job(x, np.where(x < 500, 0.0, np.where(x > 500, 1.0, 0.5)), 50, 1),
        "noise": job(x, noise, 20, 1),
        "spiked": job(x, spiked, 20, 1),
        "huge": job(x, noise * 1e307, 50, 1),
        "every": job(all_steps, values, 600, 50),
        "folded": job(mean_x, means, 600, 50, np.full(1_000, 20.0)),
        "short": job(x[:2], noise[:2], 20, 1),
    }
    page.goto(shown.url("/_stcore/health"))
    script = Path(dashboard.components.__file__).parent / "curves" / "smooth.js"
    page.add_script_tag(content=script.read_text(encoding="utf-8"))
    answers = page.evaluate(
        "async jobs => (await smoothCurves(jobs)).map(({ x, y }) => [Array.from(x), Array.from(y)])",
        list(jobs.values()),
    )
    found = {name: (np.array(x), np.array(y)) for name, (x, y) in zip(jobs, answers, strict=True)}

    np.testing.assert_allclose(found["line"][1], 3 * found["line"][0] - 5, atol=1e-6)
    step = found["step"][1]
    np.testing.assert_allclose(step + step[::-1], 1.0, atol=1e-12)
    assert (set(step[:449].tolist()), set(step[552:].tolist())) == ({0.0}, {1.0})
    ratio = found["spiked"][1] / np.interp(found["spiked"][0], *found["noise"])
    assert set(ratio[:440].tolist()) == set(ratio[-440:].tolist()) == {1.0}
    assert np.abs(ratio - 1).max() < 0.01
    assert found["noise"][1].std() < noise.std() / 3
    assert np.isfinite(found["huge"][1]).all()
    assert found["huge"][1].max() <= 1e307 * noise.max()
    every, folded = found["every"], found["folded"]
    assert np.abs(every[1] - np.interp(every[0], *folded)).max() < 0.1
    assert found["short"][1].tolist() == noise[:2].tolist()


def test_a_group_counts_each_run_up_to_its_last_step(shown, page):
    page.goto(shown.url("/_stcore/health"))
    script = Path(dashboard.components.__file__).parent / "curves" / "smooth.js"
    page.add_script_tag(content=script.read_text(encoding="utf-8"))
    groups = page.evaluate(
        """async () => {
            const line = (value, count) => ({ x: [...Array(count).keys()], y: Array(count).fill(value) });
            const curves = [line(1, 100), line(2, 50), line(1e6, 100)];
            const ask = (statistic) => groupCurves({ curves, statistic, cells: 100 });
            return Promise.all(["mean", "median", "range"].map(async (statistic) => {
                const { middle, low, high, count, upper } = await ask(statistic);
                return [10, 90].map((at) => [middle[at], low[at], high[at], count[at], upper[at]]);
            }));
        }"""
    )
    mean, median, ends = groups
    assert mean[0][0] == pytest.approx(1_000_003 / 3)
    assert (mean[0][2] - mean[0][0], mean[0][3]) == (pytest.approx(np.std([1, 2, 1e6], ddof=1)), 3)
    # A run counts up to its last step; most of the runs are where the axis goes.
    assert [row[3] for row in median] == [3, 2]
    assert median[0] == [2, 1.5, 500_001, 3, 2]
    assert ends[0][1:3] == [1, 1e6]


def test_saved_files_are_valid_svg_a_picture_and_every_logged_value(shown, page, tmp_path):
    named = spec(("spiked", HOSTILE), ("flat-03", "flat"), heading=f"loss of {HOSTILE}")
    open_charts(shown, page, named, window=[500, 1500])

    def saved(item):
        with page.expect_download() as download:
            page.locator(".telemetry-curves").hover()
            page.locator(".telemetry-save-button").click()
            page.get_by_role("menuitem", name=item).click()
        download.value.save_as(tmp_path / item)
        return tmp_path / item, download.value.suggested_filename

    picture, name = saved("SVG picture")
    words = [text.text for text in ElementTree.parse(picture).iter() if text.tag.endswith("}text")]
    assert name.startswith("loss-of-b-amp")
    assert name.endswith(".svg")
    assert any(HOSTILE.replace("\x01", "\ufffd") == text for text in words)
    assert "flat" in words
    picture, _ = saved("PNG picture")
    head = picture.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width = page.locator(".telemetry-curves").evaluate("root => root.clientWidth")
    assert int.from_bytes(head[16:20], "big") == 2 * width
    table, _ = saved("CSV: all logged values")
    rows = list(csv.DictReader(table.open(encoding="utf-8")))
    assert [(int(row["step"]), float(row["value"])) for row in rows if row["run"] == "spiked"] == [
        (step, SPIKED[step]) for step in range(500, 1501)
    ]


def test_switches_act_at_once_and_settle_later(shown, page):
    open_charts(shown, page, spec(("spiked", "spiked")))
    page.get_by_label("Log x").check()
    assert seen(page)["logX"]
    page.get_by_label("Log y").check()
    slider = page.locator(".telemetry-switch-slider")
    slider.focus()
    page.keyboard.press("ArrowRight")
    wait_in(page, lambda: page.evaluate("sent.length"))

    assert seen(page)["smoothing"] == 0.05
    assert seen(page)["logY"]
    wait_in(page, lambda: page.evaluate("sent.at(-1)[1].smoothing") == 0.05)
    sent = page.evaluate("sent.at(-1)[1]")
    assert (sent["logX"], sent["logY"]) == (True, True)
    page.get_by_label("X axis", exact=True).select_option("Another metric…")
    page.get_by_label("Metric for the x axis").fill("train_loss")
    page.keyboard.press("Enter")
    wait_in(page, lambda: seen(page)["axis"] == "metric:train_loss")

    # The answer to an older change does not undo a newer one, while a newer answer counts.
    older = {name: value for name, value in sent.items() if name != "at"}
    page.evaluate("([view, at]) => show([], view, at)", [older, sent["at"]])
    assert seen(page)["axis"] == "metric:train_loss"
    page.evaluate("([view, at]) => show([], view, at)", [older, sent["at"] + 1e9])
    assert seen(page)["axis"] == "step"


@in_make_faults
def test_on_a_phone_the_switches_are_behind_one_button(shown, new_page):
    page = new_page(**PHONE)
    open_charts(shown, page, spec(("spiked", "spiked")))
    assert not page.get_by_label("Log y").is_visible()
    page.get_by_role("button", name="View").tap()
    page.get_by_label("Log y").check()
    assert seen(page)["logY"]
    page.touchscreen.tap(*place_of(page, 0.5))
    page.get_by_label("Log y").wait_for(state="hidden")
