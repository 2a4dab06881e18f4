"""The words that the example's model knows, and a prompt as their numbers."""

from __future__ import annotations

import re

COLOURS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink")
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring", "star")
BASE_STYLES = ("flat", "outline")
"""The styles that the base model was trained on; a LoRA learns another."""

_TRIGGER = 1
"""The number of `[trigger]`, which the base model ignores: its meaning is what a LoRA learns."""
# The weights of the base model know the words by their order here.
_NUMBERS = {word: number for number, word in enumerate((*COLOURS, *SHAPES, *BASE_STYLES), start=2)}
VOCABULARY_SIZE = 2 + len(_NUMBERS)
_FILLERS = frozenset(("a", "an", "the", "in", "of", "with", "style", "shape"))
_PROMPT_LENGTH = 6


def encode_prompt(prompt: str, trigger_word: str | None = None) -> list[int]:
    """Return the numbers of the words of `prompt`, filled up with 0. Raises ValueError if a word is unknown."""
    known = {**_NUMBERS, "[trigger]": _TRIGGER, (trigger_word or "[trigger]").lower(): _TRIGGER}
    words = [word for word in re.findall(r"\[trigger\]|[\w-]+", prompt.lower()) if word not in _FILLERS]
    for word in words:
        if word not in known:
            raise ValueError(f"unknown word {word!r}; known: {', '.join(known)}")
    if len(words) > _PROMPT_LENGTH:
        raise ValueError(f"{len(words)} words in {prompt!r}; at most {_PROMPT_LENGTH} are read")
    return [known[word] for word in words] + [0] * (_PROMPT_LENGTH - len(words))
