"""The life of a logger's run: set up once, ended once, and left alone in a forked child."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from toolkit.telemetry.core.clock import Clock, SystemClock
from toolkit.telemetry.core.guard import Guard, guarded
from toolkit.telemetry.core.lifetime import CloseOnce, close_at_exit, do_not_close_at_exit, is_interactive
from toolkit.telemetry.core.ranks import Rank, find_rank, is_chosen, local_rank
from toolkit.telemetry.core.run_context import RunContext, RunEvents
from toolkit.telemetry.core.sink import Sink
from toolkit.telemetry.logger.errors.signals import SIGNALS
from toolkit.telemetry.logger.options import OptionsError, TelemetryOptions
from toolkit.telemetry.logger.records.call_arguments import fields_by_name
from toolkit.telemetry.logger.records.folded_metrics import WELL_KNOWN
from toolkit.telemetry.logger.records.step_gate import NEVER, StepGate
from toolkit.telemetry.logger.steps.step_target import NOWHERE, StepTarget
from toolkit.telemetry.mirrors.registry import missing_packages
from toolkit.telemetry.privacy.configured_secrets import keep_secrets_of
from toolkit.telemetry.privacy.masking import Masker, without_secrets
from toolkit.telemetry.runfolder import records
from toolkit.telemetry.runfolder.records import NAN_INF_DETECTED

if TYPE_CHECKING:
    from toolkit.telemetry.logger.control.rank_control import RankControl, SilentRank
    from toolkit.telemetry.logger.session.live_run import LiveRun
    from toolkit.telemetry.logger.spans.profiling import Profiling
    from toolkit.telemetry.logger.spans.recorder import SpanRecorder
    from toolkit.telemetry.logger.spans.totals import SpanTimes
    from toolkit.telemetry.logger.writing.announcement import Announcer
    from toolkit.telemetry.logger.writing.session_folder import SessionFolder

_STATUS_OF: Final[Mapping[str, str]] = {
    "finished": "finished",
    "exit": "finished",
    "stopped": "stopped",
    "interrupted": "stopped",
    "pruned": "stopped",
    "signal": "stopped",
    "failed": "failed",
}
_MOST_EARLY: Final = 100
_at_prompt: weakref.WeakValueDictionary[tuple[str, str, int], LoggerLifetime] = weakref.WeakValueDictionary()
"""The newest logger of each name and log directory that a thread has made in a notebook or at a prompt."""


class LoggerLifetime:
    """What a logger is made of, from its options to the end of its run."""

    def __init__(
        self,
        run_name: str | None,
        options: TelemetryOptions,
        *,
        config: Mapping[str, Any] | None,
        sinks: Sequence[Sink],
        clock: Clock | None,
        rank: Rank | None,
    ) -> None:
        self.run_name = "run"
        self.guard = Guard(on_first=self._publish_failure)
        self.guard.strict, self.guard.quiet = options.strict, options.quiet
        self.is_live = False
        """Whether calls have an effect: not where telemetry is off, on most ranks, in a forked child, once closed."""
        self._options = options
        self._clock = clock or SystemClock()
        self._rank = rank
        self._events: RunEvents | None = None
        self._early: list[tuple[str, BaseException]] | None = []
        """What went wrong before there was a run to record it; None once there is one."""
        self._internals: Any = None
        self._status = "off"
        self._gate = StepGate()
        self._steps = NOWHERE
        self._ends = CloseOnce()
        self._run: LiveRun | None = None
        self._silent_rank: SilentRank | None = None
        self._rank_control: RankControl | None = None
        self._announcer: Announcer | None = None
        self._before_end: Callable[[], None] | None = None
        self._profiling: Profiling | None = None
        self._profiled: Mapping[str, Callable[[], AbstractContextManager[object]]] = {}
        self._folding: dict[str, SpanTimes] = {}
        self._span_recorder: SpanRecorder | None = None
        """What makes the spans of a live run; None if they are off."""
        is_set_up = False
        try:
            self._set_up(run_name, config, sinks)
            is_set_up = True
        except OptionsError:
            raise
        except Exception as error:  # noqa: BLE001 - the guard takes it
            self.guard.take("setting up the run", error)
        finally:
            if not is_set_up:
                # A bug of ours, or a machine at its limits: the training continues, and nothing is logged of it. Or the
                # script was interrupted: it has no logger, so no thread of one may stay.
                self._give_up()

    def _set_up(self, run_name: str | None, config: Mapping[str, Any] | None, sinks: Sequence[Sink]) -> None:
        if self._options.mistake:
            self.guard.report_misuse(self._options.mistake)
        for problem in self._options.alert_problems:
            self.guard.report_misuse(f"{problem}; what is wrong is left out")
        keep_secrets_of(self._options, os.environ)
        options = self._options = without_secrets(self._options)
        if run_name is None:
            run_name = time.strftime("run-%Y%m%d-%H%M%S")
        self.run_name = Masker().mask_name(str(run_name))
        clock = self._clock
        rank = self._rank or find_rank()
        if options.enabled:
            for sentence in missing_packages(options, may_send=options.may_send).values():
                self.guard.report_misuse(sentence)
            if is_interactive():
                self._replace_earlier()
        session_folder = self._open_folder(rank, clock) if options.enabled else None
        if session_folder is None:
            self._become_inert()
            if options.enabled and options.control and rank.rank:
                self._follow(rank, clock)
            return
        # Imported only now: a logger that is switched off costs its importer next to nothing.
        from toolkit.telemetry.logger.session.live_run import LiveRun

        self._events = events = RunEvents()
        context = RunContext(
            clock=clock,
            guard=self.guard,
            events=events,
            run_id=session_folder.manifest.run_id,
            session=session_folder.session.session,
            rank=session_folder.rank,
            began=clock.monotonic(),
        )
        self._run = LiveRun(
            session_folder,
            options,
            config=config,
            sinks=sinks,
            rank=rank,
            gate=self._gate,
            context=context,
            announcer=self._announcer,
        )
        if options.span_options.enabled:
            self._span_recorder = self._run.spans
            self._folding = self._span_recorder.folding
        else:
            self._run.spans.is_open = False
        self._rank_control = self._run.rank_control
        among_ranks = self._rank_control is not None and self._rank_control.is_among_ranks
        self._steps = StepTarget(
            self._run.steps,
            self._gate,
            clock=clock,
            began=context.began,
            ranks=self._rank_control if among_ranks else None,
        )
        self.is_live = True
        close_at_exit(
            self,
            in_forked_child=self._after_fork_in_child,
            timeout_s=options.close_timeout,
            disk=session_folder.folder.parent,
        )
        self._run.start()
        early, self._early = self._early or (), None
        for failure in early:
            self._publish_failure(*failure)
        with self.guard.catch("hooking what ends the script"):
            self._run.errors.begin()

    def _give_up(self) -> None:
        run, self._run = self._run, None
        silent_rank, self._silent_rank = self._silent_rank, None
        self._rank_control = self._span_recorder = None
        self._become_inert()
        do_not_close_at_exit(self)
        with self.guard.catch("giving up the run"):
            if run is not None:
                run.close(status="failed", reason="telemetry could not be set up", error=None)
            if silent_rank is not None:
                silent_rank.close()

    def _replace_earlier(self) -> None:
        """End a run that the same cell of a notebook has left open, before it is executed again."""
        key = self.run_name, os.path.abspath(self._options.log_dir), threading.get_ident()
        earlier = _at_prompt.get(key)
        if earlier is not None and earlier.is_live:
            self.guard.report_misuse(
                f"the run {self.run_name!r} in {self._options.log_dir} was still open; it is ended as replaced. Call "
                "close() at the end of a training, or use `with`",
                "a run that was still open",
            )
            earlier.close("replaced")
        _at_prompt[key] = self

    def _open_folder(self, rank: Rank, clock: Clock) -> SessionFolder | None:
        from toolkit.telemetry.logger.writing.session_folder import open_session

        options, guard = self._options, self.guard
        key = ""
        if rank.world_size > 1 or rank.rank:
            # Imported where there are several ranks.
            from toolkit.telemetry.logger.writing.announcement import Announcer, next_key
            from toolkit.telemetry.logger.writing.rank_folder import announcement_of, join_rank_zero

            key = next_key(self.run_name) if rank.world_size > 1 else ""
        if rank.rank == 0:
            session_folder = open_session(self.run_name, options, now=clock.wall(), guard=guard)
            if key and options.ranks != "zero":
                with guard.catch("announcing the run to the other ranks"):
                    self._announcer = Announcer(key, announcement_of(session_folder), guard)
                    self._announcer.announce()
            return session_folder
        if not is_chosen(options.ranks, rank):
            if options.ranks == "first_per_node" and local_rank() is None:
                trouble = "the launcher sets no LOCAL_RANK, so the first rank of this node is not known"
                guard.report("choosing the ranks that write", OSError(trouble))
            return None
        joined: SessionFolder | None = None
        with guard.catch("finding rank 0's folder"):
            joined = join_rank_zero(self.run_name, options, rank, key, now=clock.wall(), guard=guard)
            if joined is None:
                trouble = (
                    f"rank {rank.rank} found no run of this launch in {options.log_dir}; if its nodes have disks of "
                    "their own, make the logger after the process group, or have the launcher set TELEMETRY_RUN_ID"
                )
                guard.report("finding rank 0's folder", OSError(trouble))
        return joined

    def _follow(self, rank: Rank, clock: Clock) -> None:
        """Be asked what rank 0 is asked, without writing anything."""
        from toolkit.telemetry.logger.control.rank_control import SilentRank

        self._silent_rank = SilentRank(
            rank, run_name=self.run_name, log_every=self._options.log_every, clock=clock, guard=self.guard
        )
        self._rank_control = self._silent_rank.rank_control
        self._steps = StepTarget(ranks=self._rank_control)
        close_at_exit(self, in_forked_child=self._after_fork_in_child)
        self._silent_rank.start()

    def close(self, reason: str | None = None, *, error: BaseException | None = None) -> None:
        """End the run. Returns within `close_timeout`."""
        if self._silent_rank is not None:
            silent_rank, self._silent_rank = self._silent_rank, None
            self._become_inert()
            do_not_close_at_exit(self)
            with self.guard.catch("closing"):
                silent_rank.close()
        if self._run is None:
            self._close(reason, error)
            return
        # If a signal is ending the process, a run that closes now would hide it.
        with self.guard.catch("ending by a signal"):
            SIGNALS.wait()
        self._close(reason, error)
        # Another thread may be ending it: a script that is over must not take that one's last records along.
        with self.guard.catch("closing"):
            self._ends.wait(self._options.close_timeout)
            SIGNALS.wait()

    @guarded
    def _close(self, reason: str | None, error: BaseException | None) -> None:
        run = self._live()
        if self._ends.begin():
            try:
                self._end(run, reason, error)
            finally:
                # In this order: a child that is forked in between must not wait for an end that is the parent's.
                self._ends.done()
                do_not_close_at_exit(self)

    def _end(self, run: LiveRun, reason: str | None, error: BaseException | None) -> None:
        with self.guard.catch("finding out why the run ends"):
            reason, error = run.errors.recorder.how_it_ends(reason, error)
        if reason is None:
            reason = "stopped" if self.should_stop else "finished"
        reason = reason if isinstance(reason, str) else f"<{type(reason).__name__}>"
        if self._before_end is not None:
            with self.guard.catch("writing the last iterations"):
                self._before_end()
        self._become_inert()
        self.guard.on_late_call = run.late_calls.take
        self._status = _STATUS_OF.get(reason, "stopped")
        left_undone = run.close(status=self._status, reason=reason, error=error)
        run.late_calls.may_write = not left_undone
        for sentence in left_undone:
            self.guard.report("closing", OSError(sentence))
        # Nothing is recorded any more, and at the end of a process its locks may be held by threads that are no more.
        self.guard.on_first = None

    @property
    def should_stop(self) -> bool:
        """Whether the run was asked to stop; read it between steps."""
        if self._rank_control is None:
            return False
        poller = self._rank_control.poller
        if poller.stop_asked:
            with self.guard.catch("looking whether to stop"):
                return poller.should_stop
        return poller.has_stopped

    def _after_fork_in_child(self) -> None:
        # The threads and files are the parent's.
        self._become_inert()
        self._rank_control = None
        # A close that is under way is the parent's; do not wait for it here.
        self._ends = CloseOnce(is_over=True)
        if self._run is not None:
            self.guard.on_late_call = self._run.late_calls.take
            self._run.errors.after_fork_in_child()
            self._run.output.after_fork_in_child()
            self._run.spans.after_fork_in_child()
            self._run.pipeline.after_fork_in_child()

    # What the calls of a logger share.

    def _takes_step(self, global_step: Any, scalars: Mapping[str, Any]) -> bool:
        """Agree with the other ranks at a step, and return whether it is logged here."""
        ranks = self._steps.ranks
        if ranks is not None:
            with self.guard.catch("agreeing with the other ranks"):
                ranks.at_step(scalars.get("step") if global_step is None else global_step)
        if not self.is_live:
            self.guard.on_late_call("log_step")
        return self.is_live

    @guarded
    def _take_unusual(self, global_step: Any, record: dict[str, Any], scalars: dict[str, Any]) -> None:
        """Take a step that is called `step`, or is missing, or has its metrics in the place of the loss or the step."""
        for place, given in (("step", global_step), ("loss", record.get("train_loss"))):
            if isinstance(given, dict):
                self.guard.report_misuse(
                    f"log_step got a mapping in the place of the {place}; its values are logged under their own names, "
                    "as by log_step(step, **metrics)",
                    f"a mapping as the {place}",
                )
        if isinstance(global_step, dict):
            # As `wandb.log` takes them: the values, then perhaps the step.
            step = record.pop("train_loss") if type(record.get("train_loss")) is int else None
            scalars = {**global_step, **scalars}
            global_step = scalars.pop("global_step", None) if step is None else step
        fields = fields_by_name(record, scalars)
        if global_step is None:
            global_step = self._step_of("log_step", None, fields, is_next=True)
        target = self._steps
        if target.records is None or (target.is_special and not self._takes_step(global_step, fields)):
            return
        known = {name: fields.pop(name, None) for name in (*WELL_KNOWN, NAN_INF_DETECTED)}
        stamps = {name: record[name] for name in ("time", "elapsed", "seq")}
        whole = {**stamps, "global_step": global_step, NAN_INF_DETECTED: False}
        whole |= {name: value for name, value in known.items() if value is not None}
        target.records.take(global_step, known["train_loss"], whole, fields)

    def _step_of(self, call: str, given: Any, fields: dict[str, Any], *, is_next: bool = False) -> Any:
        """Return the step of a call, which may be called `step`; without one it is the last one, or the next."""
        step = fields.pop("step", None) if given is None else given
        if step is None:
            step = self._last_step(at_least=0) if not is_next else self._last_step() + 1
            self.guard.report_misuse(
                f"{call} was called without a step, and is recorded at step {step}; write {call}(step, …)",
                f"{call} without a step",
            )
        return step

    def _last_step(self, at_least: int = -1) -> int:
        """Return the newest step that is known: of this session, or of the one that it resumes."""
        earlier = self._run.step_before if self._run is not None else None
        return max(self._gate.last_step, at_least, -1 if earlier is None else earlier)

    def _step_or_last(self, step: int | None) -> int:
        return self._last_step(at_least=0) if step is None else step

    def _keep_media(self, kind: str, name: str, step: int, keep: Callable[[LiveRun], None]) -> None:
        """Have `keep` called on the thread that writes media; what it has no room for is recorded as dropped."""
        run = self._live()
        if not run.media.put(f"keeping a {kind}", lambda: keep(run)):
            run.put(records.MEDIA_DROPPED, {"kind": kind, "name": name, "global_step": step})

    @guarded
    def _log_summary(self, values: Mapping[str, Any]) -> None:
        self._live().put(records.SUMMARY, values)

    def _publish_failure(self, doing: str, error: BaseException) -> None:
        if self._early is None and self._events is not None:
            self._events.own_failure.publish(doing, error)
        elif self._early is not None and len(self._early) < _MOST_EARLY:
            self._early.append((doing, error))

    def _live(self) -> LiveRun:
        assert self._run is not None, "only a live logger gets here"
        return self._run

    def _become_inert(self) -> None:
        self.is_live = False
        # For a thread that is in `log_step` now.
        self._gate.due_at = -NEVER
        self._steps = NOWHERE
        self._folding = {}
        self._span_recorder = None
        if self._profiling is not None:
            self._profiling.switch_off()
