"""How long Trackio takes to show a run of the same size: its page's query, and the page itself."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import served
from benchmarks.browser import fresh_page, seconds_until_chart_of_trackio
from benchmarks.child import measure_in_child
from benchmarks.command import say
from benchmarks.dashboard_part import Openings, Part, Plan
from benchmarks.large_run import BEGAN, SECONDS_A_STEP, steps
from benchmarks.report import Claim

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_PROJECT, _RUN = "bench", "run"
_AT_ONCE = 20_000
_TIMES_SOONER = 10.0
_SERVE = (
    "import trackio; "
    f"trackio.show({_PROJECT!r}, open_browser=False, block_thread=True, host='127.0.0.1', share=False)"
)


def measure(browser: Browser | None, plan: Plan, openings: Openings | None) -> Part:
    """Fill a Trackio database with `plan.records` steps, then query them as its page does."""
    part = Part()
    if importlib.util.find_spec("trackio") is None:
        part.notes.append("Trackio: not measured, trackio not installed")
        return part
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        database = Path(name) / "trackio"
        say(f"trackio: writing a run of {plan.records:,} records")
        part.figures["written_in_s"] = measure_in_child(write_run, str(database), plan.records)
        queries, pages = [], []
        for number in range(plan.rounds):
            say(f"trackio, round {number + 1} of {plan.rounds}")
            queries.append(measure_in_child(seconds_of_query, str(database)))
            if browser is not None:
                home = Path(name) / f"home-{number}"
                with _serve(database, home) as server, fresh_page(browser) as page:
                    pages.append(seconds_until_chart_of_trackio(page, f"{server.url}/?project={_PROJECT}"))
    for key, words, values in (
        ("query_s", "its page's query", queries),
        ("page_s", "its page, until the first chart", pages),
    ):
        if not values:
            continue
        part.figures[key] = values
        middle = part.add(f"Trackio, {plan.records:,} records: {words}", values, "s", openings)
        if openings is None:
            continue
        part.claims += _claims(
            f"our page, {{}}, faster than Trackio: {words}", middle, openings.cold_s, openings.warm_s
        )
        if key == "query_s":
            part.claims += _claims(
                "our curves without a page, {}, faster than Trackio's query",
                middle,
                openings.read_cold_s,
                openings.read_warm_s,
            )
    part.notes.append(
        "Trackio: its page draws 3,000 of the records, taken at a stride; ours keeps every extreme"
    )
    return part


def _claims(text: str, theirs_s: float, cold_s: float, warm_s: float) -> list[Claim]:
    return [
        Claim(
            text=text.format(which), measured=theirs_s / ours_s, limit=_TIMES_SOONER, unit="x", at_least=True
        )
        for which, ours_s in (("cold", cold_s), ("columns cached", warm_s))
    ]


def write_run(folder: Path, database: str, records: int) -> float:
    """Log `records` steps with Trackio's bulk function, and return how long that took."""
    del folder
    _point_to(database)
    from trackio.sqlite_storage import SQLiteStorage

    began = time.perf_counter()
    for first in range(0, records, _AT_ONCE):
        numbers, values = zip(*steps(first, min(_AT_ONCE, records - first)), strict=True)
        SQLiteStorage.bulk_log(
            _PROJECT,
            _RUN,
            list(values),
            steps=list(numbers),
            timestamps=[
                datetime.fromtimestamp(BEGAN + step * SECONDS_A_STEP, timezone.utc).isoformat()
                for step in numbers
            ],
        )
    return time.perf_counter() - began


def seconds_of_query(folder: Path, database: str) -> float:
    """Return how long the function behind Trackio's page takes to load the run, in a fresh process."""
    del folder
    _point_to(database)
    from trackio import server

    began = time.perf_counter()
    (answer,) = server.get_logs_batch(_PROJECT, [{"run": _RUN, "run_id": None}], scalar_only=True)
    taken = time.perf_counter() - began
    if not answer["logs"]:
        raise RuntimeError("Trackio found no records of the run")
    return taken


def _serve(database: Path, home: Path) -> served.Served:
    environ = {"TRACKIO_DIR": str(database), "HF_HUB_OFFLINE": "1"}
    return served.Served(
        [sys.executable, "-c", _SERVE], home, says=r"(http://127\.0\.0\.1:\d+)", environ=environ
    )


def _point_to(database: str) -> None:
    os.environ["TRACKIO_DIR"] = database
    os.environ["HF_HUB_OFFLINE"] = "1"
