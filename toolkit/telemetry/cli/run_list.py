"""The runs that a command is given: folders of runs, runs, and files of other tools."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.cli.chosen_run import CommandError, no_run_in, print_to_stderr, runs_given
from toolkit.telemetry.importers.formats.record_file import OURS, source_of_folder
from toolkit.telemetry.importers.source import RunSource
from toolkit.telemetry.importers.summary import number
from toolkit.telemetry.runfolder.journal.end_record import with_end_record
from toolkit.telemetry.runfolder.layout import MANIFEST, METRICS_JSONL
from toolkit.telemetry.runfolder.manifest import ManifestError, read_manifest
from toolkit.telemetry.runfolder.node_folders import part_in
from toolkit.telemetry.runfolder.reader import Cursor, read_from, tail_cursor
from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runfolder.status import FAILED, FINISHED, LOST, RUNNING, STALLED, work_out_status
from toolkit.telemetry.runfolder.untrusted import finite_in
from toolkit.telemetry.runs.listing.foreign_runs import OnRun
from toolkit.telemetry.runs.listing.run_folders import RunFolders
from toolkit.telemetry.runs.store import NO_END, STARTING, UNREADABLE, RunCard, RunQuery, card_labels

ALL: Final = RunQuery()
_BLOCK_BYTES: Final = 64 * 1024
_MOST_TAIL_BYTES: Final = 1 << 27
"""Of a log, in which the last records are looked for: a file may have a hole of a terabyte."""
STATUS_STYLES: Final = {
    RUNNING: "green",
    STARTING: "green",
    FINISHED: "",
    FAILED: "red",
    LOST: "red",
    STALLED: "yellow",
    UNREADABLE: "red",
    NO_END: "dim",
}
"""How the word for a status is painted."""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One run that a command was given."""

    card: RunCard
    folders: RunFolders
    """Where it was found."""
    source: RunSource | None
    """What reads it, if another tool logged it."""
    called: str = ""
    """Its name; if another run of the same list has it too, with what tells them apart."""

    @property
    def path(self) -> Path:
        """Its folder or file."""
        return self.card.path or Path(self.card.place)


@dataclass(slots=True)
class RunList:
    """The runs at some paths, and what could not be looked at."""

    runs: list[ListedRun] = field(default_factory=list)
    notes: Sequence[str] = ()
    missing: list[str] = field(default_factory=list)
    """Sentences about paths that do not exist or have no run."""
    total: int = 0
    """How many runs there are, those that the query did not find included."""


def label_runs(runs: Sequence[ListedRun]) -> list[ListedRun]:
    """Return the runs, each with a name that no other of them has."""
    # The same key may mean two runs of two lists.
    cards = [replace(run.card, key=str(at)) for at, run in enumerate(runs)]
    called = {key: label.text for key, label in card_labels(cards).items()}
    for card in cards:
        # The logger numbers the folders of one name: that tells more than the name, which another run has, too.
        folder = "" if card.path is None else card.path.name
        is_numbered = folder.removeprefix(f"{card.name}-").isdecimal() and folder not in called.values()
        if is_numbered and called[card.key] == card.name:
            called[card.key] = folder
    return [replace(run, called=called[str(at)]) for at, run in enumerate(runs)]


def list_runs(
    paths: Sequence[Path],
    query: RunQuery = ALL,
    *,
    only: str | None = None,
    deleted: bool = False,
    on_run: OnRun = lambda _name, _done, _total: None,
) -> RunList:
    """Return the runs at `paths` that `query` finds, as the dashboard lists them; nothing is changed.

    Raises:
        ValueError: the query's text or order is invalid.
    """
    folders = runs_given(paths, only=only, deleted=deleted)
    folders.read_all(on_run)
    listed = folders.list_runs(query)
    every = listed.cards if query == ALL else folders.list_runs().cards
    runs = [ListedRun(card, folders, folders.source(card.key)) for card in listed.cards]
    return RunList(label_runs(runs), listed.problems, missing_runs(paths, every, folders, only), listed.total)


def missing_runs(
    paths: Sequence[Path], cards: Sequence[RunCard], folders: RunFolders, only: str | None = None
) -> list[str]:
    """Return a sentence for each of `paths` in which none of `cards` is."""
    found = [no_run_in(path, near=near) for path, near in folders.unknown.items()]
    places = {
        str(place) for card in cards if card.path is not None for place in (card.path, *card.path.parents)
    }
    for path in paths:
        absolute = os.path.abspath(path)
        if os.path.lexists(path) and absolute not in places:
            left_out = 0 if folders.others is None else folders.others.left_out[Path(absolute)]
            found.append(
                no_run_in(path, deleted=left_out)
                if only is None or left_out
                else f"no run in the format {only} found in {path}"
            )
    return found


def our_runs(path: Path) -> list[tuple[Path, RunCard]]:
    """Return the run folders of ours at `path` and one level below; records alone may be another program's."""
    found = [(run.path, run.card) for run in list_runs([path], only=OURS).runs]
    return sorted(
        (pair for pair in found if os.path.lexists(pair[0] / MANIFEST) and part_in(pair[0]) is None),
        key=lambda pair: pair[0],
    )


