"""Compare page: up to 50 runs in each chart, single or as groups, against a baseline, and their differences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import session
from dashboard.charts.curve_layout import ChartStyle, Curve
from dashboard.charts.curves import chart_label, curve_figure
from dashboard.charts.mean_and_spread import (
    against_group,
    group_smoothing,
    groups_figure,
    mean_and_spread,
)
from dashboard.charts.palette import looks_of_runs, run_colour
from dashboard.components import page_states
from dashboard.components.chart import draw_chart
from dashboard.components.curve_panel import curves_csv, follow_zoom, hidden_values_text
from dashboard.components.frame import GLYPHS
from dashboard.components.page_states import page_title, section
from dashboard.components.pictures import sample_grid
from dashboard.components.run_filter import keep_colours
from dashboard.components.run_menu import report_button
from dashboard.components.run_table import Row, ShownColumn, run_table
from dashboard.components.speed_panel import speed_panel
from dashboard.components.verdict_line import verdict_of_chosen
from toolkit.answers.evidence import read_evidence
from toolkit.answers.why import Why, why
from toolkit.reports.compare import compare as comparison
from toolkit.reports.document import Document
from toolkit.reports.stored_run import content_of_run, points_for
from toolkit.runfolder.metrics import LIKELY, NOT_RESULTS, is_evaluation, metric_direction
from toolkit.runfolder.records import is_spread
from toolkit.runs.columns.export import shown_frame
from toolkit.runs.formatting import clean, count, md, short_number
from toolkit.runs.listing.config_diff import MISSING, diff
from toolkit.runs.listing.run_table import Column
from toolkit.runs.settings import as_number, differing_settings, is_label, setting_text
from toolkit.runs.store import RunCard, RunQuery, RunStore, Series, Smoothing, UnknownRun, XAxis, labelled

_MAX_RUNS: Final = 50
_MAX_GROUPS: Final = 8
_MAX_SMALL: Final = 12
_OFFERED: Final = 1_000
"""Runs that can be picked; any other one is compared by its address."""
_AXES: Final[dict[str, XAxis]] = {"Step": "step", "Relative time": "elapsed", "Wall time": "time"}
_BY_TAG: Final = "tag"
_NOT_FINITE: Final = "NaN or infinite"
_FIGURES: Final = ("last", "mean of last 10 %", "min", "max", "median", _NOT_FINITE)
_MAX_SETTINGS: Final = 500
_OPENED: Final = "_compare_opened"
_WHY: Final = "_why"
_MOST_DIFFS: Final = 20


def main() -> None:
    """Draw the page."""
    store = session.store()
    st.set_page_config(page_title="Compare runs")
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        page_title("Compare", width="content")
        report = st.container(width="content")
    opened = st.session_state.pop(_OPENED, None)
    if opened is not None:
        st.switch_page("views/overview.py", query_params={"run": opened})
    runs = store.list_runs(RunQuery(per_page=_OFFERED))
    if not runs.cards:
        page_states.no_runs(runs.places, runs.problems)
        return
    cards = labelled(runs.cards)
    named = _named_otherwise(store, cards)
    if any(card.key not in cards for card in named.values()):
        cards = labelled({card.key: card for card in (*runs.cards, *named.values())}.values())
    keys = _pick_runs(cards, {word: card.key for word, card in named.items()})
    page_states.say_if_cut(runs)
    by = _pick_grouping([cards[key] for key in keys])
    if len(keys) < 2:
        st.info(f"Pick two to {_MAX_RUNS} runs.", icon=":material/compare_arrows:")
        # One run can have become faster from one session to the next.
        if keys and len({job.perf_tag for job in store.manifest_sessions(keys[0])}) > 1:
            _read(store, keys)
            _speed(store, keys, cards)
        return
    cards.update({card.key: card for card in keep_colours(store, [cards[key] for key in keys])})
    in_part = _read(store, keys)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        axis = _AXES[session.pick_axis("X axis", tuple(_AXES))]
        metric = _pick_metric(store, keys)
        smoothing = session.smoothing_picker()
        log_y = session.toggle("Log y", "log", "Draw the values on a logarithmic axis.")
    seconds = session.refresh_seconds() if any(cards[key].live for key in keys) else None
    if in_part:
        seconds = 1.0
    shown = _Compared(store, {key: cards[key] for key in keys}, metric, axis, smoothing, log_y)
    if by:
        page_states.guarded("The groups", lambda: _groups(shown, by))
    else:
        _part("The charts", lambda: _chart(shown), seconds)
    with report:
        report_button("compare", lambda: _report(store, keys, cards, metric))
    base = _pick_baseline(keys, cards)
    page_states.guarded("The verdict", lambda: verdict_of_chosen(store, keys, cards, base, metric))
    page_states.guarded("The summary", lambda: _summary(store, keys, cards, metric, base))
    page_states.guarded("The configurations", lambda: _configs(store, keys, cards))
    _part("Why they differ", lambda: _why(base, keys, cards))
    others = _shared_metrics(store, keys, metric)
    if others:
        _part("The other metrics", lambda: _small_charts(shown, others), seconds)
    _speed(store, keys, cards)
    names = {key: cards[key].name for key in keys}
    _part("The samples", lambda: sample_grid(store, names))


@dataclass(frozen=True, slots=True)
class _Compared:
    """The runs that are drawn, and how."""

    store: RunStore
    cards: Mapping[str, RunCard]
    metric: str
    axis: XAxis
    smoothing: Smoothing
    log_y: bool


def _part(name: str, draw: Callable[[], None], seconds: float | None = None) -> None:
    """Draw a part of the page as a fragment, so that a change in it redraws nothing else."""
    st.fragment(lambda: page_states.guarded(name, draw), run_every=seconds)()


def _report(store: RunStore, keys: Sequence[str], cards: Mapping[str, RunCard], metric: str) -> Document:
    points = points_for(len(keys))
    contents = [content_of_run(store, key, name=cards[key].name, points=points) for key in keys]
    return comparison(contents, metric=metric)


def _speed(store: RunStore, keys: Sequence[str], cards: Mapping[str, RunCard]) -> None:
    # No timer, because it has inputs.
    _part("The speed", lambda: speed_panel(store, keys, cards))


def _read(store: RunStore, keys: Sequence[str]) -> bool:
    """Read the runs, show the progress, and return whether there is more to read."""
    healths = store.refresh_all(keys, wait_s=1.0)
    # A list, not `any`: each has to be stored.
    changed = [
        session.set_partly_read(key, not health.complete) for key, health in zip(keys, healths, strict=True)
    ]
    unfinished = [health for health in healths if not health.complete]
    if unfinished:
        page_states.reading(min(unfinished, key=lambda health: health.fraction_read))
    elif any(changed):
        # Redraw what was drawn from a partly read log.
        st.rerun()
    return bool(unfinished)


# ---------------------------------------------------------------- what is compared


def _pick_runs(cards: Mapping[str, RunCard], otherwise: Mapping[str, str]) -> list[str]:
    named, dropped = _named_in_url(cards, otherwise)
    if "_compared" not in st.session_state or (named and named != st.session_state.get("_compared_url")):
        st.session_state["_compared"] = named
    st.session_state["_compared"] = [key for key in st.session_state["_compared"] if key in cards]
    keys: list[str] = st.multiselect(
        "Runs",
        list(cards),
        key="_compared",
        format_func=lambda key: (
            f"{cards[key].name} · {GLYPHS.get(cards[key].status.name, '')}" if key in cards else key
        ),
        max_selections=_MAX_RUNS,
        placeholder=f"Two to {_MAX_RUNS} runs",
        persist_state="session",
    )
    st.session_state["_compared_url"] = keys
    if dropped:
        st.caption("Not shown: " + "; ".join(dropped) + ".")
    if keys and keys != named:
        # One readable parameter; a name with a comma needs one parameter per run.
        st.query_params["runs"] = keys if any("," in key for key in keys) else ",".join(keys)
    elif not keys and "runs" in st.query_params:
        del st.query_params["runs"]
    return keys


def _named_otherwise(store: RunStore, cards: Mapping[str, RunCard]) -> dict[str, RunCard]:
    """Return runs of the URL that are not listed, or whose address was made with other log directories."""
    words = [part for word in st.query_params.get_all("runs") for part in (word, *word.split(","))]
    found = {}
    for key in [word for word in dict.fromkeys(words) if word not in cards][: 2 * _MAX_RUNS]:
        with suppress(UnknownRun):
            found[key] = store.card(key)
    return found


def _named_in_url(cards: Mapping[str, RunCard], otherwise: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the runs in the URL, and which were dropped, with the reason."""
    words = [otherwise.get(word, word) for word in st.query_params.get_all("runs")]
    parts = [
        otherwise.get(part, part)
        for word in words
        for part in ([word] if word in cards else word.split(","))
        if part
    ]
    known = list(dict.fromkeys(part for part in parts if part in cards))
    unknown = list(dict.fromkeys(part for part in parts if part not in cards))
    dropped = []
    if unknown:
        names = ", ".join(md(name, 40) for name in unknown[:5])
        dropped.append(f"{names}{' and others' if len(unknown) > 5 else ''}, because there is no such run")
    if len(known) > _MAX_RUNS:
        dropped.append(
            f"the last {count(len(known) - _MAX_RUNS)} runs of the link, because at most {_MAX_RUNS} are compared"
        )
    return known[:_MAX_RUNS], dropped


