"""Reading one run: smoothing, axes, zoom, and the one sample in a million."""

from __future__ import annotations

import math
import re

import pytest
from playwright.sync_api import expect

from tests.browser.browser_helpers import (
    chart,
    double_click,
    drag,
    figure,
    hover,
    place_of,
    query,
    trace,
    wait_for_chart,
    wait_for_query,
)
from tests.dashboard.run_folders import write_run
from tests.lengths import in_make_faults
from toolkit.runs.formatting import duration

# tests/browser/test_main_paths.py reads a run in `make test`.
pytestmark = in_make_faults

STEPS = 3_000
MILLION = 1_000_000
SPIKE_AT, SPIKE = 637_911, 91.25
AS_LOGGED = "train loss (as logged)"
_HAS_EVERY_STEP = f"""trace.name === {AS_LOGGED!r}
    && trace.x.filter(x => figure.range[0] <= x && x <= figure.range[1]).length
        === Math.floor(figure.range[1]) - Math.ceil(figure.range[0]) + 1"""


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    write_run(
        root,
        "finished",
        curves={
            "train_loss": lambda step: 2.0 / (1.0 + step / 50.0) + 0.05 * (step % 7),
            "val_loss": lambda step: 2.3 / (1.0 + step / 50.0),
            "lr": lambda step: 1e-4 * (1 - step / STEPS),
            "grad_norm": lambda step: 1.0 + step % 3,
            "epoch": lambda step: step / 1000,
        },
        sessions=(range(STEPS),),
    )
    return serve(root)


def choose_smoothing(page, strength):
    page.get_by_role("combobox", name="Smoothing").click()
    page.get_by_role("option", name=strength, exact=True).click()


def inside(curve, low, high):
    return [x for x in curve["x"] if low <= x <= high]


def test_smoothing_and_axes_are_drawn_and_kept_in_the_address(shown, page):
    shown.open(page, "/overview", run="finished")
    before = figure(page, "Loss")
    middle = len(trace(before, "train loss")["y"]) // 2
    choose_smoothing(page, "10%")
    wait_for_query(page, "q.get('smooth') === '10%'")
    after = wait_for_chart(
        page,
        "Loss",
        "figure.traces.find(trace => trace.name === 'train loss')"
        f".y[{middle}] !== {trace(before, 'train loss')['y'][middle]!r}",
    )

    assert trace(after, AS_LOGGED)["y"] == trace(before, AS_LOGGED)["y"]

    page.get_by_text("Log y").click()
    wait_for_chart(page, "Loss", "figure.y === 'log'")
    wait_for_query(page, "q.get('log') === 'true'")
    axis = page.locator('[data-testid="stButtonGroup"]', has_text="Epoch")
    axis.get_by_text("Time").click()
    assert wait_for_chart(page, "Loss", "figure.x === 'date'")["y"] == "log"
    wait_for_query(page, "q.get('x') === 'Time'")
    axis.get_by_text("Epoch").click()
    along = wait_for_chart(page, "Loss", "figure.x === 'linear' && figure.range[1] < 4")

    assert max(trace(along, AS_LOGGED)["x"]) == pytest.approx((STEPS - 1) / 1000, rel=1e-6)
    wait_for_query(page, "q.get('x') === 'Epoch'")
    assert query(page) == {"run": "finished", "smooth": "10%", "log": "true", "x": "Epoch"}


