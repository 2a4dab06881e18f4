"""Samples over the steps: a slider with play, all of them, runs side by side, and a large view with arrow keys."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import quote

import orjson
import streamlit as st

from toolkit.telemetry.runs.files.samples import Sample, SampleSeries, samples_of_run, thinned
from toolkit.telemetry.runs.formatting import clean, count
from toolkit.telemetry.runs.store import RunStore

from .. import page_links, session
from ..assets import SAMPLE_FILE_URL
from .frame import RunPage
from .page_states import section
from .script import sent_by, show_component

View = Literal["step", "all"]

_MAX_TITLE: Final = 500


def step_by_step(run: str, series: Sequence[SampleSeries], *, view: View, key: str) -> None:
    """Show samples of one run, one step at a time with a slider, or all of them."""
    rows = [_row(one.title, one.name, [one.samples]) for one in series]
    _draw({"layout": "run", "view": view, "columns": [_column(run, "")], "rows": rows}, key=key)


def side_by_side_samples(
    names: Mapping[str, str], rows: Mapping[str, Mapping[str, Sequence[Sample]]], *, key: str
) -> None:
    """Show runs, given by key and name, side by side: for each title the samples by key of the run."""
    _draw(
        {
            "layout": "compare",
            "view": "step",
            "columns": [_column(run, name) for run, name in names.items()],
            "rows": [_row(title, "", [found.get(run, ()) for run in names]) for title, found in rows.items()],
        },
        key=key,
    )


def strip(run: str, series: Sequence[SampleSeries], *, follows: str, key: str) -> None:
    """Show the newest samples small; while the cursor is in a chart over steps of the group `follows`, its step's."""
    rows = [_row(one.title, one.name, [one.samples]) for one in series]
    columns = [_column(run, "")]
    _draw({"layout": "strip", "view": "step", "columns": columns, "rows": rows, "follows": follows}, key=key)


def _draw(data: dict[str, Any], *, key: str) -> None:
    # Compared by the browser: a refresh without changes draws nothing.
    revision = f"{zlib.crc32(orjson.dumps(data)):08x}"
    html = '<div class="telemetry-pictures"></div>'
    if data["layout"] == "strip":
        show_component("pictures", html, data={**data, "revision": revision}, key=key)
        return
    # Not a part of the revision: the slider has already moved.
    show_component(
        "pictures",
        html,
        data={**data, "revision": revision, "at": session.sample_step()},
        key=key,
        default={"step": None},
        on_step_change=partial(_keep_step, key),
    )


def _keep_step(key: str) -> None:
    """Put the step of the slider into the URL."""
    step = sent_by(key, "step").get("at")
    session.set_sample_step(int(step) if isinstance(step, (int, float)) else None)


def _column(run: str, name: str) -> dict[str, str]:
    return {
        "name": clean(name)[:200],
        "url": f"{SAMPLE_FILE_URL}?run={quote(run, safe='', errors='replace')}",
    }


def _row(title: str, name: str, cells: Sequence[Sequence[Sample]]) -> dict[str, Any]:
    return {
        "title": clean(title)[:_MAX_TITLE],
        "name": clean(name)[:200],
        "cells": [[_item(sample) for sample in samples] for samples in cells],
    }


def _item(sample: Sample) -> list[Any]:
    """Return step, path, kind, caption and what else was logged, as short as possible: there may be thousands."""
    try:
        sample.path.encode()
        kind = sample.kind
    except UnicodeEncodeError:
        kind = "other"
    # The path of another kind is shown, and the others are asked for with theirs.
    path = clean(sample.path) if kind == "other" else sample.path
    return [sample.step, path, kind, sample.caption[:_MAX_TITLE], sample.about]


# ---------------------------------------------------------------- the latest samples of a run


_SHOWN: Final = 6
_STEPS: Final = 200
"""Samples of each prompt that are sent: enough for a cursor, and less than the whole page has."""


def latest_samples(page: RunPage) -> None:
    """Show the newest image of some prompts, and a link to all of them; nothing if the run has no images.

    While the cursor is in one of the run's charts over steps, they are those of its step.
    """
    series = [
        one
        for one in samples_of_run(page.store, page.key)
        if all(sample.kind == "image" for sample in one.samples)
    ]
    if not series:
        return
    # Those of the newest step first: a name that is no longer logged is old.
    newest = sorted(series, key=lambda one: -one.last_step)[:_SHOWN]
    shown = [one for one in series if one in newest]
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        section("Latest samples", width="content")
        st.page_link(page_links.page("samples"), label="All samples →", query_params={"run": page.key})
    strip(
        page.key,
        [replace(one, samples=tuple(thinned(one.samples, _STEPS))) for one in shown],
        follows=page.key,
        key=f"_strip {page.key}",
    )


# ---------------------------------------------------------------- samples of several runs


_MAX_ROWS: Final = 40
_MAX_RUNS: Final = 12


def sample_grid(store: RunStore, names: Mapping[str, str]) -> None:
    """Show samples of the runs in `names`, key and name of each; nothing if none of them has logged one."""
    found = {key: {one.title: one.samples for one in samples_of_run(store, key)} for key in names}
    with_samples = [key for key in names if found[key]]
    if not with_samples:
        return
    section("Samples :gray[the newest of each run at or before the step]")
    shown = with_samples[:_MAX_RUNS]
    rows = _rows_by_title({key: found[key] for key in shown})
    if not any(len(of_run) > 1 for of_run in rows.values()) and len(shown) > 1:
        st.caption("No prompt was logged by more than one of these runs.")
    side_by_side_samples(
        {key: names[key] for key in shown}, dict(list(rows.items())[:_MAX_ROWS]), key="_sample_grid"
    )
    left_out = []
    if len(with_samples) > len(shown):
        left_out.append(f"{count(len(with_samples) - len(shown))} more runs with samples are not shown.")
    if len(with_samples) < len(names):
        missing = len(names) - len(with_samples)
        left_out.append(
            "One run has no samples." if missing == 1 else f"{count(missing)} runs have no samples."
        )
    if len(rows) > _MAX_ROWS:
        left_out.append(f"Showing {_MAX_ROWS} of {count(len(rows))} prompts.")
    if left_out:
        st.caption(" ".join(left_out))


def _rows_by_title(
    found: Mapping[str, Mapping[str, Sequence[Sample]]],
) -> dict[str, dict[str, Sequence[Sample]]]:
    """Return samples by title and run; prompts of several runs first."""
    rows: dict[str, dict[str, Sequence[Sample]]] = {}
    for key, of_run in found.items():
        for title, samples in of_run.items():
            rows.setdefault(title, {})[key] = samples
    return dict(sorted(rows.items(), key=lambda item: -len(item[1])))
