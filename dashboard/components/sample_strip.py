"""The latest samples of a run in a small strip; a chart's cursor moves it to another step."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import streamlit as st

from dashboard.components.frame import RunPage
from dashboard.components.headings import section
from dashboard.components.pictures import strip
from toolkit.runs.files.samples import samples_of_run, thinned
from toolkit.runs.store import XAxis

_SHOWN: Final = 6
_STEPS: Final = 200
"""Samples of each prompt that are sent: enough for a cursor, and less than the whole page has."""


def latest_samples(page: RunPage, axis: XAxis) -> None:
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
        st.page_link(
            "views/samples.py",
            label="All samples",
            icon=":material/arrow_forward:",
            icon_position="right",
            query_params={"run": page.key},
        )
    strip(
        page.key,
        [replace(one, samples=tuple(thinned(one.samples, _STEPS))) for one in shown],
        follows=page.key if axis == "step" else None,
        key=f"_strip {page.key}",
    )
