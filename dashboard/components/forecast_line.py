"""What can be said of the rest of a run: one line, a cell of the list, and the bands that charts draw."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import streamlit as st

from toolkit.telemetry.forecasts.curve import Forecast
from toolkit.telemetry.forecasts.run import RunForecast, forecast_run
from toolkit.telemetry.forecasts.words import head_of, said_of, value_of
from toolkit.telemetry.runs.formatting import clean
from toolkit.telemetry.runs.store import RunCard, RunStore

from .. import session
from .frame import RunPage, has_rest, live
from .script import redraw_only, show_component

_SLOWER: Final = 5
_NEW_AT_ONCE: Final = 3
"""Runs of a list that are forecast in one refresh."""
_WAIT_S: Final = 0.1
_MOST_KEPT: Final = 200
_kept: WeakKeyDictionary[RunStore, dict[str, tuple[object, RunForecast]]] = WeakKeyDictionary()
"""By store and run: how much had been read, and what could be said then."""


def forecast_line(page: RunPage, *, has_words: bool) -> None:
    """Show what can be said of the rest of a run, in a region of its own; without words, only to the charts."""
    if has_rest(page.card):
        live(page, "The forecast", lambda: _draw(page, has_words), until_examined=True, slower=_SLOWER)


def _draw(page: RunPage, has_words: bool) -> None:
    key = f"_forecast {page.key}"
    state = st.session_state.get(key)
    is_wanted = has_words or st.query_params.get("forecast") == "true" or bool(state and state.get("wanted"))
    # A finding that is not known yet could refuse it.
    is_examined = not (session.is_partly("read", page.key) or session.is_partly("examined", page.key))
    found = _forecast(page.store, page.key) if is_wanted and is_examined else None
    show_component(
        "forecast",
        '<div class="telemetry-forecast"></div>',
        data={
            "run": page.key,
            "head": head_of(page.card),
            "said": _said(found) if found is not None and has_words else [],
            "bands": None if found is None else {one.metric: _band(one) for one in found.losses},
        },
        key=key,
        on_wanted_change=redraw_only,
    )


def _said(found: RunForecast) -> list[Sequence[str]]:
    lines = said_of(found, time.time())
    if not isinstance(found.train, Forecast):
        # One reason is enough.
        lines[0] = lines[0]._replace(text=f"cannot be forecast: {lines[0].why}")
    return [[clean(text) for text in one] for one in lines if one.text != "cannot be forecast"]


def _band(one: Forecast) -> dict[str, Any]:
    rounded = ([float(f"{value:.6g}") for value in values] for values in one.band)
    return dict(zip(("steps", "low", "middle", "high"), rounded, strict=True))


def _forecast(store: RunStore, key: str) -> RunForecast:
    read = store.refresh(key, wait_s=0.0).records, store.card(key).status.name
    kept = _kept.setdefault(store, {})
    before = kept.pop(key, None)
    found = before[1] if before is not None and before[0] == read else forecast_run(store, key)
    kept[key] = read, found
    if len(kept) > _MOST_KEPT:
        del kept[next(iter(kept))]
    return found


def forecast_cells(store: RunStore, cards: Sequence[RunCard]) -> dict[str, str]:
    """Return where the losses of the live runs among `cards` will end; of a few runs it is worked out now."""
    kept = _kept.setdefault(store, {})
    keys = [card.key for card in cards if card.live and card.max_steps]
    # Those that were never worked out come first, then the oldest.
    order = {key: place for place, key in enumerate(kept)}
    for key in sorted(keys, key=lambda key: order.get(key, -1))[:_NEW_AT_ONCE]:
        if store.refresh(key, wait_s=_WAIT_S).complete and store.examine(key, wait_s=_WAIT_S) >= 1.0:
            _forecast(store, key)
    return {
        key: value_of(one) if isinstance(one := kept[key][1].train, Forecast) else "cannot be forecast"
        for key in keys
        if key in kept
    }
