"""What detection shows a format of each folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from toolkit.telemetry.importers.files import HEAD_BYTES, open_below
from toolkit.telemetry.importers.source import RunSource

_LIGHTNING: Final = "lightning_logs"
_NUMBERED: Final = re.compile(r"version_\d+", re.ASCII)


@dataclass(slots=True)
class Folder:
    """One folder, as the walk saw it."""

    root: Path
    relative: str
    """From `root`, "." for itself."""
    files: dict[str, int] = field(default_factory=dict)
    """Regular files with their sizes."""
    folders: list[str] = field(default_factory=list)
    """Folders that are no links."""

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.root / self.relative

    def below(self, name: str) -> str:
        """Return the path of something in this folder, relative to `root`."""
        return name if self.relative == "." else f"{self.relative}/{name}"

    def head(self, name: str, count: int = HEAD_BYTES) -> bytes:
        """Return the first bytes of one of its files; nothing if it cannot be read."""
        try:
            with open_below(self.root, self.below(name)) as file:
                return file.read(0, count)
        except OSError:
            return b""


@dataclass(slots=True)
class Found:
    """What a format found in a folder."""

    sources: list[RunSource] = field(default_factory=list)
    taken: frozenset[str] = frozenset()
    """Files that belong to the runs found, which other formats leave alone."""
    skipped: frozenset[str] = frozenset()
    """Folders below that belong to the runs found, and hold no others."""


def name_of(folder: Path) -> str:
    """Return what a run in `folder` is called: of Lightning's `version_3`, with the folder above it."""
    if not _NUMBERED.fullmatch(folder.name):
        return folder.name
    above = folder.parent
    if above.name == _LIGHTNING:
        above = above.parent
    return f"{above.name}/{folder.name}" if above.name else folder.name


def names_in(folder: Path, *, of_folders: bool = False) -> list[str]:
    """Return the names of the files in a folder, or of the folders in it, sorted; none if it cannot be read.

    Links are left out.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(
                entry.name
                for entry in entries
                if (entry.is_dir if of_folders else entry.is_file)(follow_symlinks=False)
            )
    except OSError:
        return []


def files_below(folder: Path, *, most: int, depth: int = 10) -> list[str]:
    """Return the regular files below `folder`, relative to it and sorted; no link is followed."""
    found: list[str] = []
    stack = [("", 0)]
    while stack and len(found) < most:
        below, level = stack.pop()
        try:
            with os.scandir(folder / below) as entries:
                for entry in entries:
                    name = f"{below}/{entry.name}" if below else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if level < depth:
                            stack.append((name, level + 1))
                    elif entry.is_file(follow_symlinks=False):
                        found.append(name)
        except OSError:
            continue
    return sorted(found)[:most]


Finder = Callable[[Folder], Found]
