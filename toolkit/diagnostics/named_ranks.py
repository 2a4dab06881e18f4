"""Several ranks as the numbers of a finding, and as words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_MOST_NAMED: Final = 16
"""Ranks that a finding names; the rest is counted."""
_MOST_IN_WORDS: Final = 8
_FIRST: Final = "rank"
_ALL: Final = "ranks"


def ranks_as_evidence(ranks: Iterable[int]) -> dict[str, float]:
    """Return the evidence that names `ranks`: `rank`, `rank_2`, `rank_3`, … and how many they are."""
    ordered = sorted(ranks)
    named = {
        _FIRST if number == 1 else f"{_FIRST}_{number}": float(rank)
        for number, rank in enumerate(ordered[:_MOST_NAMED], start=1)
    }
    return {**named, _ALL: float(len(ordered))}


def is_about_ranks(name: str) -> bool:
    """Return whether the evidence called `name` is one of those."""
    return name in (_FIRST, _ALL) or (name.startswith(f"{_FIRST}_") and name[len(_FIRST) + 1 :].isdigit())


def ranks_in(evidence: Mapping[str, Any]) -> list[int]:
    """Return the ranks that the evidence of a finding names."""
    names = [_FIRST, *(f"{_FIRST}_{number}" for number in range(2, _MOST_NAMED + 1))]
    values = [evidence.get(name) for name in names]
    # A run folder is not trusted.
    return [int(value) for value in values if isinstance(value, (int, float)) and 0 <= value < 1e9]


def how_many_ranks(evidence: Mapping[str, Any]) -> int:
    """Return how many ranks a finding is about, with those that are not named."""
    said = evidence.get(_ALL)
    named = len(ranks_in(evidence))
    return max(named, int(said)) if isinstance(said, (int, float)) and 0 <= said < 1e9 else named


def ranks_in_words(evidence: Mapping[str, Any]) -> str:
    """Return the ranks as words: "rank 3", "ranks 3 and 5", "ranks 3, 5, 6 and 9 more"."""
    named = [f"{rank:,}" for rank in ranks_in(evidence)]
    count = how_many_ranks(evidence)
    if not named:
        return "no rank"
    if count == 1:
        return f"rank {named[0]}"
    if count <= _MOST_IN_WORDS:
        return f"ranks {', '.join(named[:-1])} and {named[-1]}"
    return f"ranks {', '.join(named[:_MOST_IN_WORDS])} and {count - _MOST_IN_WORDS:,} more"
