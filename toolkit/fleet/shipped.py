"""A run and its record files as a shipper sees them."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from toolkit.fleet.commits import Commit, FileKey
from toolkit.fleet.run_folders import RunFolder, Signature
from toolkit.fleet.run_rows import RunReport
from toolkit.fleet.tail import RecordTail

VERIFY_S: Final = 24 * 3600.0
"""How often everything is compared with the engine, at the latest."""


class ShippedFile:
    """A record file and how far it is shipped."""

    def __init__(self, path: Path, run: ShippedRun, rank: int) -> None:
        self.path = path
        self.run = run
        self.rank = rank
        self.size = 0
        self.signature: Signature = ()
        self.read_size = -1
        """The size at which there was nothing more to read."""
        self.commit: Commit | None = None
        """How far it is shipped; None until the engine was asked."""
        self.has_begun = True
        """Whether the engine knows of the generation: an empty one has to be committed too."""
        self.tail: RecordTail | None = None
        """Reads on; None until there is something to read."""
        self.problem: str | None = None
        """Why it is not read until the engine is asked again, once a minute."""
        self.gen = 0
        """The last generation that this shipper sent or found to be the file; 0 before that."""
        self.rivals = 0
        """How often another shipper began a generation behind that one."""
        self.is_superseded = False
        """Whether another node ships a newer file of the same run and rank."""

    @property
    def key(self) -> FileKey:
        """Run id and rank."""
        return self.run.found.key.run_id, self.rank

    @property
    def is_unknown(self) -> bool:
        """Whether the engine has to be asked how far it is shipped."""
        return self.commit is None and self.problem is None

    @property
    def behind(self) -> int:
        """How many bytes are not shipped, without a last line that is still being written."""
        if self.is_superseded:
            return 0
        end = self.commit.end if self.commit is not None else 0
        if self.size == self.read_size and self.tail is not None and self.tail.position.end == end:
            return 0
        return max(0, self.size - end)

    @property
    def has_more(self) -> bool:
        """Whether there may be lines to read."""
        return self.size != self.read_size and self.commit is not None and self.problem is None

    def changed_to(self, signature: Signature) -> None:
        """Note that the file was written or replaced."""
        self.signature, self.size = signature, signature[1]
        self.read_size = -1

    def forget(self) -> None:
        """Ask the engine again what it has of the file."""
        self.commit = self.tail = None
        self.read_size = -1


def next_verify() -> float:
    """Return when to verify a run again; not all of them at the same time."""
    return time.monotonic() + VERIFY_S * random.uniform(0.5, 1.0)


@dataclass(slots=True, kw_only=True)
class ShippedRun:
    """A run folder, its files, and what was reported of it."""

    found: RunFolder
    shard: int
    report: RunReport = field(default_factory=RunReport)
    files: dict[int, ShippedFile] = field(default_factory=dict)
    changed: float = field(default_factory=time.monotonic)
    """When something in it was last seen to change, by the monotonic clock."""
    next_look: float = 0.0
    next_verify: float = field(default_factory=next_verify)
    copies: set[int] = field(default_factory=set)
    """Ranks whose file is a copy of one in another folder: only that one is shipped."""

    @property
    def is_listed(self) -> bool:
        """Whether this folder says what the run does: it has the rank 0 that is shipped."""
        file = self.files.get(0)
        return 0 not in self.copies and not (file is not None and (file.is_superseded or file.is_unknown))

    @property
    def behind(self) -> int:
        """How many bytes are not shipped."""
        return sum(file.behind for file in self.files.values())
