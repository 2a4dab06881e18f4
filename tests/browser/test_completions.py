"""Completions under a mouse and a thumb: picked, searched, compared, and never more than text, whatever they say."""

from __future__ import annotations

import threading

import pytest
from playwright.sync_api import expect

from tests.browser.browser_helpers import fits_into, settle, wait_for_query
from tests.lengths import in_make_faults, is_long
from tests.made_runs import completion, write_run

SCRIPT = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'><b>bold</b>"
MARKDOWN = (
    "# Heading\n\n**strong** ![x](https://evil.example/x.png) [click](javascript:window.hacked=1)"
    " $\\frac12$ :smile:"
)
BACKWARDS = "invoice \u202egnp.exe\u202c \u2066hidden\u2069 and \u200b on"
LONG = "<i>word</i> " * 5_000


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    write_run(
        root,
        "grpo",
        extra=[
            completion(
                step,
                f"the sky is {['grey', 'green', 'blue'][step // 100 - 1]} number {number}",
                prompt=f"What colour is the sky, {number}?",
                reward=number / 10 + step / 1000,
                advantage=0.5,
                kind="grpo",
            )
            for step in (100, 200, 300)
            for number in range(40)
        ],
    )
    write_run(
        root,
        "hostile",
        extra=[
            completion(step, text, prompt=text[:500], kind=text[:20], note=text[:200], reward=float(step))
            for step, text in enumerate((SCRIPT, MARKDOWN, BACKWARDS, LONG, SCRIPT, MARKDOWN, LONG))
        ]
        + [
            {
                "event": "completion",
                "global_step": 9,
                "prompt": SCRIPT,
                "chosen": SCRIPT,
                "rejected": MARKDOWN,
            }
        ],
    )
    write_run(
        root,
        "live",
        extra=[completion(step, f"answer {step}", prompt="Why?") for step in range(30)],
        status="running",
    )
    return serve(root)


def open_completions(shown, page, run, **others):
    # An address of before.
    shown.open(page, "/completions", run=run, **others)
    page.locator(".telemetry-completions[data-drawn]").wait_for()
    return page


def rows(page):
    return page.locator(".telemetry-completion")


def is_chosen(row):
    expect(row).to_have_attribute("aria-current", "true")


def text_shown(page):
    """Return the texts of the one that is shown."""
    return page.locator('[data-testid="stCode"] code')


@in_make_faults
def test_a_click_shows_the_text_and_goes_into_the_address(shown, page):
    open_completions(shown, page, "grpo")
    is_chosen(rows(page).first)
    expect(rows(page)).to_have_count(50)

    rows(page).nth(2).click()
    wait_for_query(page, "q.get('i')")
    settle(page)

    expect(text_shown(page).nth(1)).to_have_text("the sky is blue number 37")
    is_chosen(rows(page).nth(2))

    # The same address shows another person the same one.
    page.reload()
    expect(text_shown(page).nth(1)).to_have_text("the sky is blue number 37")
    is_chosen(rows(page).nth(2))

    rows(page).nth(2).focus()
    page.keyboard.press("ArrowDown")
    expect(text_shown(page).nth(1)).to_have_text("the sky is blue number 36")
    is_chosen(rows(page).nth(3))


@pytest.mark.skipif(not is_long(), reason="tests/attacks/test_markup_in_a_browser.py tries more of it")
def test_hostile_texts_are_text_and_nothing_else(shown, page):
    opened = threading.Event()
    page.on("dialog", lambda dialog: (opened.set(), dialog.dismiss()))
    open_completions(shown, page, "hostile")
    main = page.locator('[data-testid="stMain"]')

    for number in range(8):
        rows(page).nth(number).click()
        is_chosen(rows(page).nth(number))
        settle(page)
        step = 9 if number == 0 else 7 - number
        expect(main.get_by_text(f"step {step}", exact=True).last).to_be_visible()

        assert page.evaluate("() => window.hacked") is None
        assert main.locator("script, img, b, i, h1:not(.telemetry-head h1)").count() == 0, (
            "no element of theirs is on the page"
        )
        assert main.locator('a[href*="evil"], a[href^="javascript"]').count() == 0
        assert not set("\u202e\u202c\u2066\u2069") & set(main.inner_text())
    assert not opened.is_set()

    page.locator(".telemetry-completion", has_text="script").first.click()
    sides = page.locator(".telemetry-side-text")
    expect(sides.first).to_have_text(SCRIPT)
    expect(sides.last).to_contain_text("![x](https://evil.example/x.png)")


@in_make_faults
def test_a_phone_shows_it_without_scrolling_sideways(shown, new_page):
    page = new_page(
        viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True, color_scheme="dark"
    )
    for run in ("hostile", "grpo"):
        open_completions(shown, page, run)
        rows(page).nth(1).tap()
        is_chosen(rows(page).nth(1))
        settle(page)
        fits_into(page, 390)
    # All at once: a refresh may put others in their place between two looks.
    page.wait_for_function("""() => {
        const sides = [...document.querySelectorAll(".telemetry-side")].map(side => side.getBoundingClientRect());
        return sides.length > 0 && sides.every(place => place.left >= 0 && place.right <= 390);
    }""")
