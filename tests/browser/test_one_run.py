"""Reading one run: smoothing, axes, zoom, and the one sample in a million."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.browser_helpers import (
    chart,
    fits_into,
    place_of,
    status,
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


def test_a_phone_shows_the_run_without_scrolling_sideways(shown, new_page):
    page = new_page(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    shown.open(page, "/overview", run="finished")
    place = place_of(page, "Loss")
    assert place["y"] + place["height"] <= 844, "the loss is on the first screen"
    for part in (status(page), page.locator('[data-testid="stMain"]').get_by_text("step 2,999").first):
        box = part.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        assert box["y"] + box["height"] <= 844
    expect(page.locator('[data-testid="stSidebar"]')).to_have_attribute("data-collapsed", "true")
    for path, asked in (("/overview", None), ("/", {}), ("/compare", {"runs": "finished,live"})):
        if asked is not None:
            shown.open(page, path, **asked)
        fits_into(page, 390)


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
