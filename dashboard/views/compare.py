"""Compare page: up to 50 runs in one chart, single or as groups, a table that is their legend, and what differs."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import streamlit as st

from toolkit.telemetry.reports.compare import PageView
from toolkit.telemetry.reports.compare import compare as comparison
from toolkit.telemetry.reports.document import Colour, Document, Table
from toolkit.telemetry.reports.drawn_curves import DrawnLine, DrawnView, drawn_chart
from toolkit.telemetry.reports.stored_run import content_of_run, points_for
from toolkit.telemetry.runs.formatting import clean, count, md, short_number
from toolkit.telemetry.runs.listing.compared_runs import (
    BY_TAG,
    figure_rows,
    group_choices,
    grouped,
    joined_metrics,
    named_choices,
)
from toolkit.telemetry.runs.listing.run_table import Column, differences_of
from toolkit.telemetry.runs.settings import setting_names, setting_text
from toolkit.telemetry.runs.store import RunCard, RunQuery, RunStore, UnknownRun, labelled

from .. import session
from ..charts.palette import DASHES, SERIES, free_colours, looks_of_runs
from ..components import page_states
from ..components.baseline import baseline_key
from ..components.compared_curves import (
    CHART_PX,
    HIDDEN,
    MAX_SMALL,
    Compared,
    curves_of_runs,
    main_chart,
    metrics_in_order,
    other_metrics,
    pick_metric,
    read_runs,
    shared_axes,
    shown_how,
    small_charts,
)
from ..components.curve_chart import View, picture_of, view_in_url
from ..components.difference import ask_why, difference_blocks, made_of, show_difference
from ..components.own_charts import own_charts
from ..components.own_views import primary_among
from ..components.page_states import page_title
from ..components.pictures import sample_grid
from ..components.run_filter import keep_colours
from ..components.run_menu import report_button
from ..components.run_select import in_address, option_texts
from ..components.run_table import Row, ShownColumn, row_of, run_table, table_html
from ..components.speed_panel import speed_panel
from ..components.verdict_line import verdict_of_chosen

_MAX_RUNS: Final = 50
_MAX_GROUPS: Final = 12
_MAX_SETTINGS: Final = 8
_OFFERED: Final = 1_000
"""Runs that can be picked; any other one is compared by its address."""
_STATISTICS: Final = ("mean", "median", "range")


def main() -> None:
    """Draw the page."""
    store = session.store()
    st.set_page_config(page_title="Compare runs")
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="compare_head"):
        page_title("Compare", width="content")
        of_metric, of_group, of_runs, of_report = (
            st.container(width=width) for width in (270, "content", "content", "content")
        )
    runs = store.list_runs(RunQuery(per_page=_OFFERED))
    if not runs.cards:
        page_states.no_runs(runs.places, runs.problems)
        return
    cards = labelled(runs.cards)
    named, unknown = _named_in_url(store, cards)
    if named.keys() - cards.keys():
        cards = labelled({**cards, **named}.values())
    keys = _pick_runs(cards, list(named), unknown, of_runs)
    page_states.say_if_cut(runs)
    if len(keys) < 2:
        st.info(f"Pick two to {_MAX_RUNS} runs.")
        # One run can have become faster from one session to the next.
        if keys and len({job.perf_tag for job in store.manifest_sessions(keys[0])}) > 1:
            read_runs(store, keys)
            _part("The speed", lambda: speed_panel(store, keys, cards))
        return
    cards.update({card.key: card for card in keep_colours(store, [cards[key] for key in keys])})
    in_part = read_runs(store, keys)
    chart, below = st.container(), st.container()
    with below:
        shown = _compared(store, {key: cards[key] for key in keys}, of_metric, of_group)
    with chart:
        page_states.guarded("The chart", lambda: main_chart(shown, _STATISTICS if shown.groups else ()))
    seconds = 1.0 if in_part else session.refresh_seconds() if shown.is_live else None
    with of_report:
        report_button("compare", lambda: _report(shown))
    _part("The table", lambda: _table(shown), seconds)
    page_states.guarded("The verdict", lambda: verdict_of_chosen(keys, cards, shown.base_run, shown.metric))
    _part("Why they differ", lambda: ask_why(shown.base_run, keys, cards))
    _part("The samples", lambda: sample_grid(store, {key: cards[key].name for key in keys}))
    _part("The differences", lambda: _difference(shown))
    with st.popover("Your charts", width="content"):
        draw_own = own_charts(store, [cards[key] for key in keys])
    page_states.guarded("Your charts", lambda: draw_own(2))
    page_states.guarded("The other metrics", lambda: small_charts(shown))
    if "sec_per_step" in shown.names:
        _speed(store, keys, cards)


# ---------------------------------------------------------------- what is compared


def _compared(store: RunStore, cards: Mapping[str, RunCard], of_metric: Any, of_group: Any) -> Compared:
    names = joined_metrics({key: store.metrics(key) for key in cards})
    with of_metric:
        metric = pick_metric(names, primary_among(store, [*cards.values()]))
    with of_group:
        by = _pick_grouping(list(cards.values()))
    own = names.get(metric, {})
    groups = grouped([card for key, card in cards.items() if key in own], by) if by else []
    rows = [group.label for group in groups] or list(cards)
    starred = baseline_key(store, next(iter(cards.values())).project)
    first = starred if starred in rows else rows[0]
    base, is_difference = _pick_baseline(rows, first, {} if groups else option_texts(cards.values()))
    # The group that all are compared with is always drawn.
    based = [group for group in groups if group.label == base]
    drawn = [*based, *(group for group in groups if group not in based)][:_MAX_GROUPS]
    left_out, groups = len(groups) - len(drawn), [group for group in groups if group in drawn]
    looks = {
        group.label: (f"run-{number % SERIES}", DASHES[number // SERIES % len(DASHES)])
        for number, group in enumerate(groups)
    }
    return Compared(
        store=store,
        cards=cards,
        names=names,
        metric=metric,
        by=by if groups else (),
        groups=groups,
        looks=looks or looks_of_runs(list(cards.values())),
        base=base,
        is_difference=is_difference,
        axes=shared_axes(store, list(cards), names),
        left_out=left_out,
    )


def _part(name: str, draw: Callable[[], None], seconds: float | None = None) -> None:
    """Draw a part of the page as a fragment, so that a change in it redraws nothing else."""
    st.fragment(lambda: page_states.guarded(name, draw), run_every=seconds)()


def _pick_runs(
    cards: Mapping[str, RunCard], asked: Sequence[str], unknown: Sequence[str], place: Any
) -> list[str]:
    """Show which runs are compared, in a popover as soon as there are two: the table has their names."""
    named = list(asked[:_MAX_RUNS])
    if "_compared" not in st.session_state or (named and named != st.session_state.get("_compared_url")):
        st.session_state["_compared"] = named
    st.session_state["_compared"] = [key for key in st.session_state["_compared"] if key in cards]
    texts = option_texts(cards.values())
    chosen = len(st.session_state["_compared"])
    with place.popover(f"{chosen} runs") if chosen > 1 else st.container():
        keys: list[str] = st.multiselect(
            "Runs",
            list(cards),
            key="_compared",
            format_func=lambda key: texts.get(key, key),
            max_selections=_MAX_RUNS,
            placeholder=f"Two to {_MAX_RUNS} runs",
            persist_state="session",
        )
    st.session_state["_compared_url"] = keys
    dropped = []
    if unknown:
        names = ", ".join(md(name, 40) for name in unknown[:5])
        dropped.append(f"{names}{' and others' if len(unknown) > 5 else ''}, because there is no such run")
    if len(asked) > _MAX_RUNS:
        more = count(len(asked) - _MAX_RUNS)
        dropped.append(f"the last {more} runs of the link, because at most {_MAX_RUNS} are compared")
    if dropped:
        st.caption("Not shown: " + "; ".join(dropped) + ".")
    if keys != named:
        session.put_in_url({"runs": in_address(keys) if keys else None})
    return keys


def _named_in_url(store: RunStore, cards: Mapping[str, RunCard]) -> tuple[dict[str, RunCard], list[str]]:
    """Return the runs in the URL, also those that are not listed, and what is no run there."""
    found: dict[str, RunCard] = {}
    tried: set[str] = set()

    def is_run(word: str) -> bool:
        tried.add(word)
        with suppress(UnknownRun):
            # To look for each word of a very long address would take long.
            if card := cards.get(word) or (store.card(word) if len(tried) <= 2 * _MAX_RUNS else None):
                found[card.key] = card
                return True
        return False

    words = [word for word in st.query_params.get_all("runs") if not is_run(word)]
    parts = dict.fromkeys(part for word in words for part in word.split(",") if part)
    return found, [part for part in parts if not is_run(part)]


def _pick_grouping(cards: Sequence[RunCard]) -> list[str]:
    """Show by what the chosen runs can be grouped, and return what was chosen."""
    options = group_choices(cards)
    if not options:
        return []
    asked = st.query_params.get_all("by")
    chosen = named_choices(st.session_state.get("by", asked), options)
    if "by" not in st.session_state and chosen and chosen != asked:
        st.session_state["by"] = chosen
    label = "Group" if not chosen else f"By {', '.join(setting_names(chosen).values())}"
    with st.popover(md(label, 40), type="primary" if chosen else "secondary"):
        return st.multiselect(
            "One line and a band for runs that have the same",
            options,
            key="by",
            bind="query-params",
            placeholder="each run alone",
            format_func=clean,
        )


def _pick_baseline(rows: Sequence[str], first: str, texts: Mapping[str, str]) -> tuple[str, bool]:
    """Show what the others are compared with, and whether its curve is subtracted; return both."""
    state = st.session_state
    if state.setdefault("base", st.query_params.get("base")) not in rows:
        state["base"] = first
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown("Compared with", width="content")
        chosen = st.selectbox(
            "Baseline",
            rows,
            key="base",
            format_func=lambda row: texts.get(row, row),
            label_visibility="collapsed",
            width=300,
        )
        is_difference = st.toggle("Draw the difference", key="diff", bind="query-params")
    session.put_in_url({"base": chosen if chosen != first else None})
    return chosen, is_difference


# ---------------------------------------------------------------- the table


def _table(shown: Compared) -> None:
    """Show legend and summary in one: an eye, the colour, the name, the figures, and the settings that differ."""
    if read_runs(shown.store, list(shown.cards)):
        st.caption("The figures are of what has been read so far.")
    figures = shown.figures()
    _figures_table(shown, figures, shown.rows(), key="_compare_table", hidden=shown.hidden)
    if shown.groups:
        st.caption(f"Mean ± standard deviation of the runs of a group. {md(_left_out(shown))}")
        with st.expander("The runs of these groups", on_change="rerun", key="_group_runs") as opened:
            if opened.open:
                rows = [(key, (key,)) for key in shown.cards]
                alone = replace(
                    shown, groups=(), base=shown.base_run, looks=looks_of_runs([*shown.cards.values()])
                )
                _figures_table(alone, figures, rows, key="_compare_runs")


def _left_out(shown: Compared) -> str:
    """Return what the groups do not have, and which runs are in several."""
    without = len(shown.cards) - len(shown.names.get(shown.metric, ()))
    said = ["A run counts in each of its groups."] if BY_TAG in shown.by else []
    said += (
        [f"{count(without)} of the runs did not log {shown.metric} and are in no group."] if without else []
    )
    said += [f"{count(shown.left_out)} more groups are not drawn."] if shown.left_out else []
    return " ".join(said)


def _figures_table(
    shown: Compared,
    figures: Mapping[str, Mapping[str, float]],
    rows: Sequence[tuple[str, tuple[str, ...]]],
    *,
    key: str,
    hidden: Container[str] | None = None,
) -> None:
    """Show a row for each run or group, which is the legend of the charts if some of them are `hidden`."""
    lines, columns, label = _figures(shown, figures, rows, hidden)
    run_table(lines, columns, key=key, label=label, total=len(lines), on_event=_handle)


def _figures(
    shown: Compared,
    figures: Mapping[str, Mapping[str, float]],
    rows: Sequence[tuple[str, tuple[str, ...]]],
    hidden: Container[str] | None,
) -> tuple[list[Row], list[ShownColumn], str]:
    cards = shown.cards
    names, found = figure_rows(rows, figures, shown.metric, shown.base)
    settings = [] if shown.groups else _settings_shown(list(cards.values()))
    lines = []
    for one in found:
        cells: list[Any] = [None]
        cells += [text + (" ★" if number in one.best else "") for number, text in enumerate(one.texts)]
        colour, dash = shown.looks[one.row]
        more: dict[str, Any] = {"colour": colour, "dash": dash}
        more["is_hidden"] = None if hidden is None else one.row in hidden
        if shown.groups:
            cells.append(count(len(one.runs)))
            lines.append(Row(key=one.row, name=clean(one.row), href="", cells=cells, **more))
            continue
        card = cards[one.row]
        cells += [setting_text(card.config[name]) if name in card.config else "" for name in settings]
        lines.append(row_of(card, [*cells, count(card.step), card.status.name], **more))
    first = f"By {', '.join(setting_names(shown.by).values())}" if shown.groups else "Run"
    on_phone = {"last", "best", "runs"}
    last = ["runs"] if shown.groups else ["step", "status"]
    shorter = setting_names(settings)
    columns = [Column(id="name", label=first, kind="name")]
    columns += [Column(id=name, label=name, kind="number") for name in names]
    taken = {"Run", *names, *last}
    labels = {name: f"setting {text}" if text in taken else text for name, text in shorter.items()}
    columns += [
        Column(id=f"config:{name}", label=labels[name], help=f"Configured {name}") for name in settings
    ]
    columns += [Column(id=name, label=name, kind="text" if name == "status" else "number") for name in last]
    label = f"{shown.metric} of each {'group' if shown.groups else 'run'}"
    return lines, [ShownColumn(column=column, on_phone=column.id in on_phone) for column in columns], label


def first_comparison(store: RunStore, words: str, wait_s: float) -> str:
    """Return chart and table of the runs in the address, if it says no more; empty for a log that is not read."""
    cards = labelled(store.list_runs(RunQuery(per_page=_OFFERED)).cards)
    keys = [word for word in dict.fromkeys(words.split(",")) if word in cards]
    if not 2 <= len(keys) <= _MAX_RUNS or keys != words.split(","):
        return ""
    if not all(health.complete for health in store.refresh_all(keys, wait_s=wait_s)):
        return ""
    chosen = [cards[key] for key in keys]
    chosen = [replace(card, colour=free_colours(chosen).get(card.key, card.colour)) for card in chosen]
    names = joined_metrics({key: store.metrics(key) for key in keys})
    if not names:
        return ""
    starred = baseline_key(store, chosen[0].project)
    shown = Compared(
        store=store,
        cards={card.key: card for card in chosen},
        names=names,
        metric=metrics_in_order(names, primary_among(store, chosen))[0],
        looks=looks_of_runs(chosen),
        base=starred if starred in keys else keys[0],
    )
    picture = picture_of(store, curves_of_runs(shown, shown.metric), CHART_PX, has_legend=False)
    lines, columns, label = _figures(shown, shown.figures(), shown.rows(), frozenset())
    return (
        f'<div class="telemetry-first-chart" style="height:{CHART_PX}px">{picture}</div>'
        f"{table_html(lines, columns, label=label, total=len(lines))}"
    )


def _settings_shown(cards: Sequence[RunCard]) -> list[str]:
    found = differences_of(cards)
    return list((found.telling or found.every)[:_MAX_SETTINGS])


def _handle(event: str, sent: Mapping[str, Any]) -> None:
    if event == "hidden" and isinstance(sent.get("keys"), list):
        keys = [key for key in sent["keys"] if isinstance(key, str)]
        session.put_in_url({HIDDEN: keys or None})


def _difference(shown: Compared) -> None:
    made = {key: made_of(shown.store, card) for key, card in shown.cards.items()}
    show_difference(made, shown.cards, shown.base_run)


def _speed(store: RunStore, keys: Sequence[str], cards: Mapping[str, RunCard]) -> None:
    with st.expander("Speed of these runs", on_change="rerun", key="speed", bind="query-params") as opened:
        if opened.open:
            # No timer, because it has inputs.
            _part("The speed", lambda: speed_panel(store, keys, cards))


# ---------------------------------------------------------------- report


def _report(shown: Compared) -> Document:
    """Return what the page shows as a report: its charts, colours, baseline, and what is hidden."""
    store, keys = shown.store, list(shown.cards)
    points, view = points_for(len(keys)), view_in_url(shown.axes)
    contents = []
    for key in keys:
        content = content_of_run(store, key, name=shown.cards[key].name, points=points)
        names = {own[key]: name for name, own in shown.names.items() if key in own}
        curves = {names.get(name, name): curve for name, curve in content.curves.items()}
        contents.append(replace(content, curves=curves))
    drawn = [
        drawn_chart(
            store,
            metric,
            _lines(shown, metric),
            DrawnView(
                axis=view.axis,
                window=view.window,
                log_x=view.log_x,
                log_y=view.log_y,
                statistic=view.statistic,
            ),
            base=shown.label(shown.base) if shown.is_difference else None,
            points=points,
            large=metric == shown.metric,
        )
        for metric in [shown.metric, *other_metrics(shown)[:MAX_SMALL]]
    ]
    looks = shown.looks
    if shown.groups:
        # A run has the colour of its group, or none if its group is not drawn.
        looks = {key: shown.looks[group.label] for group in reversed(shown.groups) for key in group.runs}
    colours = [_colour(looks.get(key, ("#888888", ""))[0]) for key in keys]
    names = {key: card.name for key, card in shown.cards.items()}
    made = {key: made_of(store, card) for key, card in shown.cards.items()}
    page = PageView(
        charts=[chart for chart in drawn if chart is not None],
        looks=colours,
        about=_about(shown, view),
        base=None if shown.groups else names[shown.base],
        groups=_groups_table(shown),
        differences=difference_blocks(made, names, colours),
    )
    return comparison(contents, metric=shown.metric, view=page)


def _groups_table(shown: Compared) -> Table | None:
    if not shown.groups:
        return None
    names, found = figure_rows(shown.rows(), shown.figures(), shown.metric, shown.base)
    return Table(
        title="",
        head=[
            ", ".join(setting_names(shown.by).values()),
            *(f"{shown.metric} ({name})" for name in names),
            "runs",
        ],
        rows=[(one.row, *one.texts, count(len(one.runs))) for one in found],
        best=frozenset((row, 1 + place) for row, one in enumerate(found) for place in one.best),
        colours={row: _colour(shown.looks[one.row][0]) for row, one in enumerate(found)},
        left_out=_left_out(shown),
    )


def _lines(shown: Compared, metric: str) -> list[DrawnLine]:
    own = shown.names.get(metric, {})
    found = []
    for row, runs in shown.rows():
        members = [(key, own[key]) for key in runs if key in own]
        if members and (row not in shown.hidden or (shown.is_difference and row == shown.base)):
            colour, dash = shown.looks[row]
            found.append(
                DrawnLine(label=shown.label(row), colour=_colour(colour), dash=dash, members=members)
            )
    return found


def _about(shown: Compared, view: View) -> list[str]:
    words = [f"compared with {shown.label(shown.base)}"]
    words += [shown_how(shown)] if shown_how(shown) else []
    words += [f"x axis: {dict(shown.axes).get(view.axis, view.axis)}"] if view.axis != "step" else []
    words += ["as logged, without smoothing"] if view.smoothing else []
    words += [f"from {short_number(view.window[0])} to {short_number(view.window[1])}"] if view.window else []
    hidden = [shown.label(row) for row in shown.looks if row in shown.hidden]
    return [*words, *([f"hidden in the charts: {', '.join(hidden)}"] if hidden else [])]


def _colour(name: str) -> Colour:
    return int(name.removeprefix("run-")) if name.startswith("run-") else name