def _pick_grouping(cards: Sequence[RunCard]) -> str | None:
    """Show the settings by which the chosen runs can be grouped, and return the chosen one."""
    options = differing_settings([card.config for card in cards])
    if any(card.tags for card in cards):
        options = [_BY_TAG, *options]
    if len(cards) < 2 or not options:
        return None
    return session.pick_or_none("Mean and spread by", options, key="by", placeholder="each run alone")


def _pick_metric(store: RunStore, keys: Sequence[str]) -> str:
    store.refresh_all(keys, wait_s=0.5)
    names = Counter(info.name for key in keys for info in store.metrics(key))
    ordered = sorted(
        names,
        key=lambda name: (
            LIKELY.index(name) if name in LIKELY else len(LIKELY),
            is_spread(name, names),
            -names[name],
            name,
        ),
    )
    if not ordered:
        return "train_loss"
    chosen = st.selectbox("Metric", ordered, key="metric", bind="query-params")
    return str(chosen or ordered[0])


def _pick_baseline(keys: Sequence[str], cards: Mapping[str, RunCard]) -> str:
    named = st.query_params.get("base")
    if named in keys and "base" not in st.session_state:
        st.session_state["base"] = named
    if st.session_state.get("base") not in keys:
        st.session_state["base"] = keys[0]
    chosen = str(
        st.selectbox(
            "Baseline",
            keys,
            key="base",
            format_func=lambda key: cards[key].name if key in cards else str(key),
        )
    )
    if chosen != keys[0]:
        st.query_params["base"] = chosen
    elif named is not None:
        del st.query_params["base"]
    return chosen


