"""A rank that writes no records, and still takes part in what is asked of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from toolkit.core.clock import Clock
from toolkit.core.guard import Guard
from toolkit.core.periodic import PeriodicTasks, Task
from toolkit.core.ranks import Rank
from toolkit.telemetry.control.poller import ControlPoller
from toolkit.telemetry.control.rank_control import RankControl

_LOOK_EVERY_S: Final = 2.0


class SilentRank:
    """Keeps in touch with rank 0 through the process group's store; touches no file."""

    def __init__(self, rank: Rank, *, run_name: str, log_every: int, clock: Clock, guard: Guard) -> None:
        poller = ControlPoller(
            Path(),
            run_id="",
            clock=clock,
            session_started=clock.wall(),
            log_every=log_every,
            # Rank 0 answers for all, and every step is looked at anyway.
            answer=lambda _: None,
            notify=lambda: None,
            was_answered=lambda _: False,
            guard=guard,
            hold=True,
        )
        self.rank_control = RankControl(poller, rank, run_name=run_name, clock=clock, guard=guard)
        tasks = [Task("keeping in touch with rank 0", _LOOK_EVERY_S, self.rank_control.poll)]
        self._periodic = PeriodicTasks(tasks, clock=clock, guard=guard)

    def start(self) -> None:
        """Begin."""
        self._periodic.start()

    def close(self) -> None:
        """Stop."""
        self._periodic.close(timeout_s=1.0)
        self.rank_control.close()
