"""Whatever a run folder holds, opening it runs nothing, fetches nothing and leaves the other runs as they are."""

from __future__ import annotations

import re
from urllib.parse import quote, urlencode

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("playwright")

from playwright.sync_api import expect

from tests.attacks.hostile_runs import INIT_SCRIPT, RAN, WORDS_OF_MARKUP, Poison, payloads, poisoned_run
from tests.attacks.page_checks import DRAWN, MADE_OF_DATA, WIDTH, Beacon, Looked
from tests.browser.browser_helpers import (
    PATIENCE_MS,
    Dashboard,
    chart,
    curves,
    settle,
    wait_for_curves,
    wait_for_query,
    wait_in,
)
from tests.browser.provision import open_browser
from tests.dashboard.serving import dashboard
from tests.lengths import in_make_faults
from tests.made_runs import write_run

# tests/browser/test_main_paths.py opens one such page in `make test`.
pytestmark = [pytest.mark.timeout(1_800), in_make_faults]

# So high that a page draws all that would otherwise wait until one scrolls there.
_DESK, _PHONE = {"width": 1440, "height": 2_600}, {"width": 390, "height": 844}
_OF_A_RUN = ("Overview", "Metrics", "Alerts", "Time and machine", "Samples", "Config & output")
_TAG = "poisoned"
_PARTS_RUN = "parts__of_the_program_"
_PARTS = (
    *("@critical", "@constructor/0.5", "__proto__", "a__b", "datum.x", "c:Q", "a.b[0]"),
    *("%{x}", "<b>pwnb</b>", "&lt;", "$x$"),
)
_PARAMETERS = (
    *("run", "runs", "tag", "q", "status", "sort", "filter", "find"),
    *("step", "order", "prompt", "x", "ema", "page", "i"),
)
_EDGES = (
    {"from": "-inf", "to": "inf"},
    {"from": "nan", "to": "1"},
    {"from": "-1e308", "to": "1e308"},
    {"from": "<script>pwn('from')</script>", "to": "9" * 400},
    {},
)

_UNFOLD = """() => document.querySelectorAll('[data-testid="stMain"] details:not([open]) > summary')
    .forEach(summary => summary.click())"""
# What a mouse would show at the first point of each curve: in our tooltip, or in Plotly's.
_POINT_AT_ALL = """async () => {
    window.hints = [];
    for (const { __chart: chart } of document.querySelectorAll(".telemetry-curves[data-drawn]")) {
        if (!chart || !chart.plot) continue;
        const { x, y } = chart.overlay.getBoundingClientRect();
        const place = { clientX: x + chart.plot.left + 1, clientY: y + chart.plot.top + 1, pointerType: "mouse" };
        chart.overlay.dispatchEvent(new PointerEvent("pointermove", { ...place, bubbles: true }));
        await new Promise(requestAnimationFrame);
        await new Promise(requestAnimationFrame);
        const tip = document.querySelector(".telemetry-tip");
        if (tip) window.hints.push(tip.textContent);
    }
    for (const div of document.querySelectorAll(".telemetry-chart[data-drawn]")) {
        if (!div._fullData || !window.Plotly) continue;
        if (div._fullData.some(trace => trace.meta && trace.meta.tip)) {
            const { x, y } = div.querySelector(".nsewdrag").getBoundingClientRect();
            const place = { clientX: x + 1, clientY: y + 1, pointerType: "mouse" };
            div.dispatchEvent(new PointerEvent("pointermove", place));
            await new Promise(requestAnimationFrame);
            const tip = document.querySelector(".telemetry-tip");
            if (tip) window.hints.push(tip.textContent);
            continue;
        }
        const places = div._fullData.map((trace, number) => ({ curveNumber: number, pointNumber: 0 }));
        try { Plotly.Fx.hover(div, places); } catch (_) { /* a curve without points */ }
    }
    return document.querySelectorAll(".hoverlayer text").length + window.hints.length;
}"""


@pytest.fixture(scope="module")
def beacon():
    with Beacon() as server:
        yield server


