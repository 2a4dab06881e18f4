"""What is asked of a run, brought to the training loop of every rank at the same step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.telemetry.core.clock import Clock
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.periodic import PeriodicTasks
from toolkit.telemetry.core.ranks import Rank, asking_in_background, process_group_store
from toolkit.telemetry.logger.control.poller import ControlPoller
from toolkit.telemetry.runfolder.control import decode_request, encode_request

if TYPE_CHECKING:
    from toolkit.telemetry.logger.control.consensus import StepConsensus

_LOOK_EVERY_S = 2.0
_runs_of_name: dict[str, int] = {}


class RankControl:
    """The control file's requests on one rank.

    Only rank 0 reads the file. Where there are several ranks a request is held until all of them have agreed on a step
    to do it at, through the key-value store of the training's own process group.
    """

    def __init__(
        self,
        poller: ControlPoller,
        rank: Rank,
        *,
        run_name: str,
        clock: Clock,
        guard: Guard,
        seconds_per_step: Callable[[], Any] = lambda: None,
    ) -> None:
        self.poller = poller
        self.is_among_ranks = rank.world_size > 1
        self._seconds_per_step = seconds_per_step
        self._rank = rank
        self._clock = clock
        self._guard = guard
        self._consensus: StepConsensus | None = None
        # All ranks open their loggers in the same order, so that they count to the same number.
        _runs_of_name[run_name] = count = _runs_of_name.get(run_name, 0) + 1
        self._prefix = f"telemetry/{run_name}/{count}"

    def poll(self) -> None:
        """Look at the control file and at what the other ranks say; on a background thread, every few seconds."""
        if self._rank.rank == 0:
            self.poller.poll()
        if self.is_among_ranks:
            with asking_in_background():
                self._talk()

    def _talk(self) -> None:
        consensus = self._join()
        if consensus is None:
            for request in self.poller.held():
                self.poller.refuse(
                    request.id, "the run has several ranks, and no process group to agree through"
                )
            return
        seconds = self._seconds_per_step()
        for request in self.poller.held():
            consensus.propose(encode_request(request).decode(), seconds if type(seconds) is float else None)
        consensus.poll()
        for text, reason in consensus.take_given_up():
            self.poller.refuse(decode_request(text.encode()).id, reason)

    def at_step(self, step: Any) -> None:
        """Do what all ranks agreed to do at `step`; on the training thread, for every step."""
        consensus = self._consensus
        if consensus is None or type(step) is not int:
            return
        for text in consensus.due(step):
            self.poller.release(decode_request(text.encode()))
        if self.poller.ready:
            self.poller.apply(step)

    def close(self) -> None:
        """Answer what is left, and let the other ranks read the last decision before the store goes away."""
        if self._consensus is not None:
            self._consensus.close()
        self.poller.close()

    def _join(self) -> StepConsensus | None:
        if self._consensus is None:
            store = process_group_store()
            if store is not None:
                # Imported where there are several ranks.
                from toolkit.telemetry.logger.control.consensus import StepConsensus

                self._consensus = StepConsensus(
                    store,
                    self._rank.rank,
                    self._rank.world_size,
                    clock=self._clock,
                    prefix=self._prefix,
                    guard=self._guard,
                )
        return self._consensus


class SilentRank:
    """A rank that writes no records, and still takes part in what is asked of the run.

    It keeps in touch with rank 0 through the process group's store; touches no file.
    """

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
        tasks = [("keeping in touch with rank 0", _LOOK_EVERY_S, self.rank_control.poll)]
        self._periodic = PeriodicTasks(tasks, clock=clock, guard=guard)

    def start(self) -> None:
        """Begin."""
        self._periodic.start()

    def close(self) -> None:
        """Stop."""
        self._periodic.close(timeout_s=1.0)
        self.rank_control.close()
