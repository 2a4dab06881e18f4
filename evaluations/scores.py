"""The corpus evaluator's results as counts that can be added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

INSTABILITY: Final = "instability"
KINDS: Final = {
    "nan": ("nan",),
    INSTABILITY: ("spike", "divergence"),
    "spike": ("spike",),
    "divergence": ("divergence",),
    "overfit": ("overfit",),
    "plateau": ("plateau",),
    "exploding_grad": ("exploding_grad",),
    "vanishing_grad": ("vanishing_grad",),
    "val_spike": ("val_spike",),
    "throughput_drop": ("throughput_drop",),
    "data_starvation": ("data_starvation",),
    "low_gpu_util": ("low_gpu_util",),
    "mem_leak": ("mem_leak",),
}
"""Rows of the tables and the labels of each."""

_OF_A_KIND: Final = {
    "labels": "labels",
    "hit": "found",
    "fp": "false",
    "runs": "runs",
    "run_tp": "runs_found",
    "run_fp": "runs_false",
}
CLEAN: Final = "clean"
"""Runs without a label of any certainty: `runs`, their `alarms`, and the runs with one."""

Counts = dict[str, Counter[str]]


def counts_of(results: Iterable[Mapping[str, Any]]) -> Counts:
    """Return the counts of several evaluations together, by kind."""
    total: Counts = {}
    for result in results:
        for kind, counts in result["kinds"].items():
            if kind in KINDS:
                of_kind = {ours: counts[theirs] for theirs, ours in _OF_A_KIND.items()}
                total.setdefault(kind, Counter()).update(of_kind)
        clean = result["clean"]
        of_clean = {"runs": clean["n"], "alarms": clean["fa"], "runs_with_one": clean["hit"]}
        total.setdefault(CLEAN, Counter()).update(of_clean)
    return total