def test_a_drag_zooms_every_chart_brings_detail_and_a_double_click_undoes_it(shown, page):
    shown.open(page, "/overview", run="finished")
    before = figure(page, "Loss")
    drag(page, "Loss", 0.3, 0.5)
    wait_for_query(page, "q.has('from') && q.has('to')")
    # The drag alone shows the part that was chosen; its points come from the server.
    zoomed = wait_for_chart(page, "Loss", f"figure.traces.some(trace => {_HAS_EVERY_STEP})")
    low, high = zoomed["range"]

    assert 600 < low < 1200 < high < 1800
    assert float(query(page)["from"]) == pytest.approx(low)
    assert float(query(page)["to"]) == pytest.approx(high)
    every = list(range(math.ceil(low), math.floor(high) + 1))
    assert inside(trace(zoomed, AS_LOGGED), low, high) == every
    assert len(inside(trace(before, AS_LOGGED), low, high)) < len(every)
    for title in ("Gradient norm", "Learning rate"):
        followed = f"Math.abs(figure.range[0] - {low}) < 1e-3 && Math.abs(figure.range[1] - {high}) < 1e-3"
        wait_for_chart(page, title, followed)

    double_click(page, "Loss")
    wait_for_query(page, "!q.has('from') && !q.has('to')")

    for title in ("Loss", "Gradient norm", "Learning rate"):
        low, high = wait_for_chart(page, title, "figure.range[1] - figure.range[0] > 2900")["range"]
        assert low <= 0
        assert high >= STEPS - 1


def test_a_zoom_that_came_with_the_address_is_undone_by_one_double_click(shown, page):
    shown.open(page, "/overview", **{"run": "finished", "from": 1000, "to": 1200})
    assert figure(page, "Loss")["range"] == [1000, 1200]

    double_click(page, "Loss")

    wait_for_query(page, "!q.has('from') && !q.has('to')")
    wait_for_chart(page, "Loss", "figure.range[1] - figure.range[0] > 2900")


def test_a_click_in_the_legend_hides_a_curve(shown, page):
    shown.open(page, "/overview", run="finished")
    chart(page, "Loss").locator(".legendtoggle").last.click(force=True)
    hidden = wait_for_chart(page, "Loss", "figure.traces.some(trace => trace.visible === 'legendonly')")

    assert [curve["name"] for curve in hidden["traces"] if curve["visible"] == "legendonly"] == [
        "validation loss"
    ]


_Y = "div => ({range: div._fullLayout.yaxis.range, all: div._fullLayout.yaxis.autorange})"


def test_a_spike_does_not_fill_the_chart_and_a_double_click_shows_it(shown, page):
    write_run(shown.root, "spike", curves={"train_loss": _with_a_spike}, sessions=(range(STEPS),))
    shown.open(page, "/overview", run="spike")
    loss = wait_for_chart(page, "Loss", "figure.notes.some(note => note.includes('up to 500'))")
    top = max(trace(loss, "outside the range")["y"])
    fitted = chart(page, "Loss").evaluate(_Y)

    assert top == pytest.approx(fitted["range"][1])
    assert fitted["range"][1] < 10
    place = place_of(page, "Loss")
    assert place["y"] + place["height"] <= 900, "above the fold"

    double_click(page, "Loss")
    wait_for_y(page, "axis.autorange && axis.range[1] > 500")
    # Within half a second it would be the third click of one series.
    page.wait_for_timeout(1_000)
    double_click(page, "Loss")
    wait_for_y(page, f"Math.abs(axis.range[1] - {top}) < 1e-6")

    # Down, and hardly to the side: a part of the y axis.
    middle = place["x"] + place["width"] / 2
    page.mouse.move(middle, place["y"] + place["height"] * 0.2)
    page.mouse.down()
    page.mouse.move(middle + 2, place["y"] + place["height"] * 0.7, steps=8)
    page.mouse.up()
    wait_for_y(page, f"axis.range[1] < {top} - 0.1 && axis.range[0] > {fitted['range'][0]} + 0.1")
    assert "from" not in query(page)
    double_click(page, "Loss")
    wait_for_y(page, f"Math.abs(axis.range[1] - {top}) < 1e-6")


def wait_for_y(page, condition):
    page.wait_for_function(
        f"""() => {{
            const axis = document.querySelector('.telemetry-chart[aria-label^="Loss,"]')._fullLayout.yaxis;
            return {condition};
        }}"""
    )


def _with_a_spike(step):
    return 500.0 if step == 2 else 1.0 + math.exp(-step / 500) + 0.05 * (step * 7919 % 13)


