"""The errors of one run: what is hooked for them, what is known where they arise, and the watch for a hang."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from toolkit.telemetry.core.guard import MisuseError
from toolkit.telemetry.core.run_context import RunContext
from toolkit.telemetry.logger.errors.error_recorder import ErrorRecorder
from toolkit.telemetry.logger.errors.hooks import EXITS
from toolkit.telemetry.logger.errors.output import OutputTail
from toolkit.telemetry.logger.errors.signals import SIGNALS
from toolkit.telemetry.logger.errors.stack import fingerprint
from toolkit.telemetry.logger.machine.shared_sampling import SharedSampling
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.logger.printed.taps import TAPS
from toolkit.telemetry.logger.records.step_gate import StepGate

if TYPE_CHECKING:
    from toolkit.telemetry.logger.errors.hang import HangWatch, TrainingProgress

_log = logging.getLogger("toolkit.telemetry")

_FOLLOW_EVERY_S = 1.0
_HANG_EVERY_S = 1.0
_LONGEST = 500


class _OpenSpans(Protocol):
    """What errors need of the `SpanRecorder` of the run."""

    def path(self) -> list[str]: ...
    def open_now(self) -> list[dict[str, Any]]: ...
    def ended(self) -> int: ...


class RunErrors:
    """The error recorder of one run, its watch for a hang, and its hooks: only those that the options enable."""

    def __init__(
        self,
        options: TelemetryOptions,
        context: RunContext,
        *,
        gate: StepGate,
        spans: _OpenSpans,
        sampling: SharedSampling | None,
        latest: Callable[[], Mapping[str, Any]],
        first_step: Callable[[], int | None],
        last_step: Callable[[], int | None],
        put: Callable[[dict[str, Any]], None],
    ) -> None:
        self.other_records = 0
        """Counts the records of the training besides its steps: evaluations, checkpoints, …"""
        self._gate = gate
        self._spans = spans
        self._sampling = sampling
        self._latest = latest
        self._first_step = first_step
        self._last_step = last_step
        self._context = context
        self._before_start: list[tuple[str, MisuseError]] | None = []
        """Mistakes of the caller's that wait for the start record, which comes first."""
        if options.diagnostics is not False:
            context.events.own_failure.subscribe(self._report_misuse)
        chosen = options.error_options
        self._options = chosen
        self._close_timeout_s = options.close_timeout
        self._tail: OutputTail | None = None
        self.recorder = ErrorRecorder(
            chosen,
            put=put,
            where=self._where,
            spans=spans.path,
            open_spans=self._open_spans,
            output=lambda: [] if self._tail is None else self._tail.last_lines(),
            session=context.session,
            run_id=context.run_id,
            guard=context.guard,
        )
        self.tasks: list[tuple[str, float, Callable[[], None]]]
        """Periodic tasks: name, interval and function."""
        self.tasks = [("following the output", _FOLLOW_EVERY_S, TAPS.follow)]
        if chosen.enabled and chosen.hang and options.diagnostics is not False:
            self.tasks.append(("watching for a hang", _HANG_EVERY_S, lambda: self._hang.look()))

    @cached_property
    def _hang(self) -> HangWatch:
        # With the first look, in the background: findings are many modules.
        from toolkit.telemetry.logger.errors.hang import HangWatch

        return HangWatch(
            after_s=self._options.hang_after,
            session=self._context.session,
            rank=self._context.rank,
            now=self._context.clock.monotonic,
            progress=self._progress,
            open_spans=self._spans.open_now,
            about_gpu=self._about_gpu,
            report=self._context.events.finding.publish,
        )

    def begin(self) -> None:
        """Install the enabled hooks."""
        options, recorder = self._options, self.recorder
        if not options.enabled:
            return
        if options.exit_code:
            for hook in EXITS:
                hook.join(self, self._note_exit)
        if options.signals:
            limit_s, guard = 1.0 + self._close_timeout_s, self._context.guard
            if not SIGNALS.join(self, recorder.record_signal, timeout_s=limit_s, guard=guard):
                _log.info(
                    "[telemetry] SIGTERM is handled by the script, or the logger was not made on the main thread: a "
                    "run that it ends without an exception or sys.exit has no end record. Call log.close('signal') in "
                    "the handler"
                )

    def listen(self) -> None:
        """Capture the last lines of output from now on."""
        lines = self._options.output_lines
        if self._options.enabled and lines and self._tail is None:
            with self._context.guard.catch("capturing the output"):
                self._tail = OutputTail(lines, TAPS)
                self._tail.follow()

    def end(self) -> None:
        """Restore everything that is still ours."""
        with self._context.guard.catch("restoring the hooks"):
            self.after_fork_in_child()
            SIGNALS.leave(self)

    def after_fork_in_child(self) -> None:
        """Restore everything: failures in a forked child are its own. The handler of signals does that itself."""
        for hook in EXITS:
            hook.leave(self)
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.release()

    def _note_exit(self, status: Any, frame: FrameType | None) -> None:
        with self._context.guard.catch("recording an exit"):
            self.recorder.note_exit(status, frame)

    def has_started(self) -> None:
        """Report the mistakes that have waited for the start record."""
        waiting, self._before_start = self._before_start or [], None
        for doing, error in waiting:
            self._report_misuse(doing, error)

    def _report_misuse(self, doing: str, error: BaseException) -> None:
        if not isinstance(error, MisuseError):
            return
        if self._before_start is not None:
            self._before_start.append((doing, error))
            return
        # Imported where a call was wrong: findings are many modules.
        from toolkit.telemetry.diagnostics.catalogue import CATALOGUE, WRONG_CALL
        from toolkit.telemetry.diagnostics.finding import Finding

        about, step, session = CATALOGUE[WRONG_CALL], max(self._gate.last_step, 0), self._context.session
        finding = Finding(
            id=f"{session}-{WRONG_CALL}-{fingerprint(doing)}",
            kind=WRONG_CALL,
            severity=about.severity,
            metric="calls",
            start_step=step,
            end_step=None,
            noticed_step=step,
            session=session,
            # It says itself what to write instead.
            message=f"{str(error)[:_LONGEST]}.",
            advice=about.advice[1:],
        )
        self._context.events.finding.publish(finding, {})

    def _open_spans(self) -> list[str]:
        found = self._spans.open_now()
        return [str(span["name"]) for span in found if "thread" not in span]

    def _where(self) -> dict[str, Any]:
        step, epoch = self._gate.last_step, self._latest().get("epoch")
        known = {"global_step": step} if step >= 0 else {}
        return {**known, "epoch": epoch} if type(epoch) in (int, float) else known

    def _progress(self) -> TrainingProgress:
        from toolkit.telemetry.logger.errors.hang import TrainingProgress

        gate, first, last = self._gate, self._first_step(), self._last_step()
        return TrainingProgress(
            step=gate.last_step if gate.last_step >= 0 else None,
            steps=(gate.last_step, gate.count),
            others=(self.other_records, self._spans.ended()),
            # After the last step, saving and uploading may take any time.
            is_done=last is not None and gate.last_step >= last,
            done=gate.last_step - first if first is not None else 0,
        )

    def _about_gpu(self) -> dict[str, Any]:
        if self._sampling is None:
            return {}
        gpu = {name: value for name, value in self._sampling.latest().items() if name.startswith("gpu")}
        stale = self._sampling.stale()
        return {**({"gpu": gpu} if gpu else {}), **({"not_answering": stale} if stale else {})}
