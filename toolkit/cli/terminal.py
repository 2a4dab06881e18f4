"""What commands print: tables, colours and progress on a terminal, plain text everywhere else."""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolkit.cli.chosen_run import printable

_STYLES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_ANY_WIDTH: Final = 100_000
_NARROWEST: Final = 8
"""A column is not made narrower than this to fit the terminal."""
_PROGRESS_AFTER_S: Final = 0.5
_PROGRESS_EVERY_S: Final = 0.1


def add_json_argument(parser: argparse._ActionsContainer, what: str = "JSON") -> None:
    """Declare `--json`."""
    parser.add_argument("--json", action="store_true", help=f"print {what}; docs/cli.md describes it")


def turn_colours_off() -> None:
    """Do what the variable NO_COLOR does."""
    os.environ["NO_COLOR"] = "1"


def has_colours() -> bool:
    """Return whether stdout is a terminal that shows colours, and none were asked to be left out."""
    return not (os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb") and sys.stdout.isatty()


def painted(text: str, style: str) -> str:
    """Return `text` in a style, such as `bold red`, where colours are shown."""
    codes = ";".join(_STYLES[word] for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and has_colours() else text


class ReaderGoneError(BaseException):
    """Whoever read standard output has closed it: no failure, and no OSError that a command could take for one."""


class _Output(io.TextIOWrapper):
    """Standard output that shows a character which its encoding does not have as an escape."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            raise ReaderGoneError from None

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            raise ReaderGoneError from None


def write_any_text(*, end_quietly: bool) -> None:
    """Have standard output and error take any text; `end_quietly` has a reader that is gone end the command."""
    # Python has none where the caller closed it.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    out = sys.stdout
    if end_quietly and type(out) is io.TextIOWrapper:
        line_buffering, encoding = out.line_buffering, out.encoding
        sys.stdout = _Output(out.detach(), encoding, "backslashreplace", line_buffering=line_buffering)
        # shutil asks this one for the size of the terminal.
        sys.__stdout__ = sys.stdout  # type: ignore[misc]  # nothing else can be asked


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
    """Print a table, with rich where it is installed and stdout is a terminal; cells are cut to its width there."""
    texts = [[_clean(cell) for cell in row] for row in rows]
    widths = [
        max(len(column.title), *(len(row[at][0]) for row in texts), 0) if texts else len(column.title)
        for at, column in enumerate(columns)
    ]
    _narrow(widths, columns, terminal_width())
    if has_colours() and _print_with_rich(columns, texts, widths):
        return
    print(_line([(column.title, "") for column in columns], columns, widths))
    for row in texts:
        print(_line(row, columns, widths))


def terminal_width() -> int:
    """Return how many characters fit in a line; without a terminal nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _ANY_WIDTH


def shortened(text: str, length: int) -> str:
    """Return `text` in at most `length` characters."""
    return text if len(text) <= length else f"{text[: max(0, length - 1)]}…"


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


def size_text(size: int) -> str:
    """Return a number of bytes in its largest unit."""
    for unit, length in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= length:
            return f"{size / length:,.1f} {unit}"
    return f"{size} B"


class Progress:
    """A line on stderr, where that is a terminal, that says how far long work has come."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_shown = False
        self._next = clock() + _PROGRESS_AFTER_S

    def show(self, text: str, done: int = 0, total: int = 0) -> None:
        """Show `text`, with a bar if `total` is known."""
        if not sys.stderr.isatty() or self._clock() < self._next:
            return
        self._next = self._clock() + _PROGRESS_EVERY_S
        self._is_shown = True
        bar = ""
        if total:
            full = 20 * done // total
            bar = f"[{'#' * full}{'.' * (20 - full)}] {done:,}/{total:,} "
        room = shutil.get_terminal_size().columns - len(bar) - 1
        print(f"\r\x1b[K{bar}{printable(shortened(text, max(0, room)))}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Erase the line."""
        if self._is_shown:
            self._is_shown = False
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


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
        padding = " " * (width - len(shown))
        parts.append(padding + painted(shown, style) if column.right else painted(shown, style) + padding)
    return "  ".join(parts).rstrip()


def _print_with_rich(
    columns: Sequence[Column], rows: Sequence[Sequence[tuple[str, str]]], widths: Sequence[int]
) -> bool:
    """Print the table with rich; return False if it is not installed."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        table.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            overflow="ellipsis",
            no_wrap=True,
            width=width,
        )
    for row in rows:
        # Text, because rich reads markup in plain strings, and names are not trusted.
        table.add_row(*(Text(text, style=style) for text, style in row))
    Console(width=terminal_width()).print(table)
    return True
