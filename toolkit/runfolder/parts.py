"""A run whose ranks write to the disks of several nodes: rank 0's folder, and a part for each other node.

Rank 0 writes `<name>`. Ranks that do not see that folder write `<name>@<node>`, whose run.json has the same run id and
`part_of`, the node of rank 0. Parts that are in the same log directory as the run are read as one run with it.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from toolkit.runfolder.layout import other_ranks, rank_file, safe_run_name
from toolkit.runfolder.manifest import Manifest, ManifestError, read_manifest
from toolkit.runfolder.script_interrupts import pass_on_interrupt

_LONGEST_NAME: Final = 120
"""Leaves room for "-2", "-3", … in the 128 characters of a folder name."""
_MAX_PARTS: Final = 10_000
_MAX_RANGES: Final = 4


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
    except (OSError, ManifestError) as error:
        pass_on_interrupt(error)
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
    """Return what a part is, such as "part of greyjacket on node node17: ranks 8 to 15"."""
    try:
        ranks = _ranges(other_ranks(folder))
    except OSError:
        ranks = ""
    about = f"part of {manifest.display_name} on node {manifest.part_of}"
    return f"{about}: {ranks}" if ranks else about


def _ranges(ranks: Sequence[int]) -> str:
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    if len(found) > _MAX_RANGES:
        return f"{len(ranks)} ranks from {ranks[0]} to {ranks[-1]}"
    shown = [str(first) if first == last else f"{first} to {last}" for first, last in found]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(shown)}" if shown else ""


def _newest(paths: Sequence[Path]) -> Path:
    return paths[0] if len(paths) == 1 else max(paths, key=_written)


def _written(path: Path) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return -1
