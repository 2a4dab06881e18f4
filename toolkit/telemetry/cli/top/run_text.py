"""A run as text for a terminal: how far it is, its curves in braille, its GPUs, and its findings in full."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from rich.text import Text

from toolkit.telemetry.cli.chosen_run import printable
from toolkit.telemetry.cli.run_list import STATUS_STYLES
from toolkit.telemetry.diagnostics.catalogue import title_of
from toolkit.telemetry.diagnostics.finding import CRITICAL, INFO, WARNING, Finding
from toolkit.telemetry.diagnostics.metric_aliases import GRAD_NORM, LOSS, LR
from toolkit.telemetry.forecasts.run import end_of_run
from toolkit.telemetry.reports.finding_text import when_text
from toolkit.telemetry.runfolder.metrics import INTERNAL
from toolkit.telemetry.runfolder.records import SYSTEM, is_spread
from toolkit.telemetry.runfolder.status import FINISHED, RUNNING
from toolkit.telemetry.runs.findings.alerts import alerts_of
from toolkit.telemetry.runs.formatting import clock, count, duration, short_number
from toolkit.telemetry.runs.listing.run_table import cell
from toolkit.telemetry.runs.signals import metric_of, validation_loss_of
from toolkit.telemetry.runs.store import MetricInfo, RunCard, Series

if TYPE_CHECKING:
    from toolkit.telemetry.runs.sources.local_store import LocalStore

_MOST_CHARTS: Final = 12
_ROWS: Final = 8
_LABEL: Final = 9
"""Width of the values at the y axis."""
_DOTS: Final = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""The bits of a braille character's dots, two next to each other and four above each other."""
_EMPTY: Final = 0x2800
_WAIT_S: Final = 0.3
_SEVERITIES: Final = {CRITICAL: "bold red", WARNING: "yellow", INFO: "cyan"}
_GPU: Final = re.compile(r"gpu/(\d{1,4})/.+")
_WORDS: Final = {
    "util": "load {:.0f} %",
    "mem_used_gb": "memory {:.1f} GB",
    "mem_total_gb": "of {:.0f} GB",
    "power_w": "power {:.0f} W",
    "temp_c": "{:.0f} °C",
}


def run_text(store: LocalStore, key: str, width: int) -> tuple[Text, bool]:
    """Return a run as text, and whether all of its records were read and examined. Raises UnknownRun."""
    health = store.refresh(key, wait_s=_WAIT_S)
    is_whole = health.complete and store.examine(key, wait_s=_WAIT_S) >= 1.0
    card, metrics = store.card(key), {info.name: info for info in store.metrics(key)}
    text = Text()
    _add(text, card.name, "bold")
    _add(text, f"  {_state_of(store, card)}\n", STATUS_STYLES.get(card.status.name, ""))
    if health.problem:
        _add(text, f"{health.problem}\n", "bold")
    resumes = [session.first_step for session in store.sessions(key)[1:]]
    names = _in_order(metrics)
    for name in names[:_MOST_CHARTS]:
        head, *lines = curve_lines(store.series(key, name, buckets=2 * width), resumes, width)
        _add(text, f"\n{name}", "bold")
        _add(text, "\n".join([f"  {head}", *lines, ""]))
    if len(names) > _MOST_CHARTS:
        _add(text, f"and {len(names) - _MOST_CHARTS} more metrics: telemetry show\n", "dim")
    _add(text, "".join(f"\n{line}" for line in _gpus(metrics)) + "\n")
    findings = alerts_of(store, key)
    for finding in findings:
        _add_finding(text, finding)
    if not findings:
        _add(text, "No findings." if is_whole else "Reading and examining ...", "dim")
    return text, is_whole


def _add(text: Text, part: str, style: str = "") -> None:
    """Append what a file may hold, without anything that a terminal would obey."""
    text.append("\n".join(map(printable, part.split("\n"))), style)


def _state_of(store: LocalStore, card: RunCard) -> str:
    now = time.time()
    end = end_of_run(store, card, now) if card.status.name == RUNNING else None
    step = "" if card.step is None else f"step {count(card.step)}"
    if step and card.max_steps and card.progress is not None:
        step = f"step {count(card.steps_done)} / {count(card.max_steps)} ({card.progress:.0%})"
    return " · ".join(
        filter(
            None,
            (
                card.status.name,
                step,
                "" if card.loss is None else f"loss {cell(card, 'loss', now)}",
                f"ETA {duration(end.middle - now)}, about {clock(end.middle, now=now)[:-3]}" if end else "",
                card.logged_by,
                card.problem,
                "" if card.live or card.status.name == FINISHED else card.status.why,
            ),
        )
    )


def _in_order(metrics: Mapping[str, MetricInfo]) -> list[str]:
    """Return the metrics: loss, validation loss, learning rate, gradient norm, others, last those of the machine."""
    loss, lr, norm = (metric_of(signal, metrics) for signal in (LOSS, LR, GRAD_NORM))
    first = [name for name in (loss, validation_loss_of(metrics), lr, norm) if name]

    def is_late(name: str) -> bool:
        return (
            metrics[name].event == SYSTEM or name.startswith((*INTERNAL, "gpu/")) or is_spread(name, metrics)
        )

    return list(dict.fromkeys([*first, *sorted(metrics, key=is_late)]))


