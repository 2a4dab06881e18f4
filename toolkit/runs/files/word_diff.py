"""Compares two texts word by word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_MAX_CHANGES: Final = 800
_MAX_COMPARISONS: Final = 1_500_000
"""Limits the time to about a second for any texts; texts that differ by more have little in common."""

# Scripts without spaces between words are compared by character.
_NO_BLANKS: Final = "\u2e80-\u31ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9d"
_WORDS: Final = re.compile(rf"\s+|[{_NO_BLANKS}]|[^\W{_NO_BLANKS}]+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class DiffPart:
    """A part of a text; `only_here` if the other text does not have it."""

    text: str
    only_here: bool


@dataclass(frozen=True, slots=True)
class WordDiff:
    """Two texts, each split into parts."""

    before: tuple[DiffPart, ...]
    after: tuple[DiffPart, ...]
    too_different: bool = False
    """Whether they differ too much; then nothing is marked."""

    @property
    def is_same(self) -> bool:
        """Whether the two are equal."""
        return not self.too_different and not any(part.only_here for part in (*self.before, *self.after))


@lru_cache(maxsize=64)
def word_diff(before: str, after: str) -> WordDiff:
    """Compare two texts word by word, in at most about a second.

    Not difflib: its time has no such bound, and without its heuristic for frequent words it is quadratic.
    """
    old, new = _WORDS.findall(before), _WORDS.findall(after)
    start = _common_prefix(old, new)
    end = _common_prefix(old[start:][::-1], new[start:][::-1])
    pairs = _common_places(old[start : len(old) - end], new[start : len(new) - end])
    if pairs is None:
        return WordDiff((DiffPart(before, False),), (DiffPart(after, False),), too_different=True)
    kept_old = [True] * start + [False] * (len(old) - start - end) + [True] * end
    kept_new = [True] * start + [False] * (len(new) - start - end) + [True] * end
    for in_old, in_new in pairs:
        kept_old[start + in_old] = kept_new[start + in_new] = True
    return WordDiff(_parts(old, kept_old), _parts(new, kept_new))


def _common_prefix(old: Sequence[str], new: Sequence[str]) -> int:
    """Return the length of the common prefix."""
    count = 0
    for one, other in zip(old, new, strict=False):
        if one != other:
            break
        count += 1
    return count


def _common_places(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]] | None:
    """Return the indices of a longest common subsequence; None if that takes too long.

    E. Myers, "An O(ND) Difference Algorithm and Its Variations", 1986.
    """
    furthest = {1: 0}
    """The furthest index in `old` on each diagonal."""
    history: list[dict[int, int]] = []
    comparisons = 0
    for changes in range(min(len(old) + len(new), _MAX_CHANGES) + 1):
        history.append(dict(furthest))
        for diagonal in range(-changes, changes + 1, 2):
            is_insertion = diagonal == -changes or (
                diagonal != changes and furthest[diagonal - 1] < furthest[diagonal + 1]
            )
            at = furthest[diagonal + 1] if is_insertion else furthest[diagonal - 1] + 1
            came = at
            while at < len(old) and at - diagonal < len(new) and old[at] == new[at - diagonal]:
                at += 1
            comparisons += at - came + 1
            furthest[diagonal] = at
            if at >= len(old) and at - diagonal >= len(new):
                return _backtrack(history, len(old), len(new))
        if comparisons > _MAX_COMPARISONS:
            return None
    return None


def _backtrack(history: Sequence[dict[int, int]], old: int, new: int) -> list[tuple[int, int]]:
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


def _parts(words: Sequence[str], kept: Sequence[bool]) -> tuple[DiffPart, ...]:
    """Join consecutive words; a space between two words that only this text has belongs to them."""
    parts: list[tuple[list[str], bool]] = []
    for place, word in enumerate(words):
        only_here = not kept[place]
        if kept[place] and word.isspace() and 0 < place < len(words) - 1:
            only_here = not kept[place - 1] and not kept[place + 1]
        if parts and parts[-1][1] == only_here:
            parts[-1][0].append(word)
        else:
            parts.append(([word], only_here))
    return tuple(DiffPart("".join(joined), only_here) for joined, only_here in parts)
