"""Speed, progress and memory of a session, computed from its records.

Only step records count as steps: an evaluation's figures are not the training's. Unknown values are omitted.
"""

from __future__ import annotations

import re
from typing import Any, Final

from toolkit.mirrors.usage.allow_list import MOST_EPOCHS
from toolkit.runfolder.records import (
    END,
    EPOCH,
    START,
    STEP,
    SYSTEM,
    Record,
    shows_count_from_zero,
    steps_done,
)
from toolkit.runfolder.untrusted import finite_in

_GPU = re.compile(r"gpu/(?P<index>[0-9]{1,5})/mem_(?:allocated|peak)_gb")
_CPU_MB: Final = ("cpu_mem_rss_mb", "cpu_mem_peak_mb")
_GPU_GB: Final = ("gpu_mem_allocated", "gpu_mem_peak")
_MB: Final = 1024**2
_GB: Final = 1024**3


class RuntimeMetrics:
    """Steps, epochs, speed and peak memory of one session."""

    def __init__(self, *, is_resumed: bool) -> None:
        self._is_resumed = is_resumed
        self._elapsed = 0.0
        self._steps = 0
        self._last_step: int | None = None
        self._latest: Record = {}
        self._max_steps: float | None = None
        self._from_zero = False
        self._reported = (0.0, 0)
        """Seconds and steps at the last report."""
        self._epoch_began: float | None = None
        self._last_epoch: Any = None
        self._epochs = 0
        self._epoch_seconds: dict[str, float] = {}
        self._epoch_total, self._epochs_timed = 0.0, 0
        self._peak_cpu: float | None = None
        self._peak_gpu: float | None = None
        self._peak_by_gpu: dict[int, float] = {}

    def take(self, record: Record) -> None:
        """Process the next record of the session."""
        self._elapsed = max(self._elapsed, finite_in(record.get("elapsed")) or 0.0)
        event = record.get("event")
        self._from_zero = self._from_zero or shows_count_from_zero(record)
        if event == START:
            self._take_start(record)
        elif event == STEP:
            self._take_step(record)
        elif event == EPOCH:
            self._take_epoch(record)
        if event in (STEP, SYSTEM, END):
            self._take_memory(record)

    def progress(self) -> dict[str, Any]:
        """Return the current figures, with the speed since the last report."""
        before, steps_before = self._reported
        self._reported = self._elapsed, self._steps
        return {
            **self._last_figures(),
            "steps_per_second": _rate(self._steps - steps_before, self._elapsed - before),
            "elapsed_seconds": self._elapsed,
            "seconds_since_last_report": self._elapsed - before,
        }

    def totals(self, end: Record) -> dict[str, Any]:
        """Return the totals of the session."""
        seconds = finite_in(end.get("seconds"))
        seconds = self._elapsed if seconds is None else seconds
        if _is_step(end.get("global_step")):
            # The last steps may have no record of their own.
            self._count_up_to(max(self._last_step or 0, end["global_step"]))
        average = self._epoch_total / self._epochs_timed if self._epochs_timed else None
        return {
            **self._last_figures(),
            "total_time_seconds": seconds,
            "total_steps": self._steps or None,
            "steps_per_second": _rate(self._steps, seconds),
            "epochs_completed": self._epochs or None,
            "epoch_times": dict(self._epoch_seconds),
            "average_epoch_time_seconds": average,
            "gpu_memory": {
                f"gpu_{index}_peak_memory_bytes": _bytes(peak, _GB)
                for index, peak in sorted(self._peak_by_gpu.items())
            },
        }

    def _last_figures(self) -> dict[str, Any]:
        latest, step = self._latest, self._last_step
        done = None if step is None else steps_done(step, from_zero=self._from_zero)
        return {
            "step": step,
            "epoch": latest.get("epoch"),
            "progress": min(1.0, done / self._max_steps) if done is not None and self._max_steps else None,
            "train_loss": latest.get("train_loss"),
            "learning_rate": latest.get("lr"),
            "grad_norm": latest.get("grad_norm"),
            "samples_per_second": latest.get("samples_per_sec"),
            "peak_cpu_memory_bytes": _bytes(self._peak_cpu, _MB),
            "peak_gpu_memory_bytes": _bytes(self._peak_gpu, _GB),
        }

    def _take_start(self, record: Record) -> None:
        self._max_steps = finite_in(record.get("max_steps")) or self._max_steps
        if finite_in(record.get("resumed_from_step")):
            self._is_resumed = True
        if self._last_step is None and not self._is_resumed:
            self._epoch_began = self._elapsed

    def _take_step(self, record: Record) -> None:
        if not _is_step(record.get("global_step")):
            return
        folded: Any = record.get("steps_folded")
        self._count_up_to(record["global_step"], folded if _is_step(folded) else 0)
        self._latest = record

    def _count_up_to(self, step: int, folded: int = 0) -> None:
        # Steps without a loss are merged into others without being counted, so the step numbers are more reliable.
        if self._last_step is None or step < self._last_step:
            self._steps += 1 + folded
        else:
            self._steps += step - self._last_step
        self._last_step = step

    def _take_epoch(self, record: Record) -> None:
        epoch = record.get("epoch")
        if epoch == self._last_epoch:
            # Its metrics may come in several records.
            return
        self._last_epoch = epoch
        self._epochs += 1
        seconds = finite_in(record.get("seconds"))
        if seconds is None and self._epoch_began is not None:
            seconds = self._elapsed - self._epoch_began
        self._epoch_began = self._elapsed
        if seconds is None:
            # The rest of an epoch that an earlier session began does not show how long an epoch takes.
            return
        self._epoch_total += seconds
        self._epochs_timed += 1
        number = finite_in(epoch)
        if number is not None and number >= 0 and len(self._epoch_seconds) < MOST_EPOCHS:
            self._epoch_seconds[f"epoch_{int(number)}_seconds"] = seconds

    def _take_memory(self, record: Record) -> None:
        for name in _CPU_MB:
            self._peak_cpu = _higher(self._peak_cpu, record.get(name))
        for name in _GPU_GB:
            self._peak_gpu = _higher(self._peak_gpu, record.get(name))
        for name, value in record.items():
            if name.startswith("gpu/") and (match := _GPU.fullmatch(name)) is not None:
                index = int(match["index"])
                peak = _higher(self._peak_by_gpu.get(index), value)
                if peak is not None:
                    self._peak_by_gpu[index] = peak
                self._peak_gpu = _higher(self._peak_gpu, value)


def _higher(peak: float | None, value: Any) -> float | None:
    number = finite_in(value)
    if number is None or number < 0:
        return peak
    return number if peak is None else max(peak, number)


def _rate(steps: int, seconds: float) -> float | None:
    return steps / seconds if steps > 0 and seconds > 0 else None


def _bytes(amount: float | None, unit: int) -> int | None:
    return None if amount is None else round(amount * unit)


def _is_step(value: Any) -> bool:
    return type(value) is int and value >= 0
