"""Which of two ranks, the first and the last, records a run: the one that begins first."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from toolkit.telemetry.core.ranks import Rank, launch_id
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.runfolder.layout import make_folders
from toolkit.telemetry.runfolder.portable import try_lock
from toolkit.telemetry.runfolder.safefile import why_not_ours

_PATIENCE_S: Final = 5.0
"""How long a file server may take to answer a request for a lock."""


def may_record(rank: Rank) -> bool:
    """Say whether `rank` is one of the two, in a launch that both are known to be of."""
    return rank.world_size > 1 and rank.rank in (0, rank.world_size - 1) and launch_id() is not None


class RankClaim:
    """The right to record the run of this launch: the process that has locked a file in the log directory has it.

    The lock ends with the process, however that ends. Where there are no locks, both may record.
    """

    def __init__(self, options: TelemetryOptions, name: str) -> None:
        self.is_ours = True
        self._descriptor: int | None = None
        known_by = hashlib.blake2b(f"{name} {launch_id()}".encode(), digest_size=8).hexdigest()
        log_dir = Path(os.path.abspath(Path(options.log_dir).expanduser()))
        self._path = log_dir / f".one-rank-{known_by}"
        with suppress(OSError):
            make_folders(log_dir, 0o775)
            why = why_not_ours(log_dir, self._path)
            if why is not None:
                raise PermissionError(why)
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
            descriptor = os.open(self._path, flags, 0o600)
            self.is_ours = try_lock(descriptor, within_s=_PATIENCE_S) is not False
            if self.is_ours:
                self._descriptor = descriptor
            else:
                os.close(descriptor)

    def close(self) -> None:
        """Leave it to others."""
        if self._descriptor is None:
            return
        with suppress(OSError):
            # A child that was forked has a copy of the lock, and may stay.
            self._path.unlink()
        with suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = None