def _gpus(metrics: Mapping[str, MetricInfo]) -> list[str]:
    """Return of each GPU the last values."""
    numbers = sorted({int(match[1]) for name in metrics if (match := _GPU.fullmatch(name))})
    places = {f"gpu/{number}/": f"GPU {number}" for number in numbers} or {"gpu_": "GPU"}
    lines = []
    for prefix, gpu in places.items():
        last = {name: metrics[prefix + name].last for name in _WORDS if prefix + name in metrics}
        words = [_WORDS[name].format(value) for name, value in last.items() if abs(value) < 1e6]
        lines += ["  ".join([gpu, *words])] * bool(words)
    return lines


def _add_finding(text: Text, finding: Finding) -> None:
    style = _SEVERITIES.get(finding.severity, "") if finding.is_open else "dim"
    _add(text, f"\n{finding.severity}: {title_of(finding)}, {when_text(finding)}\n", style)
    causes = [f"Cause: {each}" for each in finding.causes]
    for line in (finding.message, *causes, *(f"Try: {each}" for each in finding.advice)):
        _add(text, f"  {line}\n")


# ------------------------------------------------------------ curves


def curve_lines(series: Series, resumes: Sequence[float | None], width: int, rows: int = _ROWS) -> list[str]:
    """Return a head, the curve, and the x axis with R where a session resumes, N and I at NaN and infinity.

    Each column shows minimum and maximum, so no spike is hidden.
    """
    cells = max(1, width - _LABEL - 1)
    across, down = 2 * cells, 4 * rows
    x, y = (
        np.concatenate([np.empty(0), *(getattr(part, axis) for part in series.segments)]) for axis in "xy"
    )
    bad = sum(run.count for run in series.non_finite)
    head = f"{bad:,} NaN or infinite" if bad else ""
    known = np.isfinite(x) & np.isfinite(y)
    ends = [end for run in series.non_finite for end in (run.first_x, run.last_x)]
    places = np.array([*x[np.isfinite(x)], *(end for end in ends if np.isfinite(end))])
    if not len(places):
        return [head or "no number"]
    first, last = float(places.min()), float(places.max())

    def columns_of(at: np.ndarray, most: int) -> np.ndarray:
        # Halves, because the difference of two large numbers may be infinite.
        share = (at / 2 - first / 2) / ((last / 2 - first / 2) or 1.0)
        return np.clip(np.nan_to_num(share) * most, 0, most - 1).astype(int)

    grid, labels = np.zeros((down, across), dtype=bool), {}
    if known.any():
        order = np.argsort(x[known], kind="stable")
        x, y = x[known][order], y[known][order]
        low, high = float(y.min()), float(y.max())
        labels = {0: high, rows - 1: low} if high > low else {rows // 2: high}
        share = (high / 2 - y / 2) / (high / 2 - low / 2) if high > low else np.full(len(y), 0.5)
        grid = _filled(columns_of(x, across), np.rint(share * (down - 1)).astype(int), across, down)
        head = ", ".join(filter(None, [f"last {short_number(float(y[-1]))}", head]))
        for run in series.non_finite:
            begin, end = columns_of(np.array([run.first_x, run.last_x]), across)
            empty = np.setdiff1d(np.arange(begin, end + 1), columns_of(x, across))
            grid[:, empty] = False
    bits = (grid.reshape(rows, 4, cells, 2) * _DOTS[None, :, None, :]).sum(axis=(1, 3)) + _EMPTY
    lines = [
        f"{short_number(labels[row]) if row in labels else '':>{_LABEL}}│{''.join(map(chr, cells))}"
        for row, cells in enumerate(bits.tolist())
    ]
    axis = ["─"] * cells
    begin, end = (f"{count(round(place))}" for place in (first, last))
    if len(begin + end) + 2 < cells:
        axis[: len(begin) + 1], axis[-len(end) - 1 :] = f"{begin} ", f" {end}"
    for resume in resumes:
        axis[columns_of(np.array([resume or first]), cells)[0]] = "R"
    for run in series.non_finite:
        begin_at, end_at = columns_of(np.array([run.first_x, run.last_x]), cells)
        axis[begin_at : end_at + 1] = ("N" if run.kind == "NaN" else "I") * (end_at + 1 - begin_at)
    return [head, *lines, f"{'':>{_LABEL}}└{''.join(axis)}"]


def _filled(columns: np.ndarray, depths: np.ndarray, across: int, down: int) -> np.ndarray:
    """Return which dots are filled: each point, and the way from one to the next; columns do not decrease."""
    top, bottom = np.full(across, down), np.full(across, -1)
    np.minimum.at(top, columns, depths)
    np.maximum.at(bottom, columns, depths)
    between = np.rint(np.interp(np.arange(across), columns, depths)).astype(int)
    is_inside = (bottom < 0) & (np.arange(across) >= columns[0]) & (np.arange(across) <= columns[-1])
    top[is_inside] = bottom[is_inside] = between[is_inside]
    before = np.flatnonzero(bottom[:-1] >= 0)
    follows = before[bottom[before + 1] >= 0]
    joined_top, joined_bottom = top.copy(), bottom.copy()
    joined_top[follows + 1] = np.minimum(top[follows + 1], bottom[follows])
    joined_bottom[follows + 1] = np.maximum(bottom[follows + 1], top[follows])
    dots = np.arange(down)[:, None]
    return (dots >= joined_top) & (dots <= joined_bottom)