def _shared_metrics(store: RunStore, keys: Sequence[str], metric: str) -> list[str]:
    """Return the other metrics that at least two of the runs have, the most shared first."""
    names = Counter(info.name for key in keys for info in store.metrics(key) if info.event != "system")
    shared = [
        name
        for name, runs in names.items()
        if runs > 1
        and name not in (metric, "steps_folded")
        and not is_spread(name, names)
        and not name.startswith(NOT_RESULTS)
    ]
    return sorted(shared, key=lambda name: (not is_evaluation(name), name not in LIKELY, -names[name], name))


# ---------------------------------------------------------------- curves


def _curves(shown: _Compared, metric: str, buckets: int) -> list[Curve]:
    """Return the curve of each run that has logged the metric, with all of it around a zoomed part."""
    looks = looks_of_runs(list(shown.cards.values()))
    keys, window = list(shown.cards), session.window()
    how: Any = {"axis": shown.axis, "smoothing": shown.smoothing}
    found = shown.store.series_of(keys, metric, window=window, buckets=buckets, **how)
    whole = shown.store.series_of(keys, metric, buckets=100, **how) if window else {}
    return [
        Curve(
            series=series,
            around=whole.get(key),
            label=shown.cards[key].name,
            run=key,
            colour=looks[key][0],
            dash=looks[key][1],
        )
        for key, series in found.items()
        if not series.empty or (key in whole and not whole[key].empty)
    ]