def test_hovering_names_the_logged_and_the_smoothed_value(shown, page):
    shown.open(page, "/overview", run="finished")
    text = hover(page, "Loss", 0.5, 0.5)
    tip = page.locator(".telemetry-tip")

    step = int(re.search(r"step ([\d,]+)", text)[1].replace(",", ""))
    logged = 2.0 / (1.0 + step / 50.0) + 0.05 * (step % 7)
    assert f"logged {logged:.6g} · smoothed" in text
    assert f"{duration(step / 2)} since the start" in text
    # Of the other curve the nearest record that is drawn, and where that is if elsewhere.
    value, elsewhere = re.search(r"validation loss\nlogged ([\d.]+)(?: at ([\d,]+))?", text).groups()
    at = step if elsewhere is None else int(elsewhere.replace(",", ""))
    assert value == f"{2.3 / (1.0 + at / 50.0):.6g}"
    # The other charts follow with a line and a value, and without a box over what they draw.
    follower = chart(page, "Gradient norm")
    expect(follower).to_have_class(re.compile("telemetry-follows"))
    expect(follower.locator(".telemetry-chip")).to_have_text(re.compile(r"^[123]$"))

    # It goes away with the mouse, and when the chart is zoomed.
    page.mouse.move(5, 5)
    expect(tip).to_have_count(0)
    drag(page, "Loss", 0.3, 0.5)
    wait_for_query(page, "q.has('from')")
    expect(tip).to_have_count(0)


def test_a_thumb_on_a_chart_scrolls_the_page(shown, new_page):
    page = new_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    shown.open(page, "/overview", run="finished")
    chart(page, "Loss").scroll_into_view_if_needed()
    place = place_of(page, "Loss")
    before = page.evaluate("document.querySelector('[data-testid=\"stMain\"]').scrollTop")
    hand = page.context.new_cdp_session(page)
    x, y = place["x"] + place["width"] / 2, min(place["y"] + place["height"] / 2, 700)
    hand.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for moved in range(10, 160, 10):
        hand.send(
            "Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [{"x": x, "y": y - moved}]}
        )
        page.wait_for_timeout(20)
    hand.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    page.wait_for_function(
        "before => document.querySelector('[data-testid=\"stMain\"]').scrollTop > before + 50", arg=before
    )
    assert "from" not in query(page)
    assert page.locator(".telemetry-chart .modebar").count() == 0


def test_one_sample_in_a_million_is_seen(shown, page):
    folder = write_run(shown.root, "million", [], sessions=(range(MILLION),))
    with (folder / "metrics.jsonl").open("w") as file:
        for start in range(0, MILLION, 100_000):
            file.writelines(_lines(start, start + 100_000))
    page.goto(shown.url("/overview", run="million"))
    loss = wait_for_chart(page, "Loss", f"figure.traces[0].x.at(-1) === {MILLION - 1}", timeout=180_000)
    # Noise without a trend is not smoothed.
    curve = trace(loss, "train loss")
    top = max(curve["y"])

    assert top == SPIKE
    assert curve["x"][curve["y"].index(top)] == SPIKE_AT
    assert len(curve["x"]) < 5_000

    page.goto(shown.url("/overview", **{"run": "million", "from": SPIKE_AT - 500, "to": SPIKE_AT + 500}))
    low, high = SPIKE_AT - 500, SPIKE_AT + 500
    curve = trace(wait_for_chart(page, "Loss", f"figure.range[0] === {low}"), "train loss")

    assert inside(curve, low, high) == list(range(low, high + 1))
    assert curve["y"][curve["x"].index(SPIKE_AT)] == SPIKE


def _lines(start, end):
    for step in range(start, end):
        loss = SPIKE if step == SPIKE_AT else 1.0 + (step * 7919 % 1000) / 1000
        yield (
            f'{{"event":"step","time":{1_700_000_000 + step / 2},"seq":{step},"session":1,'
            f'"global_step":{step},"train_loss":{loss}}}\n'
        )
