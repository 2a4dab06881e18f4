"""The errors of one live run, with what its records say around them, and the watch for a hang."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from toolkit.core.clock import Clock
from toolkit.core.guard import Guard
from toolkit.telemetry.errors.hang import LOOK_EVERY_S, HangWatch, Progress, Tell
from toolkit.telemetry.errors.recorder import ErrorContext, ErrorRecorder
from toolkit.telemetry.errors.watch import ErrorWatch
from toolkit.telemetry.machine.samplers.sampling import SystemSampling
from toolkit.telemetry.options import TelemetryOptions
from toolkit.telemetry.records.step_gate import StepGate

_FOLLOW_EVERY_S = 1.0


class OpenSpans(Protocol):
    """What is known of spans."""

    def path(self) -> list[str]:
        """Return the names of those that are open here, innermost last."""
        ...

    def open_now(self, *, short_ones: bool = False) -> list[dict[str, Any]]:
        """Return those that are open anywhere; the short ones, too, where that is worth a long look."""
        ...

    def ended(self) -> int:
        """Return how many the training has ended."""
        ...


class RunErrors:
    """What belongs together of one run's errors."""

    def __init__(
        self,
        options: TelemetryOptions,
        *,
        session: int,
        rank: int,
        run_id: str,
        gate: StepGate,
        spans: OpenSpans,
        sampling: SystemSampling | None,
        latest: Callable[[], Mapping[str, Any]],
        last_step: Callable[[], int | None],
        put: Callable[[dict[str, Any]], None],
        tell: Tell,
        clock: Clock,
        guard: Guard,
    ) -> None:
        self.words = 0
        """Counts what the training says besides its steps: records of evaluations, checkpoints, …"""
        self._gate = gate
        self._spans = spans
        self._sampling = sampling
        self._latest = latest
        self._last_step = last_step
        chosen = options.error_options
        self.watch = ErrorWatch(chosen, close_timeout_s=options.close_timeout, guard=guard)
        around = ErrorContext(
            put=put,
            where=self._where,
            spans=spans.path,
            output=self.watch.last_lines,
            open_spans=self._open_spans,
        )
        self.recorder = ErrorRecorder(chosen, around, session=session, run_id=run_id, guard=guard)
        self.tasks: list[tuple[str, float, Callable[[], None]]]
        """What is to be done every so many seconds, on a thread that nothing else holds up."""
        self.tasks = [("following the output", _FOLLOW_EVERY_S, self.watch.follow)]
        if chosen.enabled and chosen.hang and options.diagnostics is not False:
            hang = HangWatch(
                after_s=chosen.hang_after,
                session=session,
                rank=rank,
                now=clock.monotonic,
                progress=self._progress,
                open_spans=spans.open_now,
                all_open_spans=lambda: spans.open_now(short_ones=True),
                about_gpu=self._about_gpu,
                tell=tell,
            )
            self.tasks.append(("watching for a hang", LOOK_EVERY_S, hang.look))

    def _open_spans(self) -> list[str]:
        found = self._spans.open_now(short_ones=True)
        return [str(span["name"]) for span in found if "thread" not in span]

    def _where(self) -> dict[str, Any]:
        step, epoch = self._gate.last_step, self._latest().get("epoch")
        known = {"global_step": step} if step >= 0 else {}
        return {**known, "epoch": epoch} if type(epoch) in (int, float) else known

    def _progress(self) -> Progress:
        gate, last = self._gate, self._last_step()
        return Progress(
            step=gate.last_step if gate.last_step >= 0 else None,
            steps=(gate.last_step, gate.count),
            others=(self.words, self._spans.ended()),
            # The last step is done; saving and uploading take what they take.
            is_done=last is not None and gate.last_step >= last,
        )

    def _about_gpu(self) -> dict[str, Any]:
        if self._sampling is None:
            return {}
        gpu = {name: value for name, value in self._sampling.latest().items() if name.startswith("gpu")}
        stale = self._sampling.stale()
        return {**({"gpu": gpu} if gpu else {}), **({"not_answering": stale} if stale else {})}
