"""What a live logger is made of: its folder, its threads, and their events."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from toolkit.telemetry.core.background import FILES
from toolkit.telemetry.core.clock import Countdown, wait_until
from toolkit.telemetry.core.lifetime import code_of, seconds_to_close
from toolkit.telemetry.core.periodic import PeriodicTasks, Task
from toolkit.telemetry.core.ranks import Rank
from toolkit.telemetry.core.run_context import RunContext
from toolkit.telemetry.core.sink import Sink
from toolkit.telemetry.logger.control.control_file import was_answered
from toolkit.telemetry.logger.control.poller import ControlPoller
from toolkit.telemetry.logger.control.rank_control import RankControl
from toolkit.telemetry.logger.errors.error_recorder import AT_THE_END
from toolkit.telemetry.logger.errors.failure import describe_failure
from toolkit.telemetry.logger.errors.run_errors import RunErrors
from toolkit.telemetry.logger.machine.peak_memory import peak_memory
from toolkit.telemetry.logger.machine.samplers.registry import default_samplers
from toolkit.telemetry.logger.machine.shared_sampling import SharedSampling
from toolkit.telemetry.logger.machine.start_look import data_paths, look_at_machine, look_at_start, settings
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.logger.printed.output_writer import OutputWriter
from toolkit.telemetry.logger.records.device_scalars import DeviceScalars
from toolkit.telemetry.logger.records.plain_values import PlainValues
from toolkit.telemetry.logger.records.record_queue import MUCH
from toolkit.telemetry.logger.records.step_gate import NEVER, StepGate
from toolkit.telemetry.logger.session.ending import Part, do_parts
from toolkit.telemetry.logger.session.start_record import (
    job_fields,
    of_one_type,
    samples_per_step,
    start_fields,
    with_room,
)
from toolkit.telemetry.logger.spans.recorder import SpanRecorder
from toolkit.telemetry.logger.steps.step_records import FixedInterval, StepRecords
from toolkit.telemetry.logger.writing.late_calls import IN_A_FORK, LateCalls
from toolkit.telemetry.logger.writing.media_writer import MediaWriter, write_media_file
from toolkit.telemetry.logger.writing.pipeline import RecordPipeline, size_of
from toolkit.telemetry.logger.writing.session_folder import SessionFolder
from toolkit.telemetry.runfolder import records
from toolkit.telemetry.runfolder.control import ControlRequest
from toolkit.telemetry.runfolder.layout import METRICS_CSV, METRICS_JSONL
from toolkit.telemetry.runfolder.manifest import IN_SUMMARY
from toolkit.telemetry.runfolder.reader import last_step
from toolkit.telemetry.runfolder.records import FIRST_STEP
from toolkit.telemetry.runfolder.status import FINISHED

if TYPE_CHECKING:
    from toolkit.telemetry.logger.records.completions.completion_recorder import CompletionRecorder
    from toolkit.telemetry.logger.session.code_keeper import CodeKeeper
    from toolkit.telemetry.logger.writing.announcement import Announcer
    from toolkit.telemetry.logger.writing.batch_writer import BatchWriter

_ON_STEP_RECORDS: Final = ("gpu_mem_allocated", "gpu_mem_reserved", "cpu_mem_rss_mb", "gpu_util")
_CONTROL_EVERY_S: Final = 2.0
_HEARTBEAT_EVERY_S: Final = 5.0
_SAMPLE_EVERY_S: Final = 1.0
_TEND_EVERY_S: Final = 1.0
_NOT_FROM_THE_LOOP: Final = frozenset({records.SYSTEM, records.CONTROL_CHANGE, records.CODE})
"""Records that do not show that the loop is alive."""
_MODULES_EVERY_S: Final = 5.0
_RECOVER_EVERY_S: Final = 3600.0
_JOURNAL_EVERY_S: Final = 1.0
_LONGEST_START_S: Final = 3.0
"""How long the spans of a start-up wait for `log_start`; then a start record of what is known by then goes before."""
_BETWEEN_STEPS: Final = frozenset({records.EVAL, records.CHECKPOINT, records.SAMPLE, records.EPOCH})
"""Records of something that was done between two steps."""


class LiveRun:
    """One session of a run, from its folder's making to its end record."""

    def __init__(
        self,
        session_folder: SessionFolder,
        options: TelemetryOptions,
        *,
        config: Any,
        sinks: Sequence[Sink],
        rank: Rank,
        gate: StepGate,
        context: RunContext,
        announcer: Announcer | None = None,
    ) -> None:
        clock, guard = context.clock, context.guard
        self.session_folder = session_folder
        self.world_size = rank.world_size
        self._announcer = announcer
        self._options = options
        self._config = config
        self._gate = gate
        self._clock = clock
        self._guard = guard
        self._context = context
        self._values = PlainValues(guard, DeviceScalars())
        self.pipeline = RecordPipeline(session_folder, options, sinks=sinks, context=context)
        self.late_calls = LateCalls(session_folder, self.pipeline.elapsed, guard)
        self.media = MediaWriter(guard, session_folder.folder.parent)
        """Writes images, tables and histograms on a thread of its own."""
        self.step_before: int | None = None
        """The last step of the sessions before this one, where that is known."""
        if len(session_folder.manifest.sessions) > 1:
            with guard.catch("looking for the last step"):
                self.step_before = last_step(session_folder.record_file)
        self._batches: BatchWriter | None = None
        self._missing = session_folder.missing
        """The first and last number of records that an earlier session wrote and that are gone, until it is said."""
        self._declared_in_forks = 0
        self._has_started = False
        self._starting_thread: int | None = None
        self._training: dict[str, Any] = {}
        self._probe = look_at_machine(guard)
        self._looks = deque([self._probe])
        """What is still to be written of the machine, the settings and the data."""
        self._made: dict[str, Any] = {}
        """What is made when it is first needed: by the thread that comes first, for all."""
        self._keeps_code = bool(options.code) and session_folder.rank == 0
        self._sampling = self._make_sampling() if options.system else None
        self.rank_control = self._make_control(rank, context) if options.control else None
        self.spans = SpanRecorder(
            options.span_options,
            gate,
            self._values,
            # Before the start record, too: what takes long before it can be written is a span's business.
            record_queue=self.pipeline.record_queue,
            context=context,
        )
        self.steps = StepRecords(
            gate,
            self.pipeline.record_queue,
            self._values,
            self.rank_control.poller if self.rank_control is not None else FixedInterval(options.log_every),
            self.spans.times,
            before_first=self._put_start_if_none,
            context=context,
        )
        self.errors = RunErrors(
            options,
            context,
            gate=gate,
            spans=self.spans,
            sampling=self._sampling,
            latest=lambda: self.steps.latest,
            first_step=lambda: self.steps.first_step,
            last_step=self._last_planned_step,
            put=self._put_error,
        )
        modes = session_folder.modes
        self.output = OutputWriter(session_folder.folder, context, mode=modes.file, is_on=options.output)
        self.periodic = PeriodicTasks(
            self._tasks(), clock=clock, guard=guard, kind=FILES, disk=session_folder.folder.parent
        )
        # A thread of its own: a disk that does not answer holds up the other one, and is a reason to hang.
        watching = [
            *self.errors.tasks,
            *(self._keeping_the_journal if self.pipeline.waits_for_no_disk else []),
        ]
        self._watchman = PeriodicTasks(watching, clock=clock, guard=guard)

    def _make_sampling(self) -> SharedSampling | None:
        with self._guard.catch("setting up the samplers"):
            return SharedSampling(
                self.session_folder.folder.parent,
                default_samplers,
                interval_s=_SAMPLE_EVERY_S,
                clock=self._clock,
                guard=self._guard,
            )
        return None

    def _make_control(self, rank: Rank, context: RunContext) -> RankControl:
        session_folder, events = self.session_folder, context.events
        poller = ControlPoller(
            session_folder.folder,
            run_id=context.run_id,
            clock=context.clock,
            session_started=session_folder.session.started,
            log_every=self._options.log_every,
            # Every rank takes a request, and rank 0 answers it.
            answer=partial(self.put, records.CONTROL_CHANGE) if context.rank == 0 else lambda _: None,
            notify=self._look_at_next_step,
            # What this session answers the poller knows by itself.
            was_answered=partial(
                was_answered, session_folder.record_file, upto=size_of(session_folder.record_file)
            ),
            guard=context.guard,
            hold=rank.world_size > 1,
        )
        events.action_wanted.subscribe(self._ask_for)
        if self._options.span_options.around:
            # Only a run that has spans can be asked for them.
            events.first_span.subscribe(self._offer_trace)
        return RankControl(
            poller,
            rank,
            run_name=session_folder.manifest.display_name,
            clock=context.clock,
            guard=context.guard,
            seconds_per_step=lambda: self.steps.latest.get("sec_per_step"),
        )

    def start(self) -> None:
        """Say where the run is logged, and start the threads."""
        self.output.start()
        if self.session_folder.rank == 0:
            folder = os.path.join(self._options.log_dir, self.session_folder.folder.name)
            also = f" (and {METRICS_CSV})" if self._options.csv else ""
            name, place = self.session_folder.manifest.display_name, self.session_folder.folder.name
            self._guard.say(f"run_name={name}{'' if place == name else f' folder={place}'}", sys.stdout)
            self._guard.say(f"Logging to {folder}/{METRICS_JSONL}{also}", sys.stdout)
        elif self.session_folder.leads_part:
            manifest = self.session_folder.manifest
            folder = os.path.join(self._options.log_dir, self.session_folder.folder.name)
            self._guard.say(
                f"Logging the ranks of node {manifest.node} to {folder} (rank 0 of {manifest.display_name} is on "
                f"node {manifest.part_of})",
                sys.stdout,
            )
        if self._options.not_sent:
            left_out = ", ".join(f"telemetry.{name}" for name in self._options.not_sent)
            self._guard.say(f"mode is offline: {left_out} will not be sent")
        if self.session_folder.notice:
            self._guard.report("resuming", OSError(self.session_folder.notice))
        # A machine that starts no more threads is still a machine to train on.
        starts = [self.pipeline.start, self._probe.start, self.periodic.start, self._watchman.start]
        if self._sampling is not None:
            starts.append(self._sampling.start)
        for start in starts:
            with self._guard.catch("starting a thread"):
                start()

    def put(self, event: str, given: Mapping[str, Any], *, wall: float | None = None) -> None:
        """Write a record of the caller's values, a start record before the first; `wall` is another time."""
        self._put_start_if_none()
        fields, pending = self._values.fields(given)
        if event in _BETWEEN_STEPS:
            seconds = fields.get("seconds") if event == records.CHECKPOINT else None
            step = fields.get("global_step")
            self.steps.speed.note_other_record(
                self.pipeline.elapsed(), step, seconds if type(seconds) is float else None
            )
        self.pipeline.put(event, fields, pending, wall=wall)
        if event not in _NOT_FROM_THE_LOOP:
            self.errors.other_records += 1

    def put_start(
        self,
        *,
        config: Any = None,
        others: Mapping[str, Any] | None = None,
        reads_settings: bool = False,
        **about: Any,
    ) -> None:
        """Write a start record; what is not known yet of the machine, settings and data follows in another record.

        With `reads_settings` this thread reads the settings: not in a step, which torch may be compiling.
        """
        self._starting_thread = threading.get_ident()
        self._has_started = True
        self.steps.step_at_start = self._gate.last_step
        try:
            config = config if config is not None else self._config or None
            self._put_start(config, about, others or {}, reads_settings=reads_settings)
        finally:
            # Whatever went wrong: records that waited for it are written.
            self.pipeline.record_queue.await_no_start()
            self._starting_thread = None
            self.errors.has_started()

    def _put_start(
        self,
        config: Any,
        about: Mapping[str, Any],
        others: Mapping[str, Any],
        *,
        reads_settings: bool,
    ) -> None:
        fields = start_fields(run_name=self.session_folder.manifest.display_name, config=config, **about)
        if not isinstance(fields.get("config", {}), (dict, list)):
            self._guard.report_misuse(
                f"the config is a {type(config).__name__}, which has no names and values; it should be a mapping, a "
                "namespace, a dataclass or the like"
            )
        paths = data_paths(others.get("data"), fields.get("config"))
        if data_paths(others.get("data"), None):
            others = {name: value for name, value in others.items() if name != "data"}
        # Ranks are compared once their machines are known, and by their data: both come together.
        found = {} if paths and self.world_size > 1 else self._found()
        if reads_settings:
            found |= settings()
        if paths or not reads_settings:
            self._looks.append(look_at_start(paths, self._guard, with_settings=not reads_settings))
        tags = {"perf_tag": self._options.perf_tags, "session_tag": self.session_tag}
        ranks = {"world_size": self.world_size} if self.world_size > 1 else {}
        counted = {FIRST_STEP: 0} if self._counts_from_zero else {}
        # Secrets are masked where the record is taken.
        described = self._values.tree({**others, **found})
        plain = of_one_type({**job_fields(os.environ), **ranks, **fields, **tags, **counted, **described})
        kept = {
            f"x_{name}" if name in records.ENVELOPE else name: value
            for name, value in plain.items()
            if value is not None
        }
        self.steps.speed.samples_per_step = samples_per_step(kept)
        self._training = {name: kept[name] for name in ("max_steps", FIRST_STEP) if name in kept}
        if self.pipeline.usage_reports is not None:
            kept["usage_reports"] = self.pipeline.usage_reports
        self.pipeline.put(records.START, {**with_room(kept), "run_id": self.session_folder.manifest.run_id})
        if self._missing is not None:
            (first, last), self._missing = self._missing, None
            self.pipeline.put(
                records.LOST,
                {
                    "records": last - first + 1,
                    "reason": "an earlier session had written them; they did not survive its end (power loss?)",
                    "from_seq": first,
                    "to_seq": last,
                },
            )

    @property
    def session_tag(self) -> str:
        """The tag of jobs that belong together; the run id where none was given."""
        return self._options.session_tag or self.session_folder.manifest.run_id

    @property
    def tags(self) -> tuple[str | tuple[str, ...] | None, str | None]:
        """The performance tag and the session tag of the options or of `set_tags`."""
        return self._options.perf_tag, self._options.session_tag

    def set_tags(self, perf_tag: str | None, session_tag: str | None) -> None:
        """Change the tags of this session, which may be known late."""
        given = {"perf_tag": perf_tag, "session_tag": session_tag}
        changed: dict[str, Any] = {
            # One that is only known once it is asked for is left to the options; a list may be one without end.
            name: tag if callable(tag) else self._values.tree(tag)
            for name, tag in given.items()
            if tag is not None
        }
        before = self.tags
        self._options = self._options.changed(**changed)
        self.pipeline.manifest = self.pipeline.manifest.with_latest(
            perf_tag=self._options.perf_tags, session_tag=self.session_tag
        )
        if self._has_started and self.tags != before:
            now = {"perf_tag": self._options.perf_tags, "session_tag": self.session_tag}
            self.pipeline.put(records.TAGS, {name: tag for name, tag in now.items() if tag is not None})

    def keep_file(self, subfolder: str, name: str, step: int, ending: str, data: bytes) -> str:
        """Put a file of the run into `subfolder` of its folder, and return its path there."""
        return write_media_file(self.session_folder.folder, subfolder, name, step, ending, data)

    @property
    def batches(self) -> BatchWriter | None:
        """Writes the batches; None where they are not kept."""
        if self._batches is None and self._options.batches:
            # Imported where batches are given: most loops give none.
            from toolkit.telemetry.logger.writing.batch_writer import BatchWriter

            self._batches = BatchWriter(self.session_folder, self._gate, self.put, self._guard)
        return self._batches

    @property
    def completions(self) -> CompletionRecorder:
        """Writes completions."""
        # Imported where they are given: most loops give none.
        from toolkit.telemetry.logger.records.completions.completion_recorder import CompletionRecorder

        made: CompletionRecorder = self._made.get("completions") or self._made.setdefault(
            "completions",
            CompletionRecorder(
                self._options.completion_options,
                self._values,
                record_queue=self.pipeline.record_queue,
                before_first=self._put_start_if_none,
                context=self._context,
            ),
        )
        return made

    def _close_completions(self, _: float) -> None:
        if "completions" in self._made:
            self.completions.close()

    def _code_keeper(self) -> CodeKeeper:
        # Imported in the background, or by a run that is over before that: it may begin without.
        from toolkit.telemetry.logger.session.code_keeper import CodeKeeper

        with_changes = self._options.code == "changes"
        new = CodeKeeper(self.session_folder, self._put_code, self._guard, with_changes=with_changes)
        made: CodeKeeper = self._made.setdefault("code", new)
        if made is new:
            made.job.start()
        return made

    def _look_at_code(self) -> None:
        (self._made.get("code") or self._code_keeper()).look_again()

    def _close_code(self, timeout_s: float) -> None:
        (self._made.get("code") or self._code_keeper()).close(timeout_s)

    def latest_loss(self) -> Any:
        """Return the newest training loss that is known without asking a device."""
        folded = self._gate.latest
        return self.steps.latest.get("train_loss") if folded is None else folded

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was logged is in the files; a start record comes before it."""
        time_left = Countdown(timeout_s)
        is_kept = self.media.flush(timeout_s)
        if self._batches is not None:
            is_kept = self._batches.flush(time_left.left()) and is_kept
        self._put_start_if_held_up()
        return self.pipeline.flush(time_left.left()) and is_kept

    def sync(self, timeout_s: float) -> bool:
        """Flush the records, and force them onto the disk."""
        self._put_start_if_held_up()
        return self.pipeline.sync(timeout_s)

    def close(self, *, status: str, reason: str, error: BaseException | None) -> list[str]:
        """Write the last records, stop the threads, and return messages about what could not be done.

        All of it takes no longer than `close_timeout`, whatever hangs: who comes first leaves time for the rest. When
        the process ends, all its runs share that time. Who interrupts it, with Ctrl-C or a time limit of their own,
        waits a little longer: the end is written first.

        Raises:
            BaseException: what interrupted it.
        """
        time_left = Countdown(seconds_to_close(self._options.close_timeout))
        left_undone: list[str] = []
        pipeline, record_queue = self.pipeline, self.pipeline.record_queue
        control, sampling = self.rank_control, self._sampling

        def describe_error(_: float) -> None:
            if error is not None:
                self.errors.recorder.take(error, caught_by=AT_THE_END)

        def send_messages(seconds: float) -> None:
            failure = None if error is None else describe_failure(error)
            pipeline.conclude_messages(status=status, reason=reason, failure=failure, timeout_s=seconds)

        def close_files(_: float) -> None:
            left_undone.extend(pipeline.close(status=status, reason=reason, time_left=time_left))

        parts = [
            # First: a run that is being closed has no more steps to wait for.
            Part("stopping the watch", 0.1, self._watchman.close),
            Part("describing a failure", 0.0, describe_error, is_needed=True),
            # Less than half of the time: the disk needs the rest, should the device be gone.
            Part("waiting for devices", 0.4, pipeline.wait_for_devices),
            Part("writing the last media", 0.3, self._close_media),
            Part("writing the last batches", 0.2, self._batches.close if self._batches else None),
            Part("waiting for the start record", 0.1, self._wait_for_start),
            # A script that takes milliseconds is over before its machine is described.
            Part("describing the machine", 0.2, partial(self._put_environment, is_last=True)),
            Part("keeping the code", 0.2, self._close_code if self._keeps_code else None),
            # What is still held back: values that wait for a device, folded steps, completions, open spans.
            Part(
                "writing what waits for a device",
                0.0,
                lambda _: record_queue.settle(pipeline.elapsed(), give_up=True),
                is_needed=True,
            ),
            Part("writing the last steps", 0.0, lambda _: self.steps.put_rest(), is_needed=True),
            Part("writing the last completions", 0.0, self._close_completions, is_needed=True),
            Part("writing the last spans", 0.0, lambda _: self.spans.close(), is_needed=True),
            Part("writing the start record", 0.0, lambda _: self._put_start_if_held_up(), is_needed=True),
            Part(
                "examining the last records",
                0.3,
                partial(pipeline.conclude_findings, has_failed=status != FINISHED),
            ),
            Part("answering the last requests", 0.0, lambda _: control.close() if control else None),
            # More than half of the time, and less than all: the file has to be closed as well.
            Part("sending the last messages", 0.6, send_messages),
            Part("delivering the last records", 0.6, pipeline.conclude_exports),
            Part("writing to the mirrors", 0.2, pipeline.conclude_mirrors),
            Part("giving up the last messages", 0.0, lambda _: pipeline.give_up_messages(), is_needed=True),
            Part(
                "writing the end record", 0.0, lambda _: self._put_end(status, reason, error), is_needed=True
            ),
            Part("leaving the signals", 0.0, lambda _: self.errors.end(), is_needed=True),
            Part("keeping the output", 0.3, partial(self.output.close, error=error), is_needed=True),
            Part("stopping the tasks", 0.2, self.periodic.close, is_needed=True),
            Part("stopping the samplers", 0.1, sampling.stop if sampling else None, is_needed=True),
            Part("writing run.json", 0.0, lambda _: self._beat(), is_needed=True),
            Part("closing the files", 1.0, close_files, is_needed=True),
        ]
        do_parts(parts, time_left, self._guard)
        return left_undone

    def _close_media(self, timeout_s: float) -> None:
        left = self.media.close(timeout_s)
        if left:
            why = "the run was closed before they were written"
            self.put(records.MEDIA_DROPPED, {"count": left, "reason": why})

    def _put_end(self, status: str, reason: str, error: BaseException | None) -> None:
        errors: dict[str, Any] = {}
        with self._guard.catch("counting the errors"):
            errors = self.errors.recorder.totals()
        self._declare_lost_in_forks()
        code = code_of(error)
        left = {} if code is None else {"exit_code": code}
        self.put(records.END, {"status": status, "reason": reason, **left, **self._totals(), **errors})

    def _put_start_if_none(self) -> None:
        if not self._has_started:
            self.put_start()

    def _wait_for_start(self, timeout_s: float) -> None:
        """Wait for a start record that another thread is writing: after the end record it would be lost."""
        wait_until(lambda: self._starting_thread in (None, threading.get_ident()), timeout_s)

    def _put_start_if_held_up(self) -> None:
        """Write a start record of what is known by now if records wait for it."""
        if self.pipeline.record_queue.is_held_up:
            self._put_start_if_none()

    def _put_overdue_start(self) -> None:
        """Write a start record of what is known by now, where records have waited for it for long."""
        record_queue = self.pipeline.record_queue
        since = record_queue.held_since
        if since is not None and (
            self.pipeline.elapsed() - since >= _LONGEST_START_S or record_queue.journal.fill > MUCH
        ):
            self._put_start_if_none()

    def _tasks(self) -> list[Task]:
        tasks: list[Task] = [
            ("describing the machine", _SAMPLE_EVERY_S, self._put_environment),
            ("tending the spans", _TEND_EVERY_S, self.spans.tend),
            ("waiting for the start", _TEND_EVERY_S, self._put_overdue_start),
            ("counting calls of forks", _HEARTBEAT_EVERY_S, self._declare_first_lost_in_forks),
        ]
        if self._sampling is not None:
            tasks.append(("reading the system's metrics", _SAMPLE_EVERY_S, self._look_at_the_system))
            tasks.append(("writing a system record", self._options.system_every, self._put_system))
        if self.rank_control is not None:
            tasks.append(("looking at control.json", _CONTROL_EVERY_S, self._look_at_control))
        if self._announcer is not None:
            tasks.append(
                ("announcing the run to the other ranks", _CONTROL_EVERY_S, self._announcer.announce)
            )
        if self.session_folder.writes_manifest:
            tasks.append(("writing run.json", _HEARTBEAT_EVERY_S, self._beat))
            tasks.append(("recovering killed runs", _RECOVER_EVERY_S, self.pipeline.recover_abandoned))
        if self._keeps_code:
            tasks.append(("looking for imported code", _MODULES_EVERY_S, self._look_at_code))
        if not self.pipeline.waits_for_no_disk:
            tasks += self._keeping_the_journal
        return tasks

    @property
    def _keeping_the_journal(self) -> list[Task]:
        return [("keeping the journal", _JOURNAL_EVERY_S, self.pipeline.keep_journal)]

    def _put_error(self, fields: dict[str, Any]) -> None:
        self._put_start_if_none()
        self.pipeline.put(records.ERROR, fields)

    def _declare_first_lost_in_forks(self) -> None:
        if not self._declared_in_forks:
            # The first ones soon, in case that this process is killed; the others once their number is known.
            self._declare_lost_in_forks()

    def _declare_lost_in_forks(self) -> None:
        """Write how many calls forked processes have lost since this was last asked."""
        lost = self.late_calls.in_forks - self._declared_in_forks
        if lost:
            self._declared_in_forks += lost
            self.pipeline.put(records.LOST, {"records": lost, "reason": IN_A_FORK})

    def _look_at_next_step(self) -> None:
        self._gate.due_at = -NEVER

    def _offer_trace(self) -> None:
        assert self.rank_control is not None
        self.rank_control.poller.declare_action("trace", self.spans.keep_next)

    def _ask_for(self, action: str, request_id: str) -> None:
        """Ask the run itself for `action`, because something critical was found."""
        assert self.rank_control is not None
        request = ControlRequest(id=request_id, timestamp=self._clock.wall(), actions=(action,))
        self.rank_control.poller.ask(request)

    def _look_at_control(self) -> None:
        assert self.rank_control is not None
        self.rank_control.poll()
        if self.rank_control.poller.ready:
            self._look_at_next_step()

    def _look_at_the_system(self) -> None:
        assert self._sampling is not None
        latest = self._sampling.latest()
        self.steps.system = {name: latest[name] for name in _ON_STEP_RECORDS if name in latest}

    def _put_system(self) -> None:
        assert self._sampling is not None
        latest = self._sampling.latest()
        stale = self._sampling.stale()
        if latest or stale:
            step = {"global_step": self._gate.last_step} if self._gate.last_step >= 0 else {}
            self.put(records.SYSTEM, {**step, **latest, **({"not_answering": stale} if stale else {})})

    def _put_environment(self, timeout_s: float = 0.0, *, is_last: bool = False) -> None:
        """Write what was not known yet for the start record."""
        if self._has_started and self._starting_thread is None:
            found = self._found(timeout_s, is_last=is_last)
            if found:
                self.pipeline.put(records.ENVIRONMENT, self._values.tree(found))

    def _found(self, timeout_s: float = 0.0, *, is_last: bool = False) -> dict[str, Any]:
        """Return what was found and not written yet; nothing while a part is missing, unless it is the last time."""
        time_left = Countdown(timeout_s)
        are_done = [look.is_done(time_left.left()) for look in tuple(self._looks)]
        found: dict[str, Any] = {}
        if all(are_done) or is_last:
            # Each is taken by one thread.
            for _ in are_done:
                with suppress(IndexError):
                    found |= self._looks.popleft().result()
        return found

    def _put_code(self, fields: Mapping[str, Any], is_last: bool) -> bool:
        if self._has_started or is_last:
            self.put(records.CODE, fields)
        return self._has_started

    @property
    def _counts_from_zero(self) -> bool:
        """Whether the loop counts its steps from 0: this session shows it, or an earlier one did."""
        known = {**self.session_folder.manifest.summary, **self._training}.get(FIRST_STEP)
        return self.steps.first_step == 0 or known == 0

    def _last_planned_step(self) -> int | None:
        planned = self._training.get("max_steps")
        return planned - self._counts_from_zero if type(planned) is int else None

    def _beat(self) -> None:
        if not self.session_folder.writes_manifest:
            return
        latest = self.steps.latest
        summary = {name: latest[name] for name in IN_SUMMARY if type(latest.get(name)) in (int, float)}
        control: dict[str, Any] = {}
        if self.rank_control is not None and self.session_folder.rank == 0:
            # Only rank 0 reads requests.
            poller = self.rank_control.poller
            control = {"log_every_now": poller.log_every, **poller.declared()}
        step = self._gate.last_step
        self.pipeline.beat(
            global_step=step if step >= 0 else None,
            summary={**self._training, **({FIRST_STEP: 0} if self._counts_from_zero else {}), **summary},
            control=control,
        )

    def _totals(self) -> dict[str, Any]:
        record_queue = self.pipeline.record_queue
        totals: dict[str, Any] = {
            "seconds": self.pipeline.elapsed(),
            "records": record_queue.next_seq + 1 - self.session_folder.first_seq,
            "records_lost": record_queue.dropped_total + self._declared_in_forks,
            "telemetry_errors": self._guard.total,
            **peak_memory(self._guard),
        }
        if record_queue.values_lost:
            totals["values_lost"] = record_queue.values_lost
        if self.pipeline.undelivered:
            totals["undelivered"] = self.pipeline.undelivered
        if self._gate.last_step >= 0:
            totals["global_step"] = self._gate.last_step
        return totals
