"""The trash of a log directory: moves runs into it, restores them, or deletes them permanently."""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from toolkit.telemetry.runfolder.folder_list import folders_in
from toolkit.telemetry.runfolder.journal.repair import discard_journals
from toolkit.telemetry.runfolder.layout import PRIVATE, TRASH, claim_folder
from toolkit.telemetry.runfolder.safefile import why_not_ours

MAX_ENTRIES_MEASURED = 2_000
"""Files and folders of one run that count for its size; more are not counted."""


class TrashError(Exception):
    """Something that cannot be done; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashedRun:
    """A deleted run."""

    token: str
    name: str
    """Of its folder; empty if that is already gone."""
    deleted: float
    path: Path
    """Its place in the trash, with the run's folder in it."""
    is_partial: bool = False
    """Whether deleting it permanently has begun, so that it cannot be restored."""

    @property
    def bytes_held(self) -> int:
        """How many bytes it holds, of the first `MAX_ENTRIES_MEASURED` files."""
        return folder_bytes(self.path / self.name, MAX_ENTRIES_MEASURED)


def move_to_trash(root: Path, folder_name: str, *, now: float | None = None) -> str:
    """Move the run folder `folder_name` of the log directory `root` to the trash and return the token that restores it.

    The move is one rename: the run is in its place or in the trash, never in part. Nothing is deleted.

    Raises:
        TrashError: there is no such folder, it is a link, or it cannot be moved.
    """
    _require_run_folder(root, folder_name)
    token = f"{int((time.time() if now is None else now) * 1000)}-{os.urandom(4).hex()}"
    place = root / TRASH / token
    try:
        _make_trash(root)
        os.mkdir(place, PRIVATE.folder)
        try:
            os.rename(root / folder_name, place / folder_name)
        except BaseException:
            os.rmdir(place)
            raise
    except OSError as error:
        raise TrashError(f"{folder_name} cannot be moved to the trash: {error.strerror}") from error
    return token


def list_trash(root: Path, *, partial: bool = False) -> list[TrashedRun]:
    """Return the deleted runs of the log directory `root`, newest first; with `partial`, half deleted ones too.

    Raises:
        TrashError: the trash cannot be read.
    """
    found = []
    for place in _places(root, _ANY if partial else _TOKEN):
        path = root / TRASH / place
        name = _run_in(path)
        if name is not None or partial:
            token = place.removeprefix(_GOING)
            found.append(
                TrashedRun(
                    token=token,
                    name=name or "",
                    deleted=int(token.split("-", maxsplit=1)[0]) / 1000,
                    path=path,
                    is_partial=place != token,
                )
            )
    return sorted(found, key=lambda run: (run.deleted, run.token), reverse=True)


def restore(root: Path, token: str) -> str:
    """Restore the deleted run `token` to the log directory `root` and return its folder's name.

    That is its old name, or if that is taken, the next free one: name-2, name-3, …

    Raises:
        TrashError: it is no longer in the trash, or cannot be moved.
    """
    place = next((root / TRASH / known for known in _places(root, _TOKEN) if known == token), None)
    name = None if place is None else _run_in(place)
    if place is None or name is None:
        raise TrashError("this run is no longer in the trash; it was restored or permanently deleted")
    try:
        folder = _rename_to_free_name(place / name, root, name)
    except OSError as error:
        raise TrashError(f"{name} cannot be restored: {error.strerror or error}") from error
    with suppress(OSError):
        os.rmdir(place)
    return folder.name


def empty_trash(root: Path) -> int:
    """Permanently delete the runs in the trash of `root` and return how many there were.

    Follows no links, and deletes only what `move_to_trash` put there.

    Raises:
        TrashError: some could not be deleted; the others are gone.
    """
    gone, problems = 0, []
    for run in list_trash(root, partial=True):
        try:
            delete_permanently(run)
        except OSError as error:
            problems.append(error.strerror or str(error))
        else:
            gone += bool(run.name)
    if problems:
        raise TrashError(f"{gone} deleted runs were removed, {len(problems)} could not be: {problems[0]}")
    return gone


def delete_permanently(run: TrashedRun) -> None:
    """Delete one run in the trash permanently, and the trash itself if it is empty then.

    Raises:
        OSError: it cannot be deleted.
    """
    # Renamed first, so that `restore` cannot restore a run that is partly deleted.
    going = run.path.with_name(_GOING + run.token)
    if not run.is_partial:
        os.rename(run.path, going)
    if run.name:
        # A killed run's journal in shared memory would otherwise stay forever.
        discard_journals(going / run.name)
    shutil.rmtree(going)
    with suppress(OSError):
        os.rmdir(going.parent)


_GOING = "going-"
_TOKEN = re.compile(r"[0-9]{1,15}-[0-9a-f]{8}", re.ASCII)
_ANY = re.compile(rf"({_GOING})?{_TOKEN.pattern}", re.ASCII)


def _require_run_folder(root: Path, name: str) -> None:
    # Compared with the entries and never joined to a path, so that no text can leave the log directory.
    try:
        with os.scandir(root) as entries:
            entry = next((entry for entry in entries if entry.name == name), None)
            if entry is None or name.startswith("."):
                raise TrashError(f"there is no run folder {name!r} in {root}")
            if entry.is_symlink():
                raise TrashError(
                    f"{name} is a symbolic link, not a run's own folder; remove the link by hand"
                )
            if not entry.is_dir(follow_symlinks=False):
                raise TrashError(f"{name} is a file, not a run's folder")
    except OSError as error:
        raise TrashError(f"{root} cannot be read: {error.strerror}") from error


def _make_trash(root: Path) -> None:
    with suppress(FileExistsError):
        os.mkdir(root / TRASH, PRIVATE.folder)
    if not _is_folder(root / TRASH):
        raise TrashError(f"{root / TRASH} is not a regular folder; move it away to delete runs")
    why = why_not_ours(root, root / TRASH)
    if why is not None:
        raise TrashError(f"{why}: a run in it would be theirs to replace; delete the run's folder by hand")


def _places(root: Path, pattern: re.Pattern[str]) -> list[str]:
    if not _is_folder(root / TRASH) or why_not_ours(root, root / TRASH) is not None:
        return []
    try:
        return [name for name in folders_in(root / TRASH) if pattern.fullmatch(name)]
    except OSError as error:
        raise TrashError(f"the trash of {root} cannot be read: {error.strerror}") from error


def _run_in(place: Path) -> str | None:
    try:
        with os.scandir(place) as entries:
            return next((entry.name for entry in entries if entry.is_dir(follow_symlinks=False)), None)
    except OSError:
        return None


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _rename_to_free_name(source: Path, root: Path, name: str) -> Path:
    # A rename silently replaces an empty folder, and a run that is starting has one. So the name is claimed first,
    # as a run would: what the rename then replaces is ours.
    folder = claim_folder(root, name, PRIVATE)
    try:
        if os.name == "nt":  # where a rename replaces nothing
            os.rmdir(folder)
        os.rename(source, folder)
    except BaseException:
        with suppress(OSError):
            os.rmdir(folder)
        raise
    return folder


def folder_bytes(folder: Path, most: int) -> int:
    """Return how many bytes the first `most` files and folders below `folder` hold; links are not followed."""
    inside = (os.path.join(above, name) for above, *names in os.walk(folder) for name in chain(*names))
    return sum(map(_bytes_of, islice(inside, most)))


def _bytes_of(path: str) -> int:
    try:
        status = os.lstat(path)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
