"""The ranks of a run: how long each takes for a step, which is slow, silent or dead."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import streamlit as st

from toolkit.telemetry.diagnostics.catalogue import RANK_DEAD, RANK_HUNG, RANK_SILENT
from toolkit.telemetry.diagnostics.finding import ranks_in
from toolkit.telemetry.diagnostics.history import NO_PASSES
from toolkit.telemetry.runfolder.node_folders import RankTail
from toolkit.telemetry.runs.findings.health import findings_of
from toolkit.telemetry.runs.formatting import clock, count
from toolkit.telemetry.runs.rank_grid import RankGrid
from toolkit.telemetry.runs.store import RankSign

from ... import session
from ...charts.heatmaps import rank_heatmap_figure, ranks_per_row
from ..chart import draw_chart
from ..frame import RunPage
from ..page_states import section
from ..run_table import fact_table

_CELLS: Final = 64
_READ_RANKS_S: Final = 1.5
_CLEARLY_SLOWER: Final = 1.1
"""How many times as long as the median rank."""
_STEP_TIME: Final = "sec_per_step"
_WAITING: Final = "time/backward"
_PARTS_OF_A_STEP: Final = {
    _STEP_TIME: "Whole step",
    "time/data_loading": "Data loading",
    "time/forward": "Forward",
    _WAITING: "Backward and wait",
    "time/optimizer_update": "Optimizer",
}


def draw_ranks(page: RunPage) -> None:
    """Draw the step times of all ranks and the status of each; nothing for a run of one process."""
    ranks = page.store.ranks(page.key)
    if len(ranks) < 2:
        return
    section(f"Step time by rank :gray[{count(len(ranks))} ranks]")
    grids = {
        # The first call reads the records, and finds all of these in them.
        name: page.store.rank_grid(page.key, name, buckets=_CELLS, wait_s=0.0 if number else _READ_RANKS_S)
        for number, name in enumerate(_PARTS_OF_A_STEP)
    }
    read = min(grid.fraction_read for grid in grids.values())
    if session.set_partly("read", being_read(page), read < 1.0):
        # The timer depends on it.
        st.rerun()
    if read < 1.0:
        st.progress(read, text=f"Reading the records of all ranks: {read:.0%}")
    signs = page.store.rank_signs(page.key)
    marks = rank_marks(page, signs)
    there = [name for name, grid in grids.items() if not grid.empty]
    rank_table(page, marks, signs)
    if not there:
        st.caption("The ranks have not logged step times.")
        return
    part = _pick_part(there, grids)
    grid = grids[part]
    _name_slowest(grid, has_parts=there != [_STEP_TIME])
    draw_chart(
        rank_heatmap_figure(grid, marks),
        key=f"chart ranks {page.key}",
        label="step time by rank",
    )
    if ranks_per_row(grid) > 1:
        st.caption(
            f"A row shows {ranks_per_row(grid)} ranks, and in each cell the slowest of them: "
            "there are more ranks than rows that can be seen."
        )
    if part != _STEP_TIME:
        st.caption(
            "Seconds per record. Ranks that exchange gradients wait for each other in the backward pass: "
            "the rank with the shortest backward pass holds up the others."
        )


def being_read(page: RunPage) -> str:
    """Return the name under which the session keeps whether the records of all ranks were read."""
    return f"ranks of {page.key}"


def _pick_part(there: Sequence[str], grids: Mapping[str, RankGrid]) -> str:
    # Ranks that wait for each other have equal step times: show the part in which they differ most.
    part = max(there, key=lambda name: float(np.ptp(grids[name].typical())) if name != _WAITING else 0.0)
    if len(there) == 1:
        return part
    chosen = st.segmented_control(
        "Part of a step",
        there,
        default=part,
        required=True,
        key="rank_part",
        format_func=lambda name: _PARTS_OF_A_STEP[name],
        label_visibility="collapsed",
    )
    return chosen or part


def _name_slowest(grid: RankGrid, *, has_parts: bool) -> None:
    slowest = grid.slowest()
    worst = slowest[0]
    if worst.ratio is not None and worst.ratio >= _CLEARLY_SLOWER:
        st.markdown(
            f"**Rank {worst.rank} is the slowest**: {worst.typical:.3g} s, "
            f"{worst.ratio:.3g} times as long as the median rank."
        )
    else:
        st.markdown(f"No rank is clearly slower than the others; rank {worst.rank} takes longest.")
        if not has_parts:
            st.caption(f"{NO_PASSES[0].upper()}{NO_PASSES[1:]}.")
    st.caption("Slowest: " + ", ".join(f"rank {one.rank} ({one.typical:.3g} s)" for one in slowest))


# ---------------------------------------------------------------- status of ranks


_DIED: Final = "✕ died"
_SILENT: Final = "… silent"
_HANGS: Final = "✕ hangs"
_NAN: Final = "⚠ NaN"
_HAD_NAN: Final = "⚠ had NaN"
_SLOW: Final = "▲ slow"
_WRITES: Final = "✓ writes"
_ENDED: Final = "■ ended"
_MARK_OF: Final = {
    "straggler": _SLOW,
    "rank_nan": _NAN,
    RANK_SILENT: _SILENT,
    RANK_HUNG: _HANGS,
    RANK_DEAD: _DIED,
}
"""Mildest first: of several, the worst counts."""


def rank_marks(page: RunPage, signs: Sequence[RankSign]) -> dict[int, str]:
    """Return a symbol and a word for each rank with a problem, the worst of them first."""
    marks: dict[int, str] = {}
    alerts = findings_of(page.store, page.key)
    for kind, mark in _MARK_OF.items():
        for alert in alerts:
            if alert.kind == kind and alert.is_open:
                marks.update(dict.fromkeys(ranks_in(alert.evidence), mark))
            elif alert.kind == kind == "rank_nan":
                for rank in ranks_in(alert.evidence):
                    marks.setdefault(rank, _HAD_NAN)
    for sign in signs:
        if sign.lost is not None:
            marks[sign.tail.rank] = _MARK_OF[sign.lost]
        elif sign.tail.nan_metrics:
            marks.setdefault(sign.tail.rank, _NAN)
    order = list(_MARK_OF.values())[::-1]
    return dict(
        sorted(marks.items(), key=lambda item: (order.index(item[1]) if item[1] in order else 9, item[0]))
    )


def rank_table(page: RunPage, marks: Mapping[int, str], signs: Sequence[RankSign]) -> None:
    """Show the status of every rank, those with a problem first."""
    if not signs:
        return
    ordered = sorted((sign.tail for sign in signs), key=lambda tail: (tail.rank not in marks, tail.rank))
    rows: dict[str, list[Any]] = {
        "rank": [tail.rank for tail in ordered],
        "status": [marks.get(tail.rank) or _status(tail, is_live=page.card.live) for tail in ordered],
        "last step": [tail.last_step for tail in ordered],
        "last record": [clock(tail.last_time, now=time.time()) for tail in ordered],
        "NaN in": [", ".join(tail.nan_metrics) for tail in ordered],
    }
    with st.expander("Status of each rank", expanded=bool(marks), key=f"_ranks {page.key}"):
        fact_table(rows, "Status of each rank")


def _status(tail: RankTail, *, is_live: bool) -> str:
    if tail.end is not None:
        return f"{_ENDED}: {tail.end}"
    return _WRITES if is_live else "no end record"
