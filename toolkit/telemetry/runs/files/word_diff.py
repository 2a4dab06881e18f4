"""Compares two texts word by word."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_MAX_WORDS: Final = 2_000
"""Limits the time for any texts; texts of which more differs have little in common."""

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
    """Compare two texts word by word."""
    old, new = _WORDS.findall(before), _WORDS.findall(after)
    start = _common_prefix(old, new)
    end = _common_prefix(old[start:][::-1], new[start:][::-1])
    middle_old, middle_new = old[start : len(old) - end], new[start : len(new) - end]
    if max(len(middle_old), len(middle_new)) > _MAX_WORDS:
        return WordDiff((DiffPart(before, False),), (DiffPart(after, False),), too_different=True)
    kept_old = [not start <= place < len(old) - end for place in range(len(old))]
    kept_new = [not start <= place < len(new) - end for place in range(len(new))]
    for same in difflib.SequenceMatcher(None, middle_old, middle_new).get_matching_blocks():
        for place in range(start, start + same.size):
            kept_old[same.a + place] = kept_new[same.b + place] = True
    return WordDiff(_parts(old, kept_old), _parts(new, kept_new))


def _common_prefix(old: Sequence[str], new: Sequence[str]) -> int:
    pairs = enumerate(zip(old, new, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(old), len(new)))


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