def _draw(shown: _Compared, metric: str, curves: Sequence[Curve], *, is_small: bool) -> None:
    name, window = f"chart compare {metric}" if is_small else "chart compare", session.window()
    names = {key: card.name for key, card in shown.cards.items()}
    style = ChartStyle(
        axis=shown.axis,
        window=window,
        log_y=shown.log_y,
        legend=not is_small,
        times=not is_small,
        axis_title=not is_small,
        revision=f"{metric} {shown.axis} {','.join(names)}",
    )
    draw_chart(
        curve_figure(curves, style),
        key=name,
        label=chart_label(metric, curves[0].series),
        height=220 if is_small else 420,
        name=f"compare {metric}",
        group="compare",
        on_view=lambda: follow_zoom(name, shown.axis),
        csv=lambda: curves_csv(shown.store, names, [metric], shown.axis, window),
    )


def _chart(shown: _Compared) -> None:
    _read(shown.store, list(shown.cards))
    curves = _curves(shown, shown.metric, 300)
    if not curves:
        _say_not_logged(shown.metric)
        return
    section(md(shown.metric) + hidden_values_text(curves, log_y=shown.log_y))
    _draw(shown, shown.metric, curves, is_small=False)
    drawn, total = sum(curve.series.drawn for curve in curves), sum(curve.series.total for curve in curves)
    st.caption(f"{count(drawn)} of {count(total)} points drawn")


def _say_not_logged(metric: str) -> None:
    st.info(f"None of these runs has logged {md(metric)}.", icon=":material/show_chart:")


def _small_charts(shown: _Compared, metrics: Sequence[str]) -> None:
    section("Other metrics of these runs")
    columns = st.columns(2, gap="medium")
    drawn = 0
    for metric in metrics[:_MAX_SMALL]:
        curves = _curves(shown, metric, 150)
        if not curves:
            continue
        title = f"{md(metric)} :gray[{len(curves)} of {len(shown.cards)} runs]"
        with columns[drawn % len(columns)]:
            section(title + hidden_values_text(curves, log_y=shown.log_y), level=3)
            _draw(shown, metric, curves, is_small=True)
        drawn += 1
    if len(metrics) > _MAX_SMALL:
        st.caption(
            f"{count(len(metrics) - _MAX_SMALL)} more metrics are not drawn here: "
            + ", ".join(md(name, 40) for name in metrics[_MAX_SMALL : _MAX_SMALL + 10])
            + ". Choose one above."
        )


def _groups(shown: _Compared, by: str) -> None:
    """Draw the mean and the spread of the chosen runs, by the value of a setting or by tag."""
    keys, cards, metric = list(shown.cards), shown.cards, shown.metric
    _read(shown.store, keys)
    members: dict[str, list[str]] = {}
    for key in keys:
        labels = cards[key].tags if by == _BY_TAG else (setting_text(cards[key].config.get(by)),)
        for label in labels:
            members.setdefault(label, []).append(key)
    ordered = sorted(members.items(), key=lambda item: (_number_of(item[0]), item[0]))
    found = shown.store.series_of(keys, metric, buckets=400, smoothing=group_smoothing(shown.smoothing))
    groups = []
    for label, runs in ordered:
        series = [found[key] for key in runs if key in found and not found[key].empty]
        if series:
            groups.append((label, f"{label} (n = {len(series)})", mean_and_spread(series)))
    if not groups:
        _say_not_logged(metric)
        return
    base = None
    if len(groups) > 1:
        base = session.pick_or_none(
            "Difference from",
            [value for value, _, _ in groups],
            key="against",
            placeholder="no group: values as logged",
            width=320,
            help="Subtract the mean of this group from all of them.",
        )
    # The group that all are compared with is always drawn.
    chosen = [one for one in groups if one[0] == base]
    first = groups[:_MAX_GROUPS]
    drawn = first if not chosen or chosen[0] in first else [*first[:-1], *chosen]
    curves = [(label, group) for _, label, group in drawn]
    rest = len(groups) - len(curves)
    title = f"{md(metric)} by {md(by)}"
    if base is not None:
        title += f", difference from {md(base)}"
        curves = against_group(curves, chosen[0][2])
    section(title)
    draw_chart(
        groups_figure(curves, log_y=shown.log_y and base is None),
        key="chart groups",
        label=f"{metric}, mean and spread by {by}",
        height=420,
        name=f"{metric} by {by}",
        group="group",
    )
    left_out = f" {count(rest)} more groups are not drawn." if rest else ""
    lines = (
        "Each line is the mean of a group"
        if base is None
        else f"Each line is the mean of a group minus the mean of {md(base)} at the same step"
    )
    st.caption(
        f"{lines}, its band one standard deviation of the group; a run in several groups counts in each.{left_out}"
    )


