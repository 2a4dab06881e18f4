"""What runs are called where one of them is chosen: Streamlit maps a chosen text back, so no two may be equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from toolkit.telemetry.runs.formatting import clean, cut
from toolkit.telemetry.runs.store import RunCard, card_labels

_LONGEST: Final = 120


def option_texts(cards: Iterable[RunCard], suffix: Callable[[RunCard], str] | None = None) -> dict[str, str]:
    """Return the text of each run by key, with what `suffix` returns at its end; no two are equal, however long."""
    runs = list(cards)
    labels = card_labels(runs)
    found: dict[str, str] = {}
    taken: set[str] = set()
    for card in runs:
        end = f"  ·  {suffix(card)}" if suffix else ""
        text = " ".join(cut(clean(labels[card.key].text), _LONGEST).split()) + end
        number = 1
        while text in taken:
            text = f"{text} ({clean(card.key)})" if number == 1 else f"{text} {number}"
            number += 1
        taken.add(text)
        found[card.key] = text
    return found


def in_address(keys: Sequence[str]) -> str | list[str]:
    """Return runs as the address of Compare has them: one readable text, or one each if a key has a comma."""
    return list(keys) if any("," in key for key in keys) else ",".join(keys)
