"""Gives each run that is compared a colour of its own, and keeps it in the run's labels."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from dashboard import session
from dashboard.charts.palette import free_colours
from toolkit.runfolder.labels import LabelsError
from toolkit.runs.store import Refused, RunCard, RunStore, UnknownRun


def keep_colours(store: RunStore, cards: Sequence[RunCard]) -> list[RunCard]:
    """Return `cards`, each with the colour that its run keeps from now on, on every page.

    A run without one gets a colour that no other of `cards` has, as far as there are enough. Where labels cannot be
    written, a run has the colour that follows from its key: another one would change with the runs beside it.
    """
    if session.read_only_reason() is not None:
        return list(cards)
    kept = {}
    with suppress(Refused, LabelsError, UnknownRun):
        for key, colour in free_colours(cards).items():
            meta = store.meta(key)
            if not meta.writable:
                continue
            # Another tab may have been faster.
            colour = meta.labels.colour or colour
            if meta.labels.colour is None:
                store.label(key, replace(meta.labels, colour=colour))
            kept[key] = colour
    return [replace(card, colour=kept.get(card.key, card.colour)) for card in cards]
