"""Samples over the steps: a slider with play, all of them, runs side by side, and a large view with arrow keys."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import quote

import orjson
import streamlit as st

from dashboard import session
from dashboard.assets import SAMPLE_FILE_URL
from dashboard.components.script import component_key, loader
from toolkit.runs.files.samples import Sample, SampleSeries
from toolkit.runs.formatting import clean

View = Literal["step", "all"]

_MAX_TITLE: Final = 500
_STYLE: Final = """
.telemetry-pictures { display: flex; flex-direction: column; gap: 0.9rem; color: var(--st-text-color); }
.telemetry-pictures button, .telemetry-pictures select, .telemetry-picture-box button {
  font: inherit; font-size: 0.9rem; color: var(--st-text-color); background: var(--st-background-color);
  border: 1px solid var(--st-border-color); border-radius: var(--st-base-radius); padding: 0.3rem 0.7rem;
  min-height: 2.2rem; cursor: pointer; max-width: 100%;
}
.telemetry-pictures button:hover, .telemetry-picture-box button:hover { border-color: var(--st-primary-color); }
.telemetry-pictures button[aria-pressed="true"] {
  border-color: var(--st-primary-color);
  background: color-mix(in srgb, var(--st-primary-color) 12%, var(--st-background-color));
}
.telemetry-pictures button:disabled, .telemetry-picture-box button:disabled { opacity: 0.4; cursor: default; }
.telemetry-pictures button.telemetry-picture-frame:disabled { opacity: 1; }
.telemetry-pictures :focus-visible, .telemetry-picture-box :focus-visible {
  outline: 2px solid var(--st-primary-color); outline-offset: 1px;
}
.telemetry-pictures-bar {
  display: flex; flex-wrap: wrap; align-items: center; gap: 0.5rem; position: sticky; top: 0; z-index: 3;
  padding: 0.4rem 0; background: var(--st-background-color);
}
.telemetry-pictures-bar input[type="range"] { flex: 1 1 12rem; min-width: 8rem; accent-color: var(--st-primary-color); }
.telemetry-pictures-bar label { display: flex; align-items: center; gap: 0.4rem; font-size: 0.9rem; min-width: 0; }
.telemetry-pictures-play { min-width: 5.4rem; }
.telemetry-pictures-now { font-size: 0.9rem; font-variant-numeric: tabular-nums; min-width: 11rem; }
.telemetry-pictures-grid {
  display: grid; gap: 0.9rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr));
}
@media (max-width: 640px) {
  .telemetry-pictures-grid { grid-template-columns: repeat(auto-fill, minmax(min(45%, 9rem), 1fr)); }
  .telemetry-pictures-now { min-width: 100%; }
}
.telemetry-pictures-few { grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 24rem)); }
.telemetry-pictures-all { gap: 0.5rem; grid-template-columns: repeat(auto-fill, minmax(6.5rem, 1fr)); }
.telemetry-pictures-runs { grid-template-columns: repeat(var(--columns), minmax(0, 20rem)); }
@media (max-width: 640px) { .telemetry-pictures-runs { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
.telemetry-pictures-strip { display: flex; flex-wrap: wrap; gap: 0.5rem; }
.telemetry-pictures-strip .telemetry-picture { flex: 1 1 5.9rem; max-width: 9rem; }
.telemetry-pictures-strip .telemetry-picture-caption { -webkit-line-clamp: 2; }
.telemetry-pictures-row { display: flex; flex-direction: column; gap: 0.4rem; min-width: 0; }
.telemetry-pictures-title {
  margin: 0; padding: 0; font-size: 0.95rem; font-weight: 600; overflow-wrap: anywhere; unicode-bidi: isolate;
}
.telemetry-pictures-title span { font-weight: 400; opacity: 0.75; }
.telemetry-picture { display: flex; flex-direction: column; gap: 0.25rem; min-width: 0; margin: 0; }
.telemetry-picture-frame {
  position: relative; display: flex; align-items: center; justify-content: center; width: 100%; aspect-ratio: 1;
  overflow: hidden; border-radius: var(--st-base-radius); background: var(--st-secondary-background-color);
}
.telemetry-pictures button.telemetry-picture-open {
  padding: 0; border: 0; min-height: 0; background: var(--st-secondary-background-color);
}
.telemetry-picture-frame img { width: 100%; height: 100%; object-fit: contain; display: block; }
img.telemetry-picture-pixels { image-rendering: pixelated; }
.telemetry-picture-frame video { width: 100%; height: 100%; }
.telemetry-picture-frame audio { width: 94%; }
.telemetry-picture-frame pre {
  margin: 0; padding: 0.5rem; width: 100%; height: 100%; overflow: auto; white-space: pre-wrap;
  overflow-wrap: anywhere; font-size: 0.8rem; text-align: left; box-sizing: border-box;
}
.telemetry-picture-problem {
  padding: 0.5rem; font-size: 0.8rem; text-align: center; overflow-wrap: anywhere; overflow: auto; max-height: 100%;
}
.telemetry-picture-caption {
  font-size: 0.8rem; line-height: 1.3; overflow-wrap: anywhere; font-variant-numeric: tabular-nums;
  display: -webkit-box; -webkit-line-clamp: 3; -webkit-box-orient: vertical; overflow: hidden;
}
.telemetry-picture-caption b { font-weight: 600; }
.telemetry-picture-about {
  display: block; opacity: 0.8; white-space: nowrap; overflow: hidden; text-overflow: ellipsis;
}
.telemetry-picture-wipe { cursor: ew-resize; touch-action: pan-y; }
.telemetry-picture-wipe > div { position: absolute; inset: 0; }
.telemetry-picture-wipe > div:nth-child(2) { clip-path: inset(0 0 0 var(--wipe)); }
.telemetry-picture-wipe::after {
  content: ""; position: absolute; top: 0; bottom: 0; left: var(--wipe); width: 2px; margin-left: -1px;
  background: var(--st-primary-color);
}
.telemetry-picture-side {
  position: absolute; top: 0.3rem; padding: 0 0.35rem; font-size: 0.75rem; font-weight: 600; border-radius: 3px;
  color: var(--st-text-color); background: color-mix(in srgb, var(--st-background-color) 80%, transparent);
}
.telemetry-picture-box {
  width: min(96vw, 1200px); max-height: 96vh; padding: 0.8rem; border: 1px solid var(--st-border-color);
  border-radius: var(--st-base-radius); color: var(--st-text-color); background: var(--st-background-color);
  font-family: var(--st-font); box-sizing: border-box;
}
.telemetry-picture-box[open] { display: flex; flex-direction: column; gap: 0.6rem; }
.telemetry-picture-box::backdrop { background: rgba(0, 0, 0, 0.75); }
.telemetry-picture-box .telemetry-picture-frame { aspect-ratio: auto; height: min(66vh, 900px); }
.telemetry-picture-box-bar { display: flex; flex-wrap: wrap; align-items: center; gap: 0.5rem; }
.telemetry-picture-box-now { flex: 1; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
.telemetry-picture-box-text {
  margin: 0; font-size: 0.9rem; overflow-wrap: anywhere; max-height: 6.5rem; overflow: auto; white-space: pre-wrap;
}
.telemetry-picture-box-about { opacity: 0.8; font-size: 0.85rem; margin: 0; overflow-wrap: anywhere; }
"""


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


def strip(run: str, series: Sequence[SampleSeries], *, follows: str | None, key: str) -> None:
    """Show the newest samples small; while the cursor is in a chart of the group `follows`, those of its step."""
    rows = [_row(one.title, one.name, [one.samples]) for one in series]
    columns = [_column(run, "")]
    _draw({"layout": "strip", "view": "step", "columns": columns, "rows": rows, "follows": follows}, key=key)


def _draw(data: dict[str, Any], *, key: str) -> None:
    component = st.components.v2.component(
        "telemetry_pictures",
        html='<div class="telemetry-pictures"></div>',
        css=_STYLE,
        js=loader("pictures"),
        isolate_styles=False,
    )
    # Compared by the browser: a refresh without changes draws nothing.
    revision = f"{zlib.crc32(orjson.dumps(data)):08x}"
    name = component_key(key)
    if data["layout"] == "strip":
        component(data={**data, "revision": revision}, key=name)
        return
    # Not a part of the revision: the slider has already moved.
    component(
        data={**data, "revision": revision, "at": session.sample_step()},
        key=name,
        default={"step": None},
        on_step_change=partial(_keep_step, name),
    )


def _keep_step(name: str) -> None:
    """Put the step of the slider into the URL."""
    state = st.session_state.get(name)
    sent = state.get("step") if state else None
    step = sent.get("at") if isinstance(sent, Mapping) else None
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
        path, kind = sample.path, sample.kind
    except UnicodeEncodeError:
        path, kind = clean(sample.path), "other"
    return [sample.step, path, kind, sample.caption[:_MAX_TITLE], sample.about]
