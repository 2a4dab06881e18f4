"""What a page shows before any script has run: HTML from what is known already, which the components then replace."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from toolkit.telemetry.diagnostics.catalogue import title_of
from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.reports.svg import SIZE, Axis, frame_html, grid_html, look, text_html
from toolkit.telemetry.runs.curve_tiles import Block, TileQuery
from toolkit.telemetry.runs.findings.alerts import alerts_of, unseen_alerts
from toolkit.telemetry.runs.findings.what_now import what_now
from toolkit.telemetry.runs.listing.pins import pins_of
from toolkit.telemetry.runs.store import Floats, Refused, RunCard, RunQuery, RunStore, UnknownRun

from . import session
from .components.alert_card import ENDINGS
from .components.cards import cards_html
from .components.curve_panel import SMALL_PX, marks_of
from .components.frame import OFFERED, RunPage, has_rest, head_html, is_deleted
from .page_links import PAGES
from .theme import THEME_STYLE
from .views.overview import Panel, cards_of, plan_of

_READ_S: Final = 0.02
"""A small log is read by then; of a large one what was read before is shown."""
_VIEW: Final = frozenset(("x", "smooth", "log", "logx", "from", "to", "forecast"))
"""With one of these in the address the charts are drawn in another way."""
_LOOK: Final = re.compile(r"(system|light|dark)\.(\d{1,3})")
_FEW, _FEWEST_SMOOTHED = 40, 200
_HALF_WIDTH: Final = 0.03
_CELLS: Final = 200
_LISTS: Final = ("runs", "compare")
_HERE: Final = ' aria-current="page"'


def first_screen(path: str, asked: Mapping[str, str], cookies: Mapping[str, str]) -> str:
    """Return what a page shows first, as HTML made from escaped text; empty where too little is known."""
    if path.strip("/") != "overview" or session.settings().engines:
        return ""
    store = session.store()
    key = asked.get("run") or _newest(store)
    try:
        card = store.card(key) if key else None
        if card is None or is_deleted(card):
            return ""
        page = RunPage(card.key, store)
        health = store.refresh(card.key, wait_s=_READ_S)
        metrics = {info.name: info for info in store.metrics(card.key)}
        if not metrics and health.complete:
            return ""
        plan = plan_of(metrics, pins_of(store, card.key))
        unseen = unseen_alerts(alerts_of(store, card.key), store.meta(card.key).labels)
        # Until the detectors have seen all records, what is open may turn out to be over.
        worst = _alert(card.key, unseen) if store.examine(card.key, wait_s=0.0) >= 1.0 else ""
        main = Panel(title=plan.title, metrics=tuple(plan.main))
        is_plain = not asked.keys() & _VIEW
        left = _chart(page, main, 390, 0, is_plain=is_plain) if plan.main else ""
        right = "".join(_chart(page, one, 165, 1 + n, is_plain=is_plain) for n, one in enumerate(plan.side))
        gap = '<div class="st-key-forecast"></div>' if has_rest(card) else ""
        side = "" if not right else f"<div>{right}</div>"
        body = (
            f"{head_html(page, card)}{worst}{_what_now(page)}{cards_html(cards_of(page, health))}"
            f'<div class="telemetry-first-switches"></div>{gap}'
            f'<div class="telemetry-first-charts"><div>{left}</div>{side}</div>'
        )
        return _page(body, card, "overview", cookies)
    except (UnknownRun, Refused):
        # The page itself says so, and what to do.
        return ""


def _newest(store: RunStore) -> str:
    cards = store.list_runs(RunQuery(per_page=OFFERED)).cards
    return next((card.key for card in cards if not card.archived), cards[0].key if cards else "")


def _page(body: str, card: RunCard, shown: str, cookies: Mapping[str, str]) -> str:
    """Return the cover of a page: the menu as links, and `body`."""
    look = _LOOK.fullmatch(cookies.get("telemetry-look", ""))
    style = "" if look is None else f"--side:{look[2]}px"
    if look is not None and look[1] != "system":
        style += f";color-scheme:{look[1]}"
    query, name = f"?run={quote(card.key, safe='')}", text_html(card.name, 60)
    links = {
        module: f'<a href="/{"" if module == "runs" else address}{"" if module in _LISTS else query}"'
        f"{_HERE if module == shown else ''}>{title}</a>"
        for module, (title, _, address) in PAGES.items()
    }
    of_lists = "".join(links[module] for module in _LISTS)
    of_run = "".join(link for module, link in links.items() if module not in _LISTS and module != "samples")
    return (
        f'<style>{THEME_STYLE}</style><div class="telemetry-first" style="{style}"><nav aria-label="Pages">'
        f'<div class="telemetry-picker">Run<span>{name} · {text_html(card.status.name)}</span></div>{of_lists}'
        f"<p>Run · {text_html(card.name, 28)}</p>{of_run}</nav><main>{body}</main></div>"
    )


def _alert(key: str, alerts: Sequence[Finding]) -> str:
    if not alerts or alerts[0].severity not in ("critical", "warning"):
        return ""
    words = f"<b>{text_html(title_of(alerts[0]), 60)}</b> {text_html(alerts[0].message)}"
    return f'<a class="telemetry-first-alert" href="/alerts?run={quote(key, safe="")}">{words}</a>'


def _what_now(page: RunPage) -> str:
    known = what_now(page.store, page.key)
    if known is None:
        return ""
    return f'<div class="telemetry-first-now"><h2>{ENDINGS[known.status][0]}: what now?</h2></div>'


# ---------------------------------------------------------------- charts


def _chart(page: RunPage, panel: Panel, height: int, first_colour: int, *, is_plain: bool) -> str:
    """Return a chart of the logged values and their smoothed lines, as large as the one that replaces it."""
    logged = {info.name for info in page.store.metrics(page.key)}
    named = [(metric, label) for metric, label in panel.metrics if metric in logged]
    unit = f" <small>{text_html(panel.unit)}</small>" if panel.unit else ""
    drawn = _drawn(page, named, height, first_colour) if is_plain else ""
    return f'<h2>{text_html(panel.title)}{unit}</h2><div style="height:{height}px">{drawn}</div>'


def _drawn(page: RunPage, named: Sequence[tuple[str, str]], height: int, first_colour: int) -> str:
    lines: list[tuple[str, Floats, Floats]] = []
    ends: list[float] = []
    is_marked = height > SMALL_PX and bool(marks_of(page))
    for number, (metric, _) in enumerate(named):
        tiles = page.store.tiles(page.key, metric, TileQuery())
        counted = [one for one in tiles.blocks if not tiles.pieces[one.piece].is_superseded]
        if not counted:
            continue
        raw, x, mean, weight = _points(counted)
        is_many = sum(piece.points for piece in tiles.pieces) >= _FEWEST_SMOOTHED
        smoothed = _smoothed(x, mean, weight) if tiles.smooth and is_many else None
        attributes = look("line", first_colour + number)
        lines.append((attributes if smoothed is None else look("pale", first_colour + number), *raw))
        if smoothed is not None:
            lines.append((look("line smooth", first_colour + number), *smoothed))
        ends += _core(raw, raw if smoothed is None else smoothed)
        is_marked |= bool(tiles.non_finite)
    values = np.concatenate([y[np.isfinite(y)] for *_, y in lines]) if lines else np.empty(0)
    if not len(values):
        return ""
    (low, high), is_fitted = _range(values, ends)
    x_axis, y_axis = Axis(*_around([x for _, x, _ in lines])), Axis(low, high)
    top = 20 if is_fitted or is_marked else 8
    box = height - (23 if len(named) > 1 else 0) - 26 - top
    ticks = (6 if height > SMALL_PX else 3, max(2, box // 34))
    left = max(28, 6 * max(len(text) for _, text in y_axis.ticks(ticks[1])) + 10)
    inside = grid_html(x_axis, y_axis, ticks) + "".join(
        f'<path {attributes} d="{_path(x, y, x_axis, y_axis)}"/>' for attributes, x, y in lines
    )
    legend = "".join(
        f"<li><i {look('key', first_colour + number)}></i>{text_html(label, 60)}</li>"
        for number, (_, label) in enumerate(named)
    )
    words = ", ".join(label for _, label in named)
    style = f"--box:{box}px;--left:{left}px;--top:{top}px"
    return (
        f'<div class="telemetry-curves-picture telemetry-first-chart" style="{style}">'
        f"{f'<ul class=legend>{legend}</ul>' if len(named) > 1 else ''}"
        f"{frame_html(x_axis, y_axis, inside, words, 'step' if height > SMALL_PX else '', most=ticks)}</div>"
    )


def _path(x: Floats, y: Floats, x_axis: Axis, y_axis: Axis) -> str:
    """Return a line through the finite points, with gaps where a value is not a number."""
    finite = np.isfinite(x) & np.isfinite(y)
    begins = finite & ~np.concatenate(([False], finite[:-1]))
    left = np.round(SIZE * (x - x_axis.low) / (x_axis.high - x_axis.low), 1)[finite]
    top = np.round(SIZE * (y_axis.high - y) / (y_axis.high - y_axis.low), 1)[finite]
    at = zip(begins[finite].tolist(), left.tolist(), np.clip(top, -SIZE, 2 * SIZE).tolist(), strict=True)
    return "".join(f"{'M' if begin else 'L'}{px:g} {py:g}" for begin, px, py in at)


def _around(xs: Sequence[Floats]) -> tuple[float, float]:
    low, high = min(float(x.min()) for x in xs), max(float(x.max()) for x in xs)
    return (low, high) if low < high else (low - 1.0, high + 1.0)


def _points(blocks: Sequence[Block]) -> tuple[tuple[Floats, Floats], Floats, Floats, Floats]:
    """Return what is drawn (values, or the extremes of buckets), and the means with their weights."""
    drawn = [
        (np.repeat(one.x, min(2, len(one.values))), np.stack(one.values[:2], axis=1).ravel())
        for one in blocks
    ]
    raw = np.concatenate([x for x, _ in drawn]), np.concatenate([y for _, y in drawn])
    mean = np.concatenate([one.values[-1] for one in blocks])
    x, weight = np.concatenate([one.x for one in blocks]), np.concatenate([one.weight for one in blocks])
    finite = np.isfinite(x) & np.isfinite(mean)
    return raw, x[finite], mean[finite], weight[finite]


def _smoothed(x: Floats, y: Floats, weight: Floats) -> tuple[Floats, Floats] | None:
    """Return a line as the chart of the browser has: local lines, which spikes do not count for."""
    span = float(x[-1] - x[0])
    if span <= 0 or (np.diff(x) < 0).any():
        return None
    apart = np.zeros(len(y))
    apart[2:-2] = np.abs(y[2:-2] - np.median(sliding_window_view(y, 5), axis=1))
    limit = 4 * float(np.percentile(apart, 90))
    trust = (1 - np.minimum(1, apart / limit) ** 2) ** 2 if limit > 0 else 1.0
    at = np.linspace(x[0], x[-1], _CELLS)
    # At an end only one side is known: twice the width keeps the line as calm there as elsewhere.
    half = _HALF_WIDTH * span
    half = half * (2 - np.clip(np.minimum(at - x[0], x[-1] - at) / half, 0, 1))
    off = x - at[:, None]
    share = np.clip(1 - (off / half[:, None]) ** 2, 0, None) ** 2 * (weight * trust)
    w, s1, s2 = share.sum(1), (share * off).sum(1), (share * off * off).sum(1)
    t0, t1 = share @ y, (share * off) @ y
    determinant = w * s2 - s1 * s1
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.where(determinant > 1e-9 * w * s2, (s2 * t0 - s1 * t1) / determinant, t0 / w)
    return at, found


def _core(raw: tuple[Floats, Floats], line: tuple[Floats, Floats]) -> list[float]:
    """Return the ends of the range that most of a curve is in, and its end always."""
    found = []
    for x, y in (raw, line):
        x, y = x[np.isfinite(y)], y[np.isfinite(y)]
        if len(y):
            found += np.quantile(y, (0.02, 0.96) if len(y) > _FEW else (0, 1)).tolist()
            end = y[x >= x.max() - 0.05 * (x.max() - x.min())]
            found += [float(end.min()), float(end.max())] if line[1] is not raw[1] else []
    return found


def _range(values: Floats, ends: Sequence[float]) -> tuple[tuple[float, float], bool]:
    """Return the y range of a chart, and whether it leaves out a few extremes that would fill it."""
    least, most, low, high = float(values.min()), float(values.max()), min(ends), max(ends)
    room = 0.05 * (most - least) or 0.2 * abs(most) or 1.0
    size = high - low
    if size <= 0 or most - least <= 2 * size:
        return (least - room, most + room), False
    near = values[(values >= low - size) & (values <= high + size)]
    room = 0.08 * float(near.max() - near.min())
    return (float(near.min()) - room, float(near.max()) + room), True
