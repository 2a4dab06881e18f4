"""Ships the record files of some folders: reads what is new, sends it in batches, and commits what was taken.

Nothing is kept on the node. What the engine has of a file is asked from the engine, and a batch that may or may not
have been taken is sent again: the same lines make the same rows, which replace themselves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from toolkit.core.outbox import Backoff, Failures
from toolkit.core.ranks import node_name
from toolkit.fleet import run_rows
from toolkit.fleet.commits import (
    Commit,
    FileKey,
    counters_at,
    gens_not_in,
    insert_commits,
    last_session,
    newest_commits,
    strays_behind,
)
from toolkit.fleet.courier import Courier
from toolkit.fleet.engine import Engine, EngineError, Shards
from toolkit.fleet.objects import ObjectShipper
from toolkit.fleet.schema import require_tables
from toolkit.fleet.tail import Block, Position, RecordTail, Rows, crc_of
from toolkit.fleet.verify import REPLACED, verify_file
from toolkit.fleet.watch import Finder, ShippedFile, ShippedRun, Watch, next_verify
from toolkit.runfolder.metrics import position_of
from toolkit.runfolder.reader import last_record

EVERY_S: Final = 2.0
"""How often files are looked at and a batch is sent that is not full."""

REPORT_S: Final = 15.0
"""How often the state of the shipper itself is sent."""

_RECHECK_S: Final = 60.0
"""How often the engine is asked whether another shipper began a new generation of a file, and what was deleted."""

_CRC_AT_ONCE: Final = 256 * 1024 * 1024
"""Bytes of shipped files that are checked before new lines are sent again."""

_VERIFY_AT_ONCE_S: Final = EVERY_S / 4
"""How long files are compared with the engine before new lines are sent again."""

_EVERYWHERE: Final = -1
"""Stands for no shard in particular."""
_REQUESTS: Final = -2
"""Stands for the requests of shard 0, and what is below it for those of the next shards."""

_MOST_MOVES: Final = 3
"""How often a file goes back and forth between shippers within a session."""
_LAST_GENERATION: Final = 2**16 - 1


@dataclass(slots=True)
class _Batch:
    blocks: list[Block]
    """What was not taken yet."""
    commits: list[tuple[ShippedFile, Commit]]
    lines: int
    is_full: bool


@dataclass(slots=True)
class Totals(Failures):
    """What a shipper has done since it started."""

    lines: int = 0
    batches: int = 0


class Shipper:
    """Ships everything below `places`; one thread uses it."""

    def __init__(
        self,
        engine: Engine,
        places: Iterable[Path],
        *,
        node: str | None = None,
        objects: ObjectShipper | None = None,
        say: Callable[[str], None] | None = None,
        request_key: bytes | None = None,
    ) -> None:
        """Ship to `engine`; with a `request_key`, also deliver the requests that are signed with it."""
        self.engine = engine
        self.objects = objects
        # A name from the environment may have any bytes.
        self.node = (node or node_name()).encode("utf-8", "replace").decode()
        self.totals = Totals()
        self._finder = Finder(
            places, self.node, assign=self._assign, watch_of=lambda _: self._watch, failure=self._failure
        )
        self._watch = Watch(self.node, given_back=self._finder.given_back, failure=self._failure)
        self._say = say
        self._shards: Shards | None = None
        self._backoffs: dict[int, Backoff] = {}
        self._held: dict[int, _Batch] = {}
        self._started = time.time()
        self._next_report = 0.0
        self._reported = 0
        """The version of the last report of this shipper."""
        self._next_recheck: dict[int, float] = {}
        self._verifying: dict[int, Iterator[str | None]] = {}
        """What each shard's runs are being compared by."""
        self._keep_days = 0
        self._courier = None if request_key is None else Courier(request_key, self.node, self._failure)

    # ------------------------------------------------------------ what commands call

    @property
    def runs(self) -> dict[Path, ShippedRun]:
        """The runs that were found, by folder."""
        return self._watch.runs

    @property
    def files(self) -> list[ShippedFile]:
        """The record files that are shipped."""
        return list(self._watch.files.values())

    @property
    def behind(self) -> int:
        """How many bytes are not shipped yet, without runs that are left alone."""
        return sum(run.behind for run in self.runs.values() if not self._is_left_alone(run))

    def start(self) -> None:
        """Check that the engine has our tables.

        Raises:
            EngineError: it has not, or does not answer.
        """
        tables = require_tables(self.engine)
        self._shards = Shards(self.engine, tables.cluster)
        self._keep_days = tables.keep_days

    def ship_all(self) -> None:
        """Ship what is there now, with the files that records point to, and report every run.

        Raises:
            EngineError: the engine refused or does not answer; what was sent until then is there.
        """
        self._finder.waits_for_manifest = False
        # Once: files that keep growing would never come to an end.
        self._finder.look()
        self._watch.look()
        while self._send_batches() or self._has_unknown_files:
            self._raise_failure()
        self._raise_failure()
        if self.objects is not None:
            self.objects.ship_all()
        self._report(all_runs=True)
        self._raise_failure()

    def run(self, stop: threading.Event, after_round: Callable[[], None] | None = None) -> None:
        """Ship until `stop` is set. What fails is tried again, with pauses; nothing is given up."""
        if self.objects is not None:
            self.objects.start()
        while not stop.is_set():
            begin = time.monotonic()
            has_more = self.ship_round()
            if after_round is not None:
                after_round()
            if not has_more:
                stop.wait(max(0.0, EVERY_S - (time.monotonic() - begin)))
        if self.objects is not None:
            self.objects.close()

    def ship_round(self) -> bool:
        """Do once what `run` does again and again; return whether there is more to do now."""
        has_more = self.ship_some()
        self._report(all_runs=False)
        self._deliver_requests()
        for shard in {run.shard for run in self.runs.values()}:
            self._verify_some(shard)
        return has_more

    def ship_some(self) -> bool:
        """Look for new lines and send a batch to each shard that has some; return whether there is more to do now."""
        self._finder.look()
        self._watch.look()
        sent = self._send_batches()
        # A batch that is not full has taken all there was: the next one waits for more lines.
        return any(batch.is_full for batch in sent) or self._has_unknown_files

    @property
    def _has_unknown_files(self) -> bool:
        return any(file.is_unknown for file in self._watch.files.values())

    def _send_batches(self) -> list[_Batch]:
        """Send a batch to each shard that has new lines; return those that were taken."""
        sent = []
        for shard in sorted({run.shard for run in self.runs.values()}):
            with self._trying(shard) as is_ready:
                if is_ready:
                    self._ask(shard)
                    batch = self._held.get(shard) or self._fill(shard)
                    if batch is not None:
                        self._held[shard] = batch
                        self._send(shard, batch)
                        del self._held[shard]
                        sent.append(batch)
        return sent

    def verify(self) -> list[str]:
        """Compare all runs with the engine and send again what differs; return what was repaired, in words.

        Raises:
            EngineError: the engine refused or does not answer.
        """
        return [said for run in self.runs.values() for said in self._verify(run, reads_all=True) if said]

    # ------------------------------------------------------------ asking the engine what it has

    def _assign(self, run_ids: list[str]) -> dict[str, int] | None:
        with self._trying(_EVERYWHERE) as is_ready:
            if is_ready and self._shards is not None:
                return self._shards.of(run_ids)
        return None

    def _engine(self, shard: int) -> Engine:
        return self.engine if self._shards is None else self._shards.engines[shard]

    def _ask(self, shard: int) -> None:
        """Learn what the shard has of new runs and files, a part of them at a time, and from time to time of all."""
        engine = self._engine(shard)
        runs = [run for run in self.runs.values() if run.shard == shard]
        is_recheck = time.monotonic() >= self._next_recheck.get(shard, 0.0)
        asked = runs if is_recheck else [run for run in runs if not run.report.is_known]
        if asked:
            run_rows.ask(engine, [(run.report, run.found) for run in asked])
        opened = []
        if is_recheck:
            for file in self._of(shard):
                # What could not be read may be readable now.
                file.problem = None
            opened = [file for file in self._of(shard) if file.tail is not None]
        unknown = [file for file in self._of(shard) if file.is_unknown]
        ids = {file.key[0] for file in (*unknown, *opened)}
        commits = newest_commits(engine, ids, lambda _, sentence: self._failure(sentence))
        for file in opened:
            if _is_outdated(file, commits.get(file.key)):
                file.forget()
                unknown.append(file)
        checked = 0
        for file in unknown:
            if checked > _CRC_AT_ONCE:
                break
            checked += self._resume(file, commits.get(file.key))
        self._add_objects((*asked, *(file.run for file in unknown)))
        if is_recheck:
            self._next_recheck[shard] = time.monotonic() + _RECHECK_S

    def _add_objects(self, runs: Iterable[ShippedRun]) -> None:
        """Let the files of runs be stored that this shipper speaks for."""
        if self.objects is not None:
            for run in runs:
                # A part of a run on another node may have other files of the same names.
                if run.is_listed and not run.found.is_part and not self._is_left_alone(run):
                    self.objects.add_run(run.found.key, run.found.folder, run.shard)

    def _resume(self, file: ShippedFile, found: Commit | None) -> int:
        """Set where to go on: behind what the engine has if the file begins with that; return how much was read."""
        if found is None:
            file.commit, file.has_begun = _nothing_of(file), True
            return 0
        try:
            is_same = crc_of(file.path, found.end) == found.crc
        except OSError as error:
            self._problem(file, error)
            return 0
        if is_same:
            file.gen = found.gen
        is_rival = 0 < file.gen < found.gen
        file.rivals += is_rival
        is_anothers = is_rival or found.node != self.node
        file.is_superseded = not is_same and is_anothers and self._is_older(file, found)
        if file.is_superseded:
            file.problem = f"not shipped: node {found.node} has shipped a newer file of rank {file.rank}"
        elif not is_same and found.gen == _LAST_GENERATION:
            file.problem = f"not shipped any more: it was replaced {found.gen:,} times"
        if file.problem is not None:
            self._failure(f"{file.path} is {file.problem}")
            return found.end
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
        session, moment = last_session(self._engine(file.run.shard), found)
        if own.session != session:
            return own.session < session
        return max(found.moves, file.rivals) >= _MOST_MOVES or own.time < moment

    def _of(self, shard: int) -> Iterator[ShippedFile]:
        return (file for file in self._watch.files.values() if file.run.shard == shard)

    def _open(self, engine: Engine, files: list[ShippedFile]) -> None:
        """Make ready to read on in each file: the running totals, and what was sent without a commit."""
        commits = {file.key: file.commit for file in files if file.commit is not None}
        by_key = {file.key: file for file in files}
        mixed: dict[FileKey, set[int]] = {}
        for key, strays in strays_behind(engine, [(key, at.gen, at.end) for key, at in commits.items()]):
            try:
                mixed.setdefault(key, set()).update(gens_not_in(by_key[key].path, strays))
            except OSError as error:
                self._problem(by_key[key], error)
                commits.pop(key, None)
        for key, commit in commits.items():
            # Lines that were sent before a kill and are not in the file any more: they stay in their generation.
            while commit.gen in mixed.get(key, ()):
                commit, by_key[key].has_begun = commit.next_generation(REPLACED), False
            commits[key] = commit
        counters = counters_at(engine, [commit for commit in commits.values() if commit.end])
        for file in files:
            if file.key not in commits:
                continue
            commit = file.commit = commits[file.key]
            position = Position(
                end=commit.end,
                crc=commit.crc,
                lines=commit.lines,
                bad_lines=commit.bad_lines,
                counters=counters.get(file.key, {}),
            )
            file.tail = RecordTail(file.path, file.run.found.key, file.rank, commit.gen, position)

    def _is_left_alone(self, run: ShippedRun) -> bool:
        """Return whether a run was deleted on a page, or is so old that the engine would remove its lines."""
        return run.report.is_deleted or run.found.key.is_older_than(self._keep_days)

    # ------------------------------------------------------------ batches

    def _fill(self, shard: int) -> _Batch | None:
        """Return the next lines of the shard's files, or None if there are none."""
        waiting = [file for file in self._of(shard) if file.has_more and not self._is_left_alone(file.run)]
        unopened = [file for file in waiting if file.tail is None]
        if unopened:
            self._open(self._engine(shard), unopened)
        rows = Rows()
        commits: list[tuple[ShippedFile, Commit]] = []
        for file in waiting:
            if rows.is_full:
                break
            if file.tail is None:
                continue
            self._watch.to_the_back(file)
            commit = self._read(file, rows)
            if commit is not None:
                commits.append((file, commit))
        return _Batch(rows.blocks(), commits, len(rows), rows.is_full) if commits else None

    def _read(self, file: ShippedFile, rows: Rows) -> Commit | None:
        """Append new lines of a file; return how far it is then shipped, None if there are none."""
        tail, before = file.tail, file.commit
        assert tail is not None
        assert before is not None
        begin = tail.position.end
        try:
            while not rows.is_full:
                offset = tail.offset
                if not tail.read(rows):
                    file.forget()
                    break
                if tail.offset == offset:
                    file.read_size = file.size
                    break
        except OSError as error:
            self._problem(file, error)
        files, tail.files = tail.files, []
        if files and self.objects is not None and file.run.is_listed and not file.run.found.is_part:
            self.objects.add_files(file.key[0], files)
        position = tail.position
        if position.end == begin and file.has_begun:
            return None
        return replace(
            before,
            end=position.end,
            crc=position.crc,
            lines=position.lines,
            bad_lines=position.bad_lines,
            metrics=position.summary(),
        )

    def _send(self, shard: int, batch: _Batch) -> None:
        engine = self._engine(shard)
        for file, commit in batch.commits:
            file.gen = max(file.gen, commit.gen)
        while batch.blocks:
            engine.insert(*batch.blocks[0])
            del batch.blocks[0]
        insert_commits(
            engine, [(commit, file.run.found.key.day) for file, commit in batch.commits], self.node
        )
        for file, commit in batch.commits:
            # It may have been found replaced since.
            if file.tail is not None and file.tail.gen == commit.gen:
                file.commit, file.has_begun = commit, True
        self.totals.lines += batch.lines
        self.totals.batches += 1

    # ------------------------------------------------------------ comparing

    def _verify(self, run: ShippedRun, *, reads_all: bool = False) -> Iterator[str | None]:
        """Compare the files of a run that changed, or all of them, with the engine, as `verify_file` does."""
        if self.objects is not None:
            self.objects.verify(run.found.key.run_id)
        for file in () if self._is_left_alone(run) else list(run.files.values()):
            if file.signature == file.verified and not reads_all:
                continue
            try:
                for said in verify_file(self._engine(run.shard), file, reads_all=reads_all):
                    yield said and f"{file.path}: {said}"
            except OSError as error:
                self._problem(file, error)

    def _verify_due(self, shard: int) -> Iterator[str | None]:
        """Verify the runs of a shard that have ended, or were not verified for a day."""
        now = time.monotonic()
        for run in list(self.runs.values()):
            is_due = run.shard == shard and (run.report.has_ended or now >= run.next_verify)
            if is_due and not any(file.has_more for file in run.files.values()):
                yield from self._verify(run)
                run.report.has_ended = False
                run.next_verify = next_verify()

    def _verify_some(self, shard: int) -> None:
        """Go on verifying for a moment: live runs of the node wait for it."""
        until = time.monotonic() + _VERIFY_AT_ONCE_S
        with self._trying(shard) as is_ready:
            if is_ready:
                slices = self._verifying.pop(shard, None) or self._verify_due(shard)
                for said in slices:
                    if said:
                        self._failure(said)
                    if time.monotonic() >= until:
                        self._verifying[shard] = slices
                        break

    # ------------------------------------------------------------ reports and failures

    def _report(self, *, all_runs: bool) -> None:
        """Send the state of the runs that changed or are live, and of this shipper."""
        by_shard: dict[int, list[ShippedRun]] = {}
        for run in self.runs.values():
            if run.is_listed:
                by_shard.setdefault(run.shard, []).append(run)
        for shard, runs in by_shard.items():
            with self._trying(shard) as is_ready:
                if is_ready:
                    states = [
                        (run.report, run.found, 0 if self._is_left_alone(run) else run.behind) for run in runs
                    ]
                    run_rows.send(self._engine(shard), self.node, states, all_runs=all_runs)
        if not all_runs and time.monotonic() < self._next_report:
            return
        self._next_report = time.monotonic() + REPORT_S
        for shard in sorted(by_shard, key=lambda shard: self._backoffs[shard].reason is not None)[:1] or [0]:
            with self._trying(shard) as is_ready:
                if is_ready:
                    engine = self._engine(shard)
                    # The clock may have been set back.
                    last = self._reported or run_rows.last_report(engine, self.node)
                    self._reported = max(int(time.time() * 1000), last + 1)
                    run_rows.report_shipper(
                        engine,
                        node=self.node,
                        version=self._reported,
                        started=self._started,
                        files=len(self._watch.files),
                        behind=self.behind,
                        last_error=self._last_error(),
                    )

    def _deliver_requests(self) -> None:
        if self._courier is None:
            return
        for shard in sorted({run.shard for run in self.runs.values()}):
            # Not the shard's own pause: lines are shipped although requests cannot be read.
            with self._trying(_REQUESTS - shard) as is_ready:
                if is_ready:
                    runs = [run for run in self.runs.values() if run.shard == shard]
                    self._courier.deliver(self._engine(shard), runs)

    @contextmanager
    def _trying(self, shard: int) -> Iterator[bool]:
        """Yield whether it is time to talk to a shard; a failure is noted, and the next try is later."""
        backoff = self._backoffs.setdefault(shard, Backoff())
        is_ready = backoff.is_ready
        try:
            yield is_ready
        except EngineError as error:
            backoff.failed(str(error))
            self._failure(str(error))
        else:
            if is_ready:
                backoff.succeeded()

    def _raise_failure(self) -> None:
        for backoff in self._backoffs.values():
            if backoff.reason is not None:
                raise EngineError(backoff.reason)

    def _problem(self, file: ShippedFile, error: OSError) -> None:
        file.problem = str(error.strerror or error)
        self._failure(f"{file.path}: {file.problem}")

    def _last_error(self) -> str:
        of_objects = self.objects.totals.recent_error if self.objects is not None else ""
        return "; ".join(filter(None, (of_objects, self.totals.recent_error)))

    def _failure(self, reason: str) -> None:
        self.totals.add(reason, self._say)


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


def _nothing_of(file: ShippedFile) -> Commit:
    return Commit(run_id=file.key[0], rank=file.rank, gen=1, end=0, crc=0, lines=0, bad_lines=0)
