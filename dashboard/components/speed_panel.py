"""Did a change make training slower: jobs by perf_tag, a verdict, and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import streamlit as st

from toolkit.telemetry.runfolder.records import START
from toolkit.telemetry.runs.columns.speed import (
    METRICS,
    JobGroup,
    JobSpeed,
    Verdict,
    compare,
    groups_of,
    jobs_of,
    step_time,
)
from toolkit.telemetry.runs.formatting import NO_VALUE, count, md, short_number
from toolkit.telemetry.runs.store import RunCard, RunStore

from .page_states import section
from .run_table import fact_table

_TONES: Final = {
    "slower": ("▲", "orange"),
    "faster": ("✓", "green"),
    "same": ("●", "gray"),
}


def speed_panel(store: RunStore, keys: Sequence[str], cards: Mapping[str, RunCard]) -> None:
    """Show how long a step takes in the jobs of these runs; nothing if none of them has logged it.

    A job is one session of a run. Jobs with one `perf_tag` are expected to be equally fast and make a group.
    """
    jobs = [job for key in keys for job in _jobs(store, key, cards[key].name)]
    if not jobs:
        return
    section("Speed by perf_tag :gray[a job is one session of a run]")
    groups = groups_of(jobs)
    if len(groups) > 1:
        _verdict(groups)
    fact_table(_rows(groups), "Step time, spread and data wait of each job")
    st.caption(
        "Bar: the median time of a step. The first 5 % of a job (at least 10 records) are left out as warm-up."
    )
    if not any(group.tagged for group in groups):
        st.caption(
            "These runs have no `perf_tag`, so each run is its own group. Give jobs that should be equally fast the "
            "same perf_tag, and change it with code, settings or machine: `telemetry: {perf_tag: my-change}` in YAML."
        )


def _jobs(store: RunStore, key: str, name: str) -> list[JobSpeed]:
    starts = store.events(key, (START, "environment"), limit=400)
    return jobs_of(key, name, store.manifest_sessions(key), starts, store.table(key, METRICS))


def _verdict(groups: Sequence[JobGroup]) -> None:
    names = {group.id: group.name for group in groups}
    ids = list(names)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        new = _pick("Compare", ids, ids[-1], names, key="_speed_of")
        rest = [one for one in ids if one != new]
        # The previous one; for the oldest, the next one.
        before = ids[max(0, ids.index(new) - 1)] if ids.index(new) else rest[0]
        base = _pick("Baseline", rest, before, names, key=f"_speed_base {new}")
    found = compare(*(next(group for group in groups if group.id == one) for one in (new, base)))
    if found is None:
        st.caption("One of them has no job with at least 20 records after the warm-up: too short to compare.")
        return
    sign, tone = _TONES[found.outcome]
    st.markdown(f":{tone}[{sign}] **{md(found.sentence, 300)}**")
    _reservations(found)


def _pick(label: str, ids: Sequence[str], usual: str, names: Mapping[str, str], *, key: str) -> str:
    chosen = st.selectbox(
        label, ids, index=ids.index(usual), key=key, format_func=lambda one: names.get(one, str(one))
    )
    # The chosen group may be gone with its run.
    return chosen if chosen in ids else usual


def _reservations(found: Verdict) -> None:
    notes = []
    if found.per == "sample":
        notes.append("Batch sizes differ, so this compares the time per sample, not per step.")
    if not found.spread_known:
        notes.append(
            "With only one job each, the variation between equal jobs is unknown: a small difference may be chance."
        )
    elif found.jobs + found.baseline_jobs == 3:
        notes.append(
            "Two jobs say little about the variation between equal jobs: one more job would help a lot."
        )
    if notes:
        st.caption(" ".join(notes))


def _rows(groups: Sequence[JobGroup]) -> list[dict[str, Any]]:
    has_tags = any(job.session_tag for group in groups for job in group.jobs)
    slowest = max(job.median for group in groups for job in group.jobs)
    return [
        {
            "perf_tag": group.name if group.tagged else NO_VALUE,
            "job": job.label + (" (too short to compare)" if job.noise is None else ""),
            "median": (job.median / slowest if slowest > 0 else 0.0, step_time(job.median)),
            "p10 to p90": f"{step_time(job.p10)} to {step_time(job.p90)}",
            "samples / s": short_number(job.samples_per_sec),
            "data wait": NO_VALUE if job.data_wait is None else f"{100 * job.data_wait:.0f} %",
            "steps": count(job.steps),
            "device": job.device or NO_VALUE,
            "host": job.host or NO_VALUE,
            **({"session_tag": job.session_tag or NO_VALUE} if has_tags else {}),
        }
        for group in groups
        for job in group.jobs
    ]
