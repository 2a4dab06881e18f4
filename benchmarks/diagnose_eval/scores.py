"""The evaluator's results as counts to save and compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

INSTABILITY = "instability"
FAMILIES = {
    "nan": ("nan",),
    INSTABILITY: ("spike", "divergence"),
    "spike": ("spike",),
    "divergence": ("divergence",),
    "overfit": ("overfit",),
    "plateau": ("plateau",),
    "exploding_grad": ("exploding_grad",),
    "val_spike": ("val_spike",),
    "throughput_drop": ("throughput_drop",),
    "data_starvation": ("data_starvation",),
    "low_gpu_util": ("low_gpu_util",),
}
"""Rows of the tables and the labels of each."""

_COUNTS = {
    "labels": "labels",
    "hit": "found",
    "fp": "false",
    "runs": "runs",
    "run_tp": "runs_found",
    "run_fp": "runs_false",
}


def counts_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts of an evaluation; ratios are derived from them."""
    kinds = {
        kind: {ours: result["kinds"][kind][theirs] for theirs, ours in _COUNTS.items()}
        for kind in (*FAMILIES, "vanishing_grad", "mem_leak")
        if kind in result["kinds"]
    }
    clean, quiet = result["clean"], result["quiet"]
    return {
        "kinds": kinds,
        "clean": {
            "runs": clean["n"],
            "alarms": clean["fa"],
            "hit": clean["hit"],
            "by_kind": dict(clean["by_kind"]),
        },
        "unsure": {"runs": quiet["n"], "alarms": quiet["alarms"], "hit": quiet["hit"]},
    }


def precision(counts: Mapping[str, int], of: str = "") -> float | None:
    """Return the share of correct alarms, or None without alarms. `of` is "runs_" for whole runs."""
    found, false = counts[f"{of}found"], counts[f"{of}false"]
    return found / (found + false) if found + false else None


def recall(counts: Mapping[str, int], of: str = "") -> float | None:
    """Return the share of events found, or of runs with "runs_"; None without events."""
    there = counts["runs" if of else "labels"]
    return counts[f"{of}found"] / there if there else None


def worse(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each count that got worse."""
    said = []
    for kind, then in before["kinds"].items():
        # A kind without labels and alarms has no counts.
        counts = now["kinds"].get(kind, dict.fromkeys(then, 0))
        for name in ("found", "runs_found"):
            if counts[name] < then[name]:
                said.append(f"{kind}: {name} {counts[name]}, was {then[name]}")
    for kind, counts in now["kinds"].items():
        then = before["kinds"].get(kind, dict.fromkeys(counts, 0))
        for name in ("false", "runs_false"):
            if counts[name] > then[name]:
                said.append(f"{kind}: {name} {counts[name]}, was {then[name]}")
    for group, name in (("clean", "alarms"), ("clean", "hit"), ("unsure", "alarms")):
        if now[group][name] > before[group][name]:
            said.append(f"{group} runs: {name} {now[group][name]}, was {before[group][name]}")
    return said
