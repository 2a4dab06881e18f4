"""Whatever a run folder holds, opening it runs nothing, fetches nothing and leaves the other runs as they are."""

from __future__ import annotations

import html
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, urlencode, urlsplit

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("playwright")

from playwright.sync_api import expect, sync_playwright

from tests.attacks.hostile_runs import INIT_SCRIPT, RAN, WORDS_OF_MARKUP, Poison, payloads, poisoned_run
from tests.browser.browser_helpers import PATIENCE_MS, Dashboard, chart, figure, settle, wait_for_query
from tests.browser.provision import NoBrowser, chromium_file, launch
from tests.dashboard.run_folders import write_run
from tests.dashboard.serving import Started, dashboard
from tests.lengths import in_make_faults, is_long, longer
from tests.project.markdown import ROOT

pytestmark = pytest.mark.timeout(longer(1_000, 1_800))

# In a long run so high that a page draws all that would otherwise wait until somebody scrolls there.
_DESK, _PHONE = {"width": 1440, "height": longer(1_000, 2_600)}, {"width": 390, "height": 844}
_ON_A_PHONE = ("Overview", "Alerts", "Completions")
_OF_A_RUN = (
    *("Overview", "Metrics", "System", "Alerts", "Timeline", "Samples", "Completions"),
    "Config & notes",
)
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

# What a page is made of besides what we and Streamlit put there.
_MADE_OF_DATA = """words => {
    const found = [], own = location.origin;
    const say = (what, element) => found.push(what + ": " + element.outerHTML.slice(0, 300));
    const elsewhere = (address) => {
        try {
            const url = new URL(address, location.href);
            return url.origin !== own && !["data:", "blob:"].includes(url.protocol);
        } catch { return true; }
    };
    for (const element of document.querySelectorAll("*")) {
        const name = element.localName;
        if (["iframe", "object", "embed", "base", "marquee"].includes(name)) say("a stranger's element", element);
        if (name === "meta" && element.httpEquiv === "refresh") say("leads away", element);
        if (element.hasAttribute("data-pwn")) say("made of data", element);
        for (const { name: attribute, value } of element.attributes) {
            if (/^on/i.test(attribute)) say("a handler", element);
            if (/^(href|src|srcset|action|poster|xlink:href)$/i.test(attribute) && value && elsewhere(value)) {
                say("an address of somebody else", element);
            }
            if (attribute === "style" && /url\\(|pwn/i.test(value) && !/url\\("?(data:|blob:|#)/.test(value)) {
                say("a style", element);
            }
        }
        if (name === "script" && /pwn\\(/.test(element.textContent)) say("a script", element);
        if (element.matches(".katex, [data-testid='stMarkdownContainer'] :is(table, blockquote, img, pre)")) {
            say("formatted", element);
        }
        if (element.matches('[data-testid="stIconMaterial"]') && element.textContent === "skull") say("icon", element);
        // Code is coloured word by word, and a comparison marks single words.
        if (!element.childElementCount && words.includes(element.textContent.trim())
            && !element.closest("pre, .telemetry-side-text, option")) say("formatted", element);
    }
    const text = document.body.innerText;
    if (text.includes("\\u{1F604}")) found.push("an emoji of a shortcode");
    if (/[\\u202a-\\u202e\\u2066-\\u2069]/.test(text)) found.push("text that runs backwards");
    if (text.includes("5332114")) found.push("a template was worked out");
    return found;
}"""
_BROKEN = """() => [...document.querySelectorAll(
        '[data-testid="stException"], [data-testid="stAlert"], .telemetry-chart')]
    .map(element => element.innerText)
    .filter(text => /could not be drawn|Traceback|Error:|exception/i.test(text))"""
_WIDTH = """() => Math.max(document.scrollingElement.scrollWidth,
    ...[...document.querySelectorAll('[data-testid="stMain"], [data-testid="stSidebarContent"]')]
        .filter(part => part.getBoundingClientRect().right > 0)
        .map(part => part.scrollWidth - part.clientWidth + innerWidth))"""
_LONGEST = """() => {
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    let longest = 0, where = "";
    for (let node = walk.nextNode(); node; node = walk.nextNode()) {
        if (node.parentElement.closest("pre, textarea, script, style, canvas, .telemetry-side-text")) continue;
        if (node.data.length > longest) { longest = node.data.length; where = node.data.slice(0, 80); }
    }
    return [longest, where];
}"""
_UNFOLD = """() => document.querySelectorAll('[data-testid="stMain"] details:not([open]) > summary')
    .forEach(summary => summary.click())"""
