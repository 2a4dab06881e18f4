"""torchtitan's structured logger: its spans, scalars and markers become records of a run.

TITAN_STRUCT_LOGGER_HANDLERS=toolkit.telemetry.integrations.torchtitan.register
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any, Final

from toolkit.telemetry.core.ranks import Rank, find_rank
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.spans.span import AnySpan
from toolkit.telemetry.timing import names

_STEP: Final = "step"
_NAMES: Final = {
    _STEP: names.TRAINING_ITERATION,
    "fetching_batch": names.DATA_LOADING,
    "optim": names.OPTIMIZER_UPDATE,
    "eval": names.VALIDATION_LOOP,
    "checkpoint_save": names.CHECKPOINT_SAVE_SYNC,
    "torch_distributed_init": names.DIST_INIT,
    "model_parallelism_init": names.MODEL_INIT,
}
"""Our names for torchtitan's spans; others keep theirs."""
_MAIN: Final = ("training", "trainer")
"""The sources that name the run after its folder alone."""


def register(
    *, structured_logger: logging.Logger, rank: int, source: str, output_dir: str, **options: Any
) -> None:
    """Begin a run named after torchtitan's output folder, in `./logs` or `TELEMETRY_LOG_DIR`.

    Raises:
        OptionsError: an option, or a `TELEMETRY_…` variable, is invalid.
    """
    name = os.path.basename(os.path.abspath(output_dir))
    known = find_rank()
    # Actors of reinforcement learning have a rank without a launcher's variable.
    own = known if known.rank == rank else Rank(rank, max(known.world_size, rank + 1))
    log = TelemetryLogger(
        name if source in _MAIN else f"{name}-{source}", rank=own, **{"log_every": 1, **options}
    )
    structured_logger.addHandler(TelemetryHandler(log, source))


class TelemetryHandler(logging.Handler):
    """Takes the records of torchtitan's structured logger; none of its calls raises."""

    def __init__(self, log: TelemetryLogger, source: str) -> None:
        super().__init__()
        self.telemetry = log
        self._source = source
        self._open: dict[tuple[Any, int], list[tuple[str, AnySpan]]] = {}
        """Spans that have begun, by task and thread: the last to begin ends first."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a span, a scalar or a marker."""
        kind = getattr(record, "log_type_name", None)
        if not isinstance(kind, str):
            # A text: torchtitan's own handler leaves them out as well.
            return
        with self.telemetry.guard.catch("taking a record of torchtitan"):
            base, _, what = kind.rpartition("_")
            if getattr(record, "log_type", "event") == "instant":
                self._take_instant(kind, record)
            elif what == "start":
                name = _NAMES.get(base, base)
                span = self.telemetry.start_span(name, start_time=record.created)
                self._open.setdefault(self._place(record), []).append((base, span))
            elif what in ("error", "end"):
                self._end(base, what == "end", record)

    def _take_instant(self, kind: str, record: logging.LogRecord) -> None:
        step, value = getattr(record, "step", None), getattr(record, "value", None)
        name = getattr(record, "event_name", None)
        if kind == "metric_value" and name and step is not None:
            self.telemetry.write_step(step, **{str(name): value})
        else:
            about = {"source": self._source, "name": name, "value": value}
            internals(self.telemetry).event_outside_spans(kind, about, record.created)

    def _end(self, base: str, is_end: bool, record: logging.LogRecord) -> None:
        place = self._place(record)
        spans = self._open.get(place, [])
        found = next((index for index in reversed(range(len(spans))) if spans[index][0] == base), None)
        if found is None:
            return
        if not is_end:
            spans[found][1].fail(record.getMessage())
            return
        spans.pop(found)[1].stop(record.created)
        if not spans:
            del self._open[place]
        step = getattr(record, "step", None)
        if base == _STEP and step is not None:
            self.telemetry.log_step(step)

    @staticmethod
    def _place(record: logging.LogRecord) -> tuple[Any, int]:
        return getattr(record, "task_name", None), threading.get_ident()
