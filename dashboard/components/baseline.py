"""The run of a project that its others are compared with: in the list, the tiles and every chart."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from toolkit.telemetry.runs.listing.run_table import Primary
from toolkit.telemetry.runs.store import RunCard, RunStore, UnknownRun

from .. import session
from . import page_states
from .curve_chart import CurveSpec

_IN_URL = "baseline"


def baseline_key(store: RunStore, project: str | None) -> str | None:
    """Return the key of the baseline: the one in the address, else the project's."""
    # The first screen is made before there is a session.
    asked = st.query_params.get(_IN_URL) if get_script_run_ctx(suppress_warning=True) else None
    return asked or store.project_settings(project).baseline


def baseline_of(store: RunStore, project: str | None) -> RunCard | None:
    """Return the baseline of a project; None if none was chosen, or if it is gone."""
    key = baseline_key(store, project)
    with suppress(UnknownRun):
        return store.card(key) if key else None
    return None


def baseline_curve(base: RunCard, metric: str) -> CurveSpec:
    """Return the curve of the baseline, for a chart of another run; nothing is drawn where it has not logged it."""
    label = f"baseline {base.name}"
    return CurveSpec(run=base.key, metric=metric, label=label, colour="pale", pale=True, name=base.name)


def choose_baseline(store: RunStore, key: str) -> None:
    """Make a run the baseline of its project, or no longer; who may change nothing has it in the address."""
    project = store.card(key).project
    new = None if baseline_key(store, project) == key else key
    can_keep = session.read_only_reason() is None
    session.put_in_url({_IN_URL: None if can_keep else new})
    if can_keep:
        settings = replace(store.project_settings(project), baseline=new)
        page_states.is_done(lambda: store.set_project_settings(project, settings))


def against_text(card: RunCard, base: RunCard | None, primary: Primary | None) -> str:
    """Return how far a run is from the baseline, such as -3.1 %; empty if that cannot be said."""
    if base is not None and base.key == card.key:
        return "baseline"
    found = None if primary is None else primary.against(card, base)
    return "" if found is None else f"{100 * found:+.1f} %"
