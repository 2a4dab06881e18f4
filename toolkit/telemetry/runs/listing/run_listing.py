"""Lists the runs of a log directory from their manifests and labels."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolkit.telemetry.runfolder.folder_list import Signature, another_programs_file, folders_in
from toolkit.telemetry.runfolder.key_values import KeyValues
from toolkit.telemetry.runfolder.labels import Labels, LabelsError, read_labels
from toolkit.telemetry.runfolder.layout import LABELS, MANIFEST, METRICS_JSONL
from toolkit.telemetry.runfolder.listed_run import (
    MISSING,
    Fields,
    fields_of,
    fields_without_manifest,
    first_record,
    missing_records,
    read_ends,
    settled,
    values_at_the_end,
)
from toolkit.telemetry.runfolder.manifest import Manifest, ManifestError, read_manifest
from toolkit.telemetry.runfolder.node_folders import describe_part, is_part_of
from toolkit.telemetry.runfolder.records import START
from toolkit.telemetry.runfolder.status import LOST, RUNNING, Status
from toolkit.telemetry.runs.formatting import clean
from toolkit.telemetry.runs.store import STARTING, UNREADABLE, RunCard

_MAX_RUNS = 20_000
_MAX_LINKS_NAMED = 20


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run folder, its manifest and its labels."""

    key: str
    folder: Path
    signature: Signature
    manifest: Manifest | None
    labels: Labels
    problem: str | None
    log_time: float | None
    """When the record file was last written, if there is no manifest."""
    log_ends: Fields = field(default_factory=dict)
    """The first and last records, if there is no manifest."""
    parts: tuple[Path, ...] = ()
    """Folders of the same log directory with the ranks of other nodes."""
    part: str | None = None
    """What this is, if it is such a part itself."""
    key_values: KeyValues | None = None
    """Configuration and evaluations from the records, if run.json does not have them, or not as they count."""
    is_deleted: bool = False
    """Whether it is in the trash."""


class RootListing:
    """The run folders of one log directory; a folder is read again only if its manifest or labels changed."""

    def __init__(self, root: Path, *, only: str | None = None, is_trash: bool = False) -> None:
        """List the folders in `root`, or the one called `only`."""
        self.root = root
        self._only = only
        self._is_trash = is_trash
        self._found: dict[str, FoundRun] = {}
        self.is_truncated = False
        """Whether there are more runs than listed."""

    def scan(self) -> tuple[list[FoundRun], list[str]]:
        """Return the run folders, of very many the newest, and what was skipped."""
        problems: list[str] = []
        found: dict[str, FoundRun] = {}
        self.is_truncated = False
        try:
            names = self._folders(problems) if self._only is None else [self._only]
            for name in self._newest_first(names) if len(names) > _MAX_RUNS else names:
                run = self._read_folder(name)
                if run is None:
                    continue
                if len(found) < _MAX_RUNS:
                    found[name] = run
                else:
                    self.is_truncated = True
                    break
        except FileNotFoundError:
            problems.append(f"{clean(str(self.root))} does not exist yet")
        except OSError as error:
            problems.append(f"{clean(str(self.root))} cannot be listed: {error.strerror}")
        self._found = found
        return _with_parts([*found.values()]), problems

    def older(self, name: str) -> FoundRun | None:
        """Return the run in the folder `name`, where more runs are there than listed."""
        is_name = name == os.path.basename(name) and name not in ("", "..")
        is_there = self.is_truncated and is_name and not os.path.islink(self.root / name)
        return self._read_folder(name) if is_there else None

    def _folders(self, problems: list[str]) -> list[str]:
        links: list[str] = []
        names = folders_in(self.root, links)
        problems += [
            f"{clean(name)} is a symbolic link and is not followed" for name in links[:_MAX_LINKS_NAMED]
        ]
        if len(links) > _MAX_LINKS_NAMED:
            problems.append(f"{len(links) - _MAX_LINKS_NAMED:,} more symbolic links are not followed")
        return names

    def _newest_first(self, names: Iterable[str]) -> list[str]:
        """Return the folders by their modification time: a live run replaces files in its folder."""
        changed: dict[str, int] = {}
        for name in names:
            with suppress(OSError):
                changed[name] = os.lstat(self.root / name).st_mtime_ns
        return sorted(changed, key=lambda name: (-changed[name], name))

    def _read_folder(self, name: str) -> FoundRun | None:
        known = self._found.get(name)
        # Strings: with Path objects a second scan of 2,000 runs takes 53 ms, not 27.
        place = os.path.join(self.root, name)
        try:
            manifest_at = _stat(f"{place}/{MANIFEST}")
            log_at = _stat(f"{place}/{METRICS_JSONL}") if manifest_at is None else None
            if manifest_at is None and log_at is None:
                return None
            labels_at = _stat(f"{place}/{LABELS}")
        except OSError as error:
            return FoundRun(
                clean(name), Path(place), (), None, Labels(), f"{clean(name)}: {error.strerror}", None
            )
        signature = (*_signature(manifest_at), *_signature(labels_at), *_signature(log_at))
        if known is not None and known.signature == signature:
            return known
        folder = Path(place)
        manifest, labels, problem = None, Labels(), None
        if manifest_at is not None:
            try:
                manifest = read_manifest(folder)
            except (ManifestError, OSError) as error:
                problem = clean(str(error))
                # The records are there all the same.
                with suppress(OSError):
                    log_at = _stat(f"{place}/{METRICS_JSONL}")
        if manifest is None and another_programs_file(folder) is not None:
            return None
        try:
            labels = read_labels(folder)
        except (LabelsError, OSError) as error:
            problem = problem or clean(str(error))
        return FoundRun(
            clean(name),
            folder,
            signature,
            manifest,
            labels,
            problem,
            log_at.st_mtime if log_at else None,
            read_ends(folder / METRICS_JSONL) if log_at else {},
            part=describe_part(folder, manifest)
            if manifest is not None and manifest.part_of is not None
            else None,
            is_deleted=self._is_trash,
        )