@pytest.fixture(scope="module")
def browser():
    with open_browser() as started:
        yield started


@pytest.fixture(scope="module")
def shown(tmp_path_factory, beacon):
    """A dashboard over two poisoned runs, or over many of them, and two good ones; its folder's name is a payload."""
    root = (
        tmp_path_factory.mktemp("logs")
        / "logs <img data-pwn src=x onerror=pwn('root')> :red[pwnred] $x$ &lt;b&gt;"
    )
    for number in range(12):
        poison = Poison(beacon.place, first=number * 4)
        poisoned_run(root, f"poisoned-{number}", poison, live=number % 2 == 1, tag=_TAG)
    hostile = "<img data-pwn src=x onerror=pwn('folder')> **pwnbold** __proto__"
    poisoned_run(root, hostile, Poison(beacon.place, first=5), tag=_TAG)
    for name in ("good", "good-too"):
        write_run(root, name, start={"config": {"lr": 0.1 if name == "good" else 0.2}}, tags=("sound",))
    write_run(root, _PARTS_RUN, curves=dict.fromkeys(_PARTS, float))
    folder = tmp_path_factory.mktemp("dashboard")
    with dashboard(folder, "--log-dir", str(root)) as process:
        yield Dashboard(process.wait_until_ready(), root)


def window(browser, *, headers):
    """Open a window of the browser; without `headers` those of ours that forbid things are passed over."""
    opened = browser.new_context(viewport=_DESK, locale="en-US", bypass_csp=not headers)
    opened.set_default_timeout(PATIENCE_MS)
    opened.add_init_script(INIT_SCRIPT)
    return opened


@pytest.fixture(scope="module")
def unguarded(browser):
    """A window without the protection of headers: what a page does with a text by itself."""
    opened = window(browser, headers=False)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def guarded(browser):
    opened = window(browser, headers=True)
    yield opened
    opened.close()


@pytest.fixture
def look(unguarded, shown, beacon):
    """Open a tab and note all that it does."""
    opened = []

    def open_tab(of=unguarded):
        page = of.new_page()
        opened.append(page)
        return Looked(page, shown, beacon)

    beacon.asked.clear()
    yield open_tab
    for page in opened:
        page.close()


def follow(looked, name):
    # By its text: the style sheet adds the number of alerts to the name that a screen reader says.
    looked.page.locator('[data-testid="stSidebarNav"] a', has_text=name).click()
    looked.page.wait_for_function(
        """name => document.querySelector('[data-testid="stSidebarNav"] a[aria-current="page"]')
            ?.textContent.includes(name)""",
        arg=name,
    )
    settle(looked.page)


def open_everything(page):
    """Unfold what is folded, open every tab, and point at every chart."""
    page.evaluate(_UNFOLD)
    settle(page)
    for tab in page.locator('[data-testid="stMain"] [role="tab"]').all():
        tab.click()
    settle(page)
    page.wait_for_function(DRAWN)
    page.evaluate(_POINT_AT_ALL)


def is_narrow_enough(page):
    page.set_viewport_size(_PHONE)
    page.wait_for_function("() => innerWidth === 390")
    # What a chart or a table draws follows the window a little later.
    page.wait_for_function(f"() => ({WIDTH})() <= 391")
    # The sidebar closes and opens by itself, each a little later.
    page.get_by_test_id("stExpandSidebarButton").wait_for()
    page.set_viewport_size(_DESK)
    page.get_by_test_id("stSidebarNav").wait_for()


def visit(looked, run):
    """Open every page of a run, with all that is on it, on a desk and on a phone."""
    page, shown = looked.page, looked.shown
    shown.open(page, "/overview", run=run)
    for name in _OF_A_RUN:
        follow(looked, name)
        page.locator(".telemetry-head h1").first.wait_for()
        looked.check(f"{name} of {run}")
        open_everything(page)
        looked.check(f"{name} of {run}, everything open")
        pick(looked, name)
        is_narrow_enough(page)


