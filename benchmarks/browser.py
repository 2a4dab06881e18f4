"""A headless Chromium, and how to tell that a page has finished drawing."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_S = 120.0
_LOOK_EVERY_MS = 20
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

# So many curves of a metric are drawn, each with so many points; charts below the fold wait until they are visible.
_CURVES = """
([metric, curves, points]) => [...document.querySelectorAll(".telemetry-curves")].some((root) => {
  if (!root.__chart) return false;
  const drawn = root.__chart.describe().curves.filter((curve) => curve.metric === metric && curve.drawn > 0);
  return drawn.filter((curve) => curve.points >= points).length >= curves;
})
"""
_LOSS = "train_loss"
# A curve that the browser has painted: of the server's first screen, or else of the chart.
PAINTED = """
() => document.querySelector(".telemetry-first svg :is(.line, .pale), .telemetry-curves[data-drawn]") !== null
  && performance.getEntriesByName("first-contentful-paint").length > 0
"""
UNCOVERED = "() => document.querySelector('.telemetry-first') === null"
TABLE = "() => document.querySelector('#root .trt[data-drawn]') !== null"
TITLE = "() => document.querySelector('h1') !== null"


def missing() -> list[str]:
    """Return which required packages are not installed."""
    return [package for package in ("playwright", "streamlit") if importlib.util.find_spec(package) is None]


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start Chromium and open one page, so that no measurement includes the first one."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root, as in a container, has no sandbox; /dev/shm may be small there.
        browser = playwright.chromium.launch(
            executable_path=next(filter(None, map(shutil.which, _NAMES)), None),
            args=["--no-sandbox", "--disable-dev-shm-usage"],
        )
        try:
            with fresh_page(browser) as page:
                page.goto("data:text/html,<title>warm</title>")
            yield browser
        finally:
            browser.close()


@contextmanager
def fresh_page(browser: Browser) -> Iterator[Page]:
    """Open a page with an empty cache."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    try:
        yield context.new_page()
    finally:
        context.close()


class Cost:
    """What a page costs from its start: requests, bytes, messages, layout shift, and work of the browser."""

    _SHIFTS = """
      window.__shifted = 0;
      new PerformanceObserver((list) => list.getEntries().forEach((one) => { window.__shifted += one.value; }))
        .observe({ type: "layout-shift", buffered: true });
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self._asked: set[str] = set()
        self.received_kb, self.messages = 0.0, 0
        page.add_init_script(self._SHIFTS)
        self._session = session = page.context.new_cdp_session(page)
        session.on("Network.requestWillBeSent", self._note_request)
        session.on("Network.webSocketCreated", lambda event: self._asked.add(event["requestId"]))
        session.on("Network.loadingFinished", self._note_end)
        session.on("Network.webSocketFrameReceived", self._note_frame)
        session.send("Network.enable")
        session.send("Performance.enable")

    def _note_request(self, event: Any) -> None:
        if not event["request"]["url"].startswith(("blob:", "data:")):
            self._asked.add(event["requestId"])

    def _note_end(self, event: Any) -> None:
        if event["requestId"] in self._asked:
            self.received_kb += event["encodedDataLength"] / 1e3

    def _note_frame(self, event: Any) -> None:
        self.messages += 1
        # Binary frames come as base64.
        self.received_kb += len(event["response"]["payloadData"]) * 3 / 4e3

    @property
    def requests(self) -> int:
        """Requests so far."""
        return len(self._asked)

    @property
    def busy_ms(self) -> float:
        """Milliseconds of all tasks of the thread that draws the page."""
        found = self._session.send("Performance.getMetrics")["metrics"]
        return 1000.0 * float(next(one["value"] for one in found if one["name"] == "TaskDuration"))

    @property
    def shift(self) -> float:
        """The sum of all layout shifts so far."""
        return float(self._page.evaluate("window.__shifted"))


def seconds_until(page: Page, address: str, condition: str, argument: Any = None) -> float:
    """Return how long it takes until a condition of the page holds."""
    began = time.perf_counter()
    page.goto(address, wait_until="commit")
    wait(page, condition, argument)
    return time.perf_counter() - began


def seconds_until_curves(page: Page, address: str, *, curves: int = 1, points: int = 1) -> float:
    """Return how long it takes until a chart has drawn so many curves of the loss, each with so many points."""
    return seconds_until(page, address, _CURVES, [_LOSS, curves, points])


def wait_for_curves(page: Page, *, curves: int = 1, points: int = 1) -> None:
    """Wait until a chart of the open page has them."""
    wait(page, _CURVES, [_LOSS, curves, points])


def wait(page: Page, condition: str, argument: Any = None) -> None:
    """Wait until a condition of the open page holds."""
    page.wait_for_function(condition, arg=argument, polling=_LOOK_EVERY_MS, timeout=PATIENCE_S * 1000)
