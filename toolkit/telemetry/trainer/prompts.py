"""The words that the example's model knows, and a prompt as their numbers."""

from __future__ import annotations

import re

COLOURS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink")
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring", "star")
BASE_STYLES = ("flat", "outline")
"""The styles that the base model was trained on; its weights know the words by their order here."""

PROMPT_LENGTH = 6
"""Number of meaningful words in a prompt; shorter ones are padded with 0."""

_FILLERS = frozenset(("a", "an", "the", "in", "of", "with", "style", "shape"))
_TRIGGER_WORD = 1
"""The number of `[trigger]`, which the base model ignores: its meaning is what a LoRA learns."""

_NUMBERS = {word: number for number, word in enumerate((*COLOURS, *SHAPES, *BASE_STYLES), start=2)}
VOCABULARY_SIZE = 2 + len(_NUMBERS)


def encode_prompt(prompt: str, trigger_word: str | None = None) -> list[int]:
    """Return the word numbers of `prompt`, always `PROMPT_LENGTH` of them.

    Raises:
        ValueError: a word is unknown, or there are too many.
    """
    known = {**_NUMBERS, "[trigger]": _TRIGGER_WORD}
    if trigger_word is not None:
        known[trigger_word.lower()] = _TRIGGER_WORD
    words = [word for word in re.findall(r"\[trigger\]|[\w-]+", prompt.lower()) if word not in _FILLERS]
    for word in words:
        if word not in known:
            raise ValueError(f"unknown word {word!r}; known: {', '.join(known)}")
    if len(words) > PROMPT_LENGTH:
        raise ValueError(f"{len(words)} words in {prompt!r}; at most {PROMPT_LENGTH} are read")
    return [known[word] for word in words] + [0] * (PROMPT_LENGTH - len(words))
