"""What a rule of one's own would have found in a run."""

from __future__ import annotations

import numpy as np

from toolkit.telemetry.diagnostics.rules import Rule
from toolkit.telemetry.runs.columns.thinning import runs_of
from toolkit.telemetry.runs.formatting import count
from toolkit.telemetry.runs.store import RunStore


def preview(store: RunStore, key: str, rule: Rule) -> str:
    """Return in a sentence how often `rule` would have been broken in the records read so far, and where first."""
    text = f"= {rule.when}"
    problem = store.formula_problem(key, text)
    if problem is not None:
        return f"Cannot be followed in this run: {problem}"
    table = store.table(key, [text])
    known = np.flatnonzero(~np.isnan(table[text]))
    steps, session, holds = (table[name][known] for name in ("global_step", "session", text))
    fired: list[float] = []
    # As in a live run, another session and steps that go back begin another incident.
    for part in np.split(np.arange(len(known)), np.flatnonzero(np.diff(session) + (np.diff(steps) < 0)) + 1):
        ranges = runs_of(holds[part] != 0)
        fired += [
            steps[part[first] + rule.lasts - 1] for first, last in ranges if last - first + 1 >= rule.lasts
        ]
    if not fired:
        return "Would not have fired in this run."
    times = "once" if len(fired) == 1 else f"{count(len(fired))} times"
    return f"Would have fired {times} in this run, first at step {count(int(fired[0]))}."
