"""Masks the secrets in a diff of git as in the texts that it compares, so that removed lines hold none either."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

MaskLines = Callable[[str, list[str]], list[str]]
"""Returns the lines of the file of this name without secrets, as many as before."""


def mask_diff(diff: str, mask: MaskLines, after: Mapping[str, str]) -> str:
    """Return `diff` as it would be if both of its sides had been masked before.

    `after` has the files as they are now, by name; of any other file only the lines in the diff are known.
    """
    parts = re.split(r"^(?=diff --git )", diff, flags=re.MULTILINE)
    return "".join(_mask_file(part, mask, after) for part in parts)


def _mask_file(part: str, mask: MaskLines, after: Mapping[str, str]) -> str:
    head, *hunks = re.split(r"^(?=@@ )", part, flags=re.MULTILINE)
    names = re.findall(r"^(?:---|\+\+\+) [ab]/(.+?)\t?$", head, re.MULTILINE)
    name = names[-1] if names else ""
    # A file that was changed since is not what git compared.
    for whole in (after.get(name), None):
        old, new, starts = _sides(hunks, whole)
        if whole is None or "\n".join(new) == whole:
            break
    old, new = mask(name, old), mask(name, new)
    masked = "\n".join(mask("", head.split("\n")))
    for hunk, (old_at, new_at) in zip(hunks, starts, strict=True):
        title, *lines = hunk.split("\n")
        end = _TITLE.match(title)
        tail = title[end.end() :] if end else title
        written = [title[: len(title) - len(tail)] + mask(name, [tail])[0]]
        for line in lines:
            sign = line[:1]
            if sign == "-":
                written.append(f"-{old[old_at]}")
            else:
                written.append(f"{sign}{new[new_at]}" if sign in ("+", " ") else line)
            old_at += sign in ("-", " ")
            new_at += sign in ("+", " ")
        masked += "\n".join(written)
    return masked


def _sides(hunks: list[str], whole: str | None) -> tuple[list[str], list[str], list[tuple[int, int]]]:
    """Return the lines before and after a change, and where in them each hunk begins."""
    known = [] if whole is None else whole.split("\n")
    old: list[str] = []
    new: list[str] = []
    starts = []
    for hunk in hunks:
        title, *lines = hunk.split("\n")
        match = _TITLE.match(title)
        first = int(match[1]) - (match[2] != "0") if match else 0
        between = known[len(new) : first]
        old += between
        new += between
        starts.append((len(old), len(new)))
        old += [line[1:] for line in lines if line[:1] in ("-", " ")]
        new += [line[1:] for line in lines if line[:1] in ("+", " ")]
    rest = known[len(new) :]
    return old + rest, new + rest, starts


_TITLE: Final = re.compile(r"@@ -[0-9,]+ \+([0-9]+)(?:,([0-9]+))? @@")