def _number_of(label: str) -> float:
    number = as_number(label)
    return math.inf if number is None else number


# ---------------------------------------------------------------- tables


def _summary(
    store: RunStore, keys: Sequence[str], cards: Mapping[str, RunCard], metric: str, base: str
) -> None:
    section(f"{md(metric)} compared with {md(cards[base].name)}")
    # All points that count: those superseded by a later session are left out.
    found = store.series_of(keys, metric, buckets=2**40)
    figures = {key: _figures(found[key]) if key in found else {} for key in keys}
    best = {name: _best(metric, name, {key: figures[key].get(name) for key in keys}) for name in _FIGURES}
    rows = [
        Row(
            key=key,
            name=clean(cards[key].name),
            href=f"overview?run={quote(key, safe='')}",
            colour=run_colour(cards[key]),
            cells=[
                None,
                *(
                    _against(figures[key].get(name), figures[base].get(name), is_base=key == base, name=name)
                    + (" ★" if key in best[name] else "")
                    for name in _FIGURES
                ),
                count(cards[key].step),
                cards[key].status.name,
            ],
        )
        for key in sorted(keys, key=lambda key: _cost(metric, figures[key].get("last")))
    ]
    columns = [
        ShownColumn(column=Column(id="name", label="Run", kind="name"), pinned=True),
        *(
            ShownColumn(column=Column(id=name, label=name, kind="number"), on_phone=name in ("last", "min"))
            for name in (*_FIGURES, "steps")
        ),
        ShownColumn(column=Column(id="status", label="status")),
    ]
    run_table(
        rows,
        columns,
        key="_compare_summary",
        label=f"Summary of {metric} by run",
        total=len(rows),
        on_event=_open,
    )


def _open(event: str, sent: Mapping[str, Any]) -> None:
    if event == "opened" and isinstance(sent.get("key"), str):
        st.session_state[_OPENED] = sent["key"]


def _against(value: float | None, base: float | None, *, is_base: bool, name: str) -> str:
    text = short_number(value)
    comparable = value is not None and base and np.isfinite(value) and np.isfinite(base)
    if is_base or not comparable or value is None or not base or name == _NOT_FINITE:
        return text
    return f"{text}  ({(value - base) / abs(base):+.1%})"


def _cost(metric: str, value: float | None) -> float:
    """Return what sorts the best run first; the order stays if it is not known which is better."""
    direction = metric_direction(metric)
    if direction is None:
        return 0.0
    if value is None or not np.isfinite(value):
        return math.inf
    return value if direction == "min" else -value


def _best(metric: str, name: str, values: Mapping[str, float | None]) -> set[str]:
    """Return the runs with the best figure; none if it is not known which is better, or if all are equal."""
    direction = metric_direction(metric)
    finite = {key: value for key, value in values.items() if value is not None and np.isfinite(value)}
    if direction is None or name == _NOT_FINITE or len(set(finite.values())) < 2:
        return set()
    target = min(finite.values()) if direction == "min" else max(finite.values())
    return {key for key, value in finite.items() if value == target}


