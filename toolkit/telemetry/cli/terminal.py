"""What commands print: tables, colours and progress on a terminal, plain text everywhere else.

All of it goes through `only_text`, whatever a name in a run folder or the name of a file has in it.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import secrets
import shutil
import sys
import time
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any, Final, TextIO, cast

from toolkit.telemetry.cli.chosen_run import printable
from toolkit.telemetry.runfolder.untrusted import clean

_STYLES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_ANY_WIDTH: Final = 100_000
_NARROWEST: Final = 8
"""A column is not made narrower than this to fit the terminal."""
_PROGRESS_AFTER_S: Final = 0.5
_PROGRESS_EVERY_S: Final = 0.1
_OURS: Final = f"\0{secrets.token_hex(8)}["
"""Begins our own escape sequences until they are printed: nothing that is read can have it."""
_ERASE_LINE: Final = f"{_OURS}G{_OURS}K"


def add_json_argument(parser: argparse._ActionsContainer, what: str = "JSON") -> None:
    """Declare `--json`."""
    parser.add_argument("--json", action="store_true", help=f"print {what}, described below")


def describe_json(parser: argparse.ArgumentParser, form: str | None) -> None:
    """Add what a command prints with `--json` to its help."""
    if form:
        parser.add_argument_group("with --json", form.replace("%", "%%"))


def add_no_color_argument(parser: argparse.ArgumentParser, default: Any = argparse.SUPPRESS) -> None:
    """Declare `--no-color`. Without a default, one before the name of a subcommand is not hidden."""
    about = "print no colours, as with the variable NO_COLOR"
    parser.add_argument("--no-color", action="store_true", default=default, help=about)


def turn_colours_off() -> None:
    """Do what the variable NO_COLOR does."""
    os.environ["NO_COLOR"] = "1"


def has_colours() -> bool:
    """Return whether stdout is a terminal that shows colours, and none were asked to be left out."""
    return not (os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb") and sys.stdout.isatty()


def painted(text: str, style: str) -> str:
    """Return `text` in a style, such as `bold red`, where colours are shown."""
    codes = ";".join(_STYLES[word] for word in style.split())
    return f"{_OURS}{codes}m{text}{_OURS}0m" if codes and has_colours() else text


class _OnlyText:
    """A stream that shows control characters as �, but for the colours and the progress of this module."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write("\x1b[".join(map(clean, text.split(_OURS))))
        except BrokenPipeError:
            raise ReaderGoneError from None

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            raise ReaderGoneError from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def only_text() -> Iterator[None]:
    """Have nothing that is printed inside control a terminal."""
    with ExitStack() as stack:
        for redirect, stream in ((redirect_stdout, sys.stdout), (redirect_stderr, sys.stderr)):
            stack.enter_context(redirect(cast("TextIO", _OnlyText(stream))))
        yield


class ReaderGoneError(BaseException):
    """Whoever read standard output has closed it: no failure, and no OSError that a command could take for one."""


def write_any_text() -> None:
    """Have standard output and error take any text."""
    # Python has none where the caller closed it.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_json(value: Any) -> None:
    """Print one JSON object, in ASCII: names of other tools may hold lone surrogates."""
    print(json.dumps(value, indent=1, allow_nan=False))


@dataclass(frozen=True, slots=True)
class Column:
    """The heading of a table's column, and how it is aligned."""

    title: str
    right: bool = False
    keep: bool = False
    """Whether its cells are never cut."""


Cell = str | tuple[str, str]
"""A text, or a text and its style."""


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table; cells are cut to the width of a terminal."""
    texts = [[(printable(column.title), "bold") for column in columns]]
    texts += [[_clean(cell) for cell in row] for row in rows]
    widths = [max(_cells(row[at][0]) for row in texts) for at in range(len(columns))]
    _narrow(widths, columns, terminal_width())
    for row in texts:
        print(_line(row, columns, widths))


def terminal_width() -> int:
    """Return how many characters fit in a line; without a terminal nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _ANY_WIDTH


def shortened(text: str, length: int) -> str:
    """Return `text` in at most so many cells of a terminal."""
    if _cells(text) <= length:
        return text
    text = text[: max(0, length - 1)]
    while text and _cells(text) >= length:
        text = text[:-1]
    return f"{text}…"


def _cells(text: str) -> int:
    """Return how many cells a text takes: wide characters take two."""
    return (
        len(text) if text.isascii() else sum(1 + (unicodedata.east_asian_width(one) in "WF") for one in text)
    )


def number_text(value: float | None) -> str:
    """Return a number in a few characters; nothing for None."""
    return "" if value is None else f"{value:.5g}"


def age_text(seconds: float | None) -> str:
    """Return a duration in its largest unit: `12 s`, `5 min`, `3 h`, `4 d`."""
    if seconds is None:
        return ""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def clock_text(timestamp: object) -> str:
    """Return the time of day of a record, in eight characters; spaces where it has no time."""
    if isinstance(timestamp, (int, float)) and 0 < timestamp < 4e9:
        return time.strftime("%H:%M:%S", time.localtime(timestamp))
    return " " * 8


class Progress:
    """A line on stderr, where that is a terminal, that says how far long work has come; erased after `with`."""

    def __init__(self) -> None:
        self._is_shown = False
        self._next = time.monotonic() + _PROGRESS_AFTER_S

    def __enter__(self) -> Progress:
        """Show nothing yet."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Erase the line."""
        self.clear()

    def show(self, text: str, done: int = 0, total: int = 0) -> None:
        """Show `text`, with a bar if `total` is known."""
        if not sys.stderr.isatty() or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _PROGRESS_EVERY_S
        self._is_shown = True
        bar = ""
        if total:
            full = 20 * done // total
            bar = f"[{'#' * full}{'.' * (20 - full)}] {done:,}/{total:,} "
        room = shutil.get_terminal_size().columns - len(bar) - 1
        shown = printable(shortened(text, max(0, room)))
        print(f"{_ERASE_LINE}{bar}{shown}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Erase the line."""
        if self._is_shown:
            self._is_shown = False
            print(_ERASE_LINE, end="", file=sys.stderr, flush=True)


def _clean(cell: Cell) -> tuple[str, str]:
    text, style = (cell, "") if isinstance(cell, str) else cell
    return printable(text), style


def _narrow(widths: list[int], columns: Sequence[Column], width: int) -> None:
    """Take from the widest columns until the line fits, as far as that is possible."""
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    while excess > 0:
        candidates = [at for at, column in enumerate(columns) if not column.keep and widths[at] > _NARROWEST]
        if not candidates:
            return
        widest = max(candidates, key=lambda at: widths[at])
        widths[widest] -= 1
        excess -= 1


def _line(cells: Sequence[tuple[str, str]], columns: Sequence[Column], widths: Sequence[int]) -> str:
    parts = []
    for (text, style), column, width in zip(cells, columns, widths, strict=True):
        shown = shortened(text, width)
        padding = " " * (width - _cells(shown))
        parts.append(padding + painted(shown, style) if column.right else painted(shown, style) + padding)
    return "  ".join(parts).rstrip()
