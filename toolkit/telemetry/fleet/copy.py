"""Copies run folders to a bucket or a shared folder, and back: there a run is the same files, below its folder's name.

What differs in size or is newer is copied again, each file as a whole, so it can be repeated every minute, and after a
kill. `pull` brings runs from an engine, and `telemetry ship` takes them there.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolkit.telemetry.fleet.object_store import MissingError, ObjectStore, StoredFile, StoreError
from toolkit.telemetry.fleet.objects import MAX_BYTES, OWN_NAMES
from toolkit.telemetry.runfolder.folder_list import run_folders
from toolkit.telemetry.runfolder.journal.journal import SUFFIX
from toolkit.telemetry.runfolder.layout import CONTROL, MANIFEST, PRIVATE, is_safe_name, make_folders
from toolkit.telemetry.runfolder.manifest import MAX_MANIFEST_BYTES, ManifestError, parse_manifest
from toolkit.telemetry.runfolder.safefile import NotInside, open_inside, parts_inside, rename_over

_CLOCKS_S: Final = 60.0
"""Clocks of nodes and stores may differ by this much: what changed so shortly before a copy is copied once more."""


@dataclass(slots=True)
class Copied:
    """What came of the runs."""

    runs: int = 0
    """Those of which something was copied."""
    unchanged: int = 0
    failed: int = 0
    files: int = 0
    bytes: int = 0

    def count(self, sizes: list[int]) -> None:
        """Add a run of which files of these sizes were copied."""
        self.runs += bool(sizes)
        self.unchanged += not sizes
        self.files += len(sizes)
        self.bytes += sum(sizes)


def copy_to_store(places: Iterable[Path], store: ObjectStore, *, say: Callable[[str], None]) -> Copied:
    """Copy the runs below `places` as they are now, live ones too; one that fails does not hold up the others.

    Files over 20 MB that are not of the run itself stay, such as checkpoints.

    Raises:
        StoreError: the store does not answer, or refuses.
        OSError: a folder cannot be listed.
    """
    done, seen, there = Copied(), dict[str, Path](), _by_run(store)
    for folder in run_folders(places):
        other = seen.setdefault(folder.name, folder)
        try:
            if other != folder:
                raise OSError(f"it has the name of {other}")
            done.count(_copy_run(folder, store, there[folder.name]))
        except (OSError, NotInside) as error:
            done.failed += 1
            say(f"{folder} is not copied: {getattr(error, 'strerror', None) or error}")
    return done


def copy_from_store(
    store: ObjectStore, wanted: Iterable[str], log_dir: Path, *, say: Callable[[str], None]
) -> Copied:
    """Copy runs into `log_dir`, those with the names `wanted` or all of them; what is there is brought up to date.

    Raises:
        StoreError: the store does not answer, refuses, or has no run of a wanted name.
        OSError: a folder cannot be written.
    """
    done, there = Copied(), _by_run(store)
    names = list(wanted) or sorted(there)
    if missing := [name for name in names if name not in there]:
        raise StoreError(f"{store} has no run {', '.join(missing)}")
    make_folders(log_dir, 0o775)
    for name in names:
        try:
            if not is_safe_name(name):
                raise OSError("it has not the name of a run folder")
            done.count(_bring_run(store, name, there[name], log_dir / name))
        except (OSError, NotInside) as error:
            done.failed += 1
            say(f"{name} is not copied: {getattr(error, 'strerror', None) or error}")
    return done


def _copy_run(folder: Path, store: ObjectStore, there: dict[str, StoredFile]) -> list[int]:
    """Copy what differs; return its sizes."""
    changed = []
    for path, status in _files_of(folder):
        stored = there.get(path)
        is_newer = stored is not None and status.st_mtime > stored.changed - _CLOCKS_S
        if stored is None or stored.size != status.st_size or is_newer:
            changed.append((path, status.st_size))
    if changed and MANIFEST in there:
        _require_same_run(store, folder)
    # run.json last: it says how the run ended.
    for path, _ in sorted(changed, key=lambda one: one[0] == MANIFEST):
        with open(open_inside(folder, path), "rb") as file:
            store.write_file(f"{folder.name}/{path}", file)
    return [size for _, size in changed]


def _bring_run(store: ObjectStore, name: str, there: dict[str, StoredFile], folder: Path) -> list[int]:
    """Write what differs into a run folder; return its sizes."""
    sizes = list[int]()
    for path, stored in sorted(there.items(), key=lambda one: one[0] == MANIFEST):
        place = folder.joinpath(*parts_inside(path))
        if not _is_copied(path, stored.size) or _is_same(place, stored):
            continue
        if not sizes and os.path.lexists(folder):
            _require_same_run(store, folder)
        make_folders(place.parent, PRIVATE.folder)
        half = place.with_name(f".{place.name}.{os.urandom(8).hex()}.tmp")
        try:
            store.read_file(f"{name}/{path}", half)
            # By its time it is known at the next copy.
            os.utime(half, (stored.changed, stored.changed))
            rename_over(half, place)
        finally:
            half.unlink(missing_ok=True)
        sizes.append(stored.size)
    return sizes


def _is_same(place: Path, stored: StoredFile) -> bool:
    try:
        status = os.lstat(place)
    except FileNotFoundError:
        return False
    return status.st_size == stored.size and abs(status.st_mtime - stored.changed) < 1e-3


def _require_same_run(store: ObjectStore, folder: Path) -> None:
    """Refuse to mix two runs of one name.

    Raises:
        OSError: the run in the folder is another one than that in the store.
    """
    try:
        there = parse_manifest(store.read(f"{folder.name}/{MANIFEST}", MAX_MANIFEST_BYTES)).run_id
        here = parse_manifest((folder / MANIFEST).read_bytes()).run_id
    except (FileNotFoundError, MissingError, ManifestError):
        # Half a copy, or a run that has not written it yet.
        return
    if there != here:
        raise OSError(f"another run has the name {folder.name} in {store}")


def _files_of(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield path and status of each file of a run that is copied; links are left out."""
    for inside, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(inside, name).relative_to(folder).as_posix()
            status = os.lstat(Path(inside, name))
            if stat.S_ISREG(status.st_mode) and _is_copied(path, status.st_size):
                yield path, status


def _is_copied(path: str, size: int) -> bool:
    parts = path.split("/")
    if path == CONTROL or path.endswith(SUFFIX) or any(part.startswith(".") for part in parts):
        return False
    return size <= MAX_BYTES or parts[0] in OWN_NAMES


def _by_run(store: ObjectStore) -> dict[str, dict[str, StoredFile]]:
    found: dict[str, dict[str, StoredFile]] = defaultdict(dict)
    for name, stored in store.files().items():
        run, slash, path = name.partition("/")
        if slash:
            found[run][path] = stored
    return found
