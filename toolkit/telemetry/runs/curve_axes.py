"""The x axes that curves of some metrics can have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from toolkit.telemetry.runfolder.metrics import NOT_RESULTS, OF_THE_MACHINE
from toolkit.telemetry.runfolder.records import is_spread
from toolkit.telemetry.runs.curve_tiles import METRIC_AXIS
from toolkit.telemetry.runs.store import MetricInfo

_MOST: Final = 100
_ALWAYS: Final = (("step", "Step"), ("time", "Time"), ("elapsed", "Relative time"))
_PROGRESS: Final = ("progress", "Progress in %")
_COUNTED: Final = frozenset(
    "tokens samples examples images frames episodes flops batches epoch epochs".split()
)
_NOT_COUNTED: Final = frozenset("per sec second s rate mean length ratio loss".split())


def axes_of(metrics: Iterable[MetricInfo], *, has_epochs: bool = True) -> list[tuple[str, str]]:
    """Return the x axes that make sense for curves of a run with these metrics, as value and label.

    After those of every run come counters that rise, such as tokens and samples, then the other metrics.
    """
    known = {one.name: one for one in metrics}
    shown = [
        one for name, one in known.items() if not name.startswith(NOT_RESULTS) and not is_spread(name, known)
    ]
    counters = sorted((one.name for one in shown if _is_counter(one)), key=lambda name: (len(name), name))
    others = [one.name for one in shown if one.name not in counters]
    others.sort(key=lambda name: name.startswith(OF_THE_MACHINE))
    always = [*_ALWAYS, *([("epoch", "Epoch")] if has_epochs else []), _PROGRESS]
    return [*always, *((METRIC_AXIS + name, name) for name in [*counters, *others][:_MOST])]


def _is_counter(metric: MetricInfo) -> bool:
    words = set(re.findall(r"[a-z]+", metric.name.lower()))
    rises = metric.count > 1 and metric.last == metric.high > metric.low >= 0 and not metric.non_finite
    return rises and bool(words & _COUNTED) and not words & _NOT_COUNTED
