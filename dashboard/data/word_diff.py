"""Which words two texts have in common, in their order, and which only one of them has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_MOST_CHANGES: Final = 800
_MOST_LOOKS: Final = 1_500_000
"""Together about a second, however the texts are made; those that differ by more have little in common."""

# Scripts that put no blanks between words are compared a character at a time.
_NO_BLANKS: Final = "\u2e80-\u31ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9d"
_WORDS: Final = re.compile(rf"\s+|[{_NO_BLANKS}]|[^\W{_NO_BLANKS}]+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a text; `only_here` says that the other text does not have it."""

    text: str
    only_here: bool


@dataclass(frozen=True, slots=True)
class WordDiff:
    """Two texts, each in parts that together are the whole of it."""

    before: tuple[Part, ...]
    after: tuple[Part, ...]
    too_different: bool = False
    """Whether they differ by more than is worth marking; then nothing is marked."""

    @property
    def is_same(self) -> bool:
        """Whether the two are equal."""
        return not self.too_different and not any(part.only_here for part in (*self.before, *self.after))


@lru_cache(maxsize=64)
def word_diff(before: str, after: str) -> WordDiff:
    """Compare two texts word by word. Takes about a second at most, whatever they are."""
    old, new = _WORDS.findall(before), _WORDS.findall(after)
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    pairs = _common_places(old[start : len(old) - end], new[start : len(new) - end])
    if pairs is None:
        return WordDiff((Part(before, False),), (Part(after, False),), too_different=True)
    kept_old = [True] * start + [False] * (len(old) - start - end) + [True] * end
    kept_new = [True] * start + [False] * (len(new) - start - end) + [True] * end
    for in_old, in_new in pairs:
        kept_old[start + in_old] = kept_new[start + in_new] = True
    return WordDiff(_parts(old, kept_old), _parts(new, kept_new))


def _common(old: Sequence[str], new: Sequence[str]) -> int:
    """Return how many words two texts begin with in common."""
    count = 0
    for one, other in zip(old, new, strict=False):
        if one != other:
            break
        count += 1
    return count


def _common_places(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]] | None:
    """Return the places of a longest run of words that both have in their order; None where that takes too long.

    Goes along all ways of changing one text into the other at once, those with the fewest changes first (E. Myers,
    "An O(ND) Difference Algorithm and Its Variations", 1986).
    """
    furthest = {1: 0}
    """On each diagonal, how far into `old` the best way has come."""
    history: list[dict[int, int]] = []
    looks = 0
    for changes in range(min(len(old) + len(new), _MOST_CHANGES) + 1):
        history.append(dict(furthest))
        for diagonal in range(-changes, changes + 1, 2):
            is_insertion = diagonal == -changes or (
                diagonal != changes and furthest[diagonal - 1] < furthest[diagonal + 1]
            )
            at = furthest[diagonal + 1] if is_insertion else furthest[diagonal - 1] + 1
            came = at
            while at < len(old) and at - diagonal < len(new) and old[at] == new[at - diagonal]:
                at += 1
            looks += at - came + 1
            furthest[diagonal] = at
            if at >= len(old) and at - diagonal >= len(new):
                return _way_back(history, len(old), len(new))
        if looks > _MOST_LOOKS:
            return None
    return None


def _way_back(history: Sequence[dict[int, int]], old: int, new: int) -> list[tuple[int, int]]:
    pairs = []
    for changes in range(len(history) - 1, -1, -1):
        furthest, diagonal = history[changes], old - new
        is_insertion = diagonal == -changes or (
            diagonal != changes and furthest[diagonal - 1] < furthest[diagonal + 1]
        )
        before = diagonal + 1 if is_insertion else diagonal - 1
        came_old = furthest[before] if changes else 0
        came_new = came_old - before if changes else 0
        while old > came_old and new > came_new:
            old, new = old - 1, new - 1
            pairs.append((old, new))
        old, new = came_old, came_new
    return pairs


def _parts(words: Sequence[str], kept: Sequence[bool]) -> tuple[Part, ...]:
    """Join words of one kind; a blank between two words that only this text has belongs to them."""
    parts: list[tuple[list[str], bool]] = []
    for place, word in enumerate(words):
        only_here = not kept[place]
        if kept[place] and word.isspace() and 0 < place < len(words) - 1:
            only_here = not kept[place - 1] and not kept[place + 1]
        if parts and parts[-1][1] == only_here:
            parts[-1][0].append(word)
        else:
            parts.append(([word], only_here))
    return tuple(Part("".join(joined), only_here) for joined, only_here in parts)
