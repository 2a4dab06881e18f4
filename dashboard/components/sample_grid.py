"""Samples of several runs side by side: a row for each prompt, one slider, and a wipe between two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import streamlit as st

from dashboard.components.headings import section
from dashboard.components.pictures import side_by_side_samples
from toolkit.runs.files.samples import Sample, samples_of_run
from toolkit.runs.formatting import count
from toolkit.runs.store import RunStore

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
    rows = _rows({key: found[key] for key in shown})
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


def _rows(found: Mapping[str, Mapping[str, Sequence[Sample]]]) -> dict[str, dict[str, Sequence[Sample]]]:
    """Return samples by title and run; prompts of several runs first."""
    rows: dict[str, dict[str, Sequence[Sample]]] = {}
    for key, of_run in found.items():
        for title, samples in of_run.items():
            rows.setdefault(title, {})[key] = samples
    return dict(sorted(rows.items(), key=lambda item: -len(item[1])))
