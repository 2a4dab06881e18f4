"""How smoothly four charts of a large run zoom."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import served
from benchmarks.browser import fresh_page, seconds_until_curves
from benchmarks.command import say
from benchmarks.dashboard_parts import Part, Plan
from benchmarks.large_run import write_finished_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_TURNS = 40
_MOST_MS, _MOST_P95_MS = 17.0, 33.0
_START = """
() => {
  window.__frames = [];
  let last = performance.now();
  const next = (now) => {
    if (!window.__frames) return;
    window.__frames.push(now - last);
    last = now;
    requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
}
"""
_STOP = "() => { const frames = window.__frames.slice(2); window.__frames = null; return frames; }"
_FOUR = """
() => [...document.querySelectorAll(".telemetry-curves")].filter((root) => root.__chart
  && root.__chart.describe().curves.some((curve) => curve.drawn > 0)).length >= 4
"""


def measure(browser: Browser, plan: Plan, folder: Path, part: Part) -> None:
    """Zoom into and out of the metrics of a run of `plan.records` steps with the wheel, and time each frame."""
    frames: list[float] = []
    say(f"zoom: writing a run of {plan.records:,} records")
    write_finished_run(folder / "logs", "run", plan.records)
    with served.dashboard(folder / "logs", folder / "home") as server:
        for number in range(plan.rounds):
            say(f"zoom, round {number + 1} of {plan.rounds}")
            with fresh_page(browser) as page:
                seconds_until_curves(page, f"{server.url}/metrics?run=run", points=plan.records)
                page.wait_for_function(_FOUR)
                page.wait_for_timeout(1000)
                frames += _zoom(page)
    part.add("zooming four charts: one frame", frames, "ms", _MOST_MS)
    p95 = statistics.quantiles(frames, n=20)[-1]
    part.add("zooming four charts: one frame of twenty takes longer than", [p95], "ms", _MOST_P95_MS)


def _zoom(page: Page) -> list[float]:
    box = page.locator(".telemetry-curves canvas").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5)
    page.keyboard.down("Control")
    page.evaluate(_START)
    for turn in (-60, 60):
        for _ in range(_TURNS):
            page.mouse.wheel(0, turn)
            page.wait_for_timeout(25)
    frames: list[float] = page.evaluate(_STOP)
    page.keyboard.up("Control")
    return frames
