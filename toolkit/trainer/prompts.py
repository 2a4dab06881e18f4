"""Encodes prompts such as "a red circle, outline" as the word numbers that the model reads."""

from __future__ import annotations

import re

COLOURS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink")
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring", "star")
BASE_STYLES = ("flat", "outline")
"""The styles that the shipped base model was trained on."""

STYLES = (*BASE_STYLES, "neon", "striped")
"""Every style that can be drawn; those after the base styles are what a LoRA can teach."""

_FILLERS = frozenset(("a", "an", "the", "in", "of", "with", "style", "shape"))
_EMPTY = 0
_TRIGGER = 1
_WORDS = {word: number for number, word in enumerate((*COLOURS, *SHAPES, *BASE_STYLES), start=2)}

VOCABULARY_SIZE = 2 + len(_WORDS)
PROMPT_LENGTH = 6
"""Number of meaningful words in a prompt; shorter ones are padded."""


class PromptError(ValueError):
    """A prompt has an unknown word, or too many words."""


def encode_prompt(prompt: str, trigger_word: str | None = None) -> list[int]:
    """Return the word numbers of `prompt`, always `PROMPT_LENGTH` of them.

    The trigger word, or the placeholder `[trigger]`, is a number that the base model ignores:
    its meaning is what a LoRA learns.

    Raises:
        PromptError: a word is unknown, or there are more than `PROMPT_LENGTH` words.
    """
    numbers = [_number(word, trigger_word) for word in _words(prompt) if word not in _FILLERS]
    if len(numbers) > PROMPT_LENGTH:
        raise PromptError(f"{len(numbers)} words in {prompt!r}; at most {PROMPT_LENGTH} are read")
    return numbers + [_EMPTY] * (PROMPT_LENGTH - len(numbers))


def is_usable_trigger(word: str) -> bool:
    """Return whether `word` is a single word without a meaning of its own."""
    return _words(word) == [word.lower()] and word.lower() not in _WORDS and word.lower() not in _FILLERS


def _words(prompt: str) -> list[str]:
    return re.findall(r"\[trigger\]|[\w-]+", prompt.lower())


def _number(word: str, trigger_word: str | None) -> int:
    if word == "[trigger]" or (trigger_word is not None and word == trigger_word.lower()):
        return _TRIGGER
    try:
        return _WORDS[word]
    except KeyError:
        known = ", ".join((*_WORDS, *([trigger_word] if trigger_word else [])))
        raise PromptError(f"unknown word {word!r}; known: {known}") from None
