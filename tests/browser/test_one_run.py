"""Reading one run: smoothing, axes, zoom, and the one sample in a million."""

from __future__ import annotations

import math

import pytest

from tests.browser.browser_helpers import (
    chart,
    double_click,
    drag,
    figure,
    query,
    trace,
    wait_for_chart,
    wait_for_query,
)
from tests.dashboard.run_folders import write_run
from tests.lengths import in_make_faults

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


def test_one_sample_in_a_million_is_seen(shown, page):
    folder = write_run(shown.root, "million", [], sessions=(range(MILLION),))
    with (folder / "metrics.jsonl").open("w") as file:
        for start in range(0, MILLION, 100_000):
            file.writelines(_lines(start, start + 100_000))
    page.goto(shown.url("/overview", run="million"))
    loss = wait_for_chart(page, "Loss", f"figure.traces[0].x.at(-1) === {MILLION - 1}", timeout=180_000)
    curve = trace(loss, AS_LOGGED)
    top = max(curve["y"])

    assert top == SPIKE
    assert curve["x"][curve["y"].index(top)] == SPIKE_AT
    assert len(curve["x"]) < 5_000

    page.goto(shown.url("/overview", **{"run": "million", "from": SPIKE_AT - 500, "to": SPIKE_AT + 500}))
    low, high = SPIKE_AT - 500, SPIKE_AT + 500
    curve = trace(wait_for_chart(page, "Loss", f"figure.range[0] === {low}"), AS_LOGGED)

    assert inside(curve, low, high) == list(range(low, high + 1))
    assert curve["y"][curve["x"].index(SPIKE_AT)] == SPIKE


def _lines(start, end):
    for step in range(start, end):
        loss = SPIKE if step == SPIKE_AT else 1.0 + (step * 7919 % 1000) / 1000
        yield (
            f'{{"event":"step","time":{1_700_000_000 + step / 2},"seq":{step},"session":1,'
            f'"global_step":{step},"train_loss":{loss}}}\n'
        )