def _with_parts(runs: list[FoundRun]) -> list[FoundRun]:
    """Return the runs, each with its parts; a part is listed by itself only if its run is not in this directory."""
    parts: dict[str, list[tuple[Path, Manifest]]] = {}
    for run in runs:
        if run.manifest is not None and run.part is not None:
            parts.setdefault(run.manifest.run_id, []).append((run.folder, run.manifest))
    if not parts:
        return runs
    listed, joined = [], set[Path]()
    for run in runs:
        manifest = run.manifest
        if manifest is not None and run.part is None and manifest.run_id in parts:
            own = [
                part
                for part, about in parts[manifest.run_id]
                if is_part_of(part, about, run.folder, manifest)
            ]
            joined.update(own)
            listed.append(replace(run, parts=tuple(sorted(own))))
        else:
            listed.append(run)
    return [run for run in listed if run.folder not in joined]


def card_of(found: FoundRun, now: float, *, newest: tuple[float, int | None] | None = None) -> RunCard:
    """Return the run's card at `now`; `newest` is time and step of the last record, if known: the manifest may lag."""
    if found.manifest is None:
        fields = fields_without_manifest(
            found.folder, found.log_ends, key_values=found.key_values, written=found.log_time
        )
        return card_with(found, fields, no_manifest(found.problem))
    manifest, status = settled(
        found.manifest, found.folder, now, last_sign=newest[0] if newest is not None else None
    )
    fields = fields_of(manifest, found.folder, status, now, key_values=found.key_values, newest=newest)
    return card_with(found, {**fields, MISSING: missing_records(manifest, found.folder, status)}, status)


def no_manifest(problem: str | None) -> Status:
    """Return the status of a run without a manifest, or with one that cannot be read."""
    why = problem or "there is no run.json, so it is unknown how the run ended"
    return Status(name=UNREADABLE if problem else LOST, why=why, sure=problem is not None)


def with_last_values(card: RunCard) -> RunCard:
    """Return the card with the last value of each metric at the end of the records in its summary."""
    if card.path is None or card.logged_by is not None:
        return card
    return replace(card, summary={**values_at_the_end(card.path), **card.summary})


def card_with(found: FoundRun, fields: Fields, status: Status) -> RunCard:
    """Return the run's card by its labels, its status and the `fields` of a card, or what it is `MISSING`."""
    labels, missing = found.labels, fields.get(MISSING)
    if status.name == RUNNING and fields["step"] is None:
        status = status._replace(name=STARTING)
    own: Fields = {name: value for name, value in fields.items() if name != MISSING}
    own |= {"name": clean(found.part)} if found.part else {}
    own |= {"name": clean(labels.display_name)} if labels.display_name else {}
    own |= {} if labels.tags is None else {"tags": tuple(clean(tag) for tag in labels.tags)}
    return RunCard(
        key=found.key,
        place=clean(str(found.folder)),
        path=found.folder,
        status=status._replace(why=clean(status.why)),
        archived=labels.archived,
        colour=labels.colour,
        problem=found.problem or missing,
        is_cut=bool(missing),
        deleted=found.is_deleted,
        **own,
    )


def read_start(log: Path) -> dict[str, Any]:
    """Return the start record at the beginning of `log`, or an empty dict."""
    try:
        first = first_record(log)
    except OSError:
        return {}
    return first if first.get("event") == START else {}


def _stat(path: str | Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _signature(status: os.stat_result | None) -> Signature:
    return (status.st_mtime_ns, status.st_size, status.st_ino) if status is not None else ()


def now() -> float:
    """Return the current wall time; tests replace it."""
    return time.time()
