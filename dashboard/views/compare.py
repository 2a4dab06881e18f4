"""Compare page: two to eight runs in one chart, against a baseline, and their differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import session
from dashboard.charts.curves import ChartStyle, Curve, chart_label, curve_figure
from dashboard.charts.mean_and_spread import GroupCurve, group_figure, group_smoothing, mean_and_spread
from dashboard.charts.palette import colors_of_runs
from dashboard.components import page_states
from dashboard.components.chart import draw_chart
from dashboard.components.curve_panel import follow_zoom, hidden_values_text
from dashboard.components.frame import GLYPHS
from dashboard.components.sample_grid import sample_grid
from dashboard.components.speed_panel import speed_panel
from dashboard.data.config_diff import MISSING, diff
from dashboard.data.formatting import clean, count, md, short_number
from dashboard.data.run_store import RunCard, RunStore, Series, Smoothing, UnknownRun, XAxis
from toolkit.runfolder.records import is_spread

_MAX_RUNS: Final = 8
_MAX_IN_GROUP: Final = 50
_AXES: Final[dict[str, XAxis]] = {"Step": "step", "Relative time": "elapsed", "Wall time": "time"}
_LIKELY: Final = ("train_loss", "val_loss", "lr", "grad_norm", "samples_per_sec")


def main() -> None:
    """Draw the page."""
    store = session.store()
    st.set_page_config(page_title="Compare runs")
    st.markdown("### Compare")
    runs = store.list_runs()
    if not runs.cards:
        page_states.no_runs(runs.places, runs.problems)
        return
    cards = {card.key: card for card in runs.cards}
    if runs.truncated:
        cards.update(_named_and_not_listed(store, cards))
    keys = _pick_runs(cards)
    tag = _pick_tag(runs.tags)
    if len(keys) < 2 and not tag:
        st.info(
            "Pick two to eight runs, or a tag to compare its runs as a group.",
            icon=":material/compare_arrows:",
        )
        # One run can have become faster from one session to the next.
        if keys and len({job.perf_tag for job in store.manifest_sessions(keys[0])}) > 1:
            _read(store, keys)
            _speed(store, keys, cards)
        return
    in_part = _read(store, keys)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        axis = _AXES[session.pick_axis("X axis", tuple(_AXES))]
        metric = _pick_metrics(store, keys, tag, runs.cards)
        smoothing = session.smoothing_picker()
        log_y = session.toggle("Log y", "log", "Draw the values on a logarithmic axis.")
    live = any(cards[key].live for key in keys)
    seconds = session.refresh_seconds() if live else None
    if in_part:
        seconds = 1.0
    if keys:
        st.fragment(
            lambda: page_states.guarded(
                "The charts", lambda: _charts(store, keys, cards, metric, axis, smoothing, log_y)
            ),
            run_every=seconds,
        )()
    if tag:
        page_states.guarded("The group", lambda: _group(store, tag, runs.cards, metric, smoothing, log_y))
    if len(keys) >= 2:
        base = _pick_baseline(keys, cards)
        left, right = st.columns(2, gap="large")
        with left:
            page_states.guarded("The summary", lambda: _summary(store, keys, cards, metric, base))
        with right:
            page_states.guarded("The configurations", lambda: _configs(store, keys, cards))
        _speed(store, keys, cards)
        page_states.guarded("The samples", lambda: sample_grid(store, {key: cards[key].name for key in keys}))


def _speed(store: RunStore, keys: Sequence[str], cards: Mapping[str, RunCard]) -> None:
    # A fragment, so that another baseline redraws nothing else; no timer, because it has inputs.
    st.fragment(lambda: page_states.guarded("The speed", lambda: speed_panel(store, keys, cards)))()


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


def _pick_runs(cards: Mapping[str, RunCard]) -> list[str]:
    named = _named_in_url(cards)
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
        placeholder="Two to eight runs",
        persist_state="session",
    )
    st.session_state["_compared_url"] = keys
    if keys and keys != named:
        # One readable parameter; a name with a comma needs one parameter per run.
        st.query_params["runs"] = keys if any("," in key for key in keys) else ",".join(keys)
    elif not keys and "runs" in st.query_params:
        del st.query_params["runs"]
    return keys


def _named_and_not_listed(store: RunStore, cards: Mapping[str, RunCard]) -> dict[str, RunCard]:
    words = [part for word in st.query_params.get_all("runs") for part in (word, *word.split(","))]
    found = {}
    for key in [word for word in dict.fromkeys(words) if word not in cards][: 2 * _MAX_RUNS]:
        with suppress(UnknownRun):
            found[key] = store.card(key)
    return found


def _named_in_url(cards: Mapping[str, RunCard]) -> list[str]:
    words = st.query_params.get_all("runs")
    keys = [key for word in words for key in ([word] if word in cards else word.split(",")) if key in cards]
    return list(dict.fromkeys(keys))[:_MAX_RUNS]


def _pick_tag(tags: Sequence[str]) -> str | None:
    if not tags:
        return None
    chosen = st.selectbox(
        "Group: mean and spread of all runs with a tag",
        tags,
        index=None,
        placeholder="No group",
        key="tag",
        bind="query-params",
    )
    return str(chosen) if chosen else None


def _pick_metrics(store: RunStore, keys: Sequence[str], tag: str | None, cards: Sequence[RunCard]) -> str:
    selected = list(keys) or [card.key for card in cards if tag in card.tags][:_MAX_RUNS]
    names: dict[str, int] = {}
    store.refresh_all(selected, wait_s=0.5)
    for key in selected:
        for info in store.metrics(key):
            names[info.name] = names.get(info.name, 0) + 1
    ordered = sorted(
        names,
        key=lambda name: (
            name not in _LIKELY,
            _LIKELY.index(name) if name in _LIKELY else 0,
            is_spread(name, names),
            -names[name],
            name,
        ),
    )
    if not ordered:
        return "train_loss"
    chosen = st.selectbox(
        "Metric",
        ordered,
        key="metric",
        format_func=lambda name: f"{name} ({names[name]} of {len(selected)} runs)",
    )
    return str(chosen or ordered[0])


def _pick_baseline(keys: Sequence[str], cards: Mapping[str, RunCard]) -> str:
    chosen = st.selectbox(
        "Baseline", keys, key="base", format_func=lambda key: cards[key].name if key in cards else str(key)
    )
    return str(chosen or keys[0])


# ---------------------------------------------------------------- curves


def _charts(
    store: RunStore,
    keys: Sequence[str],
    cards: Mapping[str, RunCard],
    metric: str,
    axis: XAxis,
    smoothing: Smoothing,
    log_y: bool,
) -> None:
    window = session.window()
    looks = colors_of_runs(keys)
    curves: list[Curve] = []
    _read(store, keys)
    found = store.series_of(keys, metric, axis=axis, window=window, buckets=300, smoothing=smoothing)
    whole = store.series_of(keys, metric, axis=axis, buckets=100, smoothing=smoothing) if window else {}
    for key, series in found.items():
        around = whole.get(key)
        if series.empty and (around is None or around.empty):
            continue
        number, dash = looks[key]
        curves.append(
            Curve(
                series=series,
                around=around,
                label=cards[key].name,
                number=number,
                dash=dash,
            )
        )
    if not curves:
        st.info(f"None of these runs has logged {md(metric)}.", icon=":material/show_chart:")
        return
    st.markdown(f"**{md(metric)}**" + hidden_values_text(curves, log_y=log_y))
    style = ChartStyle(
        axis=axis, window=window, log_y=log_y, legend=True, revision=f"{metric} {axis} {','.join(keys)}"
    )
    name = "chart compare"
    draw_chart(
        curve_figure(curves, style),
        key=name,
        label=chart_label(metric, curves[0].series),
        height=420,
        name=f"compare {metric}",
        group="compare",
        on_view=lambda: follow_zoom(name, axis),
    )
    drawn, total = sum(curve.series.drawn for curve in curves), sum(curve.series.total for curve in curves)
    st.caption(f"{count(drawn)} of {count(total)} points drawn")


def _group(
    store: RunStore, tag: str, cards: Sequence[RunCard], metric: str, smoothing: Smoothing, log_y: bool
) -> None:
    tagged = [card for card in cards if tag in card.tags]
    members = tagged[:_MAX_IN_GROUP]
    _read(store, [card.key for card in members])
    found = store.series_of(
        [card.key for card in members], metric, buckets=400, smoothing=group_smoothing(smoothing)
    ).values()
    series = [one for one in found if not one.empty]
    st.markdown(f"**{md(metric)}** over {count(len(series))} runs tagged **{md(tag)}**")
    if not series:
        st.caption("None of these runs has logged it.")
        return
    group: GroupCurve = mean_and_spread(series)
    draw_chart(
        group_figure(group, log_y=log_y),
        key=f"chart group {tag}",
        label=f"{metric}, mean and spread",
        height=320,
        group="group",
    )
    left_out = (
        f" {count(len(tagged) - len(members))} more runs are not included."
        if len(tagged) > len(members)
        else ""
    )
    st.caption(
        "The line is the mean, the dark band one standard deviation, the light band min to max. "
        f"Each run counts from its first to its last step; NaN and infinity are left out.{left_out}"
    )


# ---------------------------------------------------------------- tables


def _summary(
    store: RunStore, keys: Sequence[str], cards: Mapping[str, RunCard], metric: str, base: str
) -> None:
    st.markdown(f"**{md(metric)} compared with {md(cards[base].name)}**")
    # All points that count: those superseded by a later session are left out.
    found = store.series_of(keys, metric, buckets=2**40)
    figures = {key: _figures(found[key]) if key in found else {} for key in keys}
    rows = []
    for name in ("last", "mean of last 10 %", "min", "max", "median", "NaN or infinite"):
        row: dict[str, str] = {"": name}
        for key in keys:
            value, against = figures[key].get(name), figures[base].get(name)
            text = short_number(value)
            if (
                key != base
                and value is not None
                and against
                and np.isfinite(value)
                and np.isfinite(against)
                and name != "NaN or infinite"
            ):
                text += f"  ({(value - against) / abs(against):+.1%})"
            row[_column(cards, keys, key)] = text
        rows.append(row)
    for name, pick in (("steps", lambda card: count(card.step)), ("status", lambda card: card.status.name)):
        rows.append({"": name, **{_column(cards, keys, key): pick(cards[key]) for key in keys}})
    st.dataframe(pd.DataFrame(rows), hide_index=True, alt="Summary of the metric by run")


def _figures(series: Series) -> dict[str, float]:
    segments = series.segments
    values = np.concatenate([segment.y for segment in segments]) if segments else np.empty(0)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return {"NaN or infinite": float(len(values))} if len(values) else {}
    return {
        "last": float(values[-1]),
        "mean of last 10 %": float(finite[-max(1, len(finite) // 10) :].mean()),
        "min": float(finite.min()),
        "max": float(finite.max()),
        "median": float(np.median(finite)),
        "NaN or infinite": float(len(values) - len(finite)),
    }


def _configs(store: RunStore, keys: Sequence[str], cards: Mapping[str, RunCard]) -> None:
    st.markdown("**Configuration** :gray[differences only]")
    configs = [_config(store, key) for key in keys]
    rows = diff(configs, only_differing=True)
    if not rows:
        st.caption(
            "No differences in the logged configuration."
            if any(configs)
            else "None of these runs logged a configuration."
        )
        return
    frame = pd.DataFrame(
        [
            {
                "key": row.key,
                **{
                    _column(cards, keys, key): "—" if value is MISSING else clean(str(value))
                    for key, value in zip(keys, row.values, strict=True)
                },
            }
            for row in rows[:500]
        ]
    )
    st.dataframe(frame, hide_index=True, alt="Configuration keys that differ")


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


def _column(cards: Mapping[str, RunCard], keys: Sequence[str], key: str) -> str:
    name = cards[key].name
    alone = sum(cards[other].name == name for other in keys) == 1
    # The tables already have columns with these names.
    return name if alone and name not in ("", "key") else f"{name} ({key})"


main()
