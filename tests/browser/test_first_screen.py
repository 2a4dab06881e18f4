"""The first screen in a real browser: painted without any script, and replaced by a page that looks the same."""

from __future__ import annotations

import math
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.browser.browser_helpers import chart, curves, settle, sidebar, wait_for_query
from tests.dashboard.serving import get
from tests.lengths import in_make_faults
from tests.made_runs import write_run
from tests.waiting import wait_until

_CURVES = {
    "train_loss": lambda step: 0.5 + 2 * math.exp(-step / 150) + 0.1 * math.sin(12.9 * step * step),
    "val_loss": lambda step: 0.6 + 2 * math.exp(-step / 150),
    "lr": lambda step: 1e-4 * (1 - step / 900),
    "sec_per_step": [0.5] * 600,
}

# What a person would see move: words, tiles, and the axes of the loss.
_PLACES = """() => {
    const one = (name) => document.querySelector(name);
    const place = (element) => {
        const { x, y, width, height } = element.getBoundingClientRect();
        return [x, y, width, height];
    };
    const names = [".telemetry-head h1", ".telemetry-badge", ".telemetry-head-bar", ".telemetry-head-steps", "h2"];
    const found = Object.fromEntries(names.map((name) => [name, place(one(name))]));
    found.theme = getComputedStyle(one(".telemetry-head h1")).color;
    document.querySelectorAll(".telemetry-card").forEach((card, number) => { found[`card ${number}`] = place(card); });
    const area = one(".telemetry-first .area"), chart = one(".telemetry-curves");
    if (area) { found.plot = place(area); return found; }
    const { x, y } = chart.querySelector("canvas").getBoundingClientRect(), { plot } = chart.__chart;
    found.plot = [x + plot.left, y + plot.top, plot.width, plot.height];
    return found;
}"""
_SEEN = """() => [document.querySelector("#root"), document.querySelector(".telemetry-first")]
    .map((one) => getComputedStyle(one).visibility)"""


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    write_run(root, "curved", curves=_CURVES, sessions=(range(600),), tags=("baseline",))
    write_run(root, "second", curves=_CURVES, sessions=(range(600),))
    dashboard = serve(root)
    # A server that has just been started has none yet.
    address = "/overview?run=curved"
    wait_until(lambda: b'class="telemetry-curves-picture' in get(dashboard.port, address)[2])
    return dashboard


def open_first_screen(page, url, shows):
    """Open a page until its first screen shows that: the server waits a quarter of a second for it, and no longer."""
    wait_until(lambda: page.goto(url) and page.locator(f".telemetry-first {shows}").count())


@pytest.mark.parametrize(
    ("scheme", "size"),
    [
        ("light", (1440, 900)),
        ("dark", (390, 844)),
        pytest.param("dark", (1440, 900), marks=in_make_faults),
        pytest.param("light", (390, 844), marks=in_make_faults),
    ],
)
def test_the_page_looks_as_its_first_screen_which_needs_no_script(shown, contexts, size, scheme):
    settings = {"viewport": dict(zip(("width", "height"), size, strict=True)), "color_scheme": scheme}
    first = contexts(**settings).new_page()
    first.route("**/*.js", lambda route: route.abort())
    open_first_screen(first, shown.url("/overview", run="curved"), "svg .smooth")
    first.evaluate("document.fonts.ready")
    before, title = first.evaluate(_PLACES), first.locator(".telemetry-head").inner_text()

    # The page is hidden meanwhile, and would be visible after ten seconds, however long the machine took until here.
    first.evaluate("document.getAnimations().forEach((one) => { one.pause(); one.currentTime = 0; })")
    assert first.evaluate(_SEEN) == ["hidden", "visible"]
    first.evaluate("document.getAnimations().forEach((one) => one.finish())")
    assert first.evaluate(_SEEN) == ["visible", "hidden"]
    first.close()

    page = contexts(**settings).new_page()
    shown.open(page, "/overview", run="curved")
    assert chart(page, "Loss").count() == 1
    assert curves(page, "Loss")["curves"]
    settle(page)
    after = page.evaluate(_PLACES)
    assert page.locator(".telemetry-head").inner_text() == title
    page.close()

    assert before.pop("theme") == after.pop("theme")
    assert before.keys() == after.keys()
    for name, place in before.items():
        assert after[name] == pytest.approx(place, abs=4), name


