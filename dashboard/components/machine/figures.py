"""Figures of the machine over time: is the hardware busy, and is there memory left."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import streamlit as st

from toolkit.telemetry.runfolder.metrics import OF_THE_MACHINE
from toolkit.telemetry.runfolder.records import SYSTEM
from toolkit.telemetry.runs.formatting import count, md
from toolkit.telemetry.runs.store import MetricInfo

from ...charts.heatmaps import SAMPLES, gpu_heatmap_figure
from .. import page_states
from ..chart import draw_chart
from ..curve_panel import Around, Panel, curve_panel, marks_of
from ..frame import RunPage, read
from ..page_states import section
from ..run_table import fact_table

_FIGURES_IN_A_ROW: Final = 3
"""Figures in a row."""
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
_MAX_NAMED: Final = 8


def draw_gpus(page: RunPage) -> None:
    """Draw the last sample of each GPU, and with many of them their utilization over time."""
    read(page)
    system, is_foreign = _system(page), page.card.logged_by is not None
    if not system:
        if is_foreign or not page.card.live:
            st.caption("This run has no system metrics.")
        else:
            page_states.no_records("No system metrics yet. They are logged every 5 seconds.")
        return
    gpus = _gpus(system, page)
    section(_heading(gpus))
    if gpus:
        _gpu_table(gpus)
    elif not is_foreign:
        st.caption(_why_no_gpu(system))
    if len(gpus) > _FEW_GPUS:
        _gpu_heatmap(page, gpus)


def draw_figures(page: RunPage) -> None:
    """Draw every figure of the machine over time."""
    system, is_foreign = _system(page), page.card.logged_by is not None
    around = Around(marks=marks_of(page), axis="time")
    panels = _panels(system, _gpus(system, page))
    if is_foreign:
        drawn = {name for panel in panels for name, _ in panel.metrics}
        panels += [replace(Panel.of(name), from_zero=True) for name in system if name not in drawn]
        if len(panels) > _MAX_PANELS:
            st.caption(f"Showing {_MAX_PANELS} of {count(len(panels))}; the others are on the Metrics page.")
        panels = panels[:_MAX_PANELS]
    for cell, panel in page_states.grid(panels, _FIGURES_IN_A_ROW):
        with cell:
            curve_panel(page, panel, around, smooth=False, height=200)


def _system(page: RunPage) -> dict[str, MetricInfo]:
    is_foreign = page.card.logged_by is not None
    return {
        info.name: info
        for info in page.store.metrics(page.key)
        if info.name.startswith(OF_THE_MACHINE) or (is_foreign and info.event == SYSTEM)
    }


@dataclass(frozen=True, slots=True)
class _Gpu:
    number: int
    name: str
    values: Mapping[str, float]

    def get(self, name: str) -> float | None:
        return self.values.get(name)


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


def _heading(gpus: Sequence[_Gpu]) -> str:
    if not gpus:
        return "Machine"
    same = _only_name(gpus)
    return (
        f"Machine :gray[{count(len(gpus))} {md(same, 40) if same else 'GPU' if len(gpus) == 1 else 'GPUs'}]"
    )


def _only_name(gpus: Sequence[_Gpu]) -> str:
    """Return what all of them are called; empty if they differ."""
    names = {gpu.name for gpu in gpus}
    return names.pop() if len(names) == 1 else ""


def _gpu_table(gpus: Sequence[_Gpu]) -> None:
    columns: dict[str, list[Any]] = {"GPU": [str(gpu.number) for gpu in gpus]}
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
        digits = 1 if unit == "GB" else 0
        texts = [None if value is None else f"{value:.{digits}f} {unit}" for value in values]
        words = f"{title} of {full:.3g} {unit}" if len(wholes) == 1 and full else title
        columns[words] = [
            (value / full, text) if full and value is not None else text
            for value, text in zip(values, texts, strict=True)
        ]
    if not _only_name(gpus) and any(gpu.name for gpu in gpus):
        columns["Model"] = [gpu.name[:40] for gpu in gpus]
    fact_table(columns, "Last sample of each GPU", key="_gpus")
    for least, below, words in (
        (0.99, np.inf, ":red[✕ Memory full]"),
        (0.95, 0.99, ":orange[▲ Memory nearly full]"),
    ):
        found = [str(gpu.number) for gpu in gpus if least <= _memory_share(gpu) < below]
        if found:
            more = f" and {count(len(found) - _MAX_NAMED)} more" if len(found) > _MAX_NAMED else ""
            st.markdown(f"{words}: GPU {', '.join(found[:_MAX_NAMED])}{more}")


def _gpu_heatmap(page: RunPage, gpus: Sequence[_Gpu]) -> None:
    found = {
        gpu.number: page.store.series(page.key, f"gpu/{gpu.number}/util", axis="time", buckets=SAMPLES)
        for gpu in gpus
        if gpu.get("util") is not None
    }
    figure = gpu_heatmap_figure(found, revision=f"{page.key} time")
    if figure is None:
        return
    name = f"chart gpus {page.key}"
    section("Utilization by GPU :gray[%]")
    draw_chart(
        figure,
        key=name,
        label=f"utilization of {len(found)} GPUs over time",
        name=f"{page.card.name} utilization by GPU",
        heading=f"Utilization by GPU · {page.card.name}",
    )
    if len(gpus) > _MAX_LINES:
        st.caption(f"The charts below show the first {_MAX_LINES} of {count(len(gpus))} GPUs.")


def _memory_share(gpu: _Gpu) -> float:
    used, total = gpu.get("mem_used_gb"), gpu.get("mem_total_gb")
    return used / total if used is not None and total else 0.0


def _plausible(value: float | None) -> float | None:
    return value if value is not None and abs(value) < 1e6 else None


def _panels(system: Mapping[str, MetricInfo], gpus: Sequence[_Gpu]) -> list[Panel]:
    panels = []
    many = len(gpus) > _FEW_GPUS
    for title, unit, names in _GPU_CHARTS:
        if many and title == "GPU utilization":
            # The heat map shows it.
            continue
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
                Panel(
                    title=title,
                    unit=unit,
                    metrics=metrics[:_MAX_LINES],
                    limits=tuple(limits),
                    from_zero=not many,
                    # A legend of many curves would take half of the chart; the tooltip names them.
                    legend=not many,
                )
            )
    for title, unit, host in _HOST:
        present = [(name, word) for name, word in host if name in system]
        if present:
            panels.append(Panel(title=title, unit=unit, metrics=present, from_zero=True))
    return panels


def _why_no_gpu(metrics: Mapping[str, MetricInfo]) -> str:
    if any(name.startswith("gpu") for name in metrics):
        return "GPU memory as reported by torch; the driver reported nothing else."
    return "No GPU metrics: the run uses the CPU, or NVIDIA's driver library was not found."
