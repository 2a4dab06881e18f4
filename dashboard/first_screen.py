"""What a page shows before any script has run: HTML from what is known already, which the components then replace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from toolkit.telemetry.reports.svg import text_html
from toolkit.telemetry.runs.findings.alerts import alerts_of, unseen_alerts
from toolkit.telemetry.runs.listing.pins import pins_of
from toolkit.telemetry.runs.store import Refused, RunCard, RunQuery, RunStore, UnknownRun

from . import session
from .components.baseline import baseline_of
from .components.curve_chart import picture_of
from .components.curve_panel import SMALL_PX, Panel, concerns, curves_of, marks_of
from .components.frame import OFFERED, RunPage, has_rest, head_html, is_deleted, worst_html
from .page_links import PAGES
from .theme import THEME_STYLE
from .views.compare import first_comparison
from .views.overview import plan_of, summary_html
from .views.runs import first_list

_READ_S: Final = 0.02
"""A small log is read by then; of a large one what was read before is shown."""
_VIEW: Final = frozenset(("x", "smooth", "log", "logx", "from", "to", "forecast"))
"""With one of these in the address the charts are drawn in another way."""
_APPEARANCE: Final = re.compile(r"(system|light|dark)\.(\d{1,3})")
_LISTS: Final = ("runs", "compare")
_HERE: Final = ' aria-current="page"'


def first_screen(path: str, asked: Mapping[str, str], cookies: Mapping[str, str]) -> str:
    """Return what a page shows first, as HTML made from escaped text; empty where too little is known."""
    page = path.strip("/") or "runs"
    if session.settings().engines or "baseline" in asked:
        return ""
    store = session.store()
    try:
        if page == "overview":
            return _overview(store, asked, cookies)
        if page == "runs" and not asked:
            body = first_list(store)
        elif page == "compare" and asked.keys() == {"runs"}:
            body = first_comparison(store, asked["runs"], _READ_S)
        else:
            return _head(store, page, asked, cookies)
        title = PAGES[page][0]
        body = body and f'<h1>{title}</h1><div class="telemetry-first-{page}">{body}</div>'
        return body and _page(body, page, cookies)
    except (UnknownRun, Refused):
        # The page itself says so, and what to do.
        return ""


def _card(store: RunStore, asked: Mapping[str, str]) -> RunCard | None:
    key = asked.get("run") or _newest(store)
    card = store.card(key) if key else None
    return None if card is None or is_deleted(card) else card


def _head(store: RunStore, shown: str, asked: Mapping[str, str], cookies: Mapping[str, str]) -> str:
    """Return the menu and the head of the run, for its other pages."""
    module = next((name for name, (_, address) in PAGES.items() if address == shown), None)
    card = _card(store, asked) if module is not None and module not in _LISTS else None
    if module is None or card is None:
        return ""
    store.refresh(card.key, wait_s=_READ_S)
    return _page(head_html(RunPage(card.key, store), store.card(card.key)), module, cookies, card)


def _overview(store: RunStore, asked: Mapping[str, str], cookies: Mapping[str, str]) -> str:
    card = _card(store, asked)
    if card is None:
        return ""
    page = RunPage(card.key, store)
    base = baseline_of(store, card.project)
    drawn = {card.key: None} if base is None else {card.key: None, base.key: None}
    health = store.refresh_all([*drawn], wait_s=_READ_S)[0]
    metrics = {info.name: info for info in store.metrics(card.key)}
    if not metrics and health.complete:
        return ""
    plan = plan_of(metrics, pins_of(store, card.key))
    # Until the detectors have seen all records, what is open may turn out to be over.
    is_examined = store.examine(card.key, wait_s=0.0) >= 1.0
    unseen = unseen_alerts(alerts_of(store, card.key), store.meta(card.key).labels)
    worst = worst_html(card.key, unseen) if is_examined else ""
    main = Panel(title=plan.title, metrics=plan.main)
    is_plain = not asked.keys() & _VIEW
    left = _chart(page, main, 390, 0, is_plain=is_plain) if plan.main else ""
    right = "".join(_chart(page, one, 165, 1 + n, is_plain=is_plain) for n, one in enumerate(plan.side))
    gap = '<div class="st-key-forecast"></div>' if has_rest(card) else ""
    side = "" if not right else f"<div>{right}</div>"
    body = (
        f"{head_html(page, card)}{worst}{summary_html(page)}"
        f'<div class="telemetry-first-switches"></div>{gap}'
        f'<div class="telemetry-first-charts"><div>{left}</div>{side}</div>'
    )
    return _page(body, "overview", cookies, card)


def _newest(store: RunStore) -> str:
    cards = store.list_runs(RunQuery(per_page=OFFERED)).cards
    return next((card.key for card in cards if not card.archived), cards[0].key if cards else "")


def _page(body: str, shown: str, cookies: Mapping[str, str], card: RunCard | None = None) -> str:
    """Return the cover of a page, which may be of a run: the menu as links, and `body`."""
    look = _APPEARANCE.fullmatch(cookies.get("telemetry-look", ""))
    style = "" if look is None else f"--side:{look[2]}px"
    if look is not None and look[1] != "system":
        style += f";color-scheme:{look[1]}"
    query, run, picker = "", "Run", ""
    if card is not None:
        query, run = f"?run={quote(card.key, safe='')}", f"Run · {text_html(card.name, 28)}"
        text = f"{text_html(card.name, 60)} · {text_html(card.status.name)}"
        picker = f'<div class="telemetry-picker">Run<span>{text}</span></div>'
    links = {
        module: f'<a href="/{"" if module == "runs" else address}{"" if module in _LISTS else query}"'
        f"{_HERE if module == shown else ''}>{title}</a>"
        for module, (title, address) in PAGES.items()
    }
    of_lists = "".join(links[module] for module in _LISTS)
    of_run = "".join(link for module, link in links.items() if module not in _LISTS and module != "samples")
    return (
        f'<style>{THEME_STYLE}</style><div class="telemetry-first" style="{style}"><nav aria-label="Pages">'
        f"{picker}{of_lists}<p>{run}</p>{of_run}</nav><main>{body}</main></div>"
    )


def _chart(page: RunPage, panel: Panel, height: int, first_colour: int, *, is_plain: bool) -> str:
    """Return a chart of logged values and their smoothed lines, as large as the one that replaces it."""
    curves, metrics = curves_of(page, panel.metrics, first_colour)
    drawn = ""
    if is_plain:
        is_marked = height > SMALL_PX and any(concerns(mark, metrics) for mark in marks_of(page))
        drawn = picture_of(page.store, curves, height, is_marked=is_marked, has_legend=len(metrics) > 1)
    return f'<h2>{text_html(panel.title)}</h2><div style="height:{height}px">{drawn}</div>'
