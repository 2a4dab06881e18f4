"""What is left of runs and the dashboard and can be deleted: trash, journals, half-written files, caches."""

from __future__ import annotations

import argparse
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.cli.chosen_run import refuse, size_of
from toolkit.telemetry.cli.run_list import our_runs
from toolkit.telemetry.cli.terminal import Cell, Column, Progress, age_text, print_json, print_table
from toolkit.telemetry.core.user_folders import user_folder
from toolkit.telemetry.runfolder.journal.journal import (
    AbandonedJournal,
    hold_abandoned,
    is_being_written,
    journals_in,
    shared_memory_folders,
)
from toolkit.telemetry.runfolder.journal.repair import HALF_DONE, journals_of, rank_files
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.reader import records_of
from toolkit.telemetry.runfolder.records import EPOCH, EVAL, STEP
from toolkit.telemetry.runfolder.safefile import is_ours
from toolkit.telemetry.runfolder.trash import TrashError, delete_permanently, list_trash, move_to_trash
from toolkit.telemetry.runs.formatting import size
from toolkit.telemetry.runs.store import RunCard

TRASHED: Final = "trash"
JOURNAL: Final = "journal"
HALF_WRITTEN: Final = "half-written file"
CACHE: Final = "cache"
EMPTY_RUN: Final = "run without a step"
OLD_RUN: Final = "old run"
NAMED_RUN: Final = "run"
TO_TRASH: Final = frozenset({EMPTY_RUN, OLD_RUN, NAMED_RUN})
"""What is moved to the trash, and not deleted."""

