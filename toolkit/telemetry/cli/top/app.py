"""The program in the terminal: the list of runs, one run as text, and a thread that reads and rests."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Footer, Input, Static

from toolkit.telemetry.cli.chosen_run import printable
from toolkit.telemetry.cli.report_content import UnreadableRunError, require_columns
from toolkit.telemetry.cli.run_columns import columns_of
from toolkit.telemetry.cli.run_list import ListedRun, label_runs
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.user_folders import user_folder
from toolkit.telemetry.runfolder.labels import ProjectSettings
from toolkit.telemetry.runs.listing.run_folders import RunFolders
from toolkit.telemetry.runs.listing.run_table import primary_of
from toolkit.telemetry.runs.store import STILL_LOOKING, RunQuery, UnknownRun

if TYPE_CHECKING:
    # The list of runs works without numpy.
    from toolkit.telemetry.runs.sources.local_store import LocalStore

_EVERY_S: Final = 2.0
_SHARE: Final = 0.03
"""Of one core, for reading."""
_LONGEST_S: Final = 30.0
_SOON_S: Final = 0.3
_MOST_RUNS: Final = 1_000


class Top(App[int]):
    """Runs, live."""

    CSS = "Screen, DataTable, #run { background: ansi_default; } #head { color: ansi_yellow; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        Binding("q", "quit", "quit"),
        Binding("escape", "back", "back"),
        Binding("slash", "search", "search"),
        Binding("enter", "open", "open the run"),
        Binding("ctrl+c", "quit", priority=True, show=False),
        Binding("ctrl+z", "suspend_process", priority=True, show=False),
    ]

    def __init__(self, folders: RunFolders) -> None:
        # The sixteen colours of the terminal itself: they fit its background, light or dark.
        super().__init__(ansi_color=True)
        self._folders = folders
        self._store: LocalStore | None = None
        self._guard = Guard()
        self._key = ""
        """The run that is shown; empty for the list."""
        self._search = ""
        self._rows: tuple[list[str], list[list[Text]]] = [], []
        self._wake, self._is_over = threading.Event(), False

    def compose(self) -> ComposeResult:
        """Build the screen: a line, the list, a run, what is searched for, and the keys."""
        yield Static("reading ...", id="head", markup=False)
        yield DataTable(cursor_type="row")
        yield VerticalScroll(Static(id="text", markup=False), id="run")
        yield Input(placeholder="search as `telemetry ls --filter` does", compact=True)
        yield Footer()

    def on_mount(self) -> None:
        """Start to read, and restore the terminal when the program is asked to end."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._end, 128 + number)
        self.query_one(Input).display = self.query_one("#run").display = False
        threading.Thread(target=self._read, name="telemetry-top", daemon=True).start()

    def on_unmount(self) -> None:
        """Stop to read."""
        self._is_over = True
        self._wake.set()

    def _end(self, code: int) -> None:
        self.exit(return_code=code)

    # ------------------------------------------------------------ reading

    def _read(self) -> None:
        while not self._is_over:
            used, key = time.process_time(), self._key
            is_whole = self._guard.call("reading runs", self._read_run if key else self._read_list)
            if is_whole is None:
                self.call_later(self._say, f"could not be read: {', '.join(self._guard.counts)}")
            pause_s = min(_LONGEST_S, max(_EVERY_S, (time.process_time() - used) / _SHARE))
            self._wake.wait(_SOON_S if is_whole is False else pause_s)
            self._wake.clear()

    def _read_list(self) -> bool:
        """Read and show the list; return whether all runs were looked for."""
        try:
            found = self._folders.list_runs(RunQuery(text=self._search, sort="age"))
        except ValueError as error:
            self.call_later(self._say, str(error))
            return True
        cards = found.cards[:_MOST_RUNS]
        runs = label_runs([ListedRun(card, self._folders, self._folders.source(card.key)) for card in cards])
        primary = primary_of(cards, ProjectSettings())
        further = [f"best:{primary.metric}"] if primary else []
        columns = columns_of(runs, [*further, "alerts"])
        counts = ", ".join(f"{number:,} {name}" for name, number in found.statuses.items())
        about = f"{found.matching:,} of {found.total:,} runs · {counts} · {', '.join(found.places)}"
        about = " · ".join([about, *found.problems[:1]])
        titles = [column.title for column, _ in columns]
        rows = [[*map(_as_text, row)] for row in zip(*(cells for _, cells in columns), strict=True)]
        self.call_later(self._show_list, about, titles, rows, [run.card.key for run in runs])
        return STILL_LOOKING not in found.problems

    def _read_run(self) -> bool:
        """Read and show the run that is open; return whether all of it was read."""
        key = self._key
        try:
            if self._store is None:
                require_columns("a curve")
                from toolkit.telemetry.runs.sources.local_store import LocalStore

                self._store = LocalStore((), cache_dir=user_folder("cache"), folders=self._folders)
            from toolkit.telemetry.cli.top.run_text import run_text

            text, is_whole = run_text(self._store, key, self.size.width - 2)
        except (UnreadableRunError, UnknownRun) as error:
            self.call_later(self._say, str(error))
            return True
        self.call_later(self._show_run, key, text)
        return is_whole

    # ------------------------------------------------------------ showing

    def _say(self, sentence: str) -> None:
        self.query_one("#head", Static).update(Text(printable(sentence)))

    def _show_list(self, about: str, titles: Sequence[str], rows: list[list[Text]], keys: list[str]) -> None:
        table = self.query_one(DataTable)
        self._say(about)
        if (keys, rows) == self._rows or self._key:
            return
        self._rows = keys, rows
        chosen = _key_at(table)
        table.clear(columns=True)
        table.add_columns(*map(printable, titles))
        for key, row in zip(keys, rows, strict=True):
            table.add_row(*row, key=key)
        if chosen in keys:
            table.move_cursor(row=keys.index(chosen))

    def _show_run(self, key: str, text: Text) -> None:
        if key == self._key:
            self._say("")
            self.query_one("#text", Static).update(text)

    def on_resize(self) -> None:
        """Draw the curves in the new width."""
        if self._key:
            self._wake.set()

    # ------------------------------------------------------------ keys

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open a run."""
        self._show_only("#run", str(event.row_key.value))
        self.query_one("#text", Static).update("reading ...")

    async def action_back(self) -> None:
        """Return to the list."""
        self._show_only("DataTable", "")

    def action_search(self) -> None:
        """Ask what to search for."""
        self._show_only("Input", "")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Search; an empty search shows all runs."""
        self._search = event.value
        self._show_only("DataTable", "")

    def _show_only(self, part: str, key: str) -> None:
        self._key = key
        for name in ("#run", "DataTable", "Input"):
            self.query_one(name).display = name == part or (part, name) == ("Input", "DataTable")
        self.query_one(part).focus()
        self._wake.set()


def _key_at(table: DataTable[Text]) -> str | None:
    """Return the key of the run under the cursor."""
    if not table.is_valid_coordinate(table.cursor_coordinate):
        return None
    return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value


def _as_text(cell: str | tuple[str, str]) -> Text:
    text, style = (cell, "") if isinstance(cell, str) else cell
    return Text(printable(text), style, no_wrap=True)