_FIRST_ROW = """() => Object.fromEntries(["h1", ".trt", ".trt-link", "canvas, .telemetry-curves-picture"].map(name => {
    const one = [...document.querySelectorAll(name)].find((element) => element.closest("main, [data-testid=stMain]"));
    const { x, y, height } = one ? one.getBoundingClientRect() : {};
    return [name, [x, y, name === ".trt" ? 0 : height]];
}))"""


@pytest.mark.parametrize(
    ("address", "size"),
    [
        ("/", (1440, 900)),
        ("/compare?runs=curved,second", (390, 844)),
        pytest.param("/compare?runs=curved,second", (1440, 900), marks=in_make_faults),
        pytest.param("/", (390, 844), marks=in_make_faults),
    ],
)
def test_a_list_is_where_its_first_screen_had_it_which_needs_no_streamlit(shown, contexts, size, address):
    settings = {"viewport": dict(zip(("width", "height"), size, strict=True))}
    first = contexts(**settings).new_page()
    first.route("**/static/js/**", lambda route: route.abort())
    open_first_screen(first, shown.url(address), ".trt")
    first.locator(".telemetry-first .trt[data-drawn] .trt-link").first.wait_for()
    first.evaluate("document.fonts.ready")
    before, names = first.evaluate(_FIRST_ROW), first.locator(".trt-link").all_inner_texts()
    # A click leads to the run at once.
    first.locator(".trt-link").last.click()
    first.wait_for_url(f"**/overview?run={names[-1]}")
    first.close()

    page = contexts(**settings).new_page()
    shown.open(page, address)
    page.locator(".trt[data-drawn] .trt-link").first.wait_for()
    if "compare" in address:
        assert chart(page, "train_loss").count() == 1
    settle(page)
    assert page.locator(".trt-link").all_inner_texts() == names
    for name, place in page.evaluate(_FIRST_ROW).items():
        # The font of the page comes with Streamlit's scripts, and columns are as wide as their words.
        assert place[1:] == pytest.approx(before[name][1:], abs=4, nan_ok=True), name
    page.close()


def test_the_picker_changes_the_run_and_keeps_the_page(shown, page):
    write_run(shown.root, "other")
    shown.open(page, "/metrics", run="curved", smooth="5%", **{"from": "10", "to": "50"})
    picker = sidebar(page).get_by_role("combobox", name="Run")
    expect(picker.locator("option")).to_contain_text(["curved", "other"])
    picker.select_option("other")

    wait_for_query(
        page, "q.get('run') === 'other' && q.get('smooth') === '5%' && !q.has('from') && !q.has('to')"
    )
    assert urlsplit(page.url).path == "/metrics"
    expect(page.locator(".telemetry-head h1").first).to_have_text("other")
    page.go_back()
    expect(page.locator(".telemetry-head h1").first).to_have_text("curved")


def test_a_chosen_theme_and_a_moved_side_bar_are_those_of_the_next_first_screen(shown, contexts):
    page = contexts(color_scheme="light").new_page()
    shown.open(page, "/overview", run="curved")
    page.evaluate(
        "() => localStorage.setItem(`stActiveTheme-${location.pathname}-v2`, JSON.stringify('Dark'))"
    )
    page.reload()
    settle(page)
    page.route("**/*.js", lambda route: route.abort())
    page.reload()
    page.locator(".telemetry-first svg .smooth").first.wait_for()

    colour = page.evaluate("getComputedStyle(document.querySelector('.telemetry-first')).backgroundColor")
    assert colour == "rgb(15, 19, 23)"
    page.close()
