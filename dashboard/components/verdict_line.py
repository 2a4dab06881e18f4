"""Whether a run is really better, in one line: as `telemetry verdict` says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import streamlit as st

from toolkit.telemetry.answers.repeats import compared_settings, result_of
from toolkit.telemetry.answers.verdict import Verdict, best_against
from toolkit.telemetry.runfolder.metrics import TRAIN_LOSSES, guess_primary_metric, metric_direction
from toolkit.telemetry.runs.formatting import md
from toolkit.telemetry.runs.store import RunCard

_SIGNS: Final = {
    "better": "✓",
    "worse": "✕",
    "not better": "✕",
    "not decided": "●",
}


def verdict_line(found: Verdict | None) -> None:
    """Show an answer; what it rests on is in its help."""
    if found is not None:
        # To keep or to discard a run is for whoever reads the page.
        needed = md(found.needed, 300) if found.answer == "not decided" else ""
        text = f"{_SIGNS[found.answer]} **Really better?** {md(found.sentence, 600)} {needed}"
        rests_on = (f"How sure: {found.sure}.", *found.rests_on)
        st.markdown(text, help="\n\n".join(md(line, 400) for line in rests_on))


def verdict_of_chosen(keys: Sequence[str], cards: Mapping[str, RunCard], base: str, metric: str) -> None:
    """Show whether the best of the chosen runs is better than the baseline; all listed runs count as tries.

    By the shown metric if it evaluates the model, else by the one by which these runs are usually compared.
    """
    known = [cards[key].evaluations for key in keys]
    if metric in TRAIN_LOSSES or not all(metric in names for names in known):
        metric = guess_primary_metric([list(names) for names in known]) or metric
    goal = metric_direction(metric)
    if goal is None:
        return
    results = {key: result_of(cards[key], metric) for key in keys}
    # Code is read where a run may be a repeat of a chosen one.
    alike = [compared_settings(cards[key].config) for key in keys]
    others = [
        result_of(card, metric, reads_folder=compared_settings(card.config) in alike)
        for key, card in cards.items()
        if key not in results and card.project == cards[base].project
    ]
    verdict_line(
        best_against(list(results.values()), others, metric=metric, goal=goal, base=results[base].key)
    )