def pick(looked, name):
    """Look closer at some of what a page lists: spans that are clicked, and completions."""
    page = looked.page
    if name == "Time and machine":
        spans = page.locator('.telemetry-chart[data-drawn][aria-label^="spans,"]')
        ids = spans.evaluate("div => div._fullData.map(trace => trace.customdata[0][0])")
        for number in ids[:40]:
            spans.evaluate("(div, number) => div.__pick(number)", number)
            main_of(page).get_by_text(re.compile(r"started \d")).first.wait_for()
            settle(page)
            looked.check(f"span {number}")
    if name == "Samples" and (choice := main_of(page).get_by_text("Completions", exact=True)).count():
        choice.first.click()
        settle(page)
        rows = page.locator(".telemetry-completion")
        for number in range(1, min(rows.count(), 45)):
            place = rows.nth(number).evaluate("button => { button.click(); return button.dataset.place; }")
            wait_for_query(page, f"q.get('i') === '{place}'")
            settle(page)
            looked.check(f"completion {number}")


def main_of(page):
    return page.locator('[data-testid="stMain"]')


def summary_of(looked):
    return (
        f"{looked.pages} page views, {len(looked.asked):,} browser requests, "
        "0 of them to another server, 0 scripts run"
    )


@pytest.mark.parametrize("number", range(12))
def test_no_page_of_a_poisoned_run_runs_fetches_or_formats_anything(shown, look, number, record_property):
    looked = look()
    visit(looked, f"poisoned-{number}")

    record_property("measured", summary_of(looked))


@pytest.mark.parametrize("number", range(4))
def test_the_headers_have_nothing_to_forbid_on_pages_of_a_poisoned_run(
    shown, look, guarded, number, record_property
):
    looked = look(guarded)
    visit(looked, f"poisoned-{number}")

    record_property("measured", summary_of(looked))


def test_lists_searches_and_dialogs_show_poisoned_runs_as_text_next_to_good_ones(
    shown, look, beacon, record_property
):
    looked = look()
    page = looked.page
    runs = len(list(shown.root.iterdir()))
    shown.open(page, "/")
    expect(main_of(page).get_by_text(f"{runs} of {runs} runs")).to_be_visible()
    looked.check("Runs")
    search = page.get_by_label("Search", exact=True)
    for text in list(payloads(beacon.place).values())[:42]:
        search.fill(text)
        search.press("Enter")
        settle(page)
        expect(main_of(page).get_by_text(re.compile(rf"^\d+ of {runs} runs"))).to_be_visible()
        looked.check(f"Runs, searched for {text[:40]!r}")
    search.fill("tag:sound")
    search.press("Enter")
    expect(main_of(page).get_by_text(f"2 of {runs} runs")).to_be_visible()
    shown.open(page, "/compare", runs="poisoned-0,poisoned-1,good", tag=_TAG)
    wait_for_curves(page, "train_loss", "seen.xRange")
    open_everything(page)
    looked.check("Compare")
    is_narrow_enough(page)
    follow(looked, "Settings")
    expect(main_of(page).get_by_text("Log directories")).to_be_visible()
    looked.check("Settings")
    shown.open(page, "/overview", run="poisoned-0")
    main_of(page).get_by_role("combobox", name="Run", exact=True).select_option("Export…")
    page.get_by_role("dialog").wait_for()
    settle(page)
    looked.check("Export…")
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    shown.open(page, "/overview", run="good")
    expect(main_of(page).get_by_role("heading", name="good")).to_be_visible()
    chart(page, "Loss")
    looked.check("a good run next to the others")

    record_property("measured", summary_of(looked))


def test_metrics_named_like_internals_are_drawn_under_their_own_names(shown, look):
    looked = look()
    page = looked.page
    shown.open(page, "/metrics", run=_PARTS_RUN, cols="4")
    page.wait_for_function(DRAWN)
    for name in _PARTS:
        assert [curve["metric"] for curve in curves(page, name)["curves"]] == [name]
    # At once: what a chart draws again points at nothing any more.
    pointed, hints = page.evaluate(
        f"""async () => [await ({_POINT_AT_ALL})(),
            [...window.hints, ...[...document.querySelectorAll(".hoverlayer")].map(layer => layer.textContent)]]"""
    )
    assert pointed >= len(_PARTS)
    assert all(any(name in hint for hint in hints) for name in _PARTS)
    looked.check("metrics called like parts of the program")


