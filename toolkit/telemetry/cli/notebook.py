"""The command in a notebook: `%telemetry RUN`, `%telemetry compare A B`, `%%telemetry`, and how runs show themselves.

`%load_ext toolkit.telemetry.notebook` loads it.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.cli.chosen_run import LOGS, CommandError, printable
from toolkit.telemetry.cli.report_content import UnreadableRunError, has_columns, open_run
from toolkit.telemetry.cli.run_list import ListedRun, label_runs, our_run, run_at
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.lifetime import follow_loggers
from toolkit.telemetry.core.user_folders import user_folder
from toolkit.telemetry.reports.cell import cell_of
from toolkit.telemetry.reports.content import RunContent
from toolkit.telemetry.reports.document import Document
from toolkit.telemetry.reports.overview import overview
from toolkit.telemetry.runs.formatting import duration
from toolkit.telemetry.runs.store import UnknownRun

Shown = dict[str, str]
"""What a cell shows, by MIME type."""

_USAGE: Final = "write %telemetry RUN or %telemetry compare RUN RUN, or %%telemetry above a training"
_POINTS: Final = 400
_WAIT_S: Final = 1.5
"""How long the first look at a run may read: a cell waits for it. Later ones read the rest of a long run."""
_AGAIN_S: Final = 0.5
_COMPARE_S: Final = 60.0
_END_S: Final = 5.0
_FIRST_S: Final = 0.2
_EVERY_S: Final = 2.0
_PAUSES: Final = 25
"""A look is followed by a pause of so many times what it cost, so that a training there keeps the processor."""
_APPEARS_S: Final = 5.0
"""How long a run may take to appear: one that was just started has no folder yet."""


def view_of(folder: Path | None, text: str) -> Shown:
    """Return what a notebook shows of the run in `folder`, or `text` if that cannot be had; never raises."""
    shown: Shown = {"text/plain": text}
    with Guard().catch("showing a run"):
        if folder is not None and has_columns() and our_run(folder) is not None:
            shown = _view_at(folder, os.getpid()).look()
    return shown


@functools.lru_cache(maxsize=1)
def _view_at(folder: Path, _process: int) -> RunView:
    """Return the view of the run that was shown last: shown again, a long run is read on."""
    run = our_run(folder)
    if run is None:
        raise UnreadableRunError(f"{folder} does not exist")
    return RunView(run)


class RunView:
    """A run as a cell shows it; each look reads what was written since the one before."""

    def __init__(self, run: ListedRun) -> None:
        """Look at `run`. Raises UnreadableRunError."""
        self._run = run
        self._store, self._key = open_run(run, "a run in a cell", cache_dir=user_folder("cache"))
        self._wait_s = _WAIT_S
        self.is_live = True
        """Whether the run was still going on at the last look."""
        self.examined = 1.0
        """The fraction of its records that has been read and examined; 1 where the next look would get no further."""

    def look(self) -> Shown:
        """Return what there is now. Raises UnreadableRunError."""
        wait_s, self._wait_s = self._wait_s, _AGAIN_S
        content = self.content(wait_s)
        document = overview(content)
        return cell_of(replace(document, about=[*document.about, *self._time_left(), *content.notes]))

    def content(self, wait_s: float) -> RunContent:
        """Return what a report says about the run, after reading for about `wait_s`. Raises UnreadableRunError."""
        # numpy, which the bare install lacks.
        from toolkit.telemetry.reports.stored_run import content_of_run

        store, key = self._store, self._key
        try:
            # First: what is read after it is at least as new.
            self.is_live = store.card(key).live
            found = content_of_run(
                store, key, name=self._run.called, points=_POINTS, wait_s=wait_s, with_pictures=False
            )
        except UnknownRun as error:
            raise UnreadableRunError(str(error)) from error
        # Where the time went is worked out last.
        self.examined = min(found.examined, 0.99 if found.ledger is None else 1.0)
        return found

    def _time_left(self) -> list[str]:
        if not self.is_live:
            return []
        from toolkit.telemetry.forecasts.run import end_of_run

        end = end_of_run(self._store, self._store.card(self._key), now := time.time())
        return [] if end is None else [f"about {duration(max(1, round(end.middle - now)))} left"]


# ------------------------------------------------------------ IPython


_CELL: Final = "--cell"


def load_ipython_extension(shell: Any) -> None:
    """Add the magics to a shell of IPython."""

    def telemetry(line: str) -> None:
        """Show a run, live until it ends; compare runs; or show what the cell trains."""
        from IPython.core.error import UsageError

        try:
            _magic(shell, line)
        except OSError as error:
            # IPython prints it as one line, and the cell counts as failed.
            raise UsageError(printable(str(error))) from None

    shell.register_magic_function(telemetry, "line")
    shell.input_transformers_cleanup.append(_as_line)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magics."""
    shell.magics_manager.magics["line"].pop("telemetry", None)
    shell.input_transformers_cleanup.remove(_as_line)


