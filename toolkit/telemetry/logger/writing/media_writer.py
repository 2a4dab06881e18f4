"""Writes images, tables and histograms in the background, so that the training loop waits for no disk and no GPU."""

from __future__ import annotations

import math
import os
import stat
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
        self._waiting: deque[tuple[str, Callable[[], None]]] = deque()
        self._is_busy = False
        self._job = background_job("telemetry-media", self._turn, FILES, disk)

    def put(self, doing: str, do: Callable[[], None]) -> bool:
        """Have `do` called soon; say whether there was room for it."""
        if self._job.is_closing or len(self._waiting) >= _MOST_WAITING:
            return False
        self._waiting.append((doing, do))
        self._job.start()
        self._job.wake()
        return True

    def flush(self, timeout_s: float) -> bool:
        """Wait, at most `timeout_s`, until everything is done; say whether it is."""
        return not (self._waiting or self._is_busy) or self._job.flush(timeout_s)

    def close(self, timeout_s: float) -> int:
        """Take nothing more, wait at most `timeout_s` for what is left, and return how much was not done."""
        self._job.close(timeout_s)
        left, self._waiting = self._waiting, deque()
        return len(left) + self._is_busy

    def _turn(self) -> float | None:
        if self._waiting:
            self._is_busy = True
            doing, do = self._waiting.popleft()
            try:
                with self._guard.catch(doing):
                    do()
            except MisuseError as error:
                # `strict` cannot raise it here: the call has returned.
                self._guard.report(doing, error)
            finally:
                self._is_busy = False
        if self._waiting:
            return 0.0
        self._job.note_flushed()
        return None if self._job.is_closing else math.inf
