"""Which shipper has a run that several of them see, as on a shared file system.

It is that of the host that trains the run, else the one that reported it last; the others leave it alone until that one
has been silent for a while, by the engine's clock. Nothing is locked: two that send the same run do no harm, and the
one whose report is older leaves it to the other.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import Final

from toolkit.telemetry.fleet.engine import Engine
from toolkit.telemetry.fleet.run_rows import RunReport
from toolkit.telemetry.fleet.shipping.watch import ShippedRun, Watch

DEAD_S: Final = 20.0
"""A shipper that has not reported for this long has no runs any more; one that has some reports every ten seconds."""
CHECK_S: Final = 5.0
"""How often it is asked whether the shippers live to whom runs are left."""
_NEW_S: Final = 15.0
"""How long a new run is left to the shipper of its host, before it was reported."""


class Claims:
    """Decides which of the runs of a watch are left to other shippers."""

    def __init__(self, node: str, watch: Watch) -> None:
        self._node = node
        self._watch = watch
        self._takes_all = False
        self._live: set[str] = set()
        """The other nodes whose shippers have reported lately."""
        self._next_check = 0.0
        self._not_before = 0.0

    def engine_failed(self) -> None:
        """Take nothing for a while: other shippers could not report either."""
        self._not_before = time.monotonic() + DEAD_S

    def take_all(self) -> None:
        """Leave no run to others from now on."""
        self._takes_all = True
        for run in self._watch.runs.values():
            self._decide(run, None)

    def doubt(self, engine: Engine) -> None:
        """Have it asked again who has the runs of silent shippers, and those that several may have taken just now.

        Raises:
            EngineError: the engine did not answer.
        """
        now = time.monotonic()
        if now < max(self._next_check, self._not_before) or self._takes_all:
            return
        self._next_check = now + CHECK_S * random.uniform(0.6, 1.0)
        rows = engine.rows(
            "SELECT node FROM shippers GROUP BY node "
            f"HAVING toUInt32(now()) - max(toUInt32(received)) < {DEAD_S:.0f}"
        )
        self._live = {node for (node,) in rows} - {self._node}
        for run in list(self._watch.runs.values()):
            is_new = now - run.since < 2 * _NEW_S and not self._is_own(run)
            if is_new or (run.left_to is not None and (run.left_to not in self._live or self._is_own(run))):
                run.report.is_known, self._watch.active[run.found.folder] = False, run

    def settle(self, runs: Iterable[ShippedRun]) -> None:
        """Take or leave each of these runs; the engine has just said who reported it last."""
        now = time.monotonic()
        for run in [] if self._takes_all else [run for run in runs if not self._is_own(run) or run.left_to]:
            is_new = run.report.node != self._node and now - run.since < _NEW_S
            holders = [run.report.node, *([_host(run)] if is_new else [])]
            holder = next((node for node in holders if node in self._live), None)
            if holder is not None or now >= self._not_before:
                self._decide(run, None if self._is_own(run) else holder)

    def _decide(self, run: ShippedRun, holder: str | None) -> None:
        if run.left_to is not None and holder is None:
            # It is asked again what the engine has of it, and reported at once.
            run.report, run.since, run.seen = RunReport(), time.monotonic() - _NEW_S, ()
        elif run.left_to is None and holder is not None:
            self._watch.drop_files(run)
        run.left_to = holder

    def _is_own(self, run: ShippedRun) -> bool:
        # A part of a run is there because its node does not see the others' file system.
        return run.found.is_part or _host(run) == self._node


def _host(run: ShippedRun) -> str:
    latest = run.found.manifest.latest
    return latest.host if latest is not None else ""
