"""Calls that come after the end of their run: reported once, counted, and declared lost in its record file."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from toolkit.core.guard import Guard
from toolkit.runfolder.codec import encode
from toolkit.runfolder.journal.repair import is_being_written
from toolkit.runfolder.portable import SAFELY
from toolkit.runfolder.records import LOST
from toolkit.runfolder.safefile import write_all
from toolkit.telemetry.writing.session_folder import SessionFolder
from toolkit.telemetry.writing.sessions import alone_in, last_seq

_WHY: Final = "logged after close()"


class LateCalls:
    """Takes the name of each call that a logger ignores because its run has ended."""

    def __init__(self, session_folder: SessionFolder, elapsed: Callable[[], float], guard: Guard) -> None:
        self._session_folder = session_folder
        self._elapsed = elapsed
        self._guard = guard
        self._process = os.getpid()
        self._count = self._declared = 0
        self._lock = threading.Lock()

    def take(self, call: str) -> None:
        """Take a call. Those that write nothing, and those of a forked child, are no mistake."""
        call = {"_log_summary": "summary"}.get(call, call)
        if not call.startswith(("log", "summary")) or os.getpid() != self._process:
            return
        self._count += 1
        if self._count == 1:
            # The first one at once, in case that the process is killed; the others once their number is known.
            atexit.register(self._declare)
            with self._guard.catch("declaring calls after close()"):
                threading.Thread(target=self._declare, name="telemetry-late", daemon=True).start()
        self._guard.report_misuse(
            f"{call} was called after close(), when nothing is written any more; call close() last, and log inside "
            "the `with` block",
            "a call after close()",
        )

    def _declare(self) -> None:
        """Write how many records are lost, unless someone else has the file by now."""
        with self._lock, self._guard.catch("declaring calls after close()"):
            path = self._session_folder.record_file
            records = self._count - self._declared
            with alone_in(self._session_folder.folder):
                if not records or not path.exists() or is_being_written(path):
                    return
                where = self._session_folder
                about = {"time": time.time(), "elapsed": self._elapsed(), "seq": last_seq(path) + 1}
                rank = {"rank": where.rank} if where.rank else {}
                lost = {"session": where.session.session, **rank, "records": records, "reason": _WHY}
                descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | SAFELY)
                try:
                    write_all(descriptor, encode({"event": LOST, **about, **lost}))
                finally:
                    os.close(descriptor)
                self._declared += records
