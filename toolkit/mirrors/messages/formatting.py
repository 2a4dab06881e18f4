"""Text shortened and flattened for a chat."""

from __future__ import annotations


def cut(text: str, longest: int) -> str:
    """Return `text`, truncated to `longest` characters."""
    return text if len(text) <= longest else text[: longest - 2].rstrip() + " …"


def cut_bytes(text: str, longest: int) -> str:
    """Return `text`, truncated to `longest` bytes of UTF-8 at a character boundary."""
    if len(text.encode("utf-8", "replace")) <= longest:
        return text
    return text.encode("utf-8", "replace")[: longest - 4].decode("utf-8", "ignore").rstrip() + " …"


def one_line(text: str) -> str:
    """Return `text` on one line, without control characters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
