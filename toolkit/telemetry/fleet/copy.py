"""Copies run folders from one place to another: folders, a bucket, and from an engine.

What differs in size or is newer is copied again, each file as a whole, so it can be repeated every minute, and after a
kill. `telemetry ship` takes runs to an engine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from io import BytesIO
from typing import Final

from toolkit.telemetry.fleet.engine_runs import EngineRuns
from toolkit.telemetry.fleet.run_folders import MAX_BYTES
from toolkit.telemetry.fleet.stores import (
    FileError,
    FolderStore,
    Source,
    Store,
    StoredFile,
    StoreError,
    read_at_most,
)
from toolkit.telemetry.runfolder.journal.journal import SUFFIX
from toolkit.telemetry.runfolder.layout import (
    CONTROL,
    COPIED,
    MANIFEST,
    METRICS_CSV,
    METRICS_JSONL,
    OWN_NAMES,
    is_safe_name,
)
from toolkit.telemetry.runfolder.manifest import MAX_MANIFEST_BYTES, ManifestError, parse_manifest
from toolkit.telemetry.runfolder.table.csv_table import build_table, table_form

_CLOCKS_S: Final = 60.0
"""Clocks of nodes and stores may differ by this much: what changed so shortly before a copy is copied once more."""
_Files = dict[str, StoredFile]


@dataclass(slots=True)
class Copied:
    """What came of the runs."""

    runs: int = 0
    """Those of which something was copied."""
    unchanged: int = 0
    failed: int = 0
    files: int = 0
    bytes: int = 0
    missing: int = 0
    """Files that could not be copied."""


def copy_runs(
    source: Source,
    target: Store,
    wanted: Collection[str],
    *,
    say: Callable[[str], None],
    wants: Callable[[str, int], bool] | None = None,
) -> Copied:
    """Copy the runs with the names `wanted`, or all, as they are now; live ones too. One that fails holds up no other.

    Of each run the files that `wants`, given a name and a size, says: by default all of the run itself, and others up
    to 20 MB.

    Raises:
        StoreError: an end does not answer or refuses, or there is no run of a wanted name.
        EngineError: the engine does not answer.
        OSError: a folder cannot be listed.
    """
    done, here = Copied(), _by_run(source.files(wanted or None))
    names = wanted or sorted(here)
    if missing := [name for name in names if name not in here]:
        raise StoreError(f"{source} has no run {', '.join(missing)}")
    there = _by_run(target.files(names))
    for name in names:
        if problem := _problem(source, target, name, there[name]):
            done.failed += 1
            say(f"{name} is not copied: {problem}")
            continue
        before = done.files
        wanted_files = {
            path: one for path, one in here[name].items() if (wants or _is_copied)(f"{name}/{path}", one.size)
        }
        # run.json last: it says how the run ended.
        for path, one in sorted(wanted_files.items(), key=lambda item: item[0] == MANIFEST):
            if _is_same(there[name].get(path), one):
                continue
            try:
                if COPIED not in there[name]:
                    target.write(f"{name}/{COPIED}", BytesIO())
                    there[name][COPIED] = one
                with source.open(f"{name}/{path}") as file:
                    target.write(f"{name}/{path}", file, one.changed)
            except FileError as error:
                done.missing += 1
                say(str(error))
            else:
                done.files, done.bytes = done.files + 1, done.bytes + one.size
        done.runs += done.files > before
        done.unchanged += done.files == before
        if isinstance(source, EngineRuns) and isinstance(target, FolderStore) and done.files > before:
            records = target.folder / name / METRICS_JSONL
            if records.exists():
                build_table(records, records.with_name(METRICS_CSV), form=table_form(records.parent))
    return done


def _is_same(there: StoredFile | None, here: StoredFile) -> bool:
    if there is None or there.size != here.size:
        return False
    return abs(there.changed - here.changed) < 1e-3 or here.changed < there.changed - _CLOCKS_S


def _problem(source: Source, target: Store, name: str, there: _Files) -> str:
    """Return why a run cannot be copied: what has its name is another one, or the one that was trained there."""
    if not is_safe_name(name):
        return "it has not the name of a run folder"
    if MANIFEST in there:
        try:
            ids = [
                parse_manifest(read_at_most(end, f"{name}/{MANIFEST}", MAX_MANIFEST_BYTES)).run_id
                for end in (source, target)
            ]
        except (FileError, ManifestError):
            # Half a copy, or a run that has not written it yet.
            ids = []
        if len(set(ids)) > 1:
            return f"another run has the name {name} in {target}"
    return f"{target} has a run {name} that is not a copy" if there and COPIED not in there else ""


def _is_copied(name: str, size: int) -> bool:
    parts = name.split("/")[1:]
    if parts == [CONTROL] or name.endswith(SUFFIX) or any(part.startswith(".") for part in parts):
        return False
    return size <= MAX_BYTES or parts[0] in OWN_NAMES


def _by_run(files: _Files) -> defaultdict[str, _Files]:
    found = defaultdict[str, _Files](dict)
    for name, stored in files.items():
        run, slash, path = name.partition("/")
        if slash:
            found[run][path] = stored
    return found