_CACHED: Final = re.compile(r"[0-9a-f]{32}\.(arrow|findings)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Something that can be deleted."""

    kind: str
    path: Path
    bytes: int
    changed: float
    why: str
    delete: Callable[[], None]

    def as_json(self) -> dict[str, Any]:
        """Return what `gc --json` prints."""
        return {
            "kind": self.kind,
            "path": os.fspath(self.path),
            "bytes": self.bytes,
            "changed": self.changed,
            "why": self.why,
        }


def leftovers(
    places: Sequence[Path],
    *,
    orphans: bool,
    empty_runs: bool,
    old_runs: bool = False,
) -> Iterator[Leftover]:
    """Yield what can be deleted below `places`, folders of runs, and of this user. Nothing is changed."""
    for place in places:
        yield from _trash_of(place)
        for folder, card in our_runs(place):
            yield from _half_written(folder, card)
            if empty_runs and _is_empty(folder, card):
                yield run_to_trash(folder, card, EMPTY_RUN)
            if old_runs and not is_live(folder, card):
                yield run_to_trash(folder, card, OLD_RUN)
    yield from _journals(orphans=orphans)
    yield from _cache()


def _leftover(
    kind: str, path: Path, why: str, delete: Callable[[], None], *, changed: float | None = None
) -> Leftover:
    when = changed or _changed(path)
    return Leftover(kind=kind, path=path, bytes=size_of(path), changed=when, why=why, delete=delete)


def _trash_of(place: Path) -> Iterator[Leftover]:
    try:
        runs = list_trash(place, partial=True)
    except TrashError:
        return
    for run in runs:
        why = f"{run.name or 'a run'}, which was moved here"
        yield _leftover(TRASHED, run.path, why, partial(delete_permanently, run), changed=run.deleted)


def _half_written(folder: Path, card: RunCard) -> Iterator[Leftover]:
    names = [name for name in _names(folder) if HALF_DONE.fullmatch(name)]
    if not names or is_live(folder, card):
        return
    for name in names:
        path = folder / name
        yield _leftover(HALF_WRITTEN, path, "a file that a kill left before it had its name", path.unlink)


def _is_empty(folder: Path, card: RunCard) -> bool:
    """Return whether a run ended without a step."""
    is_empty = card.step is None and card.problem is None and not _has_metrics(folder / METRICS_JSONL)
    # A killed run's first steps may be in its journal alone.
    return is_empty and not is_live(folder, card) and not journals_of(folder)


def _has_metrics(log: Path) -> bool:
    """Return whether any record has a step or a metric, whoever wrote it."""
    try:
        return any(record.get("event") in (STEP, EVAL, EPOCH) for record in records_of(log))
    except OSError:
        return True


def run_to_trash(folder: Path, card: RunCard, kind: str = NAMED_RUN) -> Leftover:
    """Return a run folder of ours as something that goes to the trash."""
    said = f"{card.name}, {card.status.name}; goes to the trash"
    return _leftover(kind, folder, said, partial(_move_to_trash, folder, card), changed=card.last_sign)


def _move_to_trash(folder: Path, card: RunCard) -> None:
    if is_live(folder, card):
        raise OSError(f"{folder} is being written now")
    place = Path(os.path.abspath(folder))
    move_to_trash(place.parent, place.name)


def is_live(folder: Path, card: RunCard) -> bool:
    """Return whether a run is being written."""
    return card.live or any(is_being_written(path) for path in (folder / METRICS_JSONL, *rank_files(folder)))


def _journals(*, orphans: bool) -> Iterator[Leftover]:
    for place in shared_memory_folders():
        for path in journals_in(place):
            journal = hold_abandoned(path)
            if journal is None:
                continue
            try:
                why = _why_deletable(journal, orphans=orphans)
            finally:
                journal.close(remove=False)
            if why is not None:
                yield _leftover(JOURNAL, path, why, partial(_delete_journal, path, orphans=orphans))


def _why_deletable(journal: AbandonedJournal, *, orphans: bool) -> str | None:
    """Return why a dead session's journal is not needed; None if it is."""
    if not journal.lines:
        return "a journal of a run that ended, with nothing in it"
    if orphans and not os.path.lexists(journal.head.record_file):
        return f"{len(journal.lines):,} records of a run whose folder is no longer at {journal.head.record_file.parent}"
    return None


def _delete_journal(path: Path, *, orphans: bool) -> None:
    journal = hold_abandoned(path)
    if journal is None:
        raise OSError(f"{path} is in use")
    journal.close(remove=_why_deletable(journal, orphans=orphans) is not None)


def _cache() -> Iterator[Leftover]:
    folder = user_folder("cache")
    if folder is None:
        return
    try:
        status = os.lstat(folder)
    except OSError:
        return
    if not stat.S_ISDIR(status.st_mode) or not is_ours(status):
        return
    names = [name for name in _names(folder) if _CACHED.fullmatch(name)]
    if names:
        yield Leftover(
            kind=CACHE,
            path=folder,
            bytes=sum(size_of(folder / name) for name in names),
            changed=max(_changed(folder / name) for name in names),
            why=f"{len(names):,} files that make pages open faster, and are made again when needed",
            delete=lambda: _delete_files(folder, names),
        )


def _delete_files(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)


# ------------------------------------------------------------ files


def _names(folder: Path) -> list[str]:
    """Return the names of the regular files in `folder`; links are left out."""
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return []
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
    except OSError:
        return []


def _changed(path: Path) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return time.time()


# ------------------------------------------------------------ what a command does with it


def delete_or_list(found: list[Leftover], args: argparse.Namespace) -> int:
    """Say what was found and how much it holds, and with --yes delete it; return 1 if something could not be."""
    failed = _delete(found) if args.yes else []
    if args.json:
        print_json(
            {
                "found": [left.as_json() for left in found],
                "deleted": args.yes,
                "bytes": sum(left.bytes for left in found),
                "failed": failed,
            }
        )
    else:
        _print(found, is_deleted=args.yes)
    for failure in failed:
        refuse(f"{failure['path']}: {failure['reason']}")
    return 1 if failed else 0


def _delete(found: list[Leftover]) -> list[dict[str, Any]]:
    failed = []
    with Progress() as progress:
        for at, left in enumerate(found):
            progress.show(left.path.name, at, len(found))
            try:
                left.delete()
            except (OSError, TrashError) as error:
                failed.append(
                    {"path": str(left.path), "reason": getattr(error, "strerror", None) or str(error)}
                )
    return failed


def _print(found: list[Leftover], *, is_deleted: bool) -> None:
    if not found:
        print("nothing to delete")
        return
    now = time.time()
    rows: list[list[Cell]] = [
        [left.kind, size(left.bytes), age_text(now - left.changed), str(left.path), left.why]
        for left in found
    ]
    print_table(
        [
            Column("kind", keep=True),
            Column("size", right=True, keep=True),
            Column("age", right=True, keep=True),
            Column("path"),
            Column("what it is"),
        ],
        rows,
    )
    moved = [left.bytes for left in found if left.kind in TO_TRASH]
    deleted = [left.bytes for left in found if left.kind not in TO_TRASH]
    if not is_deleted:
        print(f"{size(sum(moved + deleted))} in all. Nothing was deleted; add --yes to delete it.")
        if any(left.kind == TRASHED for left in found):
            print("A run in the trash can be restored on the Runs page until then.")
        return
    if deleted:
        print(f"deleted: {size(sum(deleted))}")
    if moved:
        print(
            f"moved to the trash: {len(moved):,} {'run' if len(moved) == 1 else 'runs'}, {size(sum(moved))}"
        )