def our_run(folder: Path) -> ListedRun | None:
    """Return the run in a folder of ours; None if it is not one."""
    runs = list_runs([folder], only=OURS).runs
    return next((run for run in runs if run.path == Path(os.path.abspath(folder))), None)


def found_at(path: Path, only: str | None = None, *, deleted: bool = False) -> RunList:
    """Return the run that `path` names or is, the newest of ours in it, or those of other tools; `only` in one format.

    With `deleted`, also those that were deleted in the tool that wrote them.

    Raises:
        FileNotFoundError: there is none; the message says why.
    """
    is_there = os.path.lexists(path)
    ours = list_runs([path], only=OURS).runs if is_there and only is None else []
    newest = next((run for run in ours if part_in(run.path) is None), None)
    if newest is not None:
        return RunList([newest])
    found = list_runs([path], only=only, deleted=deleted)
    found.runs = [run for run in found.runs if run.source is not None or not is_there]
    if not found.runs:
        raise FileNotFoundError("; ".join([*found.missing, *found.notes]) or no_run_in(path))
    return found


def run_at(path: Path, only: str | None = None) -> ListedRun:
    """Return the run at `path`: ours, or the newest of ours in it, or the only one of another tool.

    Raises:
        OSError: there is none, or several of another tool; the message says so.
    """
    runs = found_at(path, only).runs
    if len(runs) == 1:
        return runs[0]
    names = ", ".join(run.called for run in runs[:5])
    raise CommandError(
        f"{path} has {len(runs)} runs ({names}{' …' if len(runs) > 5 else ''}); name one of them"
    )


def listed_runs(paths: Sequence[Path]) -> list[ListedRun]:
    """Return the runs at `paths`, the newest first. Raises CommandError if one of them has none."""
    found = list_runs(paths)
    if found.missing or not found.runs:
        raise CommandError("; ".join([*found.missing, *found.notes]) or no_run_in(paths[0]))
    return found.runs


def chosen_run(path: Path) -> Path:
    """Return the folder of our run at `path`, or of the newest of a folder of runs.

    Raises:
        FileNotFoundError: there is none; the message says why.
    """
    found = found_at(path).runs
    formats = " and ".join(dict.fromkeys(run.card.format for run in found if run.source is not None))
    if formats:
        if os.path.lexists(path / METRICS_JSONL):
            raise FileNotFoundError(no_run_in(path))
        raise FileNotFoundError(
            f"{path} is in the format {formats}; only runs of telemetry's own logger can be read here"
        )
    say_if_cut(found)
    return as_given(found[0].path, path)


def as_given(path: Path, given: Path) -> Path:
    """Return the path of a run as the command line has it, relative or not."""
    absolute = Path(os.path.abspath(given))
    return given / path.relative_to(absolute) if path.is_relative_to(absolute) else path


def say_if_cut(runs: Iterable[ListedRun]) -> None:
    """Say of each run of which records are missing that they are, where the answer does not."""
    for run in runs:
        if run.card.is_cut:
            print_to_stderr(f"{run.path}: {run.card.problem}")


def status_of(folder: Path) -> str:
    """Return the status of the run in `folder`, in a word."""
    try:
        return work_out_status(with_end_record(read_manifest(folder), folder), time.time()).name
    except (OSError, ManifestError):
        return f"no readable {MANIFEST}"


def last_records(
    log: Path, count: int, is_shown: Callable[[Record], bool]
) -> tuple[Sequence[Record], Cursor]:
    """Return the last records that are shown, and the cursor after them, reading as little as possible."""
    most = min(os.lstat(log).st_size, _MOST_TAIL_BYTES)
    within = _BLOCK_BYTES
    while True:
        cursor = tail_cursor(log, within)
        found: deque[Record] = deque(maxlen=count)
        while (chunk := read_from(log, cursor)).cursor != cursor:
            found += filter(is_shown, chunk.records)
            cursor = chunk.cursor
        if len(found) == count or within >= most:
            return found, cursor
        within *= 8


def source_for(run: ListedRun) -> RunSource:
    """Return what reads a run of the list."""
    return run.source if run.source is not None else source_of_folder(run.path)


def age_of(card: RunCard, now: float) -> float | None:
    """Return how long ago a run last wrote something."""
    return None if card.last_sign is None else now - card.last_sign


def time_left(card: RunCard) -> float | None:
    """Return how many seconds a running run needs for its planned steps, at the speed of the last ones."""
    speed = finite_in(card.summary.get("sec_per_step"))
    if not (card.max_steps and speed and card.status.name == RUNNING):
        return None
    return max(0, card.max_steps - (card.steps_done or 0)) * speed


def as_json(run: ListedRun) -> Mapping[str, Any]:
    """Return what `ls --json` prints."""
    card, age = run.card, age_of(run.card, time.time())
    return {
        "name": card.name,
        "label": run.called,
        "path": os.fspath(run.path),
        "format": card.format,
        "id": card.id or None,
        "status": card.status.name,
        "why": card.status.why,
        "step": card.step,
        "loss": None if card.loss is None else number(card.loss),
        "loss_metric": card.loss_metric,
        "started": card.created,
        "last_sign": card.last_sign,
        "age_s": None if age is None else round(age, 3),
        "project": card.project,
        "tags": list(card.tags),
        "deleted": card.deleted,
        "problem": card.problem,
    }
