"""Compare as people use it: runs of one name, hidden curves, groups along any axis, and charts on the first screen."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.browser_helpers import query, settle, sidebar, wait_for_curves, wait_for_query
from tests.lengths import in_make_faults
from tests.made_runs import write_run

pytestmark = pytest.mark.slow

ROWS = ".trt tbody tr"


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    # As the logger names them: the second run of a name has a number after its folder.
    for folder, name, level in (("A", "A", 1.0), ("A-2", "A", 2.0), ("B", "B", 3.0)):
        curves = {"val_loss": lambda step, level=level: level, "lr": lambda step, level=level: 10 * level}
        write_run(
            root,
            folder,
            display_name=name,
            curves=curves,
            sessions=(range(20 * int(level)),),
            start={"config": {"batch_size": 1 + (folder == "B"), "seed": level}},
        )
    return serve(root)


@in_make_faults
def test_namesakes_stay_themselves_after_a_click(shown, page):
    shown.open(page, "/compare", runs="A,A-2,B")
    page.get_by_role("combobox", name="Metric").click()
    page.get_by_role("option", name="lr", exact=True).click()
    wait_for_query(page, "q.get('metric') === 'lr'")
    for name, last in (("A", "10"), ("A-2", "20"), ("B", "30")):
        expect(page.locator(f'{ROWS}[data-key="{name}"]')).to_contain_text(last)
    settle(page)

    assert query(page)["runs"] == "A,A-2,B"
    assert page.locator(f"{ROWS} .trt-eye").count() == 3
    drawn = wait_for_curves(page, "lr", "seen.curves.every(curve => curve.points > 0)")["curves"]
    assert {curve["run"]: curve["last"] for curve in drawn} == {"A": 10, "A-2": 20, "B": 30}


@in_make_faults
def test_a_namesake_can_be_picked_in_the_sidebar(shown, page):
    shown.open(page, "/overview", run="A")
    sidebar(page).get_by_role("combobox", name="Run").select_option("A-2")
    wait_for_query(page, "q.get('run') === 'A-2'")


@in_make_faults
def test_an_eye_hides_a_curve_at_once_and_in_the_link(shown, page):
    shown.open(page, "/compare", runs="A,A-2,B")
    page.locator(f'{ROWS}[data-key="A-2"] .trt-eye').click()
    wait_for_curves(
        page,
        "val_loss",
        "seen.curves.filter(curve => curve.hidden).map(curve => curve.run).join() === 'A-2'",
    )
    wait_for_query(page, "q.get('hide') === 'A-2'")

    page.reload()
    for metric in ("val_loss", "lr"):
        wait_for_curves(
            page,
            metric,
            "seen.curves.filter(curve => curve.hidden).map(curve => curve.run).join() === 'A-2'",
        )
    expect(page.locator(f'{ROWS}[data-key="A-2"] .trt-eye')).to_have_attribute("aria-pressed", "false")
    page.locator(f'{ROWS}[data-key="A-2"] .trt-eye').click()
    wait_for_query(page, "q.get('hide') === null")
    wait_for_curves(page, "val_loss", "seen.curves.every(curve => !curve.hidden)")


@in_make_faults
def test_groups_follow_the_axis_and_the_logarithm_and_are_compared_with_one(shown, page):
    shown.open(page, "/compare", runs="A,A-2,B", by="batch_size", x="progress", log="true")
    found = wait_for_curves(page, "val_loss", "seen.xRange[1] > 99 && seen.logY")
    assert found["axis"] == "progress"

    page.get_by_text("Draw the difference").click()
    wait_for_query(page, "q.get('diff') === 'true'")
    # 3 minus the mean of 1 and 2.
    wait_for_curves(page, "val_loss", "seen.yRange[0] <= 0 && seen.yRange[1] >= 1.5")


@in_make_faults
def test_the_chart_is_near_the_top_and_each_run_is_named_once(shown, new_page):
    page = new_page(viewport={"width": 1440, "height": 900})
    shown.open(page, "/compare", runs="A,A-2,B")
    wait_for_curves(page, "val_loss", "seen.yRange")

    assert page.locator(".telemetry-curves").first.bounding_box()["y"] < 200
    assert page.locator(ROWS).first.bounding_box()["y"] < 900
    main = page.locator('[data-testid="stMain"]')
    assert main.get_by_role("link", name="A-2", exact=False).count() == 1
