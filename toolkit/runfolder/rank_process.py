"""Which process writes a rank's records, and whether it is alive, as far as that can be known here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolkit.runfolder.portable import is_locked
from toolkit.runfolder.process import boot_id, host_name, is_alive
from toolkit.runfolder.reader import BadLine, lines_of, offset_behind, parse_line, read_block
from toolkit.runfolder.records import STEP
from toolkit.runfolder.safefile import open_regular

_HEAD_BYTES: Final = 128 * 1024
"""A start record is at most half as long."""
_MOST_RECORDS: Final = 20
_LOCK_PATIENCE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class RankProcess:
    """The process that writes one session of a rank, as its first records describe it."""

    host: str
    pid: int
    boot_id: str | None

    def may_be_gone(self) -> bool | None:
        """Return whether no process of this machine has its number; None if it ran on another machine.

        This alone is no proof: a container has numbers of its own.
        """
        here = boot_id()
        # Some systems name no boot.
        if self.host != host_name() or (self.boot_id is None) != (here is None):
            return None
        return self.boot_id != here or is_alive(self.pid, None) is False

    def lives(self, path: Path) -> bool | None:
        """Return whether it is alive; None if that is unknown here. `path` is its record file.

        It is gone only if neither a process with its number nor a lock on its file is left on this machine, or if the
        machine was restarted since. The lock is seen from any container.

        Raises:
            OSError: the file cannot be opened.
        """
        is_gone = self.may_be_gone()
        if is_gone is None:
            return None
        if self.boot_id != boot_id():
            return False
        descriptor = open_regular(path)
        try:
            has_lock = is_locked(descriptor, within_s=_LOCK_PATIENCE_S)
        finally:
            os.close(descriptor)
        if has_lock is None:
            return None
        return has_lock or not is_gone


def process_of(path: Path, session: int) -> RankProcess | None:
    """Return the process that writes `session` to the record file at `path`; None if its records do not say.

    Raises:
        OSError: the file cannot be read.
    """
    block = read_block(path, offset_behind(path, session - 1, field="session"), max_bytes=_HEAD_BYTES)
    found = None
    for number, (position, line) in enumerate(lines_of(block)):
        if number >= _MOST_RECORDS:
            break
        record = parse_line(position, line)
        if isinstance(record, BadLine) or record.get("session") != session or record.get("event") == STEP:
            continue
        host, pid, boot = (record.get(name) for name in ("host", "pid", "boot_id"))
        if isinstance(host, str) and type(pid) is int:
            found = RankProcess(host, pid, boot if isinstance(boot, str) else None)
    return found
