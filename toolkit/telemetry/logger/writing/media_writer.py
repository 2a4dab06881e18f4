"""Writes images, tables and histograms in the background, so that the training loop waits for no disk and no GPU."""

from __future__ import annotations

import math
import os
import stat
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from toolkit.telemetry.core.background import FILES, background_job
from toolkit.telemetry.core.guard import Guard, MisuseError
from toolkit.telemetry.privacy.secret_shapes import mask_name
from toolkit.telemetry.runfolder.layout import safe_run_name
from toolkit.telemetry.runfolder.safefile import replace_file

_MOST_WAITING: Final = 64
"""Items that wait at one time: each holds a copy of an image or array."""


def write_media_file(run_folder: Path, subfolder: str, name: str, step: int, ending: str, data: bytes) -> str:
    """Put a file into one of the run's folders; return its path there. Raises OSError if the disk fails."""
    # Who may read the run may read what is in it.
    mode = stat.S_IMODE(run_folder.stat().st_mode)
    (run_folder / subfolder).mkdir(mode=mode, exist_ok=True)
    # A name may be logged twice at one step, and both are kept.
    file_name = f"{safe_run_name(mask_name(name))}_{step:09d}_{os.urandom(4).hex()}{ending}"
    replace_file(run_folder / subfolder / file_name, data, mode=mode & 0o666)
    return f"{subfolder}/{file_name}"


class MediaWriter:
    """Does one job after the other in the background; when too many wait, a new one is refused."""

    def __init__(self, guard: Guard, disk: Path | None = None) -> None:
        self._guard = guard
        self._jobs: deque[tuple[str, Callable[[], None]]] = deque()
        self._condition = threading.Condition()
        self._is_busy = False
        self._is_closed = False
        self._turns = background_job("telemetry-media", self._turn, FILES, disk)

    def put(self, doing: str, job: Callable[[], None]) -> bool:
        """Have `job` done soon; say whether there was room for it."""
        with self._condition:
            if self._is_closed or len(self._jobs) >= _MOST_WAITING:
                return False
            self._jobs.append((doing, job))
        self._turns.start()
        self._turns.wake()
        return True

    def flush(self, timeout_s: float) -> bool:
        """Wait, at most `timeout_s`, until every job is done; say whether they are."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._jobs and not self._is_busy, timeout_s)

    def close(self, timeout_s: float) -> int:
        """Take no more jobs, wait at most `timeout_s` for those that are left, and return how many were not done."""
        with self._condition:
            self._is_closed = True
        self.flush(timeout_s)
        with self._condition:
            left = len(self._jobs) + self._is_busy
            self._jobs.clear()
            self._condition.notify_all()
        self._turns.wake()
        return left

    def _turn(self) -> float | None:
        with self._condition:
            if not self._jobs:
                return None if self._is_closed else math.inf
            doing, job = self._jobs.popleft()
            self._is_busy = True
        try:
            with self._guard.catch(doing):
                job()
        except MisuseError as error:
            # `strict` cannot raise it here: the call has returned.
            self._guard.report(doing, error)
        finally:
            with self._condition:
                self._is_busy = False
                self._condition.notify_all()
        return 0.0