def _figures(series: Series) -> dict[str, float]:
    segments = series.segments
    values = np.concatenate([segment.y for segment in segments]) if segments else np.empty(0)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return {_NOT_FINITE: float(len(values))} if len(values) else {}
    return {
        "last": float(values[-1]),
        "mean of last 10 %": float(finite[-max(1, len(finite) // 10) :].mean()),
        "min": float(finite.min()),
        "max": float(finite.max()),
        "median": float(np.median(finite)),
        _NOT_FINITE: float(len(values) - len(finite)),
    }


def _configs(store: RunStore, keys: Sequence[str], cards: Mapping[str, RunCard]) -> None:
    section("Configuration :gray[differences only]")
    configs = [_config(store, key) for key in keys]
    rows = [row for row in diff(configs, only_differing=True) if not is_label(row.key)]
    if not rows:
        st.caption(
            "No differences in the logged configuration."
            if any(configs)
            else "None of these runs logged a configuration."
        )
        return
    short = _short_names([row.key for row in rows[:_MAX_SETTINGS]])
    frame = pd.DataFrame(
        [
            {
                "Run": clean(cards[key].name),
                **{short[row.key]: _cell(row.values[place]) for row in rows[:_MAX_SETTINGS]},
            }
            for place, key in enumerate(keys)
        ]
    )
    st.dataframe(
        shown_frame(frame),
        hide_index=True,
        height=min(44 + 35 * len(keys), 460),
        alt="Settings that differ, by run",
        column_config={
            "Run": st.column_config.TextColumn(pinned=True, width="medium"),
            **{name: st.column_config.TextColumn(help=md(key)) for key, name in short.items()},
        },
    )
    if len(rows) > _MAX_SETTINGS:
        st.caption(f"{count(len(rows) - _MAX_SETTINGS)} more settings differ.")


def _why(base: str, keys: Sequence[str], cards: Mapping[str, RunCard]) -> None:
    """Show why two runs differ; it is worked out on a click only, because it reads every record of both."""
    others = [key for key in keys if key != base and cards[key].path is not None]
    if cards[base].path is None or not others:
        return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        other = others[0]
        if len(others) > 1:
            other = st.selectbox(
                "Compare the baseline with", others, key="_why_other", format_func=lambda key: cards[key].name
            )
        is_asked = st.button("Why do they differ?", icon=":material/troubleshoot:", key="_why_asked")
    if is_asked:
        with st.spinner("Reading both runs …"):
            found = why(*(read_evidence(cast("Path", cards[key].path)) for key in (base, other)))
        st.session_state[_WHY] = (base, other), found
    pair, answer = st.session_state.get(_WHY, (None, None))
    if pair == (base, other):
        _show_why(answer)


def _show_why(answer: Why) -> None:
    st.markdown(f"**{answer.answer.capitalize()}**, {answer.sure}. {md(answer.sentence, 2_000)}")
    rows = [{"What": what, "Found": found} for what, found in answer.evidence]
    if rows:
        st.dataframe(shown_frame(pd.DataFrame(rows)), hide_index=True, alt="What the answer rests on")
    differing = [(f"{cause.share:.2f}", cause.difference, cause.because) for cause in answer.causes]
    differing += [("no effect", one, because) for one, because in answer.apart]
    if differing:
        with st.expander(f"Every difference ({count(len(differing))}), the likely causes first"):
            rows = [
                {"Likely": share, "Kind": one.kind, "What": one.what}
                | {"a (baseline)": one.a, "b": one.b}
                | {"Why": "; ".join(part for part in (one.note, because) if part)}
                for share, one, because in differing
            ]
            st.dataframe(
                shown_frame(pd.DataFrame(rows)), hide_index=True, alt="What differs, and what could act"
            )
    if answer.code:
        with st.expander(f"Changed code, files: {count(len(answer.code))}"):
            for change in answer.code[:_MOST_DIFFS]:
                st.caption(md(change.path))
                st.code(clean(change.unified_diff) or "kept by one of the two only", language="diff")
    if answer.needed:
        st.caption(f"Not recorded in both runs, and so not compared: {md(', '.join(answer.needed), 200)}.")


def _cell(value: Any) -> str:
    if value is MISSING:
        return "—"
    return "null" if value is None else clean(setting_text(value))


def _short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return the last part of each key, or as many as it takes for no two to be equal."""
    names = {}
    for key in keys:
        parts = key.split(".")
        for size in range(1, len(parts) + 1):
            short = ".".join(parts[-size:])
            if sum(other == short or other.endswith("." + short) for other in keys) == 1:
                break
        names[key] = short if short != "Run" else key + " "
    return names


def _config(store: RunStore, key: str) -> Mapping[str, Any]:
    start = store.meta(key).start
    config = start.get("config")
    if isinstance(config, dict):
        return cast("dict[str, Any]", config)
    return {
        name: value
        for name, value in start.items()
        if name not in ("event", "time", "elapsed", "seq", "session")
    }


main()
