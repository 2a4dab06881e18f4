"""What to draw into the chart of an alert: where it started and ended, and its reference values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.runfolder.untrusted import is_number
from toolkit.telemetry.runs.formatting import short_number
from toolkit.telemetry.runs.store import MetricInfo

from .curve_chart import Band, Level, Mark, Tone, Window

_RECORDS_BEFORE: Final = 60
_RECORDS_AFTER: Final = 300
_ROOM: Final = 0.25
_EDGE: Final = 0.02
_NEAR: Final = 0.12
"""Labels of marks closer than this fraction of the width would overlap."""

# By kind: evidence that is a value of the metric itself, and its label.
_LEVELS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "nan": (("last_good", "last finite value"),),
    "spike": (("level", "level before"),),
    "divergence": (("level", "level before"),),
    "plateau": (("level", "level"),),
    "overfit": (("best", "best"),),
    "exploding_grad": (("level", "typical"),),
    "vanishing_grad": (("level", "before"),),
    "val_spike": (("level", "level before"),),
    "throughput_drop": (("usual", "typical"), ("now", "now")),
    "low_gpu_util": (("mean_pct", "mean"),),
    "loss_scale": (("level", "highest before"), ("now", "now")),
}
_TONES: Final[Mapping[str, Tone]] = {"critical": "critical", "warning": "warning"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a chart shows of an alert."""

    window: Window
    marks: tuple[Mark, ...]
    bands: tuple[Band, ...]
    levels: tuple[Level, ...] = ()


def metric_of(alert: Finding, metrics: Mapping[str, MetricInfo]) -> MetricInfo | None:
    """Return the metric that shows the alert; None if the run has none."""
    names = (alert.metric, f"epoch/{alert.metric}", f"eval/{alert.metric}")
    return next((metrics[name] for name in names if name in metrics), None)


def around(alert: Finding, info: MetricInfo, changes: Sequence[Mark] = ()) -> Evidence | None:
    """Return the x range and the marks, with room for `changes` made because of it; None without a step."""
    if alert.start_step is None:
        return None
    start = float(alert.start_step)
    last = info.last_step if info.last_step is not None and math.isfinite(info.last_step) else start
    noticed = float(alert.noticed_step) if alert.noticed_step is not None else start
    end = float(alert.end_step) if alert.end_step is not None else max(last, noticed)
    steps_a_record = max(1.0, last / max(1, info.count))
    # A long alert is best understood at its start.
    shown = min(end - start, max(_RECORDS_AFTER * steps_a_record, 2.0 * (noticed - start)))
    before = max(_RECORDS_BEFORE * steps_a_record, _ROOM * shown)
    shown = max([shown, *(mark.step + before - start for mark in changes if mark.step is not None)])
    left = max(0.0, start - before)
    # There is nothing to see after the last record.
    right = min(start + shown + _ROOM * max(before, shown), last + _EDGE * (last - left))
    window = (left, max(right, noticed + 1.0))
    tone = _TONES.get(alert.severity, "info")
    marks = [Mark(step=start, text="start", tone=tone)]
    if noticed > start:
        far = noticed - start > _NEAR * (window[1] - window[0])
        marks.append(Mark(step=noticed, text="noticed" if far else ""))
    return Evidence(
        window=window,
        marks=(*marks, *changes),
        bands=(Band(start=start, end=max(end, start), tone=tone),),
        levels=tuple(_levels(alert)),
    )


def _levels(alert: Finding) -> list[Level]:
    found = []
    for name, word in _LEVELS.get(alert.kind, ()):
        value = alert.evidence.get(name)
        if is_number(value) and math.isfinite(value):
            if name == "level" and "first" in alert.evidence:
                word = "first values"
            found.append(Level(y=float(value), text=f"{word} {short_number(value)}", tone="good"))
    return found
