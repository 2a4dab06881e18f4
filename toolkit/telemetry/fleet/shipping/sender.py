"""Sends runs: asks what the engine has of them, sends what is new in batches, and commits what was taken."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolkit.telemetry.core.outbox import Backoff
from toolkit.telemetry.fleet import run_rows
from toolkit.telemetry.fleet.commits import (
    Commit,
    insert_commits,
    last_session,
    newest_commits,
    strays_after,
)
from toolkit.telemetry.fleet.engine import Engine, EngineError
from toolkit.telemetry.fleet.shipping.claims import Claims
from toolkit.telemetry.fleet.shipping.courier import Courier
from toolkit.telemetry.fleet.shipping.verify import REPLACED, has_lines, verify_file
from toolkit.telemetry.fleet.shipping.watch import Node, ShippedFile, ShippedRun, Watch, next_verify
from toolkit.telemetry.fleet.tail import Block, RecordTail, Rows, crc_of
from toolkit.telemetry.runfolder.metrics import position_of
from toolkit.telemetry.runfolder.reader import last_record
from toolkit.telemetry.runfolder.status import RUNNING, STALLED

EVERY_S: Final = 2.0
"""How often files are looked at and a batch is sent that is not full."""

REPORT_S: Final = 10.0
"""How often the state of a shipper that has runs is sent: the others see by it that it lives."""

_IDLE_REPORT_S: Final = 60.0
"""How often that of one without runs is sent."""

_RECHECK_S: Final = 60.0
"""How often the engine is asked whether another shipper began a new generation of a file, and what was deleted."""

_CRC_AT_ONCE: Final = 256 * 1024 * 1024
"""Bytes of shipped files that are checked before new lines are sent again."""

_VERIFY_AT_ONCE_S: Final = EVERY_S / 4
"""How long files are compared with the engine before new lines are sent again."""

MOST_MOVES: Final = 3
"""How often a file goes back and forth between shippers within a session, before it is left to the other."""


@dataclass(slots=True)
class _Batch:
    blocks: list[Block]
    """What was not taken yet."""
    commits: list[tuple[ShippedFile, Commit]]
    lines: int
    is_full: bool


class Sender:
    """The runs of a watch and what the engine knows of them; one thread uses it."""

    def __init__(self, engine: Engine, node: Node, watch: Watch) -> None:
        self.engine = engine
        self.node = node
        self.watch = watch
        self.claims = Claims(node.name, watch)
        self._courier = Courier(node.failure) if node.delivers_requests else None
        self._backoff = Backoff()
        self._requests_backoff = Backoff()
        self._verify_backoff = Backoff()
        self._held: _Batch | None = None
        """What has not been taken yet."""
        self._verifying: Iterator[str | None] | None = None
        self.is_drained = False
        """Whether everything was sent after the stop."""
        self._next_recheck = 0.0
        self._last_report = -math.inf

    def drain(self, deadline: float) -> None:
        """Send what is left, until a time by the monotonic clock."""
        self._backoff.succeeded()
        self._last_report, waits = -math.inf, True
        while time.monotonic() < deadline and not self.is_drained:
            if waits:
                # A training that was stopped at the same time writes its end.
                waits = any(self._is_live(run) for run in self.watch.runs.values())
                self.watch.look(is_last=not waits)
            batch = self.send_batch()
            if batch is None and not (waits or self.has_unknown_files) and self._backoff.is_ready:
                for run in self.watch.runs.values():
                    # The status of a run that may have ended just now.
                    run.report.next_due = 0.0
                self.report()
                self.is_drained = self._backoff.reason is None
            time.sleep(0.1 if batch is None and not self.is_drained else 0.0)
        self._verify_some()

    def _is_live(self, run: ShippedRun) -> bool:
        """Return whether this shipper has a run that may still write."""
        latest = run.found.manifest.latest
        is_open = latest is not None and latest.status == RUNNING and not self.is_left_alone(run)
        return is_open and run_rows.status_of(run.found).name in (RUNNING, STALLED)

    def round(self) -> bool:
        """Send what is new, report and compare a little; return whether there is more to do now."""
        self.watch.look()
        batch = self.send_batch()
        self.report()
        if self._courier is not None:
            # Not the pause of the others: lines are sent although requests cannot be read.
            with self._trying(self._requests_backoff) as is_ready:
                if is_ready:
                    self._courier.deliver(self.engine, list(self.watch.active.values()))
        self._verify_some()
        # A batch that is not full has taken all there was: the next one waits for more lines.
        has_more = (batch is not None and batch.is_full) or self.has_unknown_files
        return has_more and self._backoff.is_ready

    @property
    def has_unknown_files(self) -> bool:
        """Whether the engine has to be asked how far a file is shipped."""
        return any(file.is_unknown for file in self.watch.active_files())

    def send_batch(self) -> _Batch | None:
        """Send the next lines of the files; return what was taken, None if there was nothing or it failed."""
        if not self.watch.runs:
            return None
        with self._trying(self._backoff) as is_ready:
            if is_ready:
                self._ask()
                batch = self._held = self._held or self._fill()
                if batch is not None:
                    self._send(batch)
                    self._held = None
                    return batch
        return None

    def raise_failure(self) -> None:
        """Raise what failed last.

        Raises:
            EngineError: something did, and nothing has succeeded since.
        """
        if self._backoff.reason is not None:
            raise EngineError(self._backoff.reason)

    # ------------------------------------------------------------ asking the engine what it has

    def _ask(self) -> None:
        """Learn what the engine has of new runs and files, some at a time; now and then of all active ones."""
        is_recheck = time.monotonic() >= self._next_recheck
        self.claims.doubt(self.engine)
        runs = list(self.watch.active.values())
        asked = runs if is_recheck else [run for run in runs if not run.report.is_known]
        if asked:
            run_rows.ask(self.engine, [(run.report, run.found) for run in asked])
            self.claims.settle(asked)
        files, opened = self.watch.active_files(), list[ShippedFile]()
        if is_recheck:
            for file in files:
                # What could not be read may be readable now.
                file.problem = None
            opened = [file for file in files if file.tail is not None]
        unknown = [file for file in files if file.is_unknown]
        ids = {file.key[0] for file in (*unknown, *opened)}
        commits = newest_commits(self.engine, ids)
        for file in opened:
            if _is_outdated(file, commits.get(file.key)):
                file.forget()
                unknown.append(file)
        checked = 0
        for file in unknown:
            if checked > _CRC_AT_ONCE:
                break
            checked += self._resume(file, commits.get(file.key))
        for run in (*asked, *(file.run for file in unknown)):
            self._store_files(run)
        if is_recheck:
            self._next_recheck = time.monotonic() + _RECHECK_S
            self.watch.rest()

    def _resume(self, file: ShippedFile, found: Commit | None) -> int:
        """Set where to go on: after what the engine has if the file begins with that; return how much was read."""
        if found is None:
            file.commit, file.has_begun = Commit(run_id=file.key[0], rank=file.rank), True
            return 0
        with self._reading(file):
            is_same = crc_of(file.path, found.end) == found.crc
            if is_same:
                file.gen = found.gen
            is_anothers = 0 < file.gen < found.gen or found.node != self.node.name
            file.is_superseded = not is_same and is_anothers and self._is_older(file, found)
            if file.is_superseded:
                raise OSError(
                    f"it is not shipped: node {found.node} has shipped a newer file of rank {file.rank}"
                )
            file.commit, file.has_begun = found if is_same else found.next_generation(REPLACED), is_same
            if is_same and found.end == file.size:
                file.read_size = file.size
        return found.end

    def _is_older(self, file: ShippedFile, found: Commit) -> bool:
        """Return whether a file is older than the one that another shipper has shipped.

        The later session is newer, as a resumed run may give a rank to another node. Within a session, as when two
        copies of a folder are written, it is the later record; after some changes of mind the other file stays.
        """
        try:
            record = last_record(file.path)
        except OSError:
            return False
        own = position_of(record or {})
        session, began = last_session(self.engine, found)
        if own.session != session:
            return own.session < session
        return found.gen > 2 * MOST_MOVES or own.time < began

    def _open(self, files: list[ShippedFile]) -> None:
        """Make ready to read on in each file, also where lines were sent without a commit."""
        commits = {file.key: file.commit for file in files if file.commit is not None}
        by_key = {file.key: file for file in files}
        for key, (gen, end) in strays_after(self.engine, commits.values()).items():
            with self._reading(by_key[key]):
                if gen > commits[key].gen:
                    commits[key], by_key[key].has_begun = (
                        commits[key].next_generation(REPLACED, gen - 1),
                        False,
                    )
                if not has_lines(self.engine, by_key[key], commits[key], end):
                    # Sent before a kill, and not in the file any more: they stay in their generation.
                    commits[key], by_key[key].has_begun = commits[key].next_generation(REPLACED), False
        for file in files:
            if file.problem is None:
                file.commit = commits[file.key]
                file.tail = RecordTail(file.path, file.run.found.key, commits[file.key])

    def _store_files(self, run: ShippedRun) -> None:
        """Have the samples and other files of a run stored, as far as they are not."""
        # A part of a run on another node may have others of the same names.
        is_whole = run.is_listed and not run.found.is_part
        if self.node.objects is not None and is_whole and not self.is_left_alone(run):
            self.node.objects.add(run.found.key.run_id, run.found.folder)

    def is_left_alone(self, run: ShippedRun) -> bool:
        """Return whether another shipper has a run, it was deleted on a page, or the engine would remove its lines."""
        is_deleted = run.report.is_deleted or run.found.key.is_older_than(self.node.keep_days)
        return is_deleted or run.left_to is not None

    def shipped_files(self, runs: dict[Path, ShippedRun]) -> list[ShippedFile]:
        """Return the files of the runs that are not left alone; another thread may call this."""
        # A dict is copied in one step.
        shipped = [run for run in list(runs.values()) if not self.is_left_alone(run)]
        return [file for run in shipped for file in list(run.files.values())]

    @property
    def behind(self) -> int:
        """How many bytes are not shipped yet, without runs that are left alone."""
        return sum(file.behind for file in self.shipped_files(self.watch.active))

    @property
    def last_error(self) -> str:
        """What failed lately, also with the files that records point to."""
        objects = self.node.objects
        of_objects = objects.totals.recent_error if objects is not None else ""
        return "; ".join(filter(None, (of_objects, self.node.totals.recent_error)))

    # ------------------------------------------------------------ batches

    def _fill(self) -> _Batch | None:
        """Return the next lines of the files, or None if there are none."""
        waiting = [
            file for file in self.watch.active_files() if file.has_more and not self.is_left_alone(file.run)
        ]
        unopened = [file for file in waiting if file.tail is None]
        if unopened:
            self._open(unopened)
        rows = Rows()
        commits: list[tuple[ShippedFile, Commit]] = []
        for file in waiting:
            if rows.is_full:
                break
            if file.tail is None:
                continue
            file.turn = time.monotonic()
            commit = self._read(file, rows)
            if commit is not None:
                commits.append((file, commit))
        return _Batch(rows.blocks(), commits, len(rows), rows.is_full) if commits else None

    def _read(self, file: ShippedFile, rows: Rows) -> Commit | None:
        """Append new lines of a file; return how far it is then shipped, None if there are none."""
        tail = file.tail
        assert tail is not None
        begin = tail.commit.end
        with self._reading(file):
            while not rows.is_full:
                offset = tail.offset
                if not tail.read(rows):
                    file.forget()
                    break
                if tail.offset == offset:
                    file.read_size = file.size
                    break
        if tail.has_files:
            self._store_files(file.run)
            tail.has_files = False
        return tail.commit if tail.commit.end > begin or not file.has_begun else None

    def _send(self, batch: _Batch) -> None:
        for file, commit in batch.commits:
            file.gen = max(file.gen, commit.gen)
        while batch.blocks:
            self.engine.insert(*batch.blocks[0])
            del batch.blocks[0]
        commits = [(commit, file.run.found.key.day) for file, commit in batch.commits]
        insert_commits(self.engine, commits, self.node.name)
        for file, commit in batch.commits:
            # It may have been found replaced since.
            if file.tail is not None and file.tail.commit.gen == commit.gen:
                file.commit, file.has_begun = commit, True
        self.node.totals.lines += batch.lines

    # ------------------------------------------------------------ comparing

    def verify(self, run: ShippedRun) -> Iterator[str | None]:
        """Compare the files of a run with the engine, as `verify_file` does."""
        self._store_files(run)
        for file in () if self.is_left_alone(run) else list(run.files.values()):
            with self._reading(file):
                for said in verify_file(self.engine, file):
                    yield said and f"{file.path}: {said}"

    def _verify_due(self) -> Iterator[str | None]:
        """Verify the runs that have ended just now, and those whose time has come."""
        now = time.monotonic()
        for run in list(self.watch.active.values()):
            is_due = run.left_to is None and (run.report.has_ended or now >= run.next_verify)
            if is_due and not any(file.has_more for file in run.files.values()):
                has_ended = not run.report.is_running
                is_again, run.report.has_ended = has_ended and not run.report.has_ended, False
                yield from self.verify(run)
                run.next_verify = next_verify(has_ended=has_ended)
                if is_again:
                    run.report.forget()

    def _verify_some(self) -> None:
        """Go on verifying for a short time: live runs of the node wait for it."""
        until = time.monotonic() + _VERIFY_AT_ONCE_S
        with self._trying(self._verify_backoff) as is_ready:
            if is_ready and self._backoff.reason is None:
                slices = self._verifying or self._verify_due()
                self._verifying = None
                for said in slices:
                    if said:
                        self.node.failure(said)
                    if time.monotonic() >= until:
                        self._verifying = slices
                        break

    # ------------------------------------------------------------ reports and failures

    def report(self, *, all_runs: bool = False) -> None:
        """Send the state of the runs that changed or are live, and of this shipper."""
        with self._trying(self._backoff) as is_ready:
            if not is_ready:
                return
            states = [
                (run.report, run.found, 0 if self.is_left_alone(run) else run.behind, self._control(run))
                for run in (self.watch.runs if all_runs else self.watch.active).values()
                if run.is_listed
            ]
            run_rows.send(self.engine, self.node.name, states, all_runs=all_runs)
            has_runs = any(run.left_to is None for run in self.watch.runs.values())
            next_report = self._last_report + (REPORT_S if has_runs else _IDLE_REPORT_S)
            if not all_runs and time.monotonic() < next_report:
                return
            self._last_report = time.monotonic()
            run_rows.report_shipper(
                self.engine,
                node=self.node.name,
                files=len(self.watch.files),
                behind=self.behind,
                last_error=self.last_error,
            )

    def _control(self, run: ShippedRun) -> str:
        """Return what pages learn about requests to a run: nothing if none are delivered, else why not, or yes."""
        return self._courier.control(run) if self._courier is not None and run.report.is_running else ""

    @contextmanager
    def _trying(self, backoff: Backoff) -> Iterator[bool]:
        """Yield whether it is time to talk to the engine; a failure is noted, and the next try is later."""
        is_ready = backoff.is_ready
        try:
            yield is_ready
        except EngineError as error:
            backoff.failed(str(error))
            if backoff is self._backoff:
                self.claims.engine_failed()
            self.node.failure(str(error))
        else:
            if is_ready:
                backoff.succeeded()

    @contextmanager
    def _reading(self, file: ShippedFile) -> Iterator[None]:
        """Note why a file cannot be read, or is not shipped."""
        try:
            yield
        except OSError as error:
            file.problem = str(error.strerror or error)
            self.node.failure(f"{file.path}: {file.problem}")


def _is_outdated(file: ShippedFile, found: Commit | None) -> bool:
    """Return whether the engine has less than was sent, or another shipper began a generation."""
    known = file.commit
    if known is None:
        return False
    if not file.has_begun:
        return found is not None and found.gen >= known.gen
    if found is None:
        # It was emptied.
        return known.end > 0
    # Two shippers must not write two generations.
    return found.gen > known.gen or (found.gen == known.gen and found.end < known.end)
