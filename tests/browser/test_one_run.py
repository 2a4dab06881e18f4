"""Reading one run: smoothing, axes, zoom, and the one sample in a million."""

from __future__ import annotations

import math

import pytest

from tests.browser.browser_helpers import (
    chart,
    curves,
    double_click,
    drag,
    place_of,
    query,
    wait_for_curves,
    wait_for_query,
)
from tests.lengths import in_make_faults
from tests.made_runs import write_run

# tests/browser/test_main_paths.py reads a run in `make test`.
pytestmark = in_make_faults

STEPS = 3_000
MILLION = 1_000_000
SPIKE_AT, SPIKE = 637_911, 91.25


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
    write_run(root, "live", status="running", age_s=-600.0)
    return serve(root)


def test_smoothing_and_axes_are_drawn_and_kept_in_the_address(shown, page):
    shown.open(page, "/overview", run="finished")
    wait_for_curves(page, "Loss", "seen.curves[0].isSmoothed")
    page.get_by_role("slider", name="Smoothing").fill("5")
    wait_for_curves(page, "Loss", "seen.smoothing === 0.1")
    wait_for_query(page, "q.get('smooth') === '10%'")
    page.get_by_role("checkbox", name="Log y").check()
    assert wait_for_curves(page, "Loss", "seen.logY")["yRange"][0] > 0
    wait_for_query(page, "q.get('log') === 'true'")
    axis = page.get_by_role("combobox", name="X axis")
    axis.select_option(label="Time")
    wait_for_curves(page, "Loss", "seen.axis === 'time' && seen.xRange[0] > 1e9")
    wait_for_query(page, "q.get('x') === 'Time'")
    axis.select_option(label="Epoch")
    along = wait_for_curves(page, "Loss", "seen.axis === 'epoch' && seen.xRange[1] > 2 && seen.xRange[1] < 4")

    assert along["xRange"][1] == pytest.approx((STEPS - 1) / 1000, rel=1e-6)
    wait_for_query(page, "q.get('x') === 'Epoch'")
    assert query(page) == {"run": "finished", "smooth": "10%", "log": "true", "x": "Epoch"}


def test_a_forecast_is_drawn_where_nothing_is_logged_and_only_if_it_is_switched_on(shown, page):
    shown.open(page, "/overview", run="live")
    before = wait_for_curves(page, "Loss", "seen.curves[0].points === 100")
    assert page.get_by_text("Final loss").is_visible()
    assert before["forecasts"] == []
    page.get_by_role("checkbox", name="Forecast").check()
    ahead = wait_for_curves(page, "Loss", "seen.forecasts.length === 1")
    wait_for_query(page, "q.get('forecast') === 'true'")
    assert "forecast of train loss at step 198: " in ahead["forecasts"][0]
    assert (before["xRange"][1], ahead["xRange"][1]) == (99, 198)
    assert page.get_by_text("train loss, forecast").is_visible()
    assert [curve["points"] for curve in ahead["curves"]] == [100]
    page.get_by_role("checkbox", name="Forecast").uncheck()
    after = wait_for_curves(page, "Loss", "seen.forecasts.length === 0 && seen.xRange[1] === 99")
    assert after["yRange"] == before["yRange"]


def test_a_drag_zooms_every_chart_brings_detail_and_a_double_click_undoes_it(shown, page):
    shown.open(page, "/overview", run="finished")
    assert curves(page, "Loss")["level"] > 0
    drag(page, "Loss", 0.3, 0.5)
    wait_for_query(page, "q.has('from') && q.has('to')")
    # The drag alone shows the part that was chosen; every logged point of it follows.
    low, high = wait_for_curves(page, "Loss", "seen.level === 0")["xRange"]

    assert 600 < low < 1200 < high < 1800
    assert float(query(page)["from"]) == pytest.approx(low)
    assert float(query(page)["to"]) == pytest.approx(high)
    for title in ("Gradient norm", "Learning rate"):
        wait_for_curves(page, title, f"Math.abs(seen.xRange[0] - {low}) < 1e-3")

    double_click(page, "Loss")
    wait_for_query(page, "!q.has('from') && !q.has('to')")

    for title in ("Loss", "Gradient norm", "Learning rate"):
        low, high = wait_for_curves(page, title, "seen.xRange[1] - seen.xRange[0] > 2900")["xRange"]
        assert low <= 0
        assert high >= STEPS - 1


def test_a_zoom_that_came_with_the_address_is_undone_by_one_double_click(shown, page):
    shown.open(page, "/overview", **{"run": "finished", "from": 1000, "to": 1200})
    wait_for_curves(page, "Loss", "seen.xRange[0] === 1000 && seen.xRange[1] === 1200")

    double_click(page, "Loss")

    wait_for_query(page, "!q.has('from') && !q.has('to')")
    wait_for_curves(page, "Loss", "seen.xRange[1] - seen.xRange[0] > 2900")


def test_a_spike_does_not_fill_the_chart_and_a_double_click_shows_it(shown, page):
    write_run(shown.root, "spike", curves={"train_loss": _with_a_spike}, sessions=(range(STEPS),))
    shown.open(page, "/overview", run="spike")
    loss = wait_for_curves(page, "Loss", "seen.isFitted && seen.outside.includes('up to 500')")
    assert loss["yRange"][1] < 10
    place = place_of(page, "Loss")
    assert place["y"] + place["height"] <= 900, "above the fold"

    double_click(page, "Loss")
    wait_for_curves(page, "Loss", "seen.yRange[1] > 500")
    double_click(page, "Loss")
    wait_for_curves(page, "Loss", "seen.yRange[1] < 10")


def _with_a_spike(step):
    return 500.0 if step == 2 else 1.0 + math.exp(-step / 500) + 0.05 * (step * 7919 % 13)


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


def test_one_sample_in_a_million_is_seen(shown, page):
    folder = write_run(shown.root, "million", [], sessions=(range(MILLION),))
    with (folder / "metrics.jsonl").open("w") as file:
        for start in range(0, MILLION, 100_000):
            file.writelines(_lines(start, start + 100_000))
    page.goto(shown.url("/overview", run="million"))
    loss = wait_for_curves(page, "Loss", f"seen.curves[0].points === {MILLION}", timeout=180_000)

    assert loss["curves"][0]["high"] == SPIKE
    assert loss["curves"][0]["drawn"] < 10_000

    page.goto(shown.url("/overview", **{"run": "million", "from": SPIKE_AT - 500, "to": SPIKE_AT + 500}))
    zoomed = f"seen.xRange[0] === {SPIKE_AT - 500} && seen.level === 0 && seen.curves[0].drawn > 0"
    wait_for_curves(page, "Loss", zoomed, timeout=180_000)
    near = chart(page, "Loss").evaluate(
        f"root => root.__chart.near({SPIKE_AT}).map(({{ x, high, exact }}) => [x, high, exact])"
    )

    assert near == [[SPIKE_AT, SPIKE, True]]


def _lines(start, end):
    for step in range(start, end):
        loss = SPIKE if step == SPIKE_AT else 1.0 + (step * 7919 % 1000) / 1000
        yield (
            f'{{"event":"step","time":{1_700_000_000 + step / 2},"seq":{step},"session":1,'
            f'"global_step":{step},"train_loss":{loss}}}\n'
        )