@pytest.mark.parametrize("name", range(8))
def test_what_an_address_says_is_text_too(shown, look, beacon, name, record_property):
    looked = look()
    page = looked.page
    every = [text for text in payloads(beacon.place).values() if len(text) < 2_000]
    paths = ("/overview", "/compare", "/metrics", "/", "/machine", "/samples")
    for number, path in enumerate(paths[:6]):
        texts = [every[(name * 5 + number * 7 + place) % len(every)] for place in range(len(_PARAMETERS))]
        asked = dict(zip(_PARAMETERS, texts, strict=True))
        if path not in ("/", "/compare", "/overview"):
            asked["run"] = "poisoned-0"
        asked |= _EDGES[number % len(_EDGES)]
        page.goto(shown.url(path) + "?" + urlencode(asked, quote_via=quote, errors="replace"))
        page.wait_for_selector('[data-testid="stAppViewContainer"]')
        settle(page)
        looked.check(f"{path} with {asked}")

    record_property("measured", summary_of(looked))


def test_a_text_that_did_become_markup_would_be_seen_and_the_headers_would_stop_what_it_fetches(
    shown, look, guarded, beacon
):
    harm = """place => { for (const html of [
        `<img data-pwn src="http://${place}/seen.png">`, "<b onmouseover=x>a</b>", "<b>pwnbold</b>",
        `<a href="http://${place}/">x</a>`, "<iframe></iframe>"]) {
            const element = document.createElement("div");
            element.innerHTML = html;
            document.body.appendChild(element);
        } pwn("by hand"); }"""
    open_door, shut_door = look(), look(guarded)
    for looked in (shut_door, open_door):
        shown.open(looked.page, "/settings")
        looked.page.evaluate(harm, beacon.place)
        found = looked.page.evaluate(MADE_OF_DATA, WORDS_OF_MARKUP)

        assert [line.split(":")[0] for line in found] == [
            *("made of data", "an address of another site", "a handler", "formatted"),
            *("an address of another site", "a stranger's element"),
        ]
        assert looked.page.evaluate(RAN) == ["by hand"]
        with pytest.raises(AssertionError):
            looked.check("a page that does what it should not")
        if looked is shut_door:
            wait_in(
                shut_door.page, lambda: any("Content Security Policy" in line for line in shut_door.trouble)
            )
            assert beacon.asked == []

    wait_in(open_door.page, lambda: beacon.asked == ["/seen.png"])


def test_a_foreign_page_that_frames_the_dashboard_gets_nothing(shown, guarded, beacon, record_property):
    page = guarded.new_page()
    try:
        page.goto(f"http://{beacon.place}/")
        paths = ("/", "/overview?run=good", "/settings", "/_stcore/health")
        for path in paths:
            page.evaluate(
                """url => new Promise(resolve => {
                    const frame = document.createElement("iframe");
                    frame.onload = frame.onerror = resolve;
                    frame.src = url;
                    document.body.appendChild(frame);
                })""",
                f"http://localhost:{shown.port}{path}",
            )
        refused = ["chrome-error://chromewebdata/"] * len(paths)
        wait_in(page, lambda: [frame.url for frame in page.frames[1:]] == refused)
        assert not any("Runs" in (frame.content() or "") for frame in page.frames[1:])

        with page.expect_popup() as opened:
            page.evaluate("url => { window.held = window.open(url); }", f"http://localhost:{shown.port}/")
        opened.value.wait_for_load_state()
        # The page that opened the window must not be able to reach into it or lead it away.
        # By a timer: a page behind another window may draw no frames.
        page.wait_for_function(
            "() => { try { return window.held.closed || window.held.length; } catch (e) { return e.name; } }",
            polling=100,
        )
        assert opened.value.evaluate("() => window.opener") is None
        opened.value.close()
    finally:
        page.close()
    record_property("measured", f"{len(paths)} addresses framed, 0 shown")