def _as_line(lines: list[str]) -> list[str]:
    """Make `%%telemetry` a line of its cell: the rest runs as any cell does, with its errors, results and awaits."""
    from IPython.core.inputtransformer2 import cell_magic

    found = re.match(r"%%telemetry(?!\S)(.*)", lines[0]) if lines else None
    if found is None:
        return lines
    rest = _as_line(lines[1:])
    return rest if rest != lines[1:] else [f"%telemetry {_CELL}{found[1]}\n", *cell_magic(rest)]


def _magic(shell: Any, line: str) -> None:
    try:
        first, *others = shlex.split(line) or [""]
    except ValueError as error:
        raise CommandError(f"{line!r} cannot be read: {error}; {_USAGE}") from error
    if first == _CELL and others:
        raise CommandError(f"%%telemetry takes no run, and {' '.join(others)!r} is named; {_USAGE}")
    if first == _CELL:
        _CellView(shell)
    elif first == "compare":
        _display(cell_of(_comparison(others)))
    elif others or first.startswith("-"):
        raise CommandError(f"{line!r} is not one run; {_USAGE}")
    else:
        _follow(shell, RunView(_chosen(first)))


def _chosen(name: str) -> ListedRun:
    """Return the run that a command would take. Raises OSError."""
    until = time.monotonic() + _APPEARS_S
    while True:
        try:
            return run_at(Path(name or LOGS))
        except OSError:
            if time.monotonic() > until:
                raise
        time.sleep(_FIRST_S)


def _comparison(names: Sequence[str]) -> Document:
    if len(names) < 2:
        raise CommandError(f"compare takes two runs or more, and {len(names)} is named; {_USAGE}")
    from toolkit.telemetry.reports.compare import compare

    return compare(
        [RunView(run).content(_COMPARE_S) for run in label_runs([_chosen(name) for name in names])]
    )


def _follow(shell: Any, view: RunView) -> None:
    """Show a run until it has ended or the cell is interrupted."""
    from IPython.core.displaypub import DisplayPublisher

    handle = _display(view.look())
    # A terminal cannot change what it has printed.
    if type(shell.display_pub) is DisplayPublisher:
        return
    # The first look has imported much, which the others need not.
    pause_s, seen = _EVERY_S, -1.0
    with suppress(KeyboardInterrupt):
        # Of a long run that has ended, the rest is read.
        while view.is_live or seen < view.examined < 1.0:
            seen = view.examined
            time.sleep(pause_s if view.is_live else _FIRST_S)
            pause_s = _show(view, handle)


class _CellView:
    """Shows the newest run of this process while its cell is run."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._loggers: list[Any] = []
        self._view: tuple[Path, RunView] | None = None
        self._guard = Guard()
        self._handle = _display({"text/plain": "No run is open in this kernel."})
        self._stop_following = follow_loggers(self._loggers.append)
        self._has_ended = threading.Event()
        # The context says which cell the output belongs to.
        work = functools.partial(copy_context().run, self._keep_looking)
        self._thread = threading.Thread(target=work, name="telemetry-notebook", daemon=True)
        self._thread.start()
        shell.events.register("post_run_cell", self._end)

    def _keep_looking(self) -> None:
        pause_s = _FIRST_S
        while not self._has_ended.wait(pause_s):
            pause_s = self._refresh()

    def _refresh(self) -> float:
        """Show the newest run; return how long to wait before the next look."""
        folder = next(
            (one.run_folder for one in self._loggers[::-1] if getattr(one, "run_folder", None)), None
        )
        if folder is None:
            return _FIRST_S
        pause_s = _EVERY_S
        with self._guard.catch("showing a run in its cell"):
            if self._view is None or self._view[0] != folder:
                self._view = folder, RunView(_chosen(str(folder)))
                _show(self._view[1], self._handle)
            else:
                pause_s = _show(self._view[1], self._handle)
        return pause_s

    def _end(self, *_result: Any) -> None:
        self._shell.events.unregister("post_run_cell", self._end)
        self._stop_following()
        self._has_ended.set()
        self._thread.join(_END_S)
        live = [one for one in self._loggers if getattr(one, "is_live", False)]
        for logger in live:
            logger.flush(1.0)
        # The list of runs may be half a second old.
        until = time.monotonic() + _END_S
        while not self._thread.is_alive() and time.monotonic() < until:
            self._refresh()
            view = None if self._view is None else self._view[1]
            if view is None or ((live or not view.is_live) and view.examined == 1.0):
                return
            time.sleep(_FIRST_S)


def _show(view: RunView, handle: Any) -> float:
    """Show a run as it is now; return how long to wait before the next look."""
    began = time.thread_time()
    handle.update(view.look(), raw=True)
    return max(_EVERY_S, _PAUSES * (time.thread_time() - began))


def _display(shown: Shown) -> Any:
    from IPython.display import display

    return display(shown, raw=True, display_id=True)
