"""The table of runs as people use it: which run is best, sorted, picked, opened in a new tab, deleted and undone."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.browser_helpers import (
    chart,
    pick_row,
    query,
    wait_for_curves,
    wait_for_query,
)
from tests.lengths import in_make_faults
from tests.made_runs import write_run

pytestmark = pytest.mark.slow

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
ROWS = ".trt tbody tr"


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    for lr in (1e-4, 1e-3, 1e-2):
        for rank in (4, 16):
            loss = {
                "event": "eval",
                "session": 1,
                "global_step": 9,
                "val_loss": abs(lr - 1e-3) * 100 + 1 / rank,
            }
            start = {"learning_rate": lr, "lora_rank": rank, "max_steps": 9}
            write_run(root, f"lr{lr:g}-r{rank}", sessions=(range(10),), start=start, extra=[loss])
    return serve(root)


def names(page):
    return page.locator(f"{ROWS} a").all_inner_texts()


def ids(page):
    return page.locator(".trt th[data-id]").evaluate_all("cells => cells.map(cell => cell.dataset.id)")


@in_make_faults
def test_which_run_is_best_takes_one_look_and_one_click_sorts_all(shown, page):
    shown.open(page, "/")
    main = page.locator('[data-testid="stMain"]')
    expect(main.get_by_text("lowest val_loss")).to_contain_text("lr0.001-r16")

    page.locator("th", has_text="val_loss best").locator(".trt-sort").click()
    wait_for_query(page, "q.get('sort') === 'best:val_loss'")
    expect(page.locator(f"{ROWS} a").first).to_have_text("lr0.001-r16")
    page.locator("th", has_text="learning_rate").locator(".trt-sort").click()
    wait_for_query(page, "q.get('sort') === 'config:learning_rate'")
    expect(page.locator(f"{ROWS} a").first).to_contain_text("lr0.0001")


@in_make_faults
def test_columns_are_moved_and_pinned_and_stay_in_the_address(shown, page):
    shown.open(page, "/")
    rank = page.locator("th[data-id='config:lora_rank']")
    rank.wait_for()
    rank.hover()
    rank.locator(".trt-pin").click()
    wait_for_query(page, "/config:lora_rank!/.test(q.get('cols'))")
    expect(page.locator("th[data-id]").nth(1)).to_have_attribute("data-id", "config:lora_rank")
    page.locator("th[data-id='step']").drag_to(page.locator("th[data-id='status']"))
    wait_for_query(page, "q.get('cols').indexOf('step') < q.get('cols').indexOf('status')")
    kept = query(page)["cols"]

    shown.open(page, "/", cols=kept)
    page.locator("th[data-id='step']").wait_for()

    assert ids(page)[:3] == ["name", "config:lora_rank", "step"]


@in_make_faults
def test_rows_are_picked_opened_in_a_new_tab_deleted_and_brought_back(shown, page):
    shown.open(page, "/", sort="name")
    pick_row(page, 0)
    pick_row(page, 1)
    expect(page.get_by_role("link", name="Compare 2")).to_be_visible()
    picked = names(page)[:2]
    with page.context.expect_page() as opened:
        page.locator(f"{ROWS} a").nth(2).click(button="middle")
    assert "/overview?run=" in opened.value.url
    opened.value.close()

    page.get_by_role("button", name="Delete").click()
    expect(page.locator(ROWS)).to_have_count(4)
    assert not set(picked) & set(names(page))
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(ROWS)).to_have_count(6)

    page.locator(f"{ROWS} a").first.click()
    wait_for_query(page, f"q.get('run') === '{picked[0]}'")


@in_make_faults
def test_a_phone_has_cards_and_nothing_to_scroll_sideways(shown, new_page):
    page = new_page(**PHONE)
    shown.open(page, "/")
    first = page.locator(ROWS).first
    first.wait_for()

    assert first.bounding_box()["width"] <= 390
    expect(page.locator(".trt thead")).to_be_hidden()
    for text in ("Finished", "100 %"):
        expect(first.get_by_text(text)).to_be_visible()
    assert first.locator(".trt-phone.trt-number").get_attribute("data-label") == "val_loss best"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@in_make_faults
def test_rows_and_the_curves_next_to_them_answer_each_other(shown, new_page):
    page = new_page(viewport={"width": 1440, "height": 900})
    shown.open(page, "/", show="Charts", metric="train_loss")
    drawn = wait_for_curves(page, "train_loss", "seen.curves.length === 6 && seen.yRange")
    name = drawn["curves"][0]["run"]
    row = page.locator(f'{ROWS}[data-key="{name}"]')
    assert chart(page, "train_loss").bounding_box()["x"] > row.bounding_box()["x"] + 200

    row.hover()
    page.wait_for_function(
        "name => document.querySelector('.telemetry-curves').__chart.lit === name", arg=name
    )
    # With the keys, which choose a curve as the mouse does: all of these lie on each other.
    chart(page, "train_loss").press("ArrowRight")
    page.locator(f"{ROWS}.trt-lit").first.wait_for()

    row.locator(".trt-eye").click()
    wait_for_query(page, f"q.get('hide') === '{name}'")
    wait_for_curves(page, "train_loss", "seen.curves.length === 5")
    row.locator(".trt-eye").click()
    wait_for_query(page, "q.get('hide') === null")
    wait_for_curves(page, "train_loss", "seen.curves.length === 6")


@in_make_faults
def test_rows_can_be_lower_and_the_list_has_the_whole_width(shown, new_page):
    page = new_page(viewport={"width": 1440, "height": 900})
    shown.open(page, "/")
    row = page.locator(ROWS).first
    assert 28 <= row.bounding_box()["height"] <= 36
    assert page.locator(".trt").bounding_box()["width"] > 1_080
    assert row.bounding_box()["y"] < 230, "the rows begin near the top"

    page.get_by_role("button", name="Columns").click()
    page.get_by_text("Compact rows").click()
    page.wait_for_function("() => document.querySelector('.trt tbody tr').offsetHeight <= 26")


@in_make_faults
def test_a_star_makes_a_run_the_baseline_of_its_project_and_another_click_takes_it_back(shown, page):
    shown.open(page, "/")
    row = page.locator(f'{ROWS}[data-key="lr0.01-r4"]')
    row.hover()
    row.locator(".trt-star").click()
    expect(page.locator("th", has_text="vs baseline")).to_be_visible()
    expect(row.locator(".trt-star")).to_have_attribute("aria-pressed", "true")
    page.reload()
    expect(row).to_contain_text("baseline")

    row.locator(".trt-star").click()
    expect(page.locator("th", has_text="vs baseline")).to_have_count(0)
