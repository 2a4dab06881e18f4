"""Did a change make it slower: jobs by perf_tag, a verdict in words, and the figures behind it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import pandas as pd
import streamlit as st

from dashboard.charts.speed import speed_figure, speed_height
from dashboard.components.chart import draw_chart
from dashboard.data.run_store import RunCard, RunStore
from dashboard.data.speed import METRICS, Group, Job, Verdict, compare, groups_of, jobs_of, step_time
from dashboard.data.formatting import NOTHING, count, md, short_number
from toolkit.runfolder.records import START

_MOST_RUNS: Final = 30
_MOST_ROWS: Final = 60
_TONES: Final = {
    "slower": (":material/trending_down:", "orange"),
    "faster": (":material/trending_up:", "green"),
    "same": (":material/drag_handle:", "gray"),
}


def speed_panel(store: RunStore, keys: Sequence[str], cards: Mapping[str, RunCard]) -> None:
    """Show how long a step takes in the jobs of these runs; nothing where none of them has logged it.

    A job is one session of a run. Jobs with one `perf_tag` are expected to be equally fast and make a group.
    """
    looked_at, left_out = _runs_to_look_at(store, keys, cards)
    jobs = [job for key in looked_at for job in _jobs(store, key, cards[key].name)]
    if not jobs:
        return
    st.markdown("**Speed by perf_tag** :gray[a job is one session of a run]")
    parts = _parts(store, cards, {job.session_tag for job in jobs if job.session_tag})
    groups = groups_of(_of_one_session_tag(jobs, parts))
    if len(groups) > 1:
        _verdict(groups)
    shown = _at_most(groups, _MOST_ROWS)
    draw_chart(
        speed_figure(shown),
        key="chart speed",
        label=f"Seconds a step, {count(sum(len(group.jobs) for group in shown))} jobs",
        height=speed_height(shown),
        name="speed",
        group="speed",
    )
    st.caption(
        "Point: median; whiskers: 10 % to 90 % of the records. The first 5 % of a job, and at least 10 records, are "
        "left out as warm-up. An empty point is a job too short to be judged."
        + (f" {count(left_out)} more runs with these tags are left out." if left_out else "")
    )
    st.dataframe(
        pd.DataFrame(_rows(groups, parts)), hide_index=True, alt="Step time, spread and data wait of each job"
    )
    if not any(group.tagged for group in groups):
        st.caption(
            "These runs have no `perf_tag`, so each is a group of its own. A perf_tag names code, settings and machine "
            "whose speed should be the same; change it with them: `telemetry: {perf_tag: my-change}` in the YAML."
        )


def _runs_to_look_at(
    store: RunStore, keys: Sequence[str], cards: Mapping[str, RunCard]
) -> tuple[list[str], int]:
    """Return the chosen runs, with others of the same tags where somebody wants them, and how many were too many."""
    tags = {job.perf_tag for key in keys for job in store.jobs(key) if job.perf_tag}
    others = [
        key
        for key in cards
        if key not in keys and tags and any(job.perf_tag in tags for job in store.jobs(key))
    ]
    if not others or not st.toggle(
        f"With {count(len(others))} more {'run' if len(others) == 1 else 'runs'} of the same perf_tags",
        key="tagged",
        bind="query-params",
    ):
        return list(keys), 0
    added = others[: max(0, _MOST_RUNS - len(keys))]
    for key in added:
        store.refresh(key, wait_s=0.5)
    return [*keys, *added], len(others) - len(added)


def _jobs(store: RunStore, key: str, name: str) -> list[Job]:
    starts = store.events(key, (START, "environment"), limit=400)
    return jobs_of(key, name, store.jobs(key), starts, store.table(key, METRICS))


def _parts(
    store: RunStore, cards: Mapping[str, RunCard], tags: Collection[str]
) -> dict[str, list[tuple[str, int]]]:
    """Return the jobs, of whatever run, that together are one logical job, first one first, by their session_tag."""
    if not tags:
        return {}
    found = [(job.started, key, job) for key in cards for job in store.jobs(key) if job.session_tag in tags]
    together: dict[str, list[tuple[str, int]]] = {}
    for _, key, job in sorted(found, key=lambda one: one[:2]):
        together.setdefault(str(job.session_tag), []).append((key, job.session))
    return together


def _of_one_session_tag(jobs: list[Job], parts: Mapping[str, Sequence[object]]) -> list[Job]:
    if not parts:
        return jobs
    chosen = st.selectbox(
        "Only the parts of one logical job (session_tag)",
        sorted(parts),
        index=None,
        placeholder="All jobs",
        format_func=lambda tag: f"{tag} ({count(len(parts.get(tag, ())))} parts)",
        key="session_tag",
        bind="query-params",
    )
    return [job for job in jobs if job.session_tag == chosen] if chosen else jobs


def _verdict(groups: Sequence[Group]) -> None:
    names = {group.id: group.name for group in groups}
    ids = list(names)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        new = _pick("Compare", ids, ids[-1], names, key="_speed_of")
        rest = [one for one in ids if one != new]
        # The one before it; for the oldest, the one behind.
        before = ids[max(0, ids.index(new) - 1)] if ids.index(new) else rest[0]
        base = _pick("with the baseline", rest, before, names, key=f"_speed_base {new}")
    found = compare(*(next(group for group in groups if group.id == one) for one in (new, base)))
    if found is None:
        st.caption(
            "One of them has no job of at least 20 records behind its warm-up: too short to be judged."
        )
        return
    icon, tone = _TONES[found.outcome]
    st.markdown(f":{tone}[{icon}] **{md(found.sentence, 300)}**")
    _reservations(found)


def _pick(label: str, ids: Sequence[str], usual: str, names: Mapping[str, str], *, key: str) -> str:
    chosen = st.selectbox(
        label, ids, index=ids.index(usual), key=key, format_func=lambda one: names.get(one, str(one))
    )
    # What was chosen may have gone with the run that had it.
    return chosen if chosen in ids else usual


def _reservations(found: Verdict) -> None:
    said = []
    if found.per == "sample":
        said.append("Their batches differ in size, so this is about the time a sample takes, not a step.")
    if not found.spread_known:
        said.append(
            "With one job each it is not known how far two jobs of one tag lie apart: a small difference may be chance."
        )
    elif found.jobs + found.baseline_jobs == 3:
        said.append("Two jobs hardly show how far equal ones lie apart: one more of either tag tells a lot.")
    if said:
        st.caption(" ".join(said))


def _rows(groups: Sequence[Group], parts: Mapping[str, Sequence[tuple[str, int]]]) -> list[dict[str, str]]:
    return [
        {
            "perf_tag": group.name if group.tagged else NOTHING,
            "job": job.label,
            "median": step_time(job.median),
            "10 to 90 %": f"{step_time(job.p10)} to {step_time(job.p90)}",
            "samples / s": short_number(job.samples_per_sec),
            "data wait": NOTHING if job.data_wait is None else f"{100 * job.data_wait:.0f} %",
            "steps": count(job.steps),
            "device": job.device or NOTHING,
            "host": job.host or NOTHING,
            **({"session_tag": _part(job, parts)} if parts else {}),
        }
        for group in groups
        for job in group.jobs
    ]


def _part(job: Job, parts: Mapping[str, Sequence[tuple[str, int]]]) -> str:
    of_tag = parts.get(job.session_tag or "", ())
    if (job.run, job.session) not in of_tag:
        return NOTHING
    return f"{job.session_tag}, part {of_tag.index((job.run, job.session)) + 1} of {len(of_tag)}"


def _at_most(groups: Sequence[Group], rows: int) -> list[Group]:
    """Return the newest groups that have at most about `rows` jobs together; the table has them all."""
    found: list[Group] = []
    for group in reversed(groups):
        if found and sum(len(one.jobs) for one in found) + len(group.jobs) > rows:
            break
        found.insert(0, group)
    return found
