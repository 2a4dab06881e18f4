"""Logger, reader and control as one state machine, compared with a model: a list of what was acknowledged.

The machine does to a run what happens to runs: sessions begin, log, are steered, end, are killed between two calls or
in the middle of a write, lose their power, find foreign bytes in their file, are repaired and resumed. Readers
look at it whenever they like. After every look the model says what must be there.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.fuzz.session_server import receive, send
from tests.fuzz.targets import columns_of
from tests.leftovers import journals_of_runs_below
from toolkit.telemetry.runfolder.codec import with_non_finite
from toolkit.telemetry.runfolder.journal.journal import pending_lines
from toolkit.telemetry.runfolder.journal.repair import repair_run
from toolkit.telemetry.runfolder.layout import CONTROL
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runfolder.reader import Cursor, read_from
from toolkit.telemetry.runfolder.safefile import replace_file
from toolkit.telemetry.runfolder.status import work_out_status
from toolkit.telemetry.runfolder.table.columns import Columns
from toolkit.telemetry.runfolder.table.csv_table import table_form
from toolkit.telemetry.runs.columns.run_log import RunLog

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_numbers = st.floats() | st.integers(-(2**60), 2**60)
_values = st.dictionaries(
    st.sampled_from(["a", "b", "c/d", "é", "long name"]),
    _numbers | _texts | st.booleans() | st.lists(st.integers(-9, 9), max_size=3),
    max_size=4,
)
_scalars = st.dictionaries(st.sampled_from(["x", "y/z"]), _numbers, max_size=2)
_losses = st.none() | st.floats()
_foreign = st.sampled_from(
    [
        b"\n",
        b"\0" * 40 + b"\n",
        b"half a line",
        b'{"event":"step","global_step":1,"train_lo',
        b"[1,2,3]\n",
        b'{"no":"event"}\n',
        b"\xff\xfe\xfd\n",
        b'{"event":"note","time":NaN}\n',
        b'{"event":"note","time":1.5,"text":"of another program"}\n',
    ]
)


class Server:
    """The process that training processes are forked from; one serves all examples."""

    def __init__(self, mutation: str | None = None) -> None:
        self.pid: int | None = None
        """The training process that lives now."""
        commands_in, self._commands = os.pipe()
        self._replies, replies_out = os.pipe()
        ends = (commands_in, replies_out)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.session_server", *map(str, ends), mutation or ""],
            cwd=ROOT,
            pass_fds=ends,
        )
        os.close(commands_in)
        os.close(replies_out)

    def begin(self, log_dir: Path) -> dict[str, Any]:
        """Fork a training process; return what it says of itself."""
        send(self._commands, (str(log_dir), True))
        about: dict[str, Any] = self._reply("done")
        self.pid = about["pid"]
        return about

    def ask(self, *command: Any) -> Any:
        """Have the training process do something, and return what came of it."""
        send(self._commands, command)
        return self._reply("done")

    def tell_to_die(self, *command: Any) -> None:
        """Have the training process do something that it does not survive."""
        send(self._commands, command)
        self.wait_for_the_end()

    def wait_for_the_end(self) -> None:
        """Return when the training process is gone."""
        self._reply("ended")
        self.pid = None

    def _reply(self, expected: str) -> Any:
        answer = receive(self._replies)
        assert answer is not None, "the server is gone"
        kind, content = answer
        if kind == expected:
            return content
        # A request to a process that is gone would wait forever.
        self.pid = None
        if kind == "raised":
            self._reply("ended")
            raise AssertionError(f"the training process raised:\n{content}")
        raise AssertionError(f"the training process ended by itself: {content}")

    def close(self) -> None:
        """End it."""
        os.close(self._commands)
        self._process.wait(WAIT_S)
        os.close(self._replies)


@dataclass(slots=True)
class Counted:
    """What the machine has done in all its examples."""

    examples: int = 0
    sessions: int = 0
    kills: int = 0
    power_cuts: int = 0
    acknowledged: int = 0
    looks: int = 0
    requests: int = 0


COUNTED = Counted()


@dataclass(slots=True)
class Logged:
    """One acknowledged record."""

    event: str
    values: dict[str, Any]
    is_required: bool = True
    """Whether it must be there: not one that was in flight at a kill, or unsynced at a power cut."""


@dataclass(slots=True)
class Asked:
    """One request of the control file."""

    content: bytes
    may_be_done: bool
    done: int = 0
    seen_by_session: bool = False
    knob: float | None = None
    is_excused: bool = False
    """Whether its answer may be gone with a power cut."""


@dataclass(slots=True)
class Model:
    """What must be true of the run."""

    logged: dict[int, Logged] = field(default_factory=dict)
    asked: dict[str, Asked] = field(default_factory=dict)
    synced_bytes: int = 0
    synced_upto: int = 0
    excused: set[int] = field(default_factory=set)
    """Numbers of records that a power cut took."""


def machine_for(server: Server) -> type[RuleBasedStateMachine]:
    """Return the machine, with training processes from `server`."""

    class Machine(_Machine):
        pass

    Machine.server = server
    return Machine


class _Machine(RuleBasedStateMachine):
    server: Server

    @initialize()
    def begin(self) -> None:
        COUNTED.examples += 1
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz-machine-", dir=_in_memory()))
        self.run = self.folder / "run"
        self.records = self.run / "metrics.jsonl"
        self.run_id = ""
        self.how_it_ended: str | None = None
        self.n = 0
        self.step_number = 0
        self.log_every = 1
        self.model = Model()
        self._forget_readers()
        self.start_session()

    def _forget_readers(self) -> None:
        self.cursor = Cursor()
        self.read: list[dict[str, Any]] = []
        self.columns: RunLog | None = None

    # ------------------------------------------------------------ sessions

    @property
    def is_alive(self) -> bool:
        return self.server.pid is not None

    @precondition(lambda self: not self.is_alive)
    @rule()
    def start_session(self) -> None:
        COUNTED.sessions += 1
        about = self.server.begin(self.folder)
        assert self.run_id in ("", about["run_id"])
        self.run_id = about["run_id"]
        self.log_every = 1
        for asked in self.model.asked.values():
            asked.seen_by_session = False
        self.look()

    @precondition(lambda self: self.is_alive)
    @rule()
    def close(self) -> None:
        self._close()
        self.look()
        self._assert_table()

    def _close(self) -> None:
        self.server.ask("close")
        self.server.wait_for_the_end()
        self.how_it_ended = "finished"

    @precondition(lambda self: self.is_alive)
    @rule(look_first=st.booleans())
    def kill(self, look_first: bool) -> None:
        if look_first:
            self.look()
        self._kill()

    def _kill(self) -> None:
        COUNTED.kills += 1
        assert self.server.pid is not None
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.wait_for_the_end()
        self.how_it_ended = "lost"

    @precondition(lambda self: self.is_alive)
    @rule(after_bytes=st.integers(0, 400), values=_values)
    def kill_in_a_write(self, after_bytes: int, values: dict[str, Any]) -> None:
        COUNTED.kills += 1
        # The call returned before the write began, so this one was acknowledged like any other.
        self._new("note", values)
        self.server.tell_to_die("die_in_a_write", after_bytes, self.model.logged[self.n].values)
        self.how_it_ended = "lost"

    @precondition(lambda self: self.is_alive)
    @rule(kept=st.floats(0, 1), sectors=st.sets(st.integers(0, 6), max_size=2), table=st.floats(0, 1))
    def cut_the_power(self, kept: float, sectors: set[int], table: float) -> None:
        """Kill it, and take away what no sync had forced onto the disk, tmpfs and all."""
        COUNTED.power_cuts += 1
        self._kill()
        # What had not reached the file yet goes with the memory.
        in_memory = b""
        for path in journals_of_runs_below(self.run):
            in_memory += b"".join(line.rstrip(b"\n") + b"\n" for _, line in pending_lines(path))
            path.unlink()
        before = self.records.read_bytes() if self.records.exists() else b""
        synced = min(self.model.synced_bytes, len(before))
        tail = bytearray(before[synced : synced + int(kept * (len(before) - synced))])
        for sector in sectors:
            at = sector * 128
            tail[at : at + 128] = bytes(len(tail[at : at + 128]))
        if self.records.exists():
            self.records.write_bytes(before[:synced] + tail)
        with contextlib.suppress(FileNotFoundError):
            cells = (self.run / "metrics.csv").read_bytes()
            (self.run / "metrics.csv").write_bytes(cells[: int(table * len(cells))])
        gone = _seqs(before + in_memory) - _seqs(self.records.read_bytes() if before else b"")
        self.model.excused |= gone
        for n, logged in self.model.logged.items():
            if n > self.model.synced_upto:
                logged.is_required = False
        for asked in self.model.asked.values():
            asked.is_excused = True
        # The readers on this machine are gone too.
        self._forget_readers()

    # ------------------------------------------------------------ logging

    def _new(self, event: str, values: dict[str, Any]) -> dict[str, Any]:
        self.n += 1
        values = {**values, "n": self.n}
        self.model.logged[self.n] = Logged(event, values)
        COUNTED.acknowledged += 1
        return values

    @precondition(lambda self: self.is_alive)
    @rule(values=_values, times=st.sampled_from([1, 1, 2, 30]))
    def log_event(self, values: dict[str, Any], times: int) -> None:
        for _ in range(times):
            self.server.ask("event", self._new("note", values))

    @precondition(lambda self: self.is_alive)
    @rule(loss=_losses, values=_scalars, times=st.sampled_from([1, 2, 40]))
    def log_step(self, loss: float | None, values: dict[str, Any], times: int) -> None:
        for _ in range(times):
            self.step_number += 1
            given = self._new("step", {**values, **({} if loss is None else {"train_loss": loss})})
            self.log_every = self.server.ask("step", self.step_number, given)
            if self.log_every != 1:
                self.model.logged[self.n].is_required = False

    @precondition(lambda self: self.is_alive)
    @rule(values=_scalars)
    def log_eval(self, values: dict[str, Any]) -> None:
        self.server.ask("evaluation", self.step_number, self._new("eval", values))

    @precondition(lambda self: self.is_alive)
    @rule()
    def log_checkpoint(self) -> None:
        self.server.ask("checkpoint", self.step_number, self.n)

    @precondition(lambda self: self.is_alive)
    @rule(name=st.sampled_from(["forward", "data", "é"]), begins=st.booleans())
    def span(self, name: str, begins: bool) -> None:
        self.server.ask(*(("begin_span", name) if begins else ("end_span",)))

    @precondition(lambda self: self.is_alive)
    @rule()
    def flush(self) -> None:
        self.server.ask("flush")
        self.look()
        # Everything acknowledged is in the file itself by now, and in the table.
        self._assert_all_are_there()
        self._assert_table()

    @precondition(lambda self: self.is_alive)
    @rule()
    def sync(self) -> None:
        self.model.synced_bytes = self.server.ask("sync")
        self.model.synced_upto = self.n

    @precondition(lambda self: self.is_alive)
    @rule()
    def beat(self) -> None:
        self.server.ask("beat")

    # ------------------------------------------------------------ control

    @rule(
        kind=st.sampled_from(
            ["knob", "save", "out of range", "expired", "other run", "unknown", "malformed"]
        ),
        knob=st.floats(0, 1),
    )
    def ask(self, kind: str, knob: float) -> None:
        COUNTED.requests += 1
        request_id = f"r{len(self.model.asked)}"
        content: dict[str, Any] = {"id": request_id, "timestamp": time.time()}
        content |= {
            "knob": {"knobs": {"lr": knob}, "run_id": self.run_id},
            "save": {"actions": ["save"]},
            "out of range": {"knobs": {"lr": 1.5}},
            "expired": {"actions": ["save"], "expires": time.time() - 5},
            "other run": {"actions": ["save"], "run_id": "another"},
            "unknown": {"actions": ["explode"]},
            "malformed": {"actions": "save"},
        }[kind]
        data = json.dumps(content).encode()
        is_valid = kind in ("knob", "save")
        self.model.asked[request_id] = Asked(data, is_valid, knob=knob if kind == "knob" else None)
        self._put_control(data)

    @precondition(lambda self: self.model.asked)
    @rule(which=st.integers(0, 99))
    def ask_again(self, which: int) -> None:
        """Put an old request back, as a copy of the file would."""
        asked = list(self.model.asked.values())
        self._put_control(asked[which % len(asked)].content)

    def _put_control(self, data: bytes) -> None:
        if self.run.is_dir():
            replace_file(self.run / CONTROL, data, mode=0o600)

    @precondition(lambda self: self.is_alive)
    @rule()
    def poll(self) -> None:
        self.step_number += 1
        for name, value, request_id in self.server.ask("poll", self.step_number):
            asked = self.model.asked[request_id]
            asked.done += 1
            assert asked.may_be_done, f"{request_id} was obeyed: {asked.content!r}"
            assert asked.done == 1, f"{request_id} was obeyed {asked.done} times"
            assert (name, value) == (("lr", asked.knob) if asked.knob is not None else ("save", None))
        current = (self.run / CONTROL).read_bytes() if (self.run / CONTROL).exists() else None
        for asked in self.model.asked.values():
            asked.seen_by_session = asked.seen_by_session or asked.content == current
        self.look()

    # ------------------------------------------------------------ what others do to the folder

    @rule(data=_foreign)
    def append_foreign_bytes(self, data: bytes) -> None:
        if not self.records.exists():
            return
        if self.is_alive:
            # Two writers of one line are not promised to come apart, but whole lines are.
            self.server.ask("flush")
            data = data.rstrip(b"\n") + b"\n"
        with self.records.open("ab") as file:
            file.write(data)

    @rule()
    def repair(self) -> None:
        if not self.run.is_dir():
            return
        found = repair_run(self.run)
        assert found.in_use == self.is_alive
        if self.is_alive:
            return
        self.look()
        self._assert_all_are_there()
        if self.records.exists():
            self._assert_table()
        assert repair_run(self.run).recovered == 0

    # ------------------------------------------------------------ looking

    @rule()
    def look(self) -> None:
        """Read what was appended, in both readers, and compare with a fresh look at the whole file."""
        COUNTED.looks += 1
        if not self.records.exists():
            return
        chunk = read_from(self.records, self.cursor)
        assert not chunk.replaced, "the file was taken for another one"
        self.cursor = chunk.cursor
        self.read += chunk.records
        fresh = read_from(self.records, Cursor()).records
        assert fresh[: len(self.read)] == self.read
        self._assert_honest(fresh)
        if self.columns is None:
            self.columns = RunLog(self.records, None)
        self.columns.refresh(WAIT_S)

    @precondition(lambda self: not self.is_alive)
    @rule()
    def compare_columns(self) -> None:
        self._compare_columns()

    def _compare_columns(self) -> None:
        if self.columns is None or not self.records.exists():
            return
        self.columns.refresh(WAIT_S)
        fresh = RunLog(self.records, None)
        fresh.refresh(WAIT_S)
        assert columns_of(self.columns) == columns_of(fresh)

    @rule()
    def status(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            status = work_out_status(read_manifest(self.run), time.time())
            if self.is_alive:
                assert status.name in ("running", "stalled"), status
            elif self.how_it_ended == "lost":
                assert status.name == "lost", status
            else:
                assert status.name == "finished", status

    def teardown(self) -> None:
        try:
            if self.is_alive:
                self._close()
            repair_run(self.run)
            self.look()
            self._assert_all_are_there()
            self._assert_table()
            self._compare_columns()
            self._assert_answers(self.read)
        finally:
            if self.is_alive:
                self._kill()
            repair_run(self.run)
            shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------ what must be true

    def _assert_honest(self, records: list[dict[str, Any]]) -> None:
        """Every record is one that was logged, as it was logged, once; the numbers rise and tell what is missing."""
        seen: set[int] = set()
        for record in records:
            n = record.get("n")
            if type(n) is not int:
                continue
            assert n not in seen, f"record {n} is there twice"
            seen.add(n)
            assert n in self.model.logged, f"invented: {record}"
            logged = self.model.logged[n]
            assert record["event"] == logged.event
            restored = with_non_finite(record)
            for name, value in logged.values.items():
                assert _is_same(restored.get(name), value), (name, restored.get(name), value)
        seqs = [record["seq"] for record in records if "seq" in record]
        assert seqs == sorted(set(seqs)), f"not rising: {seqs}"
        declared = set(self.model.excused)
        for record in records:
            if record.get("event") == "lost":
                declared |= set(range(record["from_seq"], record["to_seq"] + 1))
        missing = set(range(seqs[-1] + 1)) - set(seqs) - declared if seqs else set()
        assert not missing, f"missing without a word: {sorted(missing)}"

    def _assert_all_are_there(self) -> None:
        there = {record.get("n") for record in self.read}
        required = {n for n, logged in self.model.logged.items() if logged.is_required}
        assert required <= there, f"acknowledged and gone: {sorted(required - there)}"

    def _assert_table(self) -> None:
        """One row for each record, and no other.

        This is promised once a session has flushed, or after a repair. Between a power cut and whichever of the two
        comes first, the table may have rows of records that are gone, and no one is there to take them away.
        """
        numbered = []
        has_row = Columns(table_form(self.run)).has_row
        with contextlib.suppress(FileNotFoundError):
            numbered = [
                record
                for record in read_from(self.records).records
                if type(record.get("seq")) is int and has_row(record)
            ]
        table = self.run / "metrics.csv"
        if not numbered:
            # The first row brings the table: with no record there may be none, or one of other programs' records.
            return
        assert table.exists(), f"{len(numbered)} records and no table"
        text = table.read_text("utf-8")
        # Records of other programs have no number, and a row once the table is built again.
        rows = {int(row["seq"]): row for row in csv.DictReader(io.StringIO(text, newline="")) if row["seq"]}
        assert [*rows] == [record["seq"] for record in numbered], (
            "the table has other rows than there are records"
        )
        for record in numbered:
            row = rows[record["seq"]]
            assert (row["event"], row["session"]) == (record["event"], str(record["session"]))
            loss = with_non_finite(record).get("train_loss")
            if isinstance(loss, float):
                assert _is_same(float(row["train_loss"]), loss)

    def _assert_answers(self, records: list[dict[str, Any]]) -> None:
        """A request that was seen is answered once, and says `applied` exactly where the script was given it."""
        answers: dict[str, list[str]] = {}
        for record in records:
            if record.get("event") == "control_change":
                answers.setdefault(record["id"], []).append(record["status"])
        for request_id, asked in self.model.asked.items():
            said = answers.get(request_id, [])
            assert len(said) <= 1, f"{request_id} was answered {said}"
            if not asked.is_excused:
                assert (said == ["applied"]) == (asked.done == 1), (said, asked)
                assert said or not asked.seen_by_session, f"{request_id} was never answered"


def _is_same(found: Any, given: Any) -> bool:
    if isinstance(given, float) and math.isnan(given):
        return isinstance(found, float) and math.isnan(found)
    if isinstance(given, float) and isinstance(found, (int, float)):
        return found == given
    return type(found) is type(given) and bool(found == given)


def _seqs(content: bytes) -> set[int]:
    found = set()
    for line in content.split(b"\n")[:-1]:
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict) and type(record.get("seq")) is int:
                found.add(record["seq"])
    return found


def _in_memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
