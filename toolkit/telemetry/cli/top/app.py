"""The program in the terminal: keys, and a thread that reads and rests so that it takes little of a core."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from toolkit.telemetry.cli.report_content import UnreadableRunError
from toolkit.telemetry.cli.top import screens
from toolkit.telemetry.cli.top.reading import SORTS, Opened, Runs, View
from toolkit.telemetry.cli.top.text import Line, Text
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.runs.store import STILL_LOOKING, RunList, UnknownRun

_EVERY_S: Final = 2.0
_SHARE: Final = 0.03
"""Of one core, for reading."""
_LONGEST_S: Final = 30.0
_SOON_S: Final = 0.3
_END: Final = 10**9
_WAYS: Final = {"up": -1, "k": -1, "down": 1, "j": 1, "home": -_END, "g": -_END, "end": _END, "G": _END}
_CURSOR: Final = {"left": -1, "right": 1, "shift+left": -10, "shift+right": 10}
_ASKED: Final = {"s": ("save", "save a checkpoint now"), "x": ("stop", "stop after its step, without saving")}
_LIST_KEYS: Final = "enter open  space mark  / search  o sort  r reverse  ? help  q quit"
_RUN_KEYS: Final = "esc back  j/k metric  left/right cursor  l log  f findings  ? help  q quit"


class Lines(Widget):
    """Lines of text; only those that changed are drawn again."""

    DEFAULT_CSS = "Lines { background: ansi_default; color: ansi_default; }"

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Line] = []

    def show(self, lines: list[Line]) -> None:
        """Show these."""
        before, self.lines = self.lines, lines
        for y in range(max(len(before), len(lines))):
            if before[y : y + 1] != lines[y : y + 1]:
                self.refresh(Region(0, y, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        """Return one line of the screen: no markup is read."""
        line = self.lines[y] if y < len(self.lines) else []
        parts = [Segment(text, Style.parse(style or "none")) for text, style in line]
        return Strip(parts).adjust_cell_length(self.size.width)


class Top(App[int]):
    """Runs, live."""

    CSS = "Screen { background: ansi_default; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        Binding("ctrl+c", "quit", priority=True),
        Binding("ctrl+z", "suspend_process", priority=True),
    ]

    def __init__(self, runs: Runs, text: Text) -> None:
        # The sixteen colours of the terminal itself: they fit its background, light or dark.
        super().__init__(ansi_color=True)
        self.view = View(text=text, no_color=self.no_color)
        self.message = "reading ..."
        self._runs = runs
        self._guard = Guard()
        self._typed: str | None = None
        self._question = ""
        self._asks: list[tuple[str, str]] = []
        self._wake, self._is_over = threading.Event(), False

    def compose(self) -> ComposeResult:
        """Build the screen: one widget."""
        yield Lines()

    def on_mount(self) -> None:
        """Start to read, and restore the terminal when the program is asked to end."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._end, 128 + number)
        # After Ctrl-Z and fg the terminal is empty.
        self.app_resume_signal.subscribe(self, lambda _: self.query_one(Lines).refresh())
        threading.Thread(target=self._read, name="telemetry-top", daemon=True).start()

    def on_unmount(self) -> None:
        """Stop to read."""
        self._is_over = True
        self._wake.set()

    def _end(self, code: int) -> None:
        self.exit(return_code=code)

    # ------------------------------------------------------------ reading

    def _read(self) -> None:
        used = time.process_time()
        while not self._is_over:
            keys = self.view.keys
            found = self._guard.call("reading runs", self._read_view)
            if not self._is_over:
                failed = f"could not be read: {', '.join(self._guard.counts)}"
                self.call_later(self._show_found, keys, found or failed)
            is_part = isinstance(found, Opened) and not found.is_whole
            is_part |= isinstance(found, RunList) and STILL_LOOKING in found.problems
            # Of all threads: another one looks for runs of other tools.
            pause_s = min(_LONGEST_S, max(_EVERY_S, (time.process_time() - used) / _SHARE))
            self._wake.wait(_SOON_S if is_part else pause_s)
            self._wake.clear()
            used = time.process_time()

    def _read_view(self) -> RunList | Opened | str:
        try:
            while self._asks:
                self._runs.ask(*self._asks.pop(0))
            return self._runs.look(self.view)
        except (UnreadableRunError, UnknownRun, ValueError) as error:
            return str(error)

    def _show_found(self, keys: tuple[str, ...], found: RunList | Opened | str) -> None:
        """Show what was read, unless another screen is wanted by now."""
        view = self.view
        if keys == view.keys:
            self.message = found if isinstance(found, str) else ""
            if isinstance(found, Opened):
                view.opened = found
            elif isinstance(found, RunList):
                view.listed = found
                known = [card.key for card in found.cards]
                view.selected = view.selected if view.selected in known else (*known, "")[0]
        self._draw()

    # ------------------------------------------------------------ drawing

    def on_resize(self) -> None:
        """Draw in the new size, and read as many points as fit."""
        self._wake.set()
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        view = self.view
        view.width, view.height = self.size.width, self.size.height - 1
        lines = self._guard.call("drawing", self._screen)
        if lines is None:
            lines, self.message = [], f"could not be drawn: {', '.join(self._guard.counts)}"
        view.scroll = max(0, min(view.scroll, len(lines) - view.height)) if view.page else 0
        lines = lines[view.scroll :][: view.height]
        lines += [[] for _ in range(view.height - len(lines))]
        for widget in self.query(Lines):
            widget.show([*lines, self._foot()])

    def _screen(self) -> list[Line]:
        view = self.view
        if view.page == "help":
            return screens.help_lines(view)
        if view.keys:
            lines = screens.finding_lines if view.page else screens.run_lines
            return [] if view.opened is None else lines(view, view.opened)
        return [] if view.listed is None else screens.list_lines(view, view.listed)

    def _foot(self) -> Line:
        usual = _RUN_KEYS if self.view.keys else _LIST_KEYS
        text, style = (self.message, "bold red") if self.message else (usual, "dim")
        if self._typed is not None:
            text, style = f"/{self._typed}_", "bold"
        elif self._question:
            text, style = f"Ask the run to {_ASKED[self._question][1]}? y or n", "bold yellow"
        return [(self.view.text.fit(text, self.view.width), style)]

    # ------------------------------------------------------------ keys

    def on_key(self, event: events.Key) -> None:
        """Do what the key says."""
        event.stop()
        event.prevent_default()
        key = event.character if event.is_printable and event.character else event.key
        before = self._wanted()
        if self._typed is not None:
            self._type(key)
        elif self._question:
            if key == "y":
                self._asks.append((self.view.keys[0], _ASKED[self._question][0]))
            self._question = ""
        elif key in _WAYS or key in ("pageup", "pagedown"):
            page = (self.view.height - 3) * (-1 if key == "pageup" else 1)
            self._move(_WAYS.get(key, page))
        else:
            self._choose(key)
        if self._wanted() != before:
            self._wake.set()
        self._draw()

    def _wanted(self) -> tuple[object, ...]:
        """Return what has to be read again if it changes."""
        view = self.view
        return view.keys, view.chart, view.axis, view.search, view.sort, view.is_reversed, len(self._asks)

    def on_paste(self, event: events.Paste) -> None:
        """Add pasted text to a search."""
        if self._typed is not None:
            self._typed += self.view.text.one_line(event.text)
            self._draw()

    def _type(self, key: str) -> None:
        typed = self._typed or ""
        if key in ("enter", "escape"):
            self.view.search = typed if key == "enter" else self.view.search
            self._typed = None
        else:
            longer = typed + key if len(key) == 1 else typed
            self._typed = {"backspace": typed[:-1], "ctrl+u": ""}.get(key, longer)

    def _move(self, by: int) -> None:
        view = self.view
        if view.page:
            view.scroll += by
        elif view.keys:
            view.chart = max(0, min((view.opened.total_charts if view.opened else 1) - 1, view.chart + by))
        elif view.listed is not None and view.listed.cards:
            keys = [card.key for card in view.listed.cards]
            view.selected = keys[max(0, min(len(keys) - 1, keys.index(view.selected) + by))]

    def _choose(self, key: str) -> None:
        """Do what any other key says, if it says anything here."""
        view = self.view
        is_list, is_run = not view.keys and not view.page, bool(view.keys) and view.opened is not None
        is_one = is_run and len(view.keys) == 1
        if key == "q":
            self.exit(0)
        elif key == "?":
            view.page, view.scroll = "help", 0
        elif key in ("escape", "backspace"):
            self._back()
        elif is_list and view.selected and key == "enter":
            view.keys = tuple(view.marked) or (view.selected,)
            view.opened, view.chart, view.cursor = None, 0, None
        elif is_list and view.selected and key == " ":
            view.marked = sorted({*view.marked} ^ {view.selected})
        elif is_list and key == "/":
            self._typed = view.search
        elif is_list and key == "o":
            view.sort = (view.sort + 1) % len(SORTS)
        elif is_list and key == "r":
            view.is_reversed = not view.is_reversed
        elif is_run and key in _CURSOR:
            self._move_cursor(_CURSOR[key])
        elif is_run and key == "l":
            view.log = not view.log
        elif is_run and key == "t":
            view.axis, view.cursor = "step" if view.axis == "elapsed" else "elapsed", None
        elif is_one and key == "f":
            view.page, view.scroll = "" if view.page else "findings", 0
        elif is_one and key in _ASKED:
            self._question = key

    def _move_cursor(self, by: int) -> None:
        view = self.view
        low, high = view.opened.span if view.opened else (0.0, 1.0)
        wide = (high - low) / max(1, view.width - 10)
        view.cursor = max(low, min(high, high if view.cursor is None else view.cursor + by * wide))

    def _back(self) -> None:
        view = self.view
        if view.page:
            view.page = ""
        elif view.cursor is not None:
            view.cursor = None
        elif view.keys:
            view.keys, view.opened, view.marked = (), None, view.marked if len(view.keys) == 1 else []
