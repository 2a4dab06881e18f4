"""One session of a run at work: where its records go, and the jobs that take them there."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.telemetry.core.background import FILES, background_job
from toolkit.telemetry.core.clock import Countdown, SystemClock
from toolkit.telemetry.core.guard import Guard, MisuseError, describe_error
from toolkit.telemetry.core.periodic import PeriodicTasks
from toolkit.telemetry.core.run_context import RunContext
from toolkit.telemetry.core.sink import DeliveringSink, Sink
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.logger.records.device_scalars import PendingScalar
from toolkit.telemetry.logger.records.record_queue import RecordQueue
from toolkit.telemetry.logger.writing.key_values_sink import KeyValuesSink
from toolkit.telemetry.logger.writing.mirror import Mirror
from toolkit.telemetry.logger.writing.record_appender import RecordFile
from toolkit.telemetry.logger.writing.session_folder import SessionFolder
from toolkit.telemetry.logger.writing.writer import Writer
from toolkit.telemetry.logger.writing.writer_lock import WriterLock
from toolkit.telemetry.mirrors.findings import FindingsSink, fields_of
from toolkit.telemetry.mirrors.registry import are_wanted, make_exporters
from toolkit.telemetry.privacy.masking import mask_secrets
from toolkit.telemetry.runfolder.codec import decode
from toolkit.telemetry.runfolder.journal.head import Owner
from toolkit.telemetry.runfolder.journal.journal import Journal, journals_in, shared_memory_folders
from toolkit.telemetry.runfolder.layout import METRICS_CSV, METRICS_JSONL
from toolkit.telemetry.runfolder.manifest import INCOMPLETE, Heartbeat, Manifest, write_manifest
from toolkit.telemetry.runfolder.process import is_in_container
from toolkit.telemetry.runfolder.reader import last_record
from toolkit.telemetry.runfolder.records import ERROR, FINDING, LOST, MAX_RECORD_BYTES
from toolkit.telemetry.runfolder.table.columns import ALL
from toolkit.telemetry.runfolder.table.csv_table import CsvTable, table_form

if TYPE_CHECKING:
    from toolkit.telemetry.diagnostics.finding import Finding
    from toolkit.telemetry.diagnostics.policy import Policy
    from toolkit.telemetry.diagnostics.rank_files import RankFiles
    from toolkit.telemetry.diagnostics.rank_watch import RankWatch
    from toolkit.telemetry.diagnostics.resume.watch import ResumeWatch
    from toolkit.telemetry.mirrors.messages.sink import MessageSink


class RecordPipeline:
    """Takes records from any thread and gets them to the run folder and its mirrors."""

    def __init__(
        self,
        session_folder: SessionFolder,
        options: TelemetryOptions,
        *,
        sinks: Sequence[Sink],
        context: RunContext,
    ) -> None:
        guard = context.guard
        self.session_folder = session_folder
        self.guard = guard
        self.elapsed = context.elapsed
        """Seconds since the session began."""
        self.manifest = session_folder.manifest
        self._options = options
        self._wall = context.clock.wall
        self._events = context.events
        self._owner = Owner(
            run_id=context.run_id,
            session=context.session,
            started=session_folder.session.started,
            rank=context.rank,
        )
        self._journal = Journal.create(
            _places_for_journal(options.journal, session_folder.folder),
            session_folder.record_file,
            self._owner,
        )
        self.manifest = self.manifest.with_latest(
            journal=self._journal_name(),
            perf_tag=options.perf_tags,
            session_tag=options.session_tag or session_folder.manifest.run_id,
        )
        self.record_queue = RecordQueue(
            self._journal,
            first_seq=session_folder.first_seq,
            awaits_start=True,
            session=context.session,
            rank=context.rank,
            queue_max_bytes=int(options.queue_max_mb * 1024 * 1024),
            wake=lambda: self._writer.wake(),
            on_left_out=self._report_left_out,
        )
        self._file = RecordFile(
            session_folder.record_file,
            file_mode=session_folder.modes.file,
            folder_mode=session_folder.modes.folder,
        )
        if session_folder.left_behind:
            self._file.take(session_folder.left_behind)
        self._lock = WriterLock(session_folder.record_file)
        self._writer = Writer(
            self.record_queue,
            self._file,
            self._lock,
            guard=guard,
            flush_interval=options.flush_interval,
            elapsed=self.elapsed,
            on_gone=self._go_on_after_loss,
        )
        # A job of its own: a disk that takes long over it holds up only this.
        self._syncing = PeriodicTasks(
            [("syncing the records", options.sync_interval, self._writer.sync)],
            clock=SystemClock(),
            guard=guard,
            kind=FILES,
            disk=self._writer.disk,
        )
        self._manifest_writer = _ManifestWriter(
            session_folder.folder, mode=session_folder.modes.file, guard=guard
        )
        self.undelivered = 0
        """Records that collectors have not taken by the end of the run."""
        self.usage_reports: str | None = None
        """The state of usage reports, for the start record; None where none are wanted."""
        self._key_values: KeyValuesSink | None = None
        self._findings: FindingsSink | None = None
        self._examining: Mirror | None = None
        """Reads all records for the findings and the key values."""
        self._messages: tuple[MessageSink, Mirror] | None = None
        session_start = size_of(session_folder.record_file)
        self._mirror = partial(
            Mirror,
            record_file=session_folder.record_file,
            start_at=lambda: session_start,
            optional=True,
            guard=guard,
            on_off=self._say_mirror_is_off,
        )
        self._mirrors = self._make_mirrors(sinks)
        self._events.own_failure.subscribe(self._put_own_failure)
        self._events.finding.subscribe(self._put_finding)

    def start(self) -> None:
        """Start the jobs, the most needed first: a machine may refuse their threads."""
        if self._journal.path is None:
            trouble = "neither shared memory nor the run folder took one: a kill may cost the last records"
            self.guard.report("making a journal", OSError(trouble))
        elif self._options.journal == "shm" and self._journal.path.parent == self.session_folder.folder:
            trouble = "telemetry.journal is shm, and there is no shared memory that takes one: it is in the run folder"
            self.guard.report("making a journal", OSError(trouble))
        starts = [self._writer.start]
        if self.session_folder.writes_manifest:
            self._manifest_writer.put(self.manifest)
            starts.append(self._manifest_writer.start)
        if self._options.sync_interval:
            starts.append(self._syncing.start)
        starts += [mirror.start for mirror in self._all_mirrors()]
        if self._messages is not None:
            starts.append(self._messages[0].start)
        for start in starts:
            with self.guard.catch("starting a thread"):
                start()

    def put(
        self,
        event: str,
        fields: dict[str, Any],
        pending: dict[str, PendingScalar] | None = None,
        *,
        wall: float | None = None,
    ) -> None:
        """Take a record whose fields are plain, stamped with the time of this call unless `wall` is another."""
        self.record_queue.put(event, self._wall() if wall is None else wall, self.elapsed(), fields, pending)

    def _put_own_failure(self, doing: str, error: BaseException) -> None:
        if isinstance(error, MisuseError) and self._options.diagnostics is not False:
            # It becomes a finding.
            return
        about = {"doing": doing, "type": type(error).__name__, "message": describe_error(error)}
        self.put(ERROR, {"source": "telemetry", **about})

    def _put_finding(self, finding: Finding, more: Mapping[str, Any]) -> None:
        # Other ranks have no examiner.
        if self._findings is not None:
            self._findings.report_live(finding, more)
        elif self._options.diagnostics is not False:
            self.put(FINDING, {**fields_of(finding), **more})

    def beat(self, *, global_step: int | None, summary: dict[str, Any], control: dict[str, Any]) -> None:
        """Write a heartbeat to run.json, in the background."""
        manifest = replace(
            self.manifest.with_latest(lock=self._lock.held, journal=self._journal_name()),
            heartbeat=Heartbeat(time=self._wall(), seq=self.record_queue.last_seq, global_step=global_step),
            summary={**summary, **(self._findings.open_by_severity() if self._findings else {})},
            control=control,
        )
        self.manifest = manifest if self._key_values is None else self._key_values.added_to(manifest)
        self._manifest_writer.put(self.manifest)

    def _write_config(self) -> None:
        """Have the configuration written to run.json at once."""
        if self._key_values is not None:
            self._manifest_writer.put(self._key_values.added_to(self.manifest))

    def recover_abandoned(self) -> None:
        """Write out what other runs of this user on this disk left in shared memory when they were killed."""
        # Imported in the background: a run can begin without it.
        from toolkit.telemetry.runfolder.journal.repair import recover_killed

        for folder in shared_memory_folders():
            for path in journals_in(folder, of_others=True):
                with self.guard.catch("recovering a killed run"):
                    recover_killed(path, self.session_folder.folder)

    @property
    def waits_for_no_disk(self) -> bool:
        """Whether the journal is in shared memory, so that `keep_journal` waits for no disk."""
        return self._journal.path is not None and self._journal.path.parent in shared_memory_folders()

    def keep_journal(self) -> None:
        """Check that the journal is still there, and use another one where it is not.

        Shared memory may be cleaned up when a user logs out or a job ends, while this run continues.
        """
        journal = self._journal
        if journal.is_closed:
            return
        if journal.path is None:
            why = "there was none"
        elif not journal.is_in_place:
            why = f"{journal.path} was removed"
        elif journal.trouble is not None:
            why = f"{journal.path} took no more lines ({journal.trouble})"
        else:
            return
        places = _places_for_journal(self._options.journal, self.session_folder.folder)
        spare = Journal.create(places, self.session_folder.record_file, self._owner)
        if not journal.move_to(spare, self.record_queue.lock):
            if journal.path is not None:
                trouble = f"{why}, and no other could be made: a kill may cost the last records"
                self.guard.report("keeping the journal", OSError(trouble))
            return
        if self.session_folder.writes_manifest:
            self._manifest_writer.put(self.manifest.with_latest(journal=self._journal_name()))
        self.guard.report("keeping the journal", OSError(f"{why}; the run continues in {journal.path}"))

    def flush(self, timeout_s: float) -> bool:
        """Wait until all records are in the file and in mirrors that are not away; False if they are not."""
        time_left = Countdown(timeout_s)
        self.wait_for_devices(timeout_s)
        done = self._writer.flush(time_left.left())
        # Half of the time at most: a resumed run may still be examining its earlier sessions, and the table waits.
        self.conclude_findings(time_left.left(0.5), is_end=False)
        return self._flush_mirrors(time_left) and done

    def _flush_mirrors(self, time_left: Countdown) -> bool:
        done = [mirror.flush(time_left.left()) for mirror in self._mirrors if not mirror.is_away]
        return all(done)

    def conclude_findings(self, timeout_s: float, *, is_end: bool = True, has_failed: bool = False) -> None:
        """Have all records examined within `timeout_s`, so that findings are recorded; the end concludes open ones."""
        if self._examining is None:
            return
        time_left = Countdown(timeout_s)
        if is_end:
            if self._findings is not None:
                self._findings.in_a_hurry = True
            self._writer.flush(time_left.left())
        is_done = self._examining.flush(time_left.left())
        if self._findings is None:
            return
        if is_end and is_done:
            self._findings.conclude(has_failed=has_failed)
        # What was found has to reach the file as well.
        self._writer.flush(time_left.left())

    def conclude_messages(
        self, *, status: str, reason: str, failure: dict[str, Any] | None, timeout_s: float
    ) -> None:
        """Send the messages about the end, and wait for them at most `timeout_s`."""
        if self._messages is None:
            return
        sink, mirror = self._messages
        time_left = Countdown(timeout_s)
        # The last steps and findings come through the file; a disk that hangs leaves time for the message.
        self._writer.flush(timeout_s / 4)
        mirror.flush(timeout_s / 4)
        sink.conclude(
            status=status,
            reason=reason,
            failure=failure,
            elapsed_s=self.elapsed(),
            timeout_s=time_left.left(),
        )

    def conclude_mirrors(self, timeout_s: float) -> None:
        """Have the mirrors take what is there within `timeout_s`, so that their trouble is recorded before the end."""
        time_left = Countdown(timeout_s)
        self._writer.flush(timeout_s / 2)
        self._flush_mirrors(time_left)

    def conclude_exports(self, timeout_s: float) -> None:
        """Have the rest delivered to collectors within `timeout_s`, and count what was not."""
        exports = [mirror for mirror in self._mirrors if isinstance(mirror.sink, DeliveringSink)]
        time_left = Countdown(timeout_s)
        if exports:
            self._writer.flush(timeout_s / 4)
        for mirror in exports:
            assert isinstance(mirror.sink, DeliveringSink)
            undelivered = 0 if mirror.flush(time_left.left()) else mirror.give_up(timeout_s / 4)
            undelivered += mirror.sink.refused
            if undelivered:
                self.undelivered += undelivered
                self.guard.report(
                    f"delivering to {mirror.sink.name}",
                    OSError(f"{undelivered} records did not arrive there; {METRICS_JSONL} has them"),
                )

    def give_up_messages(self) -> None:
        """Send no more messages: where the close was interrupted, some still wait."""
        if self._messages is not None:
            self._messages[0].close()

    def wait_for_devices(self, timeout_s: float) -> None:
        """Wait, at most `timeout_s`, for values still being computed: a loop runs ahead of its device."""
        time_left = Countdown(timeout_s)
        while self.record_queue.is_waiting and time_left.left():
            self.record_queue.settle(self.elapsed())
            time.sleep(0.001)

    def sync(self, timeout_s: float) -> bool:
        """Flush the records, and force them onto the disk; False where either failed or was not done in time."""
        self.wait_for_devices(timeout_s / 2)
        return self._writer.flush(timeout_s / 2) and self._writer.sync()

    def close(self, *, status: str, reason: str, time_left: Countdown) -> list[str]:
        """Write what is left; return messages about what could not be done.

        Whoever comes last has a small part of the time in any case.
        """
        least_s = min(0.1, 0.05 * time_left.seconds)
        reason = mask_secrets(reason)
        left_undone = []
        self.record_queue.await_no_start()
        self.record_queue.settle(self.elapsed(), give_up=True)
        self.record_queue.say_what_was_dropped(self._wall(), self.elapsed())
        with self.guard.catch("stopping to sync"):
            # It is not waited for: a disk may hold it.
            self._syncing.close(0.0)
        # A little is left for the mirrors and run.json, which a disk that takes no records may still take.
        written = self._writer.close(max(least_s, time_left.left() - 0.05 * time_left.seconds))
        # On a busy machine the thread may end later than it was waited for; what it has written is written.
        written = written or self._writer.is_drained
        if written:
            # What is still being logged is declared lost: it would not be written.
            self.record_queue.end()
        else:
            with self.guard.catch("keeping the last records"):
                self._journal.keep(self.record_queue.lines_in_memory)
            # One in the run folder has no more room than the disk.
            what = "them" if self.waits_for_no_disk else "those that the journal holds"
            repair = f"; `telemetry repair {self.session_folder.folder}` writes {what}"
            where = repair if self._journal.path else ""
            left_undone.append(
                f"the disk did not take the last records ({self._writer.trouble or 'no answer'}){where}"
            )
        if self.session_folder.writes_manifest:
            self.manifest = self.manifest.with_latest(
                ended=self._wall(),
                status=status,
                reason=reason if written else f"{reason}; closed_incomplete",
                record_bytes=size_of(self.session_folder.record_file) if written else None,
                journal=None if written else self._journal_name(),
                lock=None,
            )
            # Before the mirrors: a slow one may make the user interrupt.
            self._manifest_writer.put(self.manifest)
        left_undone += self._close_mirrors(time_left, least_s)
        if self.session_folder.writes_manifest and not self._manifest_writer.close(
            max(least_s, time_left.left())
        ):
            left_undone.append("run.json could not be written in time")
        if not self._writer.is_stuck:
            # Else the locks stay until the process ends: no other may write what this disk may still be writing.
            self._journal.close(remove=written)
            self._lock.close()
        return left_undone

    def _close_mirrors(self, time_left: Countdown, least_s: float) -> list[str]:
        """Close the mirrors; run.json, and what is returned, says which of them lack something."""
        mirrors = self._all_mirrors()
        for mirror in mirrors:
            mirror.end()
        # run.json, which is written after it, waits for the thread of a mirror that fails.
        rest_s = 0.2 * time_left.seconds
        late = [
            mirror.sink.name
            for mirror in mirrors
            if not mirror.close(max(least_s, time_left.left() - rest_s))
        ]
        if late and self.session_folder.writes_manifest and self.manifest.latest is not None:
            reason = f"{self.manifest.latest.reason}{INCOMPLETE}{', '.join(late)}"
            self.manifest = self.manifest.with_latest(reason=reason)
            self._manifest_writer.put(self.manifest)
        return [f"{name} did not take everything in time" for name in late]

    def _journal_name(self) -> str | None:
        return None if self._journal.path is None else str(self._journal.path)

    def after_fork_in_child(self) -> None:
        """Forget what belongs to the parent; nothing of it is written, flushed or closed here."""
        self.record_queue.after_fork_in_child()
        self._journal.forget()
        self._lock.forget()

    def _make_mirrors(self, sinks: Sequence[Sink]) -> list[Mirror]:
        if self.session_folder.rank != 0:
            return []
        options, session_folder = self._options, self.session_folder
        mirrors = []
        # Each fails alone: a run without its table is a run all the same.
        if options.csv:
            with self.guard.catch("setting up metrics.csv"):
                form = table_form(session_folder.folder, ALL if options.csv == ALL else None)
                self.manifest = replace(self.manifest, table=form)
                records, path = (session_folder.folder / name for name in (METRICS_JSONL, METRICS_CSV))
                mode = session_folder.modes.file
                table = CsvTable(records, path, mode=mode, form=form, is_training=True)
                mirrors.append(self._mirror(table, start_at=table.start_at, optional=False, ours=True))
        exporters: list[Sink] = []
        with self.guard.catch("setting up the exporters"):
            exporters = self._make_exporters()
        for sink in [*exporters, *sinks]:
            with self.guard.catch("setting up a mirror"):
                mirrors.append(self._mirror(sink))
        with self.guard.catch("setting up the diagnostics"):
            self._examining = self._make_examining()
        with self.guard.catch("setting up messages"):
            mirrors += self._make_messages()
        with self.guard.catch("setting up usage reports"):
            mirrors += self._make_usage_reports()
        return mirrors

    def _make_exporters(self) -> list[Sink]:
        options, session_folder = self._options, self.session_folder
        if not are_wanted(options, may_send=options.may_send):
            return []
        # Imported for the runs that have exporters.
        from toolkit.telemetry.mirrors.shared.exporter import ExportedRun

        span_filter = None
        if options.export_spans:
            # Imported only where spans are filtered, so that other runs start faster.
            from toolkit.telemetry.mirrors.shared.span_filter import span_filter_from

            span_filter = span_filter_from(options.export_spans)
        run = ExportedRun(
            folder=session_folder.folder,
            run_id=session_folder.manifest.run_id,
            display_name=session_folder.manifest.display_name,
            session=session_folder.session.session,
            started=session_folder.session.started,
            file_mode=session_folder.modes.file,
            project=options.project,
            perf_tag=options.perf_tags,
            session_tag=options.session_tag or session_folder.manifest.run_id,
            span_filter=span_filter,
        )
        return make_exporters(options, run, may_send=options.may_send, guard=self.guard)

    def _make_examining(self) -> Mirror:
        is_examined = self._options.diagnostics is not False
        self._key_values = KeyValuesSink(
            self.session_folder.manifest,
            session=self.session_folder.session.session,
            from_start=is_examined,
            on_start=self._write_config,
        )
        if not is_examined:
            return self._mirror(self._key_values, ours=True)
        self._findings = self._make_findings(self._key_values)
        caught_up = self._findings.caught_up
        return self._mirror(self._findings, start_at=lambda: 0, caught_up=caught_up, ours=True)

    def _make_findings(self, key_values: KeyValuesSink) -> FindingsSink:
        options, folder = self._options, self.session_folder.folder
        session = self.session_folder.session.session
        if isinstance(options.diagnostics, Mapping) or options.alerts:
            from toolkit.telemetry.diagnostics.policy import in_manifest

            self.manifest = replace(self.manifest, diagnostics=in_manifest(self._policy()))
        ranks: RankFiles | None = None
        rank_watch: RankWatch | None = None
        resume_watch: ResumeWatch | None = None
        # Imported for the runs that need them.
        if options.ranks != "zero":
            from toolkit.telemetry.diagnostics.rank_files import RankFiles
            from toolkit.telemetry.diagnostics.rank_watch import RankWatch

            ranks, rank_watch = RankFiles(folder, session=session), RankWatch(folder, session=session)
        if session > 1:
            from toolkit.telemetry.diagnostics.resume.watch import ResumeWatch

            resume_watch = ResumeWatch(folder, session=session)
        return FindingsSink(
            self._policy,
            session=session,
            put=self.put,
            ask=self._events.action_wanted.publish,
            on_news=self._events.incident.publish,
            guard=self.guard,
            ranks=ranks,
            rank_watch=rank_watch,
            resume_watch=resume_watch,
            first=key_values.write,
        )

    def _policy(self) -> Policy:
        # Imported with the first records, in the background: findings are many modules.
        from toolkit.telemetry.diagnostics.policy import policy_from

        options = self._options
        return policy_from(options.diagnostics, options.on_finding, options.alerts)

    def _make_messages(self) -> list[Mirror]:
        receivers = self._options.message_options
        if not receivers or not self._options.may_send:
            return []
        # Imported for those who want messages: the rest pay nothing for it.
        from toolkit.telemetry.mirrors.messages.message import RunState
        from toolkit.telemetry.mirrors.messages.sink import MessageSink

        session_folder, manifest = self.session_folder, self.session_folder.manifest
        sink = MessageSink(
            receivers,
            run_state=RunState(
                run_name=manifest.display_name,
                run_id=manifest.run_id,
                project=manifest.project or "",
                session=session_folder.session.session,
            ),
            folder=session_folder.folder.name,
            record_file=session_folder.record_file,
            put=self.put,
            guard=self.guard,
        )
        mirror = self._mirror(sink, ours=True)
        self._messages = sink, mirror
        return [mirror]

    def _make_usage_reports(self) -> list[Mirror]:
        if not self._options.sends_usage:
            return []
        usage, mode = self._options.usage_options, self._options.mode
        self.usage_reports = usage.state(mode, os.environ)
        is_sent = usage.why_not(mode, os.environ) is None
        if self._options.may_send:
            how = ": `telemetry setup usage` prints them, DO_NOT_TRACK=1 stops them" if is_sent else ""
            self.guard.say(f"anonymous usage reports are {self.usage_reports}{how}")
        if not is_sent:
            return []
        # Imported for those who ask for them.
        from toolkit.telemetry.mirrors.usage.sink import UsageSink

        sink = UsageSink(
            usage.host or "",
            usage.key_in(os.environ),
            session=self.session_folder.session.session,
            guard=self.guard,
            close_s=0.6 * self._options.close_timeout,
        )
        return [self._mirror(sink)]

    def _all_mirrors(self) -> list[Mirror]:
        return self._mirrors if self._examining is None else [*self._mirrors, self._examining]

    def _say_mirror_is_off(self, name: str, why: str) -> None:
        self.put(
            ERROR, {"source": "telemetry", "doing": f"writing to {name}", "message": f"{name} is off: {why}"}
        )

    def _report_left_out(self, values: int) -> None:
        self.guard.report_misuse(
            f"a record holds about 4,000 values and {MAX_RECORD_BYTES // 1024} KiB: {values:,} values of one are left "
            "out, and counted as values_lost in the end record; log them in several records, or as a histogram",
            "more values than a record holds",
        )

    def _go_on_after_loss(self, last_line: bytes) -> None:
        """Say which records went with a file that was removed; those that are in the file now were not lost."""
        if self.session_folder.writes_manifest:
            # The folder may be a new one, and what is in it belongs to this run.
            self._manifest_writer.put(self.manifest, is_gone=True)
        if not last_line:
            return
        last = decode(last_line)["seq"]
        there = last_record(self.session_folder.record_file)
        first = 0 if there is None else there["seq"] + 1
        if first <= last:
            why = "the record file was removed or replaced while the run was writing it"
            self.put(LOST, {"records": last - first + 1, "reason": why, "from_seq": first, "to_seq": last})


class _ManifestWriter:
    """Writes run.json as a job of its own, so that a disk that does not answer holds up nothing else."""

    def __init__(self, folder: Path, *, mode: int, guard: Guard) -> None:
        self._folder = folder
        self._mode = mode
        self._guard = guard
        self._newest: deque[Manifest] = deque(maxlen=1)
        self._on_disk: Manifest | None = None
        """What a power cut leaves for certain, without what every heartbeat changes."""
        self._job = background_job("telemetry-manifest", self._turn, FILES, folder.parent)

    def start(self) -> None:
        """Begin. Raises RuntimeError where the system refuses a thread."""
        self._job.start()

    def put(self, manifest: Manifest, *, is_gone: bool = False) -> None:
        """Have `manifest` written; one that still waits is superseded. `is_gone`: the file was removed."""
        if is_gone:
            self._on_disk = None
        self._newest.append(manifest)
        self._job.wake()

    def close(self, timeout_s: float) -> bool:
        """Write what waits and stop; False where the disk did not take it in time."""
        return self._job.close(timeout_s)

    def _turn(self) -> float | None:
        is_last = self._job.is_closing
        if self._newest:
            manifest = self._newest.popleft()
            with self._guard.catch("writing run.json"):
                lasting = replace(manifest, heartbeat=None, summary={}, control={})
                is_heartbeat = lasting == self._on_disk
                # Synced each time: of a file that was renamed into its place and not synced, a power cut may leave
                # an empty one, and a run without its manifest cannot be found and resumed. An older heartbeat will do.
                write_manifest(
                    self._folder, manifest, mode=self._mode, durable=True, name_too=not is_heartbeat
                )
                self._on_disk = lasting
        return None if is_last else math.inf


def _places_for_journal(wanted: str, run_folder: Path) -> list[Path]:
    """Return the folders to try for a journal, the first choice first."""
    # Shared memory of a container ends with it, and so would the records that a kill of all of it leaves there.
    is_in_folder = wanted == "folder" or (wanted == "auto" and is_in_container())
    return [run_folder, *shared_memory_folders()] if is_in_folder else [*shared_memory_folders(), run_folder]


def size_of(path: Path) -> int:
    """Return the size of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
