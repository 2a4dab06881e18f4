"""A prompt or an answer as one text, in whatever form a script has it: text, bytes, messages of a chat, a structure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

_LONGEST: Final = 256 * 1024
"""Bytes that are decoded; a record has room for a quarter of them."""
_SPEAKERS: Final = ("user", "assistant")


def readable(value: Any, plain: Callable[[Any], Any]) -> str | None:
    """Return `value` as a text; None for None. `plain` makes lists and mappings of plain values of anything.

    A chat is its messages, each after the name of who speaks; a single message is its text.
    """
    # The type is asked, not the value: one of the caller's own may answer with an exception.
    kind = type(value)
    if value is None or kind is str:
        return value  # type: ignore[no-any-return]
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, (bytes, bytearray, memoryview)):
        return bytes(value[:_LONGEST]).decode("utf-8", "replace")
    return _text_of(plain(value))


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    if _is_message(value):
        value = [value]
    if isinstance(value, list) and value and all(map(_is_message, value)):
        return _chat(value)
    return _as_json(value)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and len(value) > 1


def _chat(messages: list[dict[str, Any]]) -> str:
    if len(messages) == 1 and messages[0]["role"] in _SPEAKERS:
        return _said(messages[0])
    return "\n\n".join(f"{message['role']}: {_said(message)}" for message in messages)


def _said(message: dict[str, Any]) -> str:
    """Return what a message says, and whatever else it brings, such as calls of tools."""
    content = message.get("content")
    parts = [_part(part) for part in content] if isinstance(content, list) else [_part(content)]
    others = {
        name: value
        for name, value in message.items()
        if name not in ("role", "content") and value not in (None, [], "")
    }
    parts += [f"[{name}] {_as_json(value)}" for name, value in others.items()]
    return "\n".join(part for part in parts if part)


def _part(part: Any) -> str:
    if part is None:
        return ""
    if isinstance(part, dict):
        if isinstance(part.get("text"), str):
            return str(part["text"])
        if isinstance(part.get("type"), str):
            return f"[{part['type']}]"
    return _text_of(part)


def _as_json(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()
    except orjson.JSONEncodeError:
        # Half a character, or an integer of more than 64 bits.
        return str(value)
