"""System page: is the hardware busy, and is there memory left."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import streamlit as st

from dashboard import session
from dashboard.charts.heatmaps import (
    SAMPLES,
    gpu_heatmap_figure,
    gpu_heatmap_height,
    rank_heatmap_figure,
    rank_heatmap_height,
    ranks_per_row,
)
from dashboard.components import page_states
from dashboard.components.chart import draw_chart
from dashboard.components.curve_panel import ChartOptions, Tally, curve_panel, follow_zoom, marks_of
from dashboard.components.frame import RunPage, footer, live, open_run, read, step_seconds
from dashboard.components.page_states import section
from toolkit.diagnostics.catalogue import RANK_DEAD, RANK_SILENT
from toolkit.diagnostics.finding import ranks_in
from toolkit.runfolder.records import SYSTEM
from toolkit.runs.columns.export import shown_frame
from toolkit.runs.findings.alerts import findings_of
from toolkit.runs.formatting import clean, clock, count, md
from toolkit.runs.rank_grid import RankGrid
from toolkit.runs.store import MetricInfo, RankSign, XAxis

_WINDOWS: Final = {"5 m": 300.0, "1 h": 3600.0, "All": None}
_MAX_PANELS: Final = 40
_GPU = re.compile(r"gpu/([0-9]{1,4})/(.+)", re.DOTALL)
_HOST: Final = (
    ("CPU", "%", (("cpu_percent", "machine"), ("process_cpu_percent", "process"))),
    ("Memory", "MB", (("ram_used_mb", "machine"), ("cpu_mem_rss_mb", "process"), ("swap_used_mb", "swap"))),
    ("Disk", "MB / s", (("disk_read_mb_s", "read"), ("disk_write_mb_s", "write"))),
    ("Network", "MB / s", (("net_received_mb_s", "received"), ("net_sent_mb_s", "sent"))),
    ("Free disk", "GB", (("disk_free_gb", "free"),)),
    ("Process threads", "", (("process_threads", "threads"),)),
)
_GPU_CHARTS: Final = (
    ("GPU utilization", "%", ("util",)),
    ("GPU memory", "GB", ("mem_used_gb",)),
    ("Temperature", "°C", ("temp_c",)),
    ("Power", "W", ("power_w",)),
)
_FEW_GPUS: Final = 4
"""More GPUs have a heat map, and charts without a legend."""
_MAX_LINES: Final = 16
_TABLE_ROWS: Final = 16
"""With more GPUs the table scrolls."""
_ROW_PX: Final = 30
_MAX_NAMED: Final = 8
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


def main() -> None:
    """Draw the page."""
    page = open_run()
    if page is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        span = session.pick_one(
            "Window", tuple(_WINDOWS), default="All", key="span", label_visibility="collapsed"
        )
        steps = st.toggle(
            "By step", key="steps", bind="query-params", on_change=session.set_window, args=(None,)
        )
    live(page, "The system", lambda: _system(page, span, "step" if steps else "time"))
    seconds = session.refresh_seconds() if page.card.live else None
    if session.is_partly_read(_ranks_of(page)):
        seconds = 1.0
    st.fragment(lambda: page_states.guarded("The ranks", lambda: _ranks(page)), run_every=seconds)()


def _system(page: RunPage, span: str, axis: XAxis) -> None:
    read(page)
    metrics = {info.name: info for info in page.store.metrics(page.key)}
    is_foreign = page.card.logged_by is not None
    system = {
        name: info
        for name, info in metrics.items()
        if _is_system(name) or (is_foreign and info.event == SYSTEM)
    }
    if not system and is_foreign:
        st.info("This run has no system metrics.", icon=":material/info:")
        return
    if not system:
        page_states.no_records("No system metrics yet. They are logged every 5 seconds.")
        return
    gpus = _gpus(system, page)
    many = len(gpus) > _FEW_GPUS
    if gpus:
        _gpu_table(gpus)
    if not gpus and not is_foreign:
        st.caption(_why_no_gpu(metrics))
    options = ChartOptions(axis=axis, marks=marks_of(page, axis), fixed_window=_window(page, axis, span))
    if many:
        _gpu_heatmap(page, gpus, options)
    tally = Tally()
    panels = _panels(system, gpus)
    if is_foreign:
        drawn = {name for panel in panels for name, _ in panel.metrics}
        panels += [_Panel(name, "", [(name, name)]) for name in system if name not in drawn]
        if len(panels) > _MAX_PANELS:
            st.caption(f"Showing {_MAX_PANELS} of {count(len(panels))}; the others are on the Metrics page.")
        panels = panels[:_MAX_PANELS]
    for start in range(0, len(panels), 2):
        for cell, panel in zip(st.columns(2, gap="medium"), panels[start : start + 2], strict=False):
            with cell:
                curve_panel(
                    page,
                    panel.title,
                    panel.metrics,
                    options,
                    tally,
                    unit=panel.unit,
                    limits=panel.limits,
                    from_zero=panel.from_zero,
                    legend=panel.legend,
                    height=200,
                    buckets=200,
                )
    footer(page, tally.drawn, tally.total)


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    unit: str
    metrics: Sequence[tuple[str, str]]
    limits: tuple[tuple[float, str], ...] = ()
    from_zero: bool = True
    legend: bool = True


@dataclass(frozen=True, slots=True)
class _Gpu:
    number: int
    name: str
    values: Mapping[str, float]

    def get(self, name: str) -> float | None:
        return self.values.get(name)


def _is_system(name: str) -> bool:
    return name.startswith(("gpu", "cpu_", "ram_", "process_", "swap_", "disk_", "net_"))


def _gpus(system: Mapping[str, MetricInfo], page: RunPage) -> list[_Gpu]:
    found: dict[int, dict[str, float]] = {}
    for name, info in system.items():
        match = _GPU.match(name)
        if match:
            found.setdefault(int(match[1]), {})[match[2]] = info.last
    names = _accelerators(page)
    return [_Gpu(number, names.get(number, ""), found[number]) for number in sorted(found)[:64]]


def _accelerators(page: RunPage) -> dict[int, str]:
    meta = page.store.meta(page.key)
    listed: Any = meta.environment.get("accelerators") or meta.start.get("accelerators")
    if not isinstance(listed, list):
        return {}
    return {
        item["index"]: str(item.get("name", ""))
        for item in listed
        if isinstance(item, dict) and isinstance(item.get("index"), int)
    }


def _gpu_table(gpus: Sequence[_Gpu]) -> None:
    names = {gpu.name for gpu in gpus}
    same = names.pop() if len(names) == 1 else ""
    section(f"GPUs :gray[{count(len(gpus))}{' · ' + md(same, 40) if same else ''}]")
    columns: dict[str, list[Any]] = {"GPU": [str(gpu.number) for gpu in gpus]}
    shown: dict[str, Any] = {"GPU": st.column_config.TextColumn(width=60)}
    for title, name, whole, unit in (
        ("Utilization", "util", None, "%"),
        ("Memory", "mem_used_gb", "mem_total_gb", "GB"),
        ("Temperature", "temp_c", None, "°C"),
        ("Power", "power_w", "power_limit_w", "W"),
    ):
        values = [_plausible(gpu.get(name)) for gpu in gpus]
        if all(value is None for value in values):
            continue
        wholes = {_plausible(gpu.get(whole)) for gpu in gpus} if whole else set()
        full = 100.0 if unit == "%" else max((value for value in wholes if value and value > 0), default=0.0)
        words = f"{title} of {full:.3g} {unit}" if len(wholes) == 1 and full else title
        # sprintf wants a percent sign twice.
        form = ("%.1f " if unit == "GB" else "%.0f ") + unit.replace("%", "%%")
        columns[title] = values
        shown[title] = (
            st.column_config.ProgressColumn(words, min_value=0, max_value=full, format=form)
            if full
            else st.column_config.NumberColumn(words, format=form)
        )
    if not same and any(gpu.name for gpu in gpus):
        columns["Model"] = [clean(gpu.name)[:40] for gpu in gpus]
    st.dataframe(
        shown_frame(columns),
        hide_index=True,
        column_config=shown,
        height="content" if len(gpus) <= _TABLE_ROWS else _ROW_PX * (_TABLE_ROWS + 1),
        row_height=_ROW_PX,
        alt="Last sample of each GPU",
    )
    for least, below, words in (
        (0.99, np.inf, ":red[:material/error: Memory full]"),
        (0.95, 0.99, ":orange[:material/warning: Memory nearly full]"),
    ):
        found = [str(gpu.number) for gpu in gpus if least <= _memory_share(gpu) < below]
        if found:
            more = f" and {count(len(found) - _MAX_NAMED)} more" if len(found) > _MAX_NAMED else ""
            st.markdown(f"{words}: GPU {', '.join(found[:_MAX_NAMED])}{more}")


def _gpu_heatmap(page: RunPage, gpus: Sequence[_Gpu], options: ChartOptions) -> None:
    window = options.window
    found = {
        gpu.number: page.store.series(
            page.key, f"gpu/{gpu.number}/util", axis=options.axis, window=window, buckets=SAMPLES
        )
        for gpu in gpus
        if gpu.get("util") is not None
    }
    figure = gpu_heatmap_figure(
        found, axis=options.axis, window=window, revision=f"{page.key} {options.axis}"
    )
    if figure is None:
        return
    name = f"chart gpus {page.key}"
    section("Utilization by GPU :gray[%]")
    draw_chart(
        figure,
        key=name,
        label=f"utilization of {len(found)} GPUs over time",
        height=gpu_heatmap_height(len(found)),
        name=f"{page.card.name} utilization by GPU",
        heading=f"Utilization by GPU · {page.card.name}",
        group=page.key if options.fixed_window is None else name,
        on_view=(lambda: follow_zoom(name, options.axis)) if options.fixed_window is None else None,
    )
    if len(gpus) > _MAX_LINES:
        st.caption(f"The charts below show the first {_MAX_LINES} of {count(len(gpus))} GPUs.")


def _memory_share(gpu: _Gpu) -> float:
    used, total = gpu.get("mem_used_gb"), gpu.get("mem_total_gb")
    return used / total if used is not None and total else 0.0


def _plausible(value: float | None) -> float | None:
    return value if value is not None and abs(value) < 1e6 else None


def _panels(system: Mapping[str, MetricInfo], gpus: Sequence[_Gpu]) -> list[_Panel]:
    panels = []
    many = len(gpus) > _FEW_GPUS
    for title, unit, names in _GPU_CHARTS:
        metrics = [
            (f"gpu/{gpu.number}/{name}", f"GPU {gpu.number}")
            for gpu in gpus
            for name in names
            if f"gpu/{gpu.number}/{name}" in system
        ]
        if title == "GPU memory" and not metrics:
            metrics = [
                (name, word)
                for name, word in (("gpu_mem_reserved", "reserved"), ("gpu_mem_allocated", "allocated"))
                if name in system
            ]
        if title == "GPU utilization" and not metrics and "gpu_util" in system:
            metrics = [("gpu_util", "GPU")]
        if metrics:
            limits: list[tuple[float, str]] = []
            if title == "GPU memory" and gpus and (total := gpus[0].get("mem_total_gb")):
                limits.append((total, "total"))
            if title == "Power" and gpus and (cap := gpus[0].get("power_limit_w")):
                limits.append((cap, "power limit"))
            panels.append(
                _Panel(
                    title,
                    unit,
                    metrics[:_MAX_LINES],
                    tuple(limits),
                    from_zero=not many or title == "GPU utilization",
                    # A legend of many curves would take half of the chart; the tooltip names them.
                    legend=not many,
                )
            )
    for title, unit, host in _HOST:
        present = [(name, word) for name, word in host if name in system]
        if present:
            panels.append(_Panel(title, unit, present))
    return panels


def _why_no_gpu(metrics: Mapping[str, MetricInfo]) -> str:
    if any(name.startswith("gpu") for name in metrics):
        return "GPU memory as reported by torch; the driver reported nothing else."
    return "No GPU metrics: the run uses the CPU, or NVIDIA's driver library was not found."


def _window(page: RunPage, axis: XAxis, span: str) -> tuple[float, float] | None:
    seconds = _WINDOWS.get(span)
    if seconds is None:
        return None
    card = page.card
    if card.last_sign is None:
        return None
    if axis == "time":
        return card.last_sign - seconds, card.last_sign
    step_s = step_seconds(page)
    if card.step is None or step_s is None:
        return None
    return card.step - seconds / step_s, float(card.step)


# ---------------------------------------------------------------- ranks


def _ranks(page: RunPage) -> None:
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
    if session.set_partly_read(_ranks_of(page), read < 1.0):
        # The timer depends on it.
        st.rerun()
    if read < 1.0:
        st.progress(read, text=f"Reading the records of all ranks: {read:.0%}")
    signs = page.store.rank_signs(page.key)
    marks = rank_marks(page, signs)
    name_marked(marks, signs)
    there = [name for name, grid in grids.items() if not grid.empty]
    rank_table(page, marks, signs)
    if not there:
        st.caption("The ranks have not logged step times.")
        return
    part = _pick_part(there, grids)
    grid = grids[part]
    _name_slowest(grid)
    draw_chart(
        rank_heatmap_figure(grid, marks),
        key=f"chart ranks {page.key}",
        label="step time by rank",
        height=rank_heatmap_height(grid),
        group="ranks",
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


def _ranks_of(page: RunPage) -> str:
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


def _name_slowest(grid: RankGrid) -> None:
    slowest = grid.slowest()
    worst = slowest[0]
    if worst.ratio is not None and worst.ratio >= _CLEARLY_SLOWER:
        st.markdown(
            f":material/speed: **Rank {worst.rank} is the slowest**: {worst.typical:.3g} s, "
            f"{worst.ratio:.3g} times as long as the median rank."
        )
    else:
        st.markdown(f"No rank is clearly slower than the others; rank {worst.rank} takes longest.")
    st.caption("Slowest: " + ", ".join(f"rank {one.rank} ({one.typical:.3g} s)" for one in slowest))


# ---------------------------------------------------------------- status of ranks


_DIED: Final = "✕ died"
_SILENT: Final = "… silent"
_NAN: Final = "⚠ NaN"
_HAD_NAN: Final = "⚠ had NaN"
_SLOW: Final = "▲ slow"
_WRITES: Final = "✓ writes"
_ENDED: Final = "■ ended"
_MARK_OF: Final = {"straggler": _SLOW, "rank_nan": _NAN, RANK_SILENT: _SILENT, RANK_DEAD: _DIED}
"""Mildest first: of several, the worst counts."""
_MAX_RANK_LINES: Final = 4


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
    for rank, mark in shown[:_MAX_RANK_LINES]:
        sign = by_rank.get(rank)
        st.markdown(f"**Rank {rank}: {mark}**{_last_heard(sign)}")
    if len(shown) > _MAX_RANK_LINES:
        st.markdown(f"and {count(len(shown) - _MAX_RANK_LINES)} more ranks: see the table.")


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
        page_states.show_table(rows, "Status of each rank", max_rows=12)


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


main()
