"""What people come for, in few actions and at three widths: which run is best, is it healthy, steer it, find it again.

`make test` answers the first question on a desk; `make faults` does all of it at every width.
"""

from __future__ import annotations

import re

import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.browser.browser_helpers import (
    chart,
    drag,
    figure,
    fits_into,
    pick_row,
    query,
    settle,
    sidebar,
    status,
    wait_for_chart,
    wait_for_query,
    wait_until_step,
)
from tests.browser.growing_run import Training
from tests.dashboard.run_folders import append, write_run
from tests.dashboard.timed_runs import write_timed_run
from tests.lengths import in_make_faults, is_long
from tests.waiting import wait_until
from toolkit.runfolder.labels import read_labels

DESK = {"viewport": {"width": 1440, "height": 900}}
TABLET = {"viewport": {"width": 1024, "height": 768}}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
SIZES = {"1440": DESK, "1024": TABLET, "390": PHONE} if is_long() else {"1440": DESK}

RATES, RANKS = (1e-4, 1e-3, 1e-2), (4, 16)
SPIKE_AT, SPIKE = 61_733, 40.0
BEST = "lr0.001-r16-s2"


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    for lr in RATES:
        for rank in RANKS:
            for seed in (1, 2):
                loss = abs(lr - 1e-3) * 100 + 1 / rank + seed * -1e-3
                _sweep_run(root, f"lr{lr:g}-r{rank}-s{seed}", loss, lr, rank, seed)
    if is_long():
        _other_runs(root)
    return serve(root)


def _sweep_run(root, name, loss, lr, rank, seed):
    start = {"learning_rate": lr, "lora_rank": rank, "seed": seed, "max_steps": 100}
    ends = {"event": "eval", "session": 1, "global_step": 99, "val_loss": loss}
    write_run(root, name, start=start, extra=[ends], tags=("sweep",), project="sweep")


def _other_runs(root):
    write_run(
        root,
        "long",
        curves={"train_loss": lambda step: SPIKE if step == SPIKE_AT else 1.0 + 0.1 * (step % 7)},
        sessions=(range(100_000),),
    )
    write_timed_run(root, "timed", shares={"training": 0.5, "data_wait": 0.4, "validation": 0.05})
    for name, colour in (("red", "red"), ("blue", "blue")):
        samples = [
            {"event": "sample", "time": 1.7e9, "path": f"samples/{step}.png", "prompt": "a cat", "seed": 4}
            | {"global_step": step}
            for step in range(0, 100, 20)
        ]
        folder = write_run(root, name, extra=samples)
        (folder / "samples").mkdir()
        for record in samples:
            Image.new("RGB", (32, 32), colour).save(folder / record["path"])
    folder = write_run(root, "torn")
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"event": "step", "global_st\nnot a record\n')
    append(folder, [{"event": "end", "session": 1, "status": "finished"}])


@pytest.fixture(params=SIZES)
def page(new_page, request):
    """A tab of one of the widths."""
    page = new_page(**SIZES[request.param])
    # Streamlit remembers there that a sidebar was opened, which covers a phone's page.
    page.add_init_script("window.localStorage.clear()")
    return page


def main_of(page):
    return page.locator('[data-testid="stMain"]')


def width_of(page):
    return page.viewport_size["width"]


def open_sidebar(page):
    """Open the sidebar where a narrow page hides it: one more action."""
    if sidebar(page).get_attribute("data-collapsed") != "true":
        return 0
    page.get_by_test_id("stExpandSidebarButton").click()
    return 1


def test_which_run_is_best_and_why_takes_at_most_four_actions(shown, page):
    shown.open(page, "/")
    actions = open_sidebar(page)
    sidebar(page).get_by_role("link", name="Sweep").click()
    page.wait_for_url("**/sweep*")
    settle(page)
    answer = main_of(page).get_by_test_id("stMarkdownContainer").filter(has_text=BEST).first

    expect(answer).to_contain_text("val_loss")
    expect(main_of(page).get_by_text("learning_rate").first).to_be_visible()
    main_of(page).locator(".telemetry-chart[data-drawn]").first.wait_for()
    assert actions + 1 <= 4
    fits_into(page, width_of(page))


@in_make_faults
def test_a_live_run_says_how_it_is_and_when_it_is_done(shown, page, tmp_path):
    with Training(shown.root, "live", tmp_path) as training:
        shown.open(page, "/overview", run=training.folder.name)
        expect(status(page)).to_contain_text("Running")
        wait_until_step(page, 30)
        expect(main_of(page).get_by_text(re.compile(r"\bleft\b|ETA|done (at|by)")).first).to_be_visible()
        loss = chart(page, "Loss").bounding_box()
        if width_of(page) == 1440:
            assert loss["y"] + loss["height"] <= 900
        fits_into(page, width_of(page))


@in_make_faults
def test_a_live_run_is_steered_saved_and_stopped(shown, page, tmp_path):
    with Training(shown.root, "steered", tmp_path) as training:
        shown.open(page, "/overview", run=training.folder.name)
        expect(status(page)).to_contain_text("Running")
        open_sidebar(page)
        side = sidebar(page)
        side.get_by_role("spinbutton").fill("50")
        page.keyboard.press("Tab")
        settle(page)
        side.get_by_role("button", name="Apply").click()
        expect(side.get_by_text(re.compile("log every 50: (pending|applied)")).first).to_be_visible()
        wait_until(lambda: training.manifest.control.get("log_every_now") == 50)
        side.get_by_role("button", name="Save and stop").click()
        page.get_by_role("dialog").get_by_role("button", name="Save and stop").click()

        assert training.child.end().code == 0
        assert (training.folder / "weights.bin").is_file()


