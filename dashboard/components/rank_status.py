"""Which ranks have a problem, in words, as marks of the heat map, and as a table of all ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

import streamlit as st

from dashboard.components.frame import RunPage
from toolkit.diagnostics.catalogue import RANK_DEAD, RANK_SILENT
from toolkit.diagnostics.finding import ranks_in
from toolkit.runs.columns.export import shown_frame
from toolkit.runs.findings.alerts import findings_of
from toolkit.runs.formatting import clock, count, md
from toolkit.runs.store import RankSign

_DIED: Final = "✕ died"
_SILENT: Final = "… silent"
_NAN: Final = "⚠ NaN"
_HAD_NAN: Final = "⚠ had NaN"
_SLOW: Final = "▲ slow"
_WRITES: Final = "✓ writes"
_ENDED: Final = "■ ended"
_MARK_OF: Final = {"straggler": _SLOW, "rank_nan": _NAN, RANK_SILENT: _SILENT, RANK_DEAD: _DIED}
"""Mildest first: of several, the worst counts."""
_MAX_LINES: Final = 4
_TABLE_ROWS: Final = 12
_ROW_PX: Final = 35


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
            marks[sign.rank] = _MARK_OF[sign.lost]
        elif sign.non_finite and sign.rank not in marks:
            marks[sign.rank] = _NAN
    order = list(_MARK_OF.values())[::-1]
    return dict(
        sorted(marks.items(), key=lambda item: (order.index(item[1]) if item[1] in order else 9, item[0]))
    )


def name_marked(marks: Mapping[int, str], signs: Sequence[RankSign]) -> None:
    """Say which ranks have a problem, and when they were last heard of."""
    by_rank = {sign.rank: sign for sign in signs}
    shown = [(rank, mark) for rank, mark in marks.items() if mark != _SLOW]
    for rank, mark in shown[:_MAX_LINES]:
        sign = by_rank.get(rank)
        st.markdown(f"**Rank {rank}: {mark}**{_last_heard(sign)}")
    if len(shown) > _MAX_LINES:
        st.markdown(f"and {count(len(shown) - _MAX_LINES)} more ranks: see the table.")


def rank_table(page: RunPage, marks: Mapping[int, str], signs: Sequence[RankSign]) -> None:
    """Show the status of every rank, those with a problem first."""
    if not signs:
        return
    ordered = sorted(signs, key=lambda sign: (sign.rank not in marks, sign.rank))
    rows = {
        "rank": [sign.rank for sign in ordered],
        "status": [marks.get(sign.rank) or _status(sign, is_live=page.card.live) for sign in ordered],
        "last step": [sign.last_step for sign in ordered],
        "last record": [clock(sign.last_time, now=time.time()) for sign in ordered],
        "NaN in": [", ".join(sign.non_finite) for sign in ordered],
    }
    with st.expander("Status of each rank", expanded=bool(marks), key=f"_ranks {page.key}"):
        st.dataframe(
            shown_frame(rows),
            hide_index=True,
            height=_ROW_PX * (min(len(ordered), _TABLE_ROWS) + 1) + 3,
            alt="Status of each rank",
        )


def _status(sign: RankSign, *, is_live: bool) -> str:
    if sign.ended is not None:
        return f"{_ENDED}: {sign.ended}"
    return _WRITES if is_live else "no end record"


def _last_heard(sign: RankSign | None) -> str:
    if sign is None:
        return ""
    step = f"step {sign.last_step:,}, " if sign.last_step is not None else ""
    what = f" in {md(', '.join(sign.non_finite), 100)}" if sign.non_finite else ""
    return f"{what}; last record: {step}{clock(sign.last_time, now=time.time())}"
