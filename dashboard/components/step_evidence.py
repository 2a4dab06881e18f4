"""What was logged, trained on, printed and sampled at the step of a finding."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import streamlit as st

from toolkit.telemetry.diagnostics.finding import Finding, ranks_in
from toolkit.telemetry.runfolder.evidence.batches import read_batches
from toolkit.telemetry.runfolder.evidence.output_log import OutputLog
from toolkit.telemetry.runs.files.samples import samples_of_run
from toolkit.telemetry.runs.formatting import clean, count, md, short_number

from .. import page_links
from .frame import RunPage
from .pictures import strip
from .run_table import fact_table

_SAMPLES: Final = 8
_LINES_BEFORE, _LINES_AFTER = 6, 2
_PICTURES: Final = 6


def step_evidence(page: RunPage, alert: Finding, metric: str | None) -> None:
    """Show what the run kept of the first step of a finding; nothing for one without a step."""
    step = alert.start_step
    if step is None:
        return
    value, time = (None, None) if metric is None else _logged_at(page, metric, step)
    at = f"At step {step:,}" + ("" if value is None else f": {md(str(metric))} {short_number(value)}")
    st.markdown(f"**{at}**")
    folder = page.card.path
    if folder is not None:
        rank = next(iter(ranks_in(alert.evidence)), 0)
        left, right = st.columns([2, 3], gap="medium")
        with left:
            _batch(_trained_on(folder, rank, step, alert.session), f"{page.key} {alert.id}")
        with right:
            _printed(page, folder, rank, alert.time if time is None else time)
    at_step = [
        replace(one, samples=kept)
        for one in samples_of_run(page.store, page.key)
        if (kept := tuple(item for item in one.samples if item.step == step and item.kind == "image"))
    ]
    if at_step:
        strip(page.key, at_step[:_PICTURES], follows="", key=f"_step {page.key} {alert.id}")


def _logged_at(page: RunPage, metric: str, step: int) -> tuple[float | None, float | None]:
    """Return what a metric was at a step, and when that was."""
    # With room: a window of one place has no width.
    series = page.store.series(page.key, metric, window=(step - 0.5, step + 0.5), buckets=1)
    found: tuple[float | None, float | None] = None, None
    for one in series.segments:
        for at in np.flatnonzero(one.x == step).tolist():
            found = float(one.y[at]), None if one.time is None else float(one.time[at])
    return found


@st.cache_data(max_entries=64, ttl=60, show_spinner=False)
def _trained_on(folder: Path, rank: int, step: int, session: int) -> list[tuple[Any, float | None]]:
    # The file of the batches may be long, and pages are drawn often.
    return read_batches(folder, rank).samples_at(step, session)


def _batch(samples: list[tuple[Any, float | None]], key: str) -> None:
    if not samples:
        return
    shown = samples[:_SAMPLES]
    facts: dict[str, list[Any]] = {"Sample of its batch": [str(one) for one, _ in shown]}
    if any(loss is not None for _, loss in shown):
        facts["Loss"] = [None if loss is None or math.isnan(loss) else loss for _, loss in shown]
    fact_table(facts, "What the step was trained on", key=f"_batch {key}")
    if len(samples) > len(shown):
        st.caption(f"{count(len(samples) - len(shown))} more samples.")


def _printed(page: RunPage, folder: Path, rank: int, time: float | None) -> None:
    if time is None:
        return
    with OutputLog(folder, rank) as log:
        if not log.exists:
            return
        here = log.around(time)
        lines = log.lines(max(0, here - _LINES_BEFORE), min(log.count, here + _LINES_AFTER))
    if lines:
        st.code(clean("\n".join(line.text[:300] for line in lines)), language=None)
    st.page_link(
        page_links.page("config_notes"),
        label="Output at that time",
        query_params={"run": page.key, "tab": "Output", "at": f"{time:.3f}"},
    )
