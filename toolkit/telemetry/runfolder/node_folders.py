"""A run whose ranks write to the disks of several nodes: rank 0's folder, and a part for each other node.

Rank 0 writes `<name>`. Ranks that do not see that folder write `<name>@<node>`, whose run.json has the same run id and
`part_of`, the node of rank 0. Parts that are in the same log directory as the run are read as one run with it.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from toolkit.telemetry.runfolder.layout import other_ranks, rank_file, safe_run_name
from toolkit.telemetry.runfolder.manifest import Manifest, ManifestError, read_manifest
from toolkit.telemetry.runfolder.portable import is_locked
from toolkit.telemetry.runfolder.process import boot_id, host_name, is_alive, is_stopped
from toolkit.telemetry.runfolder.reader import (
    BadLine,
    Cursor,
    lines_of,
    offset_after,
    parse_line,
    read_block,
    tail_records,
)
from toolkit.telemetry.runfolder.records import END, ENVIRONMENT, NON_FINITE, START, STEP, SYSTEM, Record
from toolkit.telemetry.runfolder.safefile import open_regular

_LONGEST_NAME: Final = 120
"""Leaves room for "-2", "-3", … in the 128 characters of a folder name."""
_MAX_PARTS: Final = 10_000


def part_name(name: str, node: str) -> str:
    """Return the folder name of the part that `node` has of the run in the folder called `name`."""
    place = safe_run_name(node)
    room = max(12, _LONGEST_NAME - len(name) - 1)
    if len(place) > room:
        # Nodes often differ only at the end.
        place = f"{place[: room - 9].rstrip('-._+=@')}-{zlib.crc32(node.encode('utf-8', 'replace')):08x}"
    return f"{name}@{place}"


def part_in(folder: Path) -> Manifest | None:
    """Return the manifest of `folder` if it is a part of a run, else None."""
    # A part is named so; the manifests of other runs are not read for this.
    if "@" not in os.path.basename(os.path.abspath(folder)):
        return None
    try:
        manifest = read_manifest(folder)
    except (OSError, ManifestError):
        return None
    return manifest if manifest.part_of is not None else None


def parts_of(folder: Path) -> tuple[Path, ...]:
    """Return the parts of the run in `folder` that are in the same log directory; links are not followed."""
    try:
        manifest = read_manifest(folder)
    except (OSError, ManifestError):
        return ()
    if manifest.part_of is not None:
        return ()
    place = Path(os.path.abspath(folder))
    begins = _begins(folder, manifest)
    try:
        names = sorted(name for name in os.listdir(place.parent) if name.startswith(begins))
    except OSError:
        return ()
    found = []
    for name in names[:_MAX_PARTS]:
        part = folder.parent / name if folder.name else place.parent / name
        about = part_in(part)
        if about is not None and is_part_of(part, about, folder, manifest) and not part.is_symlink():
            found.append(part)
    return tuple(found)


def is_part_of(part: Path, about: Manifest, folder: Path, manifest: Manifest) -> bool:
    """Return whether `part` has the id and a name of the run in `folder`, and belongs to the same user."""
    if about.part_of is None or manifest.part_of is not None or about.run_id != manifest.run_id:
        return False
    try:
        has_same_owner = os.lstat(part).st_uid == os.lstat(folder).st_uid
    except OSError:
        return False
    return has_same_owner and os.path.basename(part).startswith(_begins(folder, manifest))


def _begins(folder: Path, manifest: Manifest) -> tuple[str, ...]:
    own = os.path.basename(os.path.abspath(folder))
    return tuple(f"{name}@" for name in {own, manifest.name, safe_run_name(manifest.display_name)})


def record_files(folder: Path, parts: Iterable[Path] | None = None) -> dict[int, Path]:
    """Return the record files of the run in `folder` by rank, in order, with those of its `parts`.

    A part itself has no rank 0. Of a rank that moved to another node, the file that was written last counts.

    Raises:
        OSError: the ranks in `folder` cannot be listed.
    """
    own = other_ranks(folder)
    found: dict[int, list[Path]] = {} if part_in(folder) is not None else {0: [rank_file(folder, 0)]}
    for rank in own:
        found.setdefault(rank, []).append(rank_file(folder, rank))
    for part in parts_of(folder) if parts is None else parts:
        try:
            ranks = other_ranks(part)
        except OSError:
            continue
        for rank in ranks:
            found.setdefault(rank, []).append(rank_file(part, rank))
    return {rank: _newest(found[rank]) for rank in sorted(found)}


def describe_part(folder: Path, manifest: Manifest) -> str:
    """Return what a part is, such as "part of greyjacket on node node17: 8 ranks, 8 to 15"."""
    try:
        ranks = other_ranks(folder)
    except OSError:
        ranks = []
    about = f"part of {manifest.display_name} on node {manifest.part_of}"
    if len(ranks) < 2:
        return "".join([about, *(f": rank {rank}" for rank in ranks)])
    return f"{about}: {len(ranks)} ranks, {ranks[0]} to {ranks[-1]}"


def _newest(paths: Sequence[Path]) -> Path:
    return paths[0] if len(paths) == 1 else max(paths, key=_written)


def _written(path: Path) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return -1


_BLOCK_BYTES: Final = 128 * 1024
_MOST_HEAD_BYTES: Final = 2 * 1024**2
"""The environment comes once it is known, after the records of some seconds."""
_HEADS: Final = (START, ENVIRONMENT)
_HEAD_NAMES: Final = tuple(f'"{event}"'.encode() for event in _HEADS)
_NAMED_WITHIN: Final = 64
"""Bytes of a line in which its event is."""
_LOCK_PATIENCE_S: Final = 1.0


# ------------------------------------------------------------ processes of ranks


@dataclass(frozen=True, slots=True)
class RankProcess:
    """The process that writes one session of a rank, as its first records describe it."""

    host: str
    pid: int
    boot_id: str | None
    had_lock: bool = False
    """Whether its lock on its record file was seen from here, where it runs on another machine."""

    def may_be_gone(self) -> bool | None:
        """Return whether no process of this machine has its number; None if it ran on another machine.

        This alone is no proof: a container has numbers of its own.
        """
        here = boot_id()
        # Some systems name no boot.
        if self.host != host_name() or (self.boot_id is None) != (here is None):
            return None
        return self.boot_id != here or is_alive(self.pid, None) is False

    def is_stopped(self) -> bool:
        """Return whether it is a process of this machine that a signal or a debugger has stopped."""
        return self.may_be_gone() is False and is_stopped(self.pid)

    def lives(self, path: Path) -> bool | None:
        """Return whether it is alive; None if that is unknown here. `path` is its record file.

        It is gone only if neither a process with its number nor a lock on its file is left on this machine, or if the
        machine was restarted since. The lock is seen from any container. On another machine it is gone if its lock was
        seen from here and is not there any more.

        Raises:
            OSError: the file cannot be opened.
        """
        is_gone = self.may_be_gone()
        if is_gone is None:
            return has_lock(path) if self.had_lock else None
        if self.boot_id != boot_id():
            return False
        if self.pid == os.getpid() and not is_gone:
            return True
        is_held = has_lock(path)
        return None if is_held is None else is_held or not is_gone


def has_lock(path: Path) -> bool | None:
    """Return whether a process has the record file at `path` locked; None if that cannot be known.

    Raises:
        OSError: the file cannot be opened.
    """
    descriptor = open_regular(path)
    try:
        return is_locked(descriptor, within_s=_LOCK_PATIENCE_S)
    finally:
        os.close(descriptor)


def process_of(path: Path, session: int) -> RankProcess | None:
    """Return the process that writes `session` to the record file at `path`; None if its records do not say.

    Raises:
        OSError: the file cannot be read.
    """
    head = head_of(path, session)
    host, pid, boot = (head.get(name) for name in ("host", "pid", "boot_id"))
    if not isinstance(host, str) or type(pid) is not int:
        return None
    process = RankProcess(host, pid, boot if isinstance(boot, str) else None)
    return replace(process, had_lock=process.may_be_gone() is None and has_lock(path) is True)


def head_of(path: Path, session: int) -> Record:
    """Return what the first records of a session say, without its steps: its start and its environment in one.

    Raises:
        OSError: the file cannot be read.
    """
    cursor = Cursor(offset_after(path, session - 1, field="session"))
    end = cursor.offset + _MOST_HEAD_BYTES
    found: Record = {}
    while "host" not in found and cursor.offset < end:
        block = read_block(path, cursor, max_bytes=_BLOCK_BYTES)
        for position, line in lines_of(block):
            if any(event in line[:_NAMED_WITHIN] for event in _HEAD_NAMES):
                record = parse_line(position, line)
                if not isinstance(record, BadLine) and record.get("session") == session:
                    found |= record if record.get("event") in _HEADS else {}
        if block.cursor.offset == cursor.offset:
            break
        cursor = block.cursor
    return found


_TAIL_BYTES: Final = 8 * 1024
"""Some dozens of records, and little enough for the files of a thousand ranks."""
_MOST_BYTES: Final = 256 * 1024
_FEWEST_RECORDS: Final = 8
_FARTHEST: Final = 2**53
_LATEST: Final = 1e11
"""The year 5138: a date has no later one to show."""


# ------------------------------------------------------------ ends of their files


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTail:
    """The newest session of a rank, as the end of its file shows it."""

    rank: int
    session: int
    size: int
    changed_at: float
    """When the file was last written, by the clock of its file system."""
    last_time: float
    """The time of its last record."""
    last_step_time: float | None
    last_step: int | None
    records: int
    """Records in this part of the file."""
    usual_s: float
    """The median of the pauses between these records."""
    longest_s: float
    """The longest of them."""
    has_system: bool
    """Whether system records are among them, which come while a training waits."""
    end: str | None
    """The status in its end record; None without one."""
    nan_metrics: tuple[str, ...] = ()
    """Those that are NaN or infinite in its newest step record."""


def read_tail(path: Path, rank: int) -> RankTail | None:
    """Return what the end of the record file at `path` says; None if it has no readable record.

    Raises:
        OSError: the file is missing, unreadable, or no regular file.
    """
    status = os.lstat(path)
    within = _TAIL_BYTES
    while True:
        records = [record for record in tail_records(path, within) if _is_placed(record)]
        # A record may be 64 KiB long.
        if within >= min(status.st_size, _MOST_BYTES) or len(records) >= _FEWEST_RECORDS:
            break
        within *= 4
    return _tail_of(records, rank, status) if records else None


def _tail_of(records: list[Record], rank: int, status: os.stat_result) -> RankTail:
    session = records[-1]["session"]
    mine = [record for record in records if record["session"] == session]
    times = [float(record["time"]) for record in mine]
    pauses = sorted(max(0.0, after - before) for before, after in itertools.pairwise(times))
    steps = [record for record in mine if record.get("event") == STEP]
    ends = [index for index, record in enumerate(mine) if record.get("event") == END]
    # After the end record come at most a few records about the closing, and no step.
    has_ended = bool(ends) and not any(record.get("event") == STEP for record in mine[ends[-1] :])
    numbers = [
        number
        for record in mine
        if type(number := record.get("global_step")) is int and 0 <= number < _FARTHEST
    ]
    bad = steps[-1].get(NON_FINITE) if steps else None
    names = tuple(str(name)[:100] for name in bad)[:20] if isinstance(bad, dict) else ()
    return RankTail(
        rank=rank,
        session=session,
        size=status.st_size,
        changed_at=status.st_mtime,
        last_time=max(times),
        last_step_time=float(steps[-1]["time"]) if steps else None,
        last_step=numbers[-1] if numbers else None,
        records=len(mine),
        usual_s=pauses[len(pauses) // 2] if pauses else 0.0,
        longest_s=pauses[-1] if pauses else 0.0,
        has_system=any(record.get("event") == SYSTEM for record in mine),
        end=str(mine[ends[-1]].get("status"))[:40] if has_ended else None,
        nan_metrics=names,
    )


def _is_placed(record: Record) -> bool:
    when, session = record.get("time"), record.get("session")
    # A run folder is not trusted.
    has_time = isinstance(when, (int, float)) and 0 <= when < _LATEST
    return has_time and type(record.get("seq")) is int and type(session) is int and 0 <= session < _FARTHEST