# What a mouse would show at the first point of each curve.
_POINT_AT_ALL = """() => {
    for (const div of document.querySelectorAll(".telemetry-chart[data-drawn]")) {
        if (!div._fullData || !window.Plotly) continue;
        const places = div._fullData.map((trace, number) => ({ curveNumber: number, pointNumber: 0 }));
        try { Plotly.Fx.hover(div, places); } catch (_) { /* a curve without points */ }
    }
    return document.querySelectorAll(".hoverlayer text").length;
}"""
_DRAWN = """() => [...document.querySelectorAll(".telemetry-chart")].every(div => {
    const box = div.getBoundingClientRect();
    const inSight = box.width > 0 && box.top < innerHeight && box.bottom > 0;
    return !inSight || div.dataset.drawn || div.textContent.includes("could not");
})"""


class Beacon:
    """Somebody else's web server, which notes what it is asked for."""

    def __init__(self):
        asked = self.asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(b"<!doctype html><title>a stranger</title><body></body>")

            do_POST = do_HEAD = do_OPTIONS = do_GET

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.place = f"127.0.0.1:{self._server.server_port}"

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Looked:
    """What a browser did while pages were open in it, and how many there were."""

    def __init__(self, page, shown, beacon):
        self.page, self.shown, self.beacon = page, shown, beacon
        self.pages = 0
        self.asked, self.trouble = [], []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("websocket", lambda socket: self.asked.append(socket.url))
        page.on("pageerror", lambda error: self.trouble.append(f"script error: {error}"))
        page.on("dialog", lambda dialog: (self.trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("popup", lambda popup: self.trouble.append(f"a window: {popup.url}"))
        page.on("console", self._hear)

    def _hear(self, message):
        if "Content Security Policy" in message.text:
            self.trouble.append(message.text)

    def check(self, where):
        """Assert that the page that stands there is whole, and that nothing of a run has become more than text."""
        page = self.page
        page.wait_for_function(_DRAWN)
        self.pages += 1
        assert page.evaluate(RAN) == [], where
        assert page.evaluate(_MADE_OF_DATA, WORDS_OF_MARKUP) == [], where
        assert page.evaluate(_BROKEN) == [], where
        longest, text = page.evaluate(_LONGEST)
        assert longest < 6_000, (where, text)
        # What a chart or a table draws follows the window by a moment.
        page.wait_for_function(f"most => ({_WIDTH})() <= most", arg=page.viewport_size["width"] + 1)
        self.check_traffic(where)

    def check_traffic(self, where=""):
        port = self.shown.port
        foreign = [
            url
            for url in self.asked
            if (parts := urlsplit(url)).scheme not in ("data", "blob", "about")
            and (parts.hostname, parts.port) not in (("localhost", port), ("127.0.0.1", port))
        ]
        assert foreign == [], where
        assert self.beacon.asked == [], where
        assert self.trouble == [], where


@pytest.fixture(scope="module")
def beacon():
    server = Beacon()
    yield server
    server.close()


@pytest.fixture(scope="module")
def browser():
    try:
        file = chromium_file()
    except NoBrowser as error:
        pytest.skip(f"there is no browser to drive: {error}")
    with sync_playwright() as playwright:
        started = launch(file, playwright)
        yield started
        started.close()


@pytest.fixture(scope="module")
def shown(tmp_path_factory, beacon):
    """A dashboard over two poisoned runs, or over many of them, and two good ones; its folder's name is a payload."""
    root = (
        tmp_path_factory.mktemp("logs")
        / "logs <img data-pwn src=x onerror=pwn('root')> :red[pwnred] $x$ &lt;b&gt;"
    )
    for number in range(longer(2, 12)):
        poison = Poison(beacon.place, first=number * longer(17, 4))
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
    """A window in which the first wall stands alone: what a page does with a text, whatever the headers forbid."""
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
    looked.page.locator('[data-testid="stSidebarNav"]').get_by_role("link", name=name, exact=True).click()
    looked.page.wait_for_function(
        """name => document.querySelector('[data-testid="stSidebarNav"] a[aria-current="page"]')
            ?.textContent.includes(name)""",
        arg=name,
    )
    settle(looked.page)


def open_everything(page):
    """Unfold what is folded, look behind every tab, and point at every chart."""
    page.evaluate(_UNFOLD)
    settle(page)
    for tab in page.locator('[data-testid="stMain"] [role="tab"]').all():
        tab.click()
    settle(page)
    page.wait_for_function(_DRAWN)
    page.evaluate(_POINT_AT_ALL)


def is_narrow_enough(page):
    page.set_viewport_size(_PHONE)
    page.wait_for_function("() => innerWidth === 390")
    # What a chart or a table draws follows the window by a moment.
    page.wait_for_function(f"() => ({_WIDTH})() <= 391")
    page.set_viewport_size(_DESK)


def visit(looked, run):
    """Open every page of a run, with all that is on it, on a desk and on a phone."""
    page, shown = looked.page, looked.shown
    shown.open(page, "/overview", run=run)
    for name in _OF_A_RUN:
        follow(looked, name)
        page.locator('[data-testid="stMain"] h3').first.wait_for()
        looked.check(f"{name} of {run}")
        open_everything(page)
        looked.check(f"{name} of {run}, everything open")
        pick(looked, name)
        if is_long() or name in _ON_A_PHONE:
            is_narrow_enough(page)


def pick(looked, name):
    """Look closer at some of what a page lists: spans that are clicked, and completions."""
    page = looked.page
    if name == "Timeline":
        spans = page.locator('.telemetry-chart[data-drawn][aria-label^="spans,"]')
        ids = spans.evaluate("div => div._fullData.map(trace => trace.customdata[0][0])")
        for number in ids[: longer(1, 40)]:
            spans.evaluate("(div, number) => div.__pick(number)", number)
            main_of(page).get_by_text(re.compile(r"started \d")).first.wait_for()
            settle(page)
            looked.check(f"span {number}")
    if name == "Completions":
        rows = page.locator(".telemetry-completion")
        for number in range(1, min(rows.count(), longer(3, 45))):
            place = rows.nth(number).evaluate("button => { button.click(); return button.dataset.place; }")
            wait_for_query(page, f"q.get('i') === '{place}'")
            settle(page)
            looked.check(f"completion {number}")


def main_of(page):
    return page.locator('[data-testid="stMain"]')


def told(looked):
    return (
        f"{looked.pages} page views, {len(looked.asked):,} browser requests, "
        "0 of them to another server, 0 scripts run"
    )


@in_make_faults
@pytest.mark.parametrize("number", range(longer(1, 12)))
def test_no_page_of_a_poisoned_run_runs_fetches_or_formats_anything(shown, look, number, record_property):
    looked = look()
    visit(looked, f"poisoned-{number}")

    record_property("measured", told(looked))


@pytest.mark.skipif(not is_long(), reason="the second wall is tried on every page in a long run")
@pytest.mark.parametrize("number", range(longer(1, 4)))
def test_the_headers_have_nothing_to_forbid_on_pages_of_a_poisoned_run(
    shown, look, guarded, number, record_property
):
    looked = look(guarded)
    visit(looked, f"poisoned-{number}")

    record_property("measured", told(looked))


@in_make_faults
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
    for text in list(payloads(beacon.place).values())[: longer(2, 42)]:
        search.fill(text)
        search.press("Enter")
        settle(page)
        expect(main_of(page).get_by_text(re.compile(rf"^\d+ of {runs} runs"))).to_be_visible()
        looked.check(f"Runs, searched for {text[:40]!r}")
    search.fill("tag:sound")
    search.press("Enter")
    expect(main_of(page).get_by_text(f"2 of {runs} runs")).to_be_visible()
    shown.open(page, "/compare", runs="poisoned-0,poisoned-1,good", tag=_TAG)
    page.locator('.telemetry-chart[data-drawn][data-group="compare"][aria-label^="train_loss,"]').wait_for()
    open_everything(page)
    looked.check("Compare")
    is_narrow_enough(page)
    follow(looked, "Settings")
    expect(main_of(page).get_by_text("Log directories")).to_be_visible()
    looked.check("Settings")
    shown.open(page, "/overview", run="poisoned-0")
    for entry in ("Rename and tag…", "Export…", "Link and folder…", "Delete…"):
        main_of(page).get_by_role("button", name="Run", exact=True).click()
        page.get_by_text(entry, exact=True).click()
        page.get_by_role("dialog").wait_for()
        settle(page)
        looked.check(entry)
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="detached")
    shown.open(page, "/overview", run="good")
    expect(main_of(page).get_by_role("heading", name="good")).to_be_visible()
    chart(page, "Loss")
    looked.check("a good run beside the others")

    record_property("measured", told(looked))


@in_make_faults
def test_metrics_named_like_internals_are_drawn_under_their_own_names(shown, look):
    looked = look()
    page = looked.page
    shown.open(page, "/metrics", run=_PARTS_RUN, cols="4")
    page.wait_for_function(_DRAWN)
    for name in _PARTS:
        drawn = figure(page, name)

        assert drawn["traces"][-1]["name"] == html.escape(name), name
    # At once: what a chart draws anew points at nothing any more.
    pointed, hints = page.evaluate(
        f"""() => [({_POINT_AT_ALL})(),
            [...document.querySelectorAll(".hoverlayer")].map(layer => layer.textContent)]"""
    )
    assert pointed > len(_PARTS)
    assert all(any(name in hint for hint in hints) for name in _PARTS)
    looked.check("metrics called like parts of the program")


@pytest.mark.parametrize("name", range(longer(1, 8)))
def test_what_an_address_says_is_text_too(shown, look, beacon, name, record_property):
    looked = look()
    page = looked.page
    every = [text for text in payloads(beacon.place).values() if len(text) < 2_000]
    paths = ("/overview", "/compare", "/metrics", "/", "/timeline", "/completions")
    for number, path in enumerate(paths[: longer(2, 6)]):
        texts = [every[(name * 5 + number * 7 + place) % len(every)] for place in range(len(_PARAMETERS))]
        asked = dict(zip(_PARAMETERS, texts, strict=True))
        if path not in ("/", "/compare", "/overview"):
            asked["run"] = "poisoned-0"
        asked |= _EDGES[number % len(_EDGES)]
        page.goto(shown.url(path) + "?" + urlencode(asked, quote_via=quote, errors="replace"))
        page.wait_for_selector('[data-testid="stAppViewContainer"]')
        settle(page)
        looked.check(f"{path} with {asked}")

    record_property("measured", told(looked))


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
        found = looked.page.evaluate(_MADE_OF_DATA, WORDS_OF_MARKUP)

        assert [line.split(":")[0] for line in found] == [
            *("made of data", "an address of somebody else", "a handler", "formatted"),
            *("an address of somebody else", "a stranger's element"),
        ]
        assert looked.page.evaluate(RAN) == ["by hand"]
        with pytest.raises(AssertionError):
            looked.check("a page that does what it should not")
        if looked is shut_door:
            wait_until(
                lambda: any("Content Security Policy" in line for line in shut_door.trouble), shut_door.page
            )
            assert beacon.asked == []

    wait_until(lambda: beacon.asked == ["/seen.png"], open_door.page)


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
        wait_until(lambda: [frame.url for frame in page.frames[1:]] == refused, page)
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


def test_a_failing_page_reveals_no_path_and_no_code(guarded, tmp_path):
    script = tmp_path / "page.py"
    script.write_text(
        "import streamlit as st\nst.write('it began')\nraise RuntimeError('/home/somebody/secret')\n"
    )
    server = (
        "import sys, pathlib\n"
        "from dashboard.listening import listen\n"
        "from dashboard.server import DashboardServer\n"
        "listener = listen('localhost', 0)\n"
        "server = DashboardServer(listener, script=pathlib.Path(sys.argv[1]), preload=False)\n"
        "server.serve_until_stopped(on_ready=lambda: print(f'Dashboard: {listener.url} ', flush=True))\n"
    )
    (tmp_path / "server.py").write_text(server)
    environ = {"PYTHONPATH": str(ROOT)}
    with Started(
        [sys.executable, str(tmp_path / "server.py"), str(script)], tmp_path, environ=environ
    ) as process:
        page = guarded.new_page()
        try:
            Dashboard(process.wait_until_ready(), tmp_path).open(page)
            page.locator('[data-testid="stException"]').wait_for()
            text = page.locator("body").inner_text()
            # Whoever started it reads it in the terminal.
            wait_until(lambda: "/home/somebody/secret" in process.err + process.out, page)
        finally:
            page.close()

        assert "it began" in text
        assert not [
            word
            for word in ("/home", "secret", "RuntimeError", "Traceback", str(tmp_path), ".py")
            if word in text
        ]


def wait_until(condition, page):
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not condition():
        assert time.monotonic() < deadline
        page.wait_for_timeout(50)
