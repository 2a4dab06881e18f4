"""Where the steps of a logger go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from toolkit.telemetry.core.clock import Clock, SystemClock
from toolkit.telemetry.logger.records.step_gate import StepGate

if TYPE_CHECKING:
    from toolkit.telemetry.logger.control.rank_control import RankControl
    from toolkit.telemetry.logger.steps.step_records import StepRecords


class StepTarget:
    """Where the steps of a logger go: to the records of its run, or nowhere if it is off or follows other ranks."""

    def __init__(
        self,
        records: StepRecords | None = None,
        gate: StepGate | None = None,
        *,
        clock: Clock | None = None,
        began: float = 0.0,
        ranks: RankControl | None = None,
    ) -> None:
        self.records = records
        self.gate = gate or StepGate()
        self.clock = clock or SystemClock()
        self.began = began
        self.ranks = ranks
        self.is_special = ranks is not None or records is None
        """False for a live logger of a single rank, so that its steps need one look at this object."""


NOWHERE: Final = StepTarget()
