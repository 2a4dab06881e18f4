"""Named views of a project: chosen on Runs, Metrics and Compare, part of the address, kept for everyone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import streamlit as st

from toolkit.telemetry.formulas.formula import is_formula
from toolkit.telemetry.runfolder.labels import ProjectSettings
from toolkit.telemetry.runfolder.metrics import metric_direction
from toolkit.telemetry.runs.formatting import clean, md
from toolkit.telemetry.runs.listing.run_table import (
    Column,
    Primary,
    formula_column,
    formula_problem,
    primary_of,
)
from toolkit.telemetry.runs.listing.views import MOST_CHARS, NamedView, views_of, with_view, without_view
from toolkit.telemetry.runs.store import RunCard, RunList, RunStore

from .. import session
from . import page_states

ColumnSpec = tuple[str, bool]
"""The id of a column, and whether it is pinned."""
COLUMNS: Final = "cols"
_IN_URL: Final = "view"
_CHOSEN, _APPLIED = "_own_view", "_own_view_applied"


def project_of(runs: RunList) -> str | None:
    """Return the project that is looked at; None if there are several and none is chosen."""
    chosen = st.session_state.get("project") or st.query_params.get("project")
    return str(chosen) if chosen else runs.projects[0] if len(runs.projects) == 1 else None


def primary_among(store: RunStore, cards: Sequence[RunCard]) -> Primary | None:
    """Return the primary metric of runs, by the settings of their project if they have the same one."""
    projects = {card.project for card in cards}
    return primary_of(cards, store.project_settings(projects.pop() if len(projects) == 1 else None))


def view_name() -> str | None:
    """Return the name of the view in the address, or of the one chosen on another page."""
    return st.query_params.get(_IN_URL) or st.session_state.get(_CHOSEN)


def show_view(name: str) -> None:
    """Choose a view, or none, on this page and the next ones."""
    st.session_state[_CHOSEN] = name
    session.put_in_url({_IN_URL: name or None})


def pick_view(
    settings: ProjectSettings, *, on_pick: Callable[[NamedView], None] | None = None
) -> NamedView | None:
    """Show the project's views, if there are any, and return the chosen one; `on_pick` is called when it changes."""
    views = views_of(settings)
    if not views:
        return None
    names = ["", *views]
    named = view_name() or ""
    widget = f"_pick_view {named}"
    if on_pick is not None and named in views and st.session_state.get(_APPLIED) != named:
        # By a link or from another page; what a link says besides counts more.
        st.session_state[_APPLIED] = named
        if not any(name in st.query_params for name in ("q", "sort", COLUMNS)):
            on_pick(views[named])

    def picked() -> None:
        name = str(st.session_state.get(widget) or "")
        show_view(name)
        st.session_state[_APPLIED] = name
        if name in views and on_pick is not None:
            on_pick(views[name])

    st.selectbox(
        "View",
        names,
        index=names.index(named) if named in names else 0,
        key=widget,
        format_func=lambda name: clean(name) or "No view",
        label_visibility="visible" if on_pick is None else "collapsed",
        on_change=picked,
        width="stretch" if on_pick is None else 160,
    )
    return views.get(named)


def save_settings(store: RunStore, project: str | None, settings: ProjectSettings, said: str) -> None:
    """Keep the settings of a project and draw the page again; show why not if that is refused."""
    if page_states.is_done(lambda: store.set_project_settings(project, settings)):
        st.toast(md(said, 120))
        st.rerun()


def keep_view(
    store: RunStore, project: str | None, columns: Sequence[ColumnSpec], search: str, sort: str
) -> None:
    """Show what keeps the list as it is now under a name, or removes that view."""
    if session.read_only_reason() is not None:
        return
    settings = store.project_settings(project)
    views = views_of(settings)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        name = st.text_input(
            "Columns, search and order as a view",
            value=view_name() or "",
            key="_view_name",
            max_chars=MOST_CHARS,
            placeholder="name of the view",
        ).strip()
        if st.button("Keep view", key="_view_keep", disabled=not name):
            texts = tuple(map(column_text, columns))
            kept = replace(views.get(name, NamedView(name=name)), columns=texts, search=search, sort=sort)
            show_view(name)
            save_settings(store, project, with_view(settings, kept), f"Kept the view “{name}”.")
        if name in views and st.button("Remove", key="_view_off", type="tertiary"):
            show_view("")
            save_settings(store, project, without_view(settings, name), f"Removed the view “{name}”.")


# ---------------------------------------------------------------- columns


def chosen_columns(settings: ProjectSettings) -> list[str]:
    """Return the columns in the address, else those of the project; none if nothing was chosen."""
    in_url = st.query_params.get(COLUMNS)
    return in_url.split("~") if in_url else list(settings.columns or ())


def parsed_column(text: str) -> ColumnSpec:
    """Return a column as the address has it."""
    return text.removesuffix("!"), text.endswith("!")


def column_text(spec: ColumnSpec) -> str:
    """Return a column for the address."""
    name, is_pinned = spec
    return f"{name}{'!' if is_pinned else ''}"


def formula_columns(texts: Sequence[str]) -> dict[str, Column]:
    """Return those of the columns of an address that are formulas."""
    names = [parsed_column(text)[0] for text in texts if is_formula(text)]
    return {name: column for name in names if (column := formula_column(name)) is not None}


def add_formula(cards: Sequence[RunCard], shown: int) -> Column | None:
    """Show a field for a formula as one more column, and return the column once it is typed."""
    text = st.text_input(
        "Add a formula",
        key=f"_columns_formula {shown}",
        placeholder="best(val_loss) - best(train_loss)",
        max_chars=500,
        help="Metrics (their last value), best(x), settings as config.NAME, duration, step: docs/formulas.md.",
    ).strip()
    if not text:
        return None
    formula = f"= {text.removeprefix('=').strip()}"
    problem = formula_problem(formula, cards)
    if problem is not None:
        st.warning(md(problem, 300))
    return formula_column(formula) if problem is None else None


def primary_menu(
    store: RunStore,
    project: str | None,
    settings: ProjectSettings,
    primary: Primary | None,
    cards: Sequence[RunCard],
) -> None:
    """Show by which metric runs are compared, and keep another one for the project."""
    if primary is None or session.read_only_reason() is not None:
        return
    names = {tuple(card.evaluations) for card in cards}
    metrics = list(dict.fromkeys(name for some in sorted(names) for name in some))
    metric = st.selectbox(
        "Primary metric",
        metrics,
        index=metrics.index(primary.metric),
        format_func=clean,
        key=f"_primary {primary.metric}",
        help="The metric by which runs are compared, for everyone who opens this log directory.",
    )
    direction = st.segmented_control(
        "Better is",
        ("min", "max"),
        default=primary.direction if metric == primary.metric else metric_direction(str(metric)) or "min",
        format_func=lambda word: "lower" if word == "min" else "higher",
        required=True,
        key=f"_direction {metric} {primary.direction}",
    )
    if (metric, direction) != (primary.metric, primary.direction):
        kept = replace(settings, primary_metric=metric, direction=direction)
        save_settings(
            store, project, kept, "Saved for the project." if project else "Saved for this log directory."
        )
