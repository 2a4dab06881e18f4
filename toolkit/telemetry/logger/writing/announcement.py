"""Which run a job is: rank 0 puts it into the process group's key-value store, and the other ranks read it there."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from typing import Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.ranks import asking_in_background, has_process_group, process_group_store
from toolkit.telemetry.runfolder.layout import is_safe_name
from toolkit.telemetry.runfolder.manifest import Manifest, encode_manifest, parse_manifest

_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.5
"""A thousand ranks ask one server: they ask less often the longer they wait."""

_loggers: Counter[str] = Counter()


def announced(data: bytes) -> Manifest:
    """Return the run that rank 0 has put into the store: what a rank needs to find its folder, or to make a part of it.

    Raises:
        ValueError: it is no run.json with a session, or its name leads elsewhere.
    """
    run = parse_manifest(data)
    if run.latest is None or not is_safe_name(run.name):
        raise ValueError(f"rank 0's folder cannot be called {run.name!r}, or has no session")
    return run


def next_key(run_name: str) -> str:
    """Return the key for the logger that is being made; call it once on every rank for each logger of several ranks."""
    # All ranks make their loggers in the same order, so that they count to the same number.
    _loggers[run_name] += 1
    return f"telemetry-run/{run_name}/{_loggers[run_name]}"


class Announcer:
    """Puts rank 0's run into the store once there is a process group, on a thread of its own."""

    def __init__(self, key: str, run: Manifest, guard: Guard) -> None:
        self._key = key
        self._run_json = encode_manifest(run).decode()
        self._guard = guard
        self._is_done = False
        self._thread: threading.Thread | None = None

    def announce(self) -> None:
        """Announce it if there is a process group and that was not done yet; waits for nothing."""
        if self._is_done or (self._thread is not None and self._thread.is_alive()) or not has_process_group():
            return
        self._thread = threading.Thread(target=self._run, name="telemetry-announce", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._guard.catch("announcing the run to the other ranks"), asking_in_background():
            store = process_group_store()
            if store is not None:
                store.set(self._key, self._run_json)
                self._is_done = True


class Asking:
    """Asks the store for the announcement of rank 0, on a thread of its own: a server may leave a call unanswered."""

    def __init__(self, key: str, *, timeout_s: float, guard: Guard) -> None:
        self.found: Manifest | None = None
        self._key = key
        self._deadline = time.monotonic() + timeout_s
        self._guard = guard
        self._over = threading.Event()
        threading.Thread(target=self._run, name="telemetry-announce", daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s`; return whether the asking is over, with or without an answer."""
        return self._over.wait(timeout_s)

    def close(self) -> None:
        """Stop asking."""
        self._deadline = -math.inf

    def _run(self) -> None:
        try:
            with self._guard.catch("asking rank 0 for its run"):
                self._ask()
        finally:
            self._over.set()

    def _ask(self) -> None:
        with asking_in_background():
            store = process_group_store()
        pause_s = _FIRST_PAUSE_S
        while store is not None and time.monotonic() < self._deadline:
            with asking_in_background():
                if store.check([self._key]):
                    self.found = announced(store.get(self._key))
                    return
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
