"""What the run printed, as it prints it; searched, and next to what was logged at that time."""

from __future__ import annotations

import math
from itertools import islice
from typing import Final

import numpy as np
import streamlit as st

from toolkit.telemetry.runfolder.evidence.output_log import STREAMS, OutputLine, OutputLog
from toolkit.telemetry.runs.formatting import clean, clock, count, md

from .. import page_links, session
from .frame import RunPage, live
from .script import redraw_only, sent_by, show_component

_SHOWN: Final = 500
_LONGEST: Final = 2_000
_ROOM: Final = 20
_AT: Final = "at"
_NAMES: Final = {
    "stdout": "stdout",
    "stderr": "stderr",
    "other": "C and child processes",
    "note": "telemetry",
}


def draw_output(page: RunPage) -> None:
    """Draw the search and the newest lines."""
    if page.card.path is None:
        _none("Output stays on the machine that wrote it, in output.log of the run folder: it is never sent.")
        return
    with OutputLog(page.card.path, 0) as log:
        if not log.exists and not page.card.live:
            _none(log.problem or "")
            return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        text = st.text_input(
            "Search",
            key="find",
            bind="query-params",
            placeholder="search the output",
            label_visibility="collapsed",
        )
        streams = session.kept_in_url(
            st.pills,
            "Stream",
            STREAMS[:3],
            selection_mode="multi",
            key="stream",
            format_func=_NAMES.__getitem__,
            label_visibility="collapsed",
            width="content",
        )
        ranks = list(page.store.ranks(page.key))
        rank = 0
        if len(ranks) > 1:
            rank = st.selectbox(
                "Rank",
                ranks,
                key="rank",
                format_func=lambda rank: f"rank {rank}",
                label_visibility="collapsed",
                width=140,
            )
    live(page, "The output", lambda: _output(page, rank, text[:200], tuple(streams)))


def _output(page: RunPage, rank: int, text: str, streams: tuple[str, ...]) -> None:
    folder = page.card.path
    if folder is None:
        return
    with OutputLog(folder, rank) as log:
        if not log.exists:
            _none(log.problem or "")
            return
        if log.problem is not None:
            st.caption(f"▲ {md(log.problem, 300)}")
        _window(page, log, f"output {page.key} {rank} {text} {streams}", text, streams)


def _none(why: str) -> None:
    with st.container(border=True):
        st.markdown("**No output.**")
        st.caption(md(why, 400))


def _window(page: RunPage, log: OutputLog, key: str, text: str, streams: tuple[str, ...]) -> None:
    """Show the newest lines, or those that were gone back to; never more than a few hundred at once."""
    # The ends of the windows that were left for older ones. Another search begins at the newest again.
    ends_key = f"_ends {key}"
    ends: list[int] = st.session_state.get(ends_key, [])
    asked = _asked_time()
    if asked is not None and not ends:
        ends = [min(log.count, log.around(asked) + _SHOWN // 2)]
    upto = ends[-1] if ends else log.count
    # One more, to know whether there are older ones.
    found = [*islice(log.find(text, streams, upto=upto), _SHOWN + 1)]
    numbers = sorted(found[:_SHOWN])
    lines = [line for number in numbers for line in log.lines(number, number + 1)]
    if not lines:
        st.info("No line matches." if log.count else "Nothing was printed yet.")
    chosen = _chosen(key, lines, asked)
    if lines:
        show_component(
            "output_lines",
            '<div class="telemetry-output" role="log" tabindex="0" aria-live="off"></div>',
            data={
                "lines": [_row(line) for line in lines],
                "chosen": chosen.number if chosen is not None else None,
                "follows": not ends,
                "window": f"{key} {ends}",
                "label": f"{count(len(lines))} lines of output",
            },
            key=f"lines {key}",
            on_picked_change=redraw_only,
            default={"picked": None},
        )
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if len(found) > _SHOWN:
            older = [*ends, numbers[0]]
            st.button("Older", on_click=_show_upto, args=(ends_key, older))
        if ends:
            st.button("Newest", on_click=_show_upto, args=(ends_key, []))
        st.caption(_summary(log, lines, text, streams, is_newest=not ends, has_older=len(found) > _SHOWN))
    if chosen is not None:
        _logged_at(page, chosen)


def _show_upto(key: str, ends: list[int]) -> None:
    st.session_state[key] = ends
    if not ends:
        st.query_params.pop(_AT, None)


def _asked_time() -> float | None:
    """Return the time in the URL, to which another page linked."""
    try:
        asked = float(st.query_params.get(_AT, ""))
    except ValueError:
        return None
    return asked if math.isfinite(asked) else None


def _chosen(key: str, lines: list[OutputLine], asked: float | None) -> OutputLine | None:
    """Return the line that was clicked last, else the first one of the time that was asked for."""
    number = sent_by(f"lines {key}", "picked").get("number")
    if isinstance(number, (int, float)):
        return next((line for line in lines if line.number == int(number)), None)
    if asked is None:
        return None
    return next((line for line in lines if line.time is not None and line.time >= asked), None)


def _row(line: OutputLine) -> dict[str, object]:
    text = line.text if len(line.text) <= _LONGEST else f"{line.text[:_LONGEST]} …"
    about = [clock(line.time)] if line.time is not None else ["time not known"]
    about += [_NAMES[line.stream]] if line.stream is not None else []
    about += [f"session {line.session}"] if line.session is not None else []
    return {
        "number": line.number,
        "time": clock(line.time)[-8:] if line.time is not None else "",
        "about": " · ".join(about),
        "stream": line.stream or "stdout",
        "text": clean(text).expandtabs() or " ",
    }


def _summary(
    log: OutputLog,
    lines: list[OutputLine],
    text: str,
    streams: tuple[str, ...],
    *,
    is_newest: bool,
    has_older: bool,
) -> str:
    words = [f"{count(log.count)} lines"]
    if text.strip() or streams:
        some = "the newest " if is_newest and has_older else ""
        words = [f"{some}{count(len(lines))} that match, of {count(log.count)} lines"]
    elif lines and len(lines) < log.count:
        words.append(f"{count(lines[0].number + 1)} to {count(lines[-1].number + 1)} shown")
    return " · ".join(words)


def _logged_at(page: RunPage, line: OutputLine) -> None:
    """Show which step was logged next to a line, and lead to it."""
    said = f"Line {line.number + 1:,}" + (f" · {clock(line.time)}" if line.time is not None else "")
    columns = page.store.table(page.key, [])
    times, steps = np.asarray(columns["time"]), np.asarray(columns["global_step"])
    known = np.flatnonzero(np.isfinite(times) & np.isfinite(steps))
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        if line.time is None or not len(known):
            st.caption(f"{said} · no step was logged around it")
            return
        nearest = known[np.argmin(np.abs(times[known] - line.time))]
        step = int(steps[nearest])
        apart = abs(float(times[nearest]) - line.time)
        st.caption(f"{said} · nearest record: step {step:,}, {apart:,.1f} s apart")
        st.page_link(
            page_links.page("metrics"),
            label=f"Show step {step:,} in Metrics",
            query_params={"run": page.key, "from": str(max(0, step - _ROOM)), "to": str(step + _ROOM)},
        )
