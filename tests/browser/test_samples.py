"""Samples under a mouse and the keyboard: every one is reached, runs are laid over each other, and notes are kept."""

from __future__ import annotations

import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.browser.browser_helpers import fits_into, place_of, sidebar, wait_for_query
from tests.lengths import in_make_faults
from tests.made_runs import write_run
from tests.waiting import wait_until
from toolkit.telemetry.runfolder.labels import read_labels

STEPS = range(0, 100, 20)
HOSTILE = "<img src=x onerror='window.hacked = 1'> **a dog**"


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    for name in ("one", "two"):
        samples = [
            {"event": "sample", "time": 1.7e9, "path": f"samples/{step}_{number}.png", "prompt": prompt}
            | {"global_step": step, "seed": 40 + number}
            for step in STEPS
            for number, prompt in enumerate(("a cat", HOSTILE))
        ]
        folder = write_run(root, name, extra=samples)
        (folder / "samples").mkdir()
        for record in samples[:-1]:
            Image.new("RGB", (32, 32), "red" if name == "one" else "blue").save(folder / record["path"])
    return serve(root)


def pictures(page):
    """Return the box with the samples once an image is in it."""
    page.locator(".telemetry-picture-frame img").first.wait_for()
    return page.locator(".telemetry-pictures")


@in_make_faults
def test_a_slider_and_keys_reach_every_step(shown, new_page):
    page = new_page()
    shown.open(page, "/samples", run="one")
    box = pictures(page)

    expect(box).to_have_attribute("data-step", "80")
    expect(box).to_contain_text("'samples/80_1.png': No such file")
    box.get_by_role("slider", name="Step").focus()
    page.keyboard.press("ArrowLeft")
    expect(box).to_have_attribute("data-step", "60")
    wait_for_query(page, "q.get('at') === '60'")
    page.keyboard.press("Home")
    box.get_by_role("button", name="Play").click()
    expect(box).to_have_attribute("data-step", "80")
    # The newest step is not named, so that a link follows the run.
    wait_for_query(page, "!q.has('at')")
    expect(box.get_by_role("button", name="Play")).to_be_visible()

    box.get_by_role("button", name="a cat, step 80").click()
    large = page.get_by_role("dialog")
    expect(large).to_contain_text("step 80 · 5 of 5")
    expect(large).to_contain_text("seed 40")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    expect(large).to_contain_text("step 60 · 4 of 5")
    expect(large).to_contain_text(HOSTILE)
    page.keyboard.press("Home")
    expect(large).to_contain_text("step 0 · 1 of 5")
    expect(large.get_by_role("button", name="Previous step")).to_be_disabled()
    page.keyboard.press("Escape")
    expect(large).to_be_hidden()
    assert page.evaluate("window.hacked") is None


@in_make_faults
def test_all_samples_are_on_a_phone_without_scrolling_sideways(shown, new_page):
    page = new_page(viewport={"width": 390, "height": 844})
    shown.open(page, "/samples", run="one", view="All")

    expect(pictures(page).locator(".telemetry-picture")).to_have_count(2 * len(STEPS))
    fits_into(page, 390)


@in_make_faults
def test_two_runs_are_wiped_over_each_other(shown, new_page):
    page = new_page()
    shown.open(page, "/compare", runs="one,two")
    box = pictures(page)
    expect(box.get_by_role("button", name="a cat, two, step 80")).to_be_visible()

    box.get_by_role("button", name="Wipe").click()
    frame = box.locator(".telemetry-picture-wipe").first
    frame.scroll_into_view_if_needed()
    place = frame.bounding_box()
    page.mouse.move(place["x"] + place["width"] * 0.25, place["y"] + 20)

    expect(box.get_by_role("slider", name="Edge between A and B")).to_have_value("25")
    box.get_by_role("combobox").nth(1).select_option("one")
    expect(frame.get_by_role("img", name="a cat, one, step 80")).to_have_count(2)


@in_make_faults
def test_the_cursor_in_the_loss_moves_the_samples(shown, new_page):
    page = new_page()
    shown.open(page, "/overview", run="one")
    box = pictures(page)
    expect(box).to_have_attribute("data-step", "80")
    place = place_of(page, "Loss")

    page.mouse.move(place["x"] + place["width"] * 0.4, place["y"] + place["height"] / 2)
    page.mouse.move(place["x"] + place["width"] * 0.5, place["y"] + place["height"] / 2, steps=4)

    page.wait_for_function(
        """() => { const step = Number(document.querySelector('.telemetry-pictures').dataset.step);
            return step > 30 && step < 70; }"""
    )


@in_make_faults
def test_notes_survive_a_change_of_page_and_are_shown_as_markdown(shown, new_page):
    page = new_page()
    shown.open(page, "/config", run="two")
    page.get_by_role("tab", name="Notes").click()
    notes = page.get_by_role("textbox", name="Notes")
    notes.fill("**better** than one")
    # At once, before it is saved.
    sidebar(page).get_by_role("link", name="Samples").click()
    pictures(page)
    sidebar(page).get_by_role("link", name="Config & output").click()
    page.get_by_role("tab", name="Notes").click()

    expect(notes).to_have_value("**better** than one")
    expect(page.locator("strong", has_text="better")).to_be_visible()
    wait_until(lambda: read_labels(shown.root / "two").notes == "**better** than one")
