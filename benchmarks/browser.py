"""A headless Chromium, and how to tell that a page has finished drawing."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_S = 120.0
_LOOK_EVERY_MS = 20
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

# Not innerText: it forces a new layout each time and would slow down what is measured.
_CAPTIONS = (
    "[...document.querySelectorAll('[data-testid=\"stCaptionContainer\"]')]"
    ".map((caption) => caption.textContent).join(' ')"
)

# So many curves of a metric are drawn, each with so many points; charts below the fold wait until they are visible.
_CURVES = """
([metric, curves, points]) => [...document.querySelectorAll(".telemetry-curves")].some((root) => {
  if (!root.__chart) return false;
  const drawn = root.__chart.describe().curves.filter((curve) => curve.metric === metric && curve.drawn > 0);
  return drawn.filter((curve) => curve.points >= points).length >= curves;
})
"""
LOSS = "train_loss"
# A curve that the browser has painted: of the server's first screen, or else of the chart.
_PAINTED = """
() => document.querySelector(".telemetry-first svg :is(.line, .pale), .telemetry-curves[data-drawn]") !== null
  && performance.getEntriesByName("first-contentful-paint").length > 0
"""
_UNCOVERED = "() => document.querySelector('.telemetry-first') === null"
_TABLE = """
(runs) => {
  const canvas = document.querySelector('[data-testid="stDataFrame"] canvas');
  if (!canvas || !canvas.width) return false;
  return CAPTIONS.includes(`${runs} of ${runs} runs`);
}
""".replace("CAPTIONS", _CAPTIONS)


def missing() -> list[str]:
    """Return which required packages are not installed."""
    packages = [
        package for package in ("playwright", "streamlit") if importlib.util.find_spec(package) is None
    ]
    return packages if packages or _chromium() else ["chromium"]


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start Chromium and open one page, so that no measurement includes the first one."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root, as in a container, has no sandbox; /dev/shm may be small there.
        browser = playwright.chromium.launch(
            executable_path=_chromium() or None, args=["--no-sandbox", "--disable-dev-shm-usage"]
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


class MainThread:
    """How long the thread that draws a page has worked."""

    def __init__(self, page: Page) -> None:
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable")

    @property
    def busy_ms(self) -> float:
        """Milliseconds of all tasks since the page was opened."""
        found = self._session.send("Performance.getMetrics")["metrics"]
        return 1000.0 * float(next(one["value"] for one in found if one["name"] == "TaskDuration"))


class Loading:
    """Counts requests, bytes and the layout shift of a page from its start."""

    _SHIFTS = """
      window.__shifted = 0;
      new PerformanceObserver((list) => list.getEntries().forEach((one) => { window.__shifted += one.value; }))
        .observe({ type: "layout-shift", buffered: true });
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self._asked: set[str] = set()
        self._bytes = 0.0
        self._own = 0
        page.add_init_script(self._SHIFTS)
        session = page.context.new_cdp_session(page)
        session.on("Network.requestWillBeSent", self._note_request)
        session.on("Network.webSocketCreated", self._note_socket)
        session.on("Network.loadingFinished", self._note_end)
        session.on("Network.webSocketFrameReceived", self._note_frame)
        session.send("Network.enable")

    def _note_request(self, event: Any) -> None:
        self._asked.add(event["requestId"])
        # Streamlit's own scripts and fonts come with an empty page too.
        self._own += not re.search(r"^(blob|data):|/static/", event["request"]["url"])

    def _note_socket(self, event: Any) -> None:
        self._asked.add(event["requestId"])

    def _note_end(self, event: Any) -> None:
        if event["requestId"] in self._asked:
            self._bytes += event["encodedDataLength"]

    def _note_frame(self, event: Any) -> None:
        # Binary frames come as base64.
        self._bytes += len(event["response"]["payloadData"]) * 3 / 4

    @property
    def so_far(self) -> tuple[int, float]:
        """Requests for other files than Streamlit's own, and megabytes received of all."""
        return self._own, self._bytes / 1e6

    def forget(self) -> float:
        """Return the kilobytes received since the last call."""
        received, self._bytes = self._bytes, 0.0
        return received / 1e3

    def shift(self) -> float:
        """Return the sum of all layout shifts so far."""
        return float(self._page.evaluate("window.__shifted"))


def seconds_until_painted(page: Page, address: str) -> tuple[float, float]:
    """Return how long it takes until a curve is seen, and until it answers the mouse."""
    began = time.perf_counter()
    painted = seconds_until(page, address, _PAINTED)
    _wait(page, _CURVES, [LOSS, 1, 1])
    _wait(page, _UNCOVERED, None)
    return painted, time.perf_counter() - began


def seconds_until_curves(page: Page, address: str, *, curves: int = 1, points: int = 1) -> float:
    """Return how long it takes until a chart has drawn so many curves of the loss, each with so many points."""
    return seconds_until(page, address, _CURVES, [LOSS, curves, points])


def wait_for_curves(page: Page, *, curves: int = 1, points: int = 1) -> None:
    """Wait until a chart of the open page has them."""
    _wait(page, _CURVES, [LOSS, curves, points])


def seconds_until_table(page: Page, address: str, runs: int) -> float:
    """Return how long it takes until the list of runs is drawn."""
    return seconds_until(page, address, _TABLE, f"{runs:,}")


def seconds_until_title(page: Page, address: str) -> float:
    """Return how long it takes until a page's heading appears."""
    return seconds_until(page, address, "() => document.querySelector('h1') !== null", None)


def seconds_until(page: Page, address: str, condition: str, argument: Any = None) -> float:
    """Return how long it takes until a condition of the page holds."""
    began = time.perf_counter()
    page.goto(address, wait_until="commit")
    _wait(page, condition, argument)
    return time.perf_counter() - began


def _wait(page: Page, condition: str, argument: Any) -> None:
    page.wait_for_function(condition, arg=argument, polling=_LOOK_EVERY_MS, timeout=PATIENCE_S * 1000)


def _chromium() -> str:
    """Return the path of Chromium: the system's, or that of `playwright install chromium`."""
    for name in _NAMES:
        found = shutil.which(name)
        if found:
            return found
    kept = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    return next((str(path) for path in sorted(kept.glob("chromium-*/chrome-*/chrome"))), "")
