"""Ranks that die or fall silent: by the clock of a live run, and from the files afterwards."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace

import pytest

from toolkit.telemetry.diagnostics.finding import ranks_as_evidence, ranks_in, ranks_in_words
from toolkit.telemetry.diagnostics.history import diagnose
from toolkit.telemetry.diagnostics.rank_watch import RankWatch
from toolkit.telemetry.diagnostics.silent_ranks import LostRanks
from toolkit.telemetry.runfolder.layout import rank_file
from toolkit.telemetry.runfolder.node_folders import RankProcess, process_of, record_files
from toolkit.telemetry.runfolder.process import boot_id, host_name

GONE = 2**22 + 5
"""No process has this number: it is above the largest that Linux gives."""


class Run:
    """A run folder whose ranks write what a test asks for, and a watch with a clock of its own."""

    def __init__(self, folder, session=1):
        self.folder, self.session, self.now, self.step = folder, session, 1000.0, 0
        self.watch = RankWatch(folder, session=session, now=lambda: self.now)

    def write(self, rank, event="step", session=None, **fields):
        path = rank_file(self.folder, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"event": event, "time": self.now, "seq": 1, "session": session or self.session}
        with path.open("a") as file:
            file.write(json.dumps({**record, "global_step": self.step, **fields}) + "\n")
        os.utime(path, (self.now, self.now))

    def start(self, *ranks, **fields):
        about = {"host": host_name(), "boot_id": boot_id(), "pid": os.getpid(), **fields}
        for rank in ranks:
            self.write(rank, "start", **about)

    def run(self, seconds, *ranks, event="step", every=1):
        """Have `ranks` write for that long, one record a second, and return what was found."""
        found = []
        for _ in range(int(seconds)):
            self.now += 1.0
            self.step += event == "step"
            for rank in ranks:
                if not self.step % every or event != "step":
                    self.write(rank, event)
            found += self.watch.look(self.step)
        return found

    def lost(self, **more):
        ranks = LostRanks()
        ranks.look(record_files(self.folder), **{"now": self.now + 100.0, "is_live": True, **more})
        return [(each.rank, each.kind, each.variant) for each in ranks.lost]


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def elsewhere(run, *ranks):
    run.start(*ranks, host="another-machine")


def test_a_process_that_is_gone_is_known_to_be_dead(run):
    run.start(0, 1, 2)
    run.start(3, pid=GONE)
    assert run.run(20, 0, 1, 2, 3) == []

    (finding,) = run.run(10, 0, 1, 2)

    assert finding.kind == "rank_dead"
    assert finding.severity == "critical"
    assert finding.message == (
        "The process of rank 3 is gone and left no end record; the last record is of step 20."
    )
    assert finding.noticed_step <= 26
    assert run.lost() == [(3, "rank_dead", "")]


def test_it_is_dead_as_well_while_the_others_wait_for_it(run):
    run.start(0, 1)
    run.start(2, pid=GONE)
    run.run(20, 0, 1, 2)

    (finding,) = run.run(10, event="nothing")

    assert ranks_in(finding.evidence) == [2]
    assert run.lost() == [(2, "rank_dead", "")]


def test_a_process_that_ends_in_order_while_it_is_looked_up_is_not_dead(run):
    run.start(0)
    run.start(1, pid=GONE)
    run.run(20, 0, 1)
    ranks, files = LostRanks(), record_files(run.folder)
    tails = ranks.read(files)
    run.write(1, "end", status="finished")

    assert ranks.judge(files, tails, now=run.now + 100.0, is_live=True) == []


def test_a_machine_that_was_restarted_has_no_process_of_before(run):
    run.start(0)
    run.start(1, boot_id="another boot")
    run.run(20, 0, 1)

    assert [finding.kind for finding in run.run(10, 0)] == ["rank_dead"]


def test_on_another_machine_a_rank_is_silent_after_a_minute(run):
    run.start(0, 1)
    elsewhere(run, 2)
    run.run(20, 0, 1, 2)
    assert run.run(55, 0, 1) == []

    (finding,) = run.run(20, 0, 1)

    assert finding.kind == "rank_silent"
    assert finding.severity == "warning"
    assert finding.message.startswith("No record of rank 2 for 6")
    assert "cannot be looked up here" in finding.message


def test_a_process_that_lives_and_writes_nothing_is_silent_and_said_to_be_alive(run):
    run.start(0, 1)
    run.run(20, 0, 1)

    (finding,) = run.run(80, 0)

    assert finding.kind == "rank_silent"
    assert finding.message.endswith("while others wrote; its process is alive.")
    assert run.lost() == [(1, "rank_silent", "alive")]


def test_it_is_over_when_records_come_again(run):
    elsewhere(run, 0, 1)
    run.run(20, 0, 1)
    (silent,) = run.run(80, 0)
    (over,) = run.run(5, 0, 1)

    assert over.id == silent.id
    assert not over.is_open
    assert over.message.endswith("then records came again.")


def test_ranks_that_are_lost_one_after_the_other_are_one_finding(run):
    elsewhere(run, 0, *range(1, 13))
    run.run(20, 0, *range(1, 13))
    run.run(10, 0, *range(2, 13))
    first, *_, last = run.run(120, 0)

    assert {finding.id for finding in (first, last)} == {first.id}
    assert ranks_in_words(first.evidence) == "rank 1"
    assert ranks_in_words(last.evidence) == "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 4 more"


# ------------------------------------------------------------ nothing is wrong


def test_a_rank_that_ended_in_order_is_not_silent(run):
    run.start(0, 2)
    run.start(1, pid=GONE)
    run.run(20, 0, 1, 2)
    run.write(1, "end", status="finished")

    assert run.run(200, 0, 2) == []
    assert run.lost() == []


def test_a_rank_that_starts_late_is_not_silent(run):
    elsewhere(run, 0, 1)
    assert run.run(200, 0, event="system") == [], "only a start record so far"
    assert run.run(20, 0, 1) == []


def test_a_rank_that_logs_seldom_is_not_silent(run):
    elsewhere(run, 0, 1)
    found = []
    for _ in range(30):
        found += run.run(20, 0)
        run.write(1)

    assert found + run.run(100, 0) == []
    assert run.lost() == []


def test_a_run_that_pauses_as_a_whole_has_no_silent_rank(run):
    elsewhere(run, 0, 1, 2)
    run.run(20, 0, 1, 2)

    assert run.run(500, event="nothing") == []
    assert run.lost() == []


def test_who_writes_no_system_records_is_compared_by_steps(run):
    elsewhere(run, 0, 1)
    run.run(20, 0, 1)

    assert run.run(300, 0, event="system") == [], "both may be in an evaluation"
    assert run.lost() == []


def test_a_rank_of_an_earlier_session_is_not_silent(tmp_path):
    first = Run(tmp_path)
    first.start(0)
    first.start(1, pid=GONE)
    first.run(20, 0, 1)
    second = Run(tmp_path, session=2)
    second.now = first.now + 100.0
    second.start(0)

    assert second.run(200, 0) == []
    assert second.lost() == []


def test_a_watch_that_slept_itself_starts_afresh(run):
    elsewhere(run, 0, 1)
    run.run(20, 0, 1)
    run.now += 5000.0

    assert run.run(2, 0) + run.run(20, 0, 1) == [], "rank 0 is the first that writes again"


def test_a_clock_that_is_set_while_a_run_is_watched_makes_no_rank_silent(run):
    run.start(0, 1)
    run.run(20, 0, 1)
    run.step += 1
    run.write(0, time=run.now + 5000.0)

    assert run.run(5) == []


def test_odd_files_are_no_ranks(run):
    elsewhere(run, 0, 1)
    folder = run.folder / "ranks"
    (folder / "00002.jsonl").mkdir()
    (folder / "00003.jsonl").symlink_to(run.folder / "metrics.jsonl")
    (folder / "4.jsonl").write_text("{}")
    (folder / "0000²5.jsonl").write_text("{}")
    (folder / "00006.jsonl").write_text("nonsense\n" * 20)
    (folder / "00007.jsonl").write_text('{"seq":1,"session":1,"time":1e300,"event":"step"}\n' * 20)
    (folder / "00008.jsonl").write_text(
        f'{{"seq":1,"session":1,"time":1.0,"event":"step","global_step":{"9" * 400}}}\n' * 20
    )

    found = run.run(100, 0, 1)

    assert {rank for finding in found for rank in ranks_in(finding.evidence)} <= {8}
    assert {rank for rank, *_ in run.lost()} <= {8}


def test_rank_0_alone_is_not_compared(run):
    run.start(0)

    assert run.run(200, 0) == []
    assert run.lost() == []


# ------------------------------------------------------------ afterwards


def test_where_its_process_cannot_be_looked_up_the_finding_says_so(run):
    elsewhere(run, 0, 1, 2)
    run.run(20, 0, 1, 2)
    for rank in (0, 1):
        run.write(rank, "end", status="failed")
    (found,) = diagnose(run.folder).findings

    assert run.lost(is_live=False) == [(2, "rank_dead", "unseen")]
    assert found.kind == "rank_dead"
    assert "No end record of rank 2" in found.message
    assert "cannot be looked up here" in found.message


def test_ranks_that_were_killed_when_the_run_had_finished_are_not_named(run):
    run.start(0)
    run.start(1, 2, pid=GONE)
    run.run(20, 0, 1, 2)
    run.write(0, "end", status="finished")

    assert run.lost(is_live=False) == []


def test_of_a_run_that_was_killed_as_a_whole_no_rank_is_blamed(run):
    run.start(0, 1, 2, pid=GONE)
    run.run(20, 0, 1, 2)
    run.run(10, 0, event="system")

    assert run.lost(is_live=False) == []


def test_clocks_of_two_machines_may_differ(run):
    run.start(0)
    elsewhere(run, 1)
    run.run(20, 0, 1)
    ranks, files = LostRanks(), record_files(run.folder)
    tails = ranks.read(files)
    behind = {**tails, 1: replace(tails[1], last_time=tails[1].last_time - 600.0, has_system=True)}

    assert ranks.judge(files, behind, now=run.now, is_live=True) == []


def test_an_old_copy_of_a_part_of_another_node_is_not_silent(tmp_path):
    run = Run(tmp_path / "run")
    elsewhere(run, 0, 1, 2, 3)
    run.run(20, 0, 1, 2, 3)
    part = tmp_path / "run@node1" / "ranks"
    part.mkdir(parents=True)
    for rank in (2, 3):
        rank_file(run.folder, rank).rename(part / f"{rank:05d}.jsonl")
    run.run(200, 0, 1)
    files = {**record_files(run.folder), **{rank: part / f"{rank:05d}.jsonl" for rank in (2, 3)}}
    ranks = LostRanks()
    ranks.look(files, now=run.now, is_live=True)

    assert ranks.lost == []


def test_a_live_finding_is_not_made_again(run):
    run.start(0, 1)
    run.start(2, pid=GONE)
    run.run(20, 0, 1, 2)
    (finding,) = run.run(10, 0, 1)
    run.write(0, "finding", **{**finding.to_fields(), "began_in_session": 1})
    for rank in (0, 1):
        run.write(rank, "end", status="stopped")

    assert [each.id for each in diagnose(run.folder).findings] == [finding.id]


def test_the_process_is_the_one_of_the_session(run):
    run.start(1, pid=7)
    run.run(3, 1)
    again = Run(run.folder, session=2)
    again.start(1, pid=8)

    assert process_of(rank_file(run.folder, 1), 1) == RankProcess(host_name(), 7, boot_id())
    assert process_of(rank_file(run.folder, 1), 2) == RankProcess(host_name(), 8, boot_id())


def test_ranks_in_evidence_and_words():
    assert ranks_in(ranks_as_evidence([5, 3])) == [3, 5]
    assert ranks_in_words(ranks_as_evidence([3])) == "rank 3"
    assert ranks_in_words(ranks_as_evidence([3, 4, 9])) == "ranks 3, 4 and 9"
    assert ranks_as_evidence(range(1000))["ranks"] == 1000
    assert ranks_in({"rank": "nonsense", "ranks": None}) == []


# ------------------------------------------------------------ stopped processes, nodes, rank 0


def test_a_process_that_is_stopped_is_named_at_once(run):
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        os.kill(sleeper.pid, signal.SIGSTOP)
        os.waitpid(sleeper.pid, os.WUNTRACED)
        run.start(0, 1)
        run.start(2, pid=sleeper.pid)
        run.run(5, 0, 1, 2)

        (finding,) = run.run(10, 0, 1)
    finally:
        sleeper.kill()
        sleeper.wait()

    assert finding.kind == "rank_silent"
    assert ranks_in(finding.evidence) == [2]
    assert "is stopped since step 5, by a signal (SIGSTOP)" in finding.message


def test_a_node_that_dies_as_a_whole_is_named(run):
    run.start(0, 1)
    run.start(2, 3, host="node7")
    run.start(4, 5, host="node8")
    with ExitStack() as locks, ExitStack() as of_node7:
        for rank in (2, 3, 4, 5):
            held = of_node7 if rank < 4 else locks
            fcntl.flock(held.enter_context(rank_file(run.folder, rank).open("rb")), fcntl.LOCK_EX)
        assert run.run(5, 0, 1, 2, 3, 4, 5) == []
        of_node7.close()

        (finding,) = run.run(10, 0, 1, 4, 5)

    assert finding.kind == "rank_dead"
    assert "The process of all of node node7 (ranks 2 and 3) is gone" in finding.message


def test_the_page_names_a_node_whose_locks_it_has_seen(run):
    run.start(0, 1)
    run.start(2, 3, host="node7")
    ranks, files = LostRanks(), record_files(run.folder)
    run.run(20, 0, 1, 2, 3)

    def found():
        run.now += 3.0
        ranks.look(files, now=run.now, is_live=True)
        return ranks.findings(())

    with ExitStack() as locks:
        for rank in (2, 3):
            fcntl.flock(locks.enter_context(files[rank].open("rb")), fcntl.LOCK_EX)
        assert found() == []

    (finding,) = found()

    assert finding.kind == "rank_dead"
    assert "The process of all of node node7 (ranks 2 and 3) is gone" in finding.message


def test_files_of_ranks_that_did_not_start_again_do_not_hide_the_locks_of_others(tmp_path):
    Run(tmp_path).start(*range(1, 20))
    run = Run(tmp_path, session=2)
    run.start(0)
    assert run.run(1, 0) == []
    run.start(20, host="node7")
    with rank_file(run.folder, 20).open("rb") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        assert run.run(5, 0, 20) == []

    (finding,) = run.run(10, 0)

    assert finding.kind == "rank_dead"
    assert ranks_in(finding.evidence) == [20]


def test_a_rank_0_that_died_is_named_where_others_are_left(run):
    run.start(0, pid=GONE)
    run.start(1, 2)
    run.run(5, 0, 1, 2)

    assert run.lost(is_live=False) == [(0, "rank_dead", "")]
