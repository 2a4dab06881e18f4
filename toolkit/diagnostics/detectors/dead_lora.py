"""An adapter that learns nothing."""

from __future__ import annotations

from toolkit.diagnostics import thresholds as at
from toolkit.diagnostics.detector import SingleIncidentDetector
from toolkit.diagnostics.incident import Incidents
from toolkit.diagnostics.metric_aliases import LORA_B, LR, Row, name_of


class DeadLora(SingleIncidentDetector):
    """Reports gradients, or weights, of the LoRA B matrices that are exactly zero while the learning rate is not.

    B starts at zero and gets the first gradients; while it is zero the adapter has no effect, and A gets none.
    """

    signals = (LORA_B,)

    def __init__(self, incidents: Incidents) -> None:
        super().__init__(incidents)
        self._has_moved = False
        self._forget()

    def _forget(self) -> None:
        self._zeros: int = 0
        self._since: int = 0

    def take(self, row: Row) -> None:
        """Count the zeros in a row."""
        norm = row.values[LORA_B]
        if norm - norm != 0.0:
            return
        if norm != 0.0:
            self._has_moved = True
            self._zeros = 0
            if self._incident is not None:
                self._resolve(row.step)
            return
        if row.values.get(LR) == 0.0:
            # The first step of a warm-up, or a schedule that has ended.
            return
        if not self._zeros:
            self._since = row.step
        self._zeros += 1
        if self._incident is not None:
            self._incident.count += 1
            self._incident.end_step = row.step
        elif self._zeros == at.LORA_ZEROS:
            self._incident = self._incidents.open(
                "dead_lora",
                name_of(LORA_B, row.record),
                start_step=self._since,
                noticed_step=row.step,
                count=self._zeros,
            )
            self._incident.variant = "stopped" if self._has_moved else ""