@in_make_faults
def test_one_record_in_a_hundred_thousand_is_seen_and_found(shown, page):
    shown.open(page, "/overview", run="long")
    whole = figure(page, "Loss")
    assert any(SPIKE in curve["y"] for curve in whole["traces"])
    if width_of(page) == 390:
        return  # Zooming takes a mouse.
    share = SPIKE_AT / 100_000
    drag(page, "Loss", share - 0.05, share + 0.05)
    wait_for_query(page, "q.has('from')")
    zoomed = wait_for_chart(
        page, "Loss", f"figure.traces.some(trace => trace.x[trace.y.indexOf({SPIKE})] === {SPIKE_AT})"
    )

    assert zoomed["range"][0] < SPIKE_AT < zoomed["range"][1]


@in_make_faults
def test_four_runs_are_compared_and_the_link_shows_the_same(shown, page):
    shown.open(page, "/", q="tag:sweep lora_rank=16")
    for number in range(4):
        pick_row(page, number)
    page.get_by_role("button", name="Compare 4").click()
    page.wait_for_url("**/compare?runs=*")
    settle(page)
    chart(page, "train_loss")
    first = chart(page, "val_loss").get_attribute("aria-label")
    fits_into(page, width_of(page))
    page.goto(page.url)
    settle(page)

    assert chart(page, "val_loss").get_attribute("aria-label") == first
    assert len(query(page)["runs"].split(",")) == 4


@in_make_faults
def test_a_run_is_found_renamed_tagged_archived_deleted_and_brought_back(shown, page):
    name = f"errand-{width_of(page)}"
    folder = write_run(shown.root, name, start={"learning_rate": 0.5})
    shown.open(page, "/", q=f"learning_rate=0.5 {name}")
    row = page.locator(".trt tbody tr").filter(has_text=name)
    row.locator("a").first.click()
    wait_for_query(page, f"q.get('run') === '{name}'")
    settle(page)
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Rename").or_(page.get_by_text("Rename and tag…")).first.click()
    page.get_by_role("textbox", name="Name").fill("renamed")
    page.get_by_role("button", name="Save changes").click()
    wait_until(lambda: read_labels(folder).display_name == "renamed")

    shown.open(page, "/", q="renamed learning_rate=0.5", sort="name")
    expect(page.locator(".trt tbody tr")).not_to_have_count(0)
    pick_row(page, 0)
    page.get_by_role("button", name="Delete").click()
    wait_until(lambda: not folder.exists())
    page.get_by_role("button", name="Undo").click()
    wait_until(folder.exists)


@in_make_faults
def test_an_alert_explains_itself(shown, page):
    name = f"diverged-{width_of(page)}"
    write_run(
        shown.root,
        name,
        curves={
            "train_loss": lambda step: (
                1.0 - step / 400 if step < 200 else min(1.0 * 1.05 ** (step - 200), 50.0)
            )
        },
        sessions=(range(400),),
        start={"learning_rate": 0.1},
    )
    shown.open(page, "/alerts", run=name)

    expect(main_of(page).get_by_text("Divergence").first).to_be_visible()
    expect(main_of(page).get_by_text(re.compile("try", re.IGNORECASE)).first).to_be_visible()
    page.locator(".telemetry-chart[data-drawn]").first.wait_for()
    fits_into(page, width_of(page))


@in_make_faults
def test_samples_are_seen_over_steps_and_across_runs(shown, page):
    shown.open(page, "/samples", run="red")
    box = page.locator(".telemetry-pictures")
    box.get_by_role("slider", name="Step").focus()
    page.keyboard.press("Home")
    expect(box).to_have_attribute("data-step", "0")
    shown.open(page, "/compare", runs="red,blue")

    expect(page.get_by_role("button", name="a cat, blue, step 80")).to_be_visible()
    fits_into(page, width_of(page))


@in_make_faults
def test_where_the_time_went_is_on_the_overview(shown, page):
    shown.open(page, "/overview", run="timed")
    main_of(page).locator(".telemetry-ledger[data-drawn]").first.wait_for()

    expect(main_of(page).locator(".telemetry-ledger-names")).to_contain_text("waiting for data")
    expect(main_of(page).get_by_text("Try more loader workers")).to_be_visible()
    fits_into(page, width_of(page))


@in_make_faults
def test_the_list_and_a_run_fit_the_screen(shown, page):
    for path, asked in (("/", {}), ("/overview", {"run": BEST}), ("/metrics", {"run": BEST}), ("/sweep", {})):
        shown.open(page, path, **asked)
        fits_into(page, width_of(page))


@in_make_faults
def test_a_torn_file_is_drawn_and_what_was_lost_is_counted(shown, page):
    shown.open(page, "/overview", run="torn")
    chart(page, "Loss")

    expect(main_of(page).get_by_text(re.compile("2 .*lines|lines.* 2")).first).to_be_visible()


@in_make_faults
def test_the_keyboard_reaches_search_and_runs(shown, page):
    if width_of(page) == 390:
        return  # A phone has no keyboard: the script is part of the sidebar, which is closed there.
    shown.open(page, "/", sort="name")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Search")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Search")).to_be_focused()
