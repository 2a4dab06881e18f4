"""Looking at a page as a person does: which charts it shows, what is in them, what it says."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from playwright.sync_api import Error, expect

from tests.waiting import wait_until

PATIENCE_MS = 60_000
"""A page that another process keeps from its processor is slow, not wrong."""
expect.set_options(timeout=PATIENCE_MS)

_LOCAL = {"127.0.0.1", "localhost"}

# On a deep link Streamlit first asks next to the page, is answered 404, and then asks at the root.
_HARMLESS = re.compile(r"404 \(Not Found\)|Infinite extent")

_FIGURE = """div => ({
    traces: div._fullData.map(trace => ({
        name: trace.name, mode: trace.mode, visible: trace.visible, yaxis: trace.yaxis,
        symbol: trace.marker ? trace.marker.symbol : null,
        x: Array.from(trace.x || []), y: Array.from(trace.y || []),
    })),
    range: div._fullLayout.xaxis.range.map(edge => div._fullLayout.xaxis.r2l(edge)),
    x: div._fullLayout.xaxis.type,
    y: div._fullLayout.yaxis.type,
    shapes: (div._fullLayout.shapes || []).map(shape => shape.x0),
    notes: (div._fullLayout.annotations || []).map(note => note.text),
    text: div._fullLayout.font.color,
    drawn: Number(div.dataset.drawn),
    height: div.getBoundingClientRect().height,
})"""

# The number in the header, after the word in bold.
_STEP = """() => {
    for (const part of document.querySelectorAll('[data-testid="stMain"] strong')) {
        const found = part.innerText.match(/^step ([\\d,]+)/);
        if (found) return Number(found[1].replaceAll(",", ""));
    }
    return -1;
}"""


class Dashboard:
    """A started dashboard and the folder of runs it shows."""

    def __init__(self, process, root):
        self.process = process
        self.root = root
        self.port = process.port

    def url(self, path="/", **query):
        asked = "?" + urlencode(query, quote_via=quote) if query else ""
        return f"http://localhost:{self.port}{path}{asked}"

    def open(self, page, path="/", **query):
        """Go there and wait until the page is complete."""
        page.goto(self.url(path, **query))
        page.wait_for_selector('[data-testid="stAppViewContainer"]')
        settle(page)
        return page


class Watch:
    """What one tab asked for and complained about."""

    def __init__(self, page):
        self.asked = []
        self.trouble = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("websocket", lambda socket: self.asked.append(socket.url))
        page.on("pageerror", lambda error: self.trouble.append(f"script error: {error}"))
        page.on("console", self._hear)

    def _hear(self, message):
        serious = message.type == "error" or "Content Security Policy" in message.text
        if serious and not _HARMLESS.search(message.text):
            self.trouble.append(f"{message.type}: {message.text}")

    def check(self):
        assert foreign(self.asked) == []
        assert self.trouble == []


def foreign(urls):
    """Return those of `urls` that another machine would have to answer."""
    return [
        url
        for url in urls
        if (parts := urlsplit(url)).scheme not in ("data", "blob", "about") and parts.hostname not in _LOCAL
    ]


def settle(page):
    """Wait until the server has nothing more to say about this page."""
    page.wait_for_function(
        """() => document.querySelector('[data-testid="stApp"]')?.dataset.testScriptState === 'notRunning'
            && !document.querySelector('[data-testid="stSkeleton"], .telemetry-first')"""
    )


def wait_in(page, condition):
    """Wait until `condition` is true, and let the browser tell meanwhile what happens in it."""
    return wait_until(condition, pause=lambda: page.wait_for_timeout(50))


def query(page):
    """Return what is in the address of the page."""
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def wait_for_query(page, condition):
    """Wait until `condition`, JavaScript about `q` (the query parameters), is true."""
    page.wait_for_function(f"() => {{ const q = new URLSearchParams(location.search); return {condition}; }}")


def chart(page, title):
    """Return the chart with this title once it has been drawn, by Plotly or on a canvas."""
    found = page.locator(f':is(.telemetry-chart, .telemetry-curves)[data-drawn][aria-label^="{title},"]')
    found.wait_for()
    return found


def figure(page, title):
    """Return what a chart shows that Plotly draws, as plain values."""
    return chart(page, title).evaluate(_FIGURE)


def curves(page, title):
    """Return what a chart of curves shows, as plain values."""
    return chart(page, title).evaluate("root => root.__chart.describe()")


def wait_for_curves(page, title, condition, timeout=PATIENCE_MS):
    """Wait until `condition`, JavaScript about what the chart shows as `seen`, is true; return that."""
    found = page.wait_for_function(
        f"""title => {{
            const root = document.querySelector(`.telemetry-curves[data-drawn][aria-label^="${{title}},"]`);
            if (!root || !root.__chart) return null;
            const seen = root.__chart.describe();
            return {condition} ? seen : null;
        }}""",
        arg=title,
        timeout=timeout,
    )
    return found.json_value()


def wait_for_chart(page, title, condition, timeout=PATIENCE_MS):
    """Wait until `condition`, JavaScript about the `figure` of the chart, is true; return that very figure."""
    chart(page, title)
    found = page.wait_for_function(
        f"""title => {{
            const div = document.querySelector(`.telemetry-chart[data-drawn][aria-label^="${{title}},"]`);
            if (!div || !div._fullData) return null;
            const figure = ({_FIGURE})(div);
            return {condition} ? figure : null;
        }}""",
        arg=title,
        timeout=timeout,
    )
    return found.json_value()


def place_of(page, title):
    """Return where the part of a chart lies that takes the mouse, once it lies still: what is above may move it."""
    return chart(page, title).evaluate(
        """div => new Promise(resolve => {
            let before = "";
            const look = () => {
                const part = div.querySelector(".nsewdrag");
                const drawn = div.__chart && div.__chart.plot ? div.__chart : null;
                let { x, y, width, height } = part ? part.getBoundingClientRect() : {};
                if (drawn) {
                    const over = drawn.overlay.getBoundingClientRect();
                    ({ width, height } = drawn.plot);
                    [x, y] = [over.x + drawn.plot.left, over.y + drawn.plot.top];
                }
                const now = [x, y, width, height].join();
                if (width > 0 && now === before) resolve({ x, y, width, height });
                else { before = now; setTimeout(look, 100); }
            };
            look();
        })"""
    )


def hover(page, title, across, down):
    """Move the mouse over a chart until its tooltip appears; return what that says.

    The places are shares of the chart. Once is not enough: what a refresh adds above the chart moves it.
    """

    def said():
        place = place_of(page, title)
        x, y = place["x"] + place["width"] * across, place["y"] + place["height"] * down
        page.mouse.move(x - 10, y)
        page.mouse.move(x, y, steps=2)
        page.wait_for_timeout(100)
        return "".join(page.locator(".telemetry-tip").all_inner_texts())

    return wait_in(page, said)


def drag(page, title, start, end):
    """Drag the mouse over a part of a chart, from one share of its width to another."""
    chart(page, title).scroll_into_view_if_needed()
    place = place_of(page, title)
    height = place["y"] + place["height"] / 2
    page.mouse.move(place["x"] + place["width"] * start, height)
    page.mouse.down()
    page.mouse.move(place["x"] + place["width"] * (start + end) / 2, height, steps=4)
    page.mouse.move(place["x"] + place["width"] * end, height, steps=4)
    page.mouse.up()


def fits_into(page, width):
    """Wait until nothing has to be scrolled sideways: what a chart or a table draws follows a little later."""
    page.wait_for_function(
        """width => Math.max(document.scrollingElement.scrollWidth,
            document.querySelector('[data-testid="stMain"]').scrollWidth) <= width""",
        arg=width,
    )


def status(page):
    """Return the badge next to the run's name."""
    return page.locator(".telemetry-badge").first


def step_shown(page):
    """Return the step in the header of a run."""
    return page.evaluate(f"() => ({_STEP})()")


def refresh_every(page, choice):
    """Choose how often a page refreshes itself."""
    sidebar(page).get_by_text(choice, exact=True).first.click()
    settle(page)


def sidebar(page):
    return page.locator('[data-testid="stSidebar"]')


def wait_until_step(page, step):
    page.wait_for_function(f"step => ({_STEP})() >= step", arg=step)


def pick_row(page, number):
    """Tick a row of the table of runs."""
    page.locator(".trt tbody tr").nth(number).locator("input[type=checkbox]").check()


def what_it_shows(page):
    """Return the text on a page, for the report of a failed test."""
    try:
        return page.locator("body").inner_text(timeout=2_000)
    except Error as error:
        return f"nothing can be read from it: {error}"
