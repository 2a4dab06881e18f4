"""A process that is killed: everything it logged is found afterwards."""

from __future__ import annotations

import random
import signal
import struct
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest

from tests.faults.children import PROGRAMS, ROOT, repair
from tests.faults.crash_checks import (
    assert_nothing_is_missing,
    assert_steps,
    whole_rows,
    whole_run,
    with_rows,
)
from tests.fork_server import run_python
from tests.lengths import is_long, longer
from tests.records import read_records, with_event
from tests.waiting import wait_until
from toolkit.telemetry.runfolder.codec import decode
from toolkit.telemetry.runfolder.journal.journal import pending_lines
from toolkit.telemetry.runfolder.journal.repair import journals_of
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runfolder.reader import Cursor, read_from
from toolkit.telemetry.runfolder.status import work_out_status

LOGS_FOR_EVER = """
acknowledged = Acknowledged(os.environ["ACKNOWLEDGED"])
log = TelemetryLogger(sys.argv[2], log_dir=sys.argv[1], log_every=1)
step = 0
while True:
    log.log_step(step, train_loss=1.0 / (step + 1), lr=1e-4, grad_norm=0.5, a=step, b=step * 2.0, c=3)
    acknowledged.set(step)
    step += 1
    if step % 7 == 0:
        time.sleep(0.001)
"""

RESUMES_AND_ENDS = """
for name in sys.argv[2:]:
    TelemetryLogger(name, log_dir=sys.argv[1], log_every=1, resume=True).close()
"""

KILLS = longer(20, 1_000)

RATES = ("fast", "paced", "spans", "wide", "large", "threads")


@pytest.mark.timeout(longer(600, 3_000))
@pytest.mark.slow
def test_kills_at_random_times_lose_no_acknowledged_record(tmp_path, start, record_property):
    """Of three killed runs one is repaired, one is resumed, and one is only read."""
    runs = tmp_path / "runs"
    chosen = random.Random(8)
    plan = {}
    for number in range(KILLS):
        # Of ten, one dies while it starts and one while it closes; half of the others within a tenth of a second.
        way = {8: "closing", 9: "paced"}.get(number % 10) or RATES[number % len(RATES)]
        when = {8: chosen.uniform(0, 0.06), 9: chosen.uniform(0, 0.08)}.get(number % 10)
        plan[f"run{number}"] = (way, number % 10, when or chosen.uniform(0, chosen.choice((0.1, 0.5))))

    def run_and_kill(name):
        way, kind, after_s = plan[name]
        acknowledged_at = tmp_path / f"acknowledged-{name}"
        acknowledged_at.write_bytes(bytes(64))
        process = start(PROGRAMS / "log_in_one_way.py", *(runs, name, way, acknowledged_at), always_fork=True)
        if kind != 9:
            slot = 7 if kind == 8 else 0
            wait_until(lambda: _counts(acknowledged_at)[slot], process)
        time.sleep(after_s)
        process.kill()
        return _counts(acknowledged_at)

    with ThreadPoolExecutor(4) as pool:
        acknowledged = dict(zip(plan, pool.map(run_and_kill, plan), strict=True))
    names = [name for name in plan if (runs / name).is_dir() and any((runs / name).iterdir())]
    repaired, resumed, only_read = names[::3], names[1::3], names[2::3]
    # Of several threads one may be in the midst of the start record, while the others' records are taken already.
    first = {name: 1 if plan[name][0] == "threads" else 0 for name in plan}
    found = {name: _as_a_reader_finds_it(runs / name, first[name]) for name in only_read}
    repair(*[runs / name for name in repaired])
    start(RESUMES_AND_ENDS, runs, *resumed).end(300)
    for name in [*repaired, *resumed]:
        # One that was killed before its first record may have a file with nothing in it.
        is_empty = not _size_of(runs / name / "metrics.jsonl")
        found[name] = records = [] if is_empty else whole_run(runs / name, first=first[name])
        assert name in resumed or {record["session"] for record in records} <= {1}
        assert not with_event(records, "lost")

    # A run that was killed before it had a folder, or a file in it, had nothing to lose.
    assert all(not any(acknowledged[name]) for name in set(plan) - set(found))
    lost = {name: _lost(found[name], acknowledged[name]) for name in found}
    torn = sum(data[-2:] != b"}\n" for name in found if (data := _end_of(runs / name / "metrics.jsonl")))
    in_all = sum(sum(counts[:7]) for counts in acknowledged.values())
    bare = sum(not any(counts) for counts in acknowledged.values())
    closing = sum(counts[7] == 1 for counts in acknowledged.values())
    record_property(
        "measured",
        f"{KILLS} kills ({bare} before the first record, {closing} during the end), {in_all:,} records acknowledged, "
        f"{sum(lost.values())} lost, {torn} torn lines left",
    )
    assert not any(lost.values()), {name: count for name, count in lost.items() if count}
    assert in_all > 10 * KILLS
    # Chance, with a few of them.
    assert not is_long() or (bare and closing)


def _size_of(path):
    return path.stat().st_size if path.exists() else 0


def _end_of(path):
    return path.read_bytes()[-2:] if path.exists() else b""


def _counts(path):
    return struct.unpack("<8q", path.read_bytes())


def _as_a_reader_finds_it(run, first):
    """Return what is in the file and in its journal, each record from `first` on once and whole."""
    # The journal first: any run that starts on this machine may take its lines to the file, and remove it.
    in_journals = [line for path, _ in journals_of(run) for line in pending_lines(path)]
    records, cursor = [], Cursor()
    while (run / "metrics.jsonl").exists():
        chunk = read_from(run / "metrics.jsonl", cursor)
        assert not chunk.bad_count, chunk.bad_lines
        records += chunk.records
        if chunk.cursor.offset == cursor.offset:
            break
        cursor = chunk.cursor
    last = records[-1]["seq"] if records else -1
    records += [decode(line.rstrip(b"\n")) for seq, line in in_journals if seq > last]
    if records:
        assert_nothing_is_missing(records, first=first)
    if (run / "metrics.csv").exists():
        table = whole_rows(run / "metrics.csv")
        assert table["seq"].tolist() == [record["seq"] for record in with_rows(run, records)][: len(table)]
    return records


def _lost(records, acknowledged):
    """Return how many acknowledged records are missing; none may be there twice or changed."""
    steps = [record["global_step"] for record in with_event(records, "step")]
    assert steps == list(range(len(steps)))
    for record in with_event(records, "step"):
        assert record["twice"] == 2 * record["global_step"]
    counts = Counter(record["series"] for record in with_event(records, "mine"))
    for series in counts:
        mine = [record for record in with_event(records, "mine") if record["series"] == series]
        assert [record["number"] for record in mine] == list(range(len(mine)))
        assert {len(record["text"]) for record in mine} <= {5, 30_000}
    there = [counts[series] if counts else (0 if series else len(steps)) for series in range(7)]
    # The call that the kill came into may have taken its record already.
    assert all(one <= other + 1 for one, other in zip(there, acknowledged, strict=False))
    return sum(max(0, other - one) for one, other in zip(there, acknowledged[:7], strict=True))


@pytest.mark.parametrize("written", ["half a line", "all but the newline"])
@pytest.mark.parametrize("steps", [1, 300])
@pytest.mark.parametrize("by", ["repair", "the next session"])
def test_a_line_that_the_kill_cut_is_completed(tmp_path, start, written, steps, by):
    child = start(PROGRAMS / "stall_in_a_write.py", tmp_path, written, steps)
    child.wait_for_line("logged")
    wait_until(lambda: not (tmp_path / "run" / "metrics.jsonl").read_bytes().endswith(b"\n"), child)
    child.kill()

    if by == "repair":
        repair(tmp_path / "run")
    else:
        start(RESUMES_AND_ENDS, tmp_path, "run").end(code=0)

    whole_run(tmp_path / "run", steps=range(steps))


@pytest.mark.parametrize("by", ["repair", "the next session"])
def test_a_kill_without_shared_memory_loses_nothing_either(tmp_path, start, by):
    no_shared_memory = (
        "import toolkit.telemetry.logger.writing.pipeline as r\nr.shared_memory_folders = lambda: []\n"
    )
    child = start(no_shared_memory + LOGS_FOR_EVER, tmp_path, "run")
    child.wait_for_step(2000)
    child.kill()
    left = list((tmp_path / "run").glob("*.journal"))

    if by == "repair":
        repair(tmp_path / "run")
    else:
        assert start(RESUMES_AND_ENDS, tmp_path, "run").end().code == 0

    assert len(left) == 1
    whole_run(tmp_path / "run", steps=range(child.acknowledged + 1))
    assert not list((tmp_path / "run").glob("*.journal"))


@pytest.mark.parametrize("stall_at", ["writing", "renaming"])
def test_a_kill_while_the_table_gets_new_columns_leaves_a_readable_table(tmp_path, start, stall_at):
    run = tmp_path / "run"
    child = start(PROGRAMS / "stall_while_the_table_grows.py", tmp_path, stall_at)
    child.wait_for_line("stalled")
    child.kill()
    at_once = pd.read_csv(run / "metrics.csv")

    repair(run)

    assert {"event", "global_step", "metric_0"} <= set(at_once.columns)
    whole_run(run, steps=range(child.acknowledged + 1))
    left = sorted(path.name for path in run.iterdir() if path.name.startswith("."))
    assert not left, f"what the kill left half done: {left}"


def test_repair_leaves_a_living_run_alone(tmp_path, start):
    child = start(LOGS_FOR_EVER, tmp_path, "run")
    child.wait_for_step(100)
    done = run_python(
        ["-m", "toolkit.telemetry.cli", "repair", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    child.wait_for_step(child.acknowledged + 100)
    child.kill()

    assert done.returncode == 2
    assert "a running process" in done.stderr
    repair(tmp_path / "run")
    whole_run(tmp_path / "run", steps=range(child.acknowledged + 1))


KEEPS_ALL_IN_ITS_JOURNAL = """
log = TelemetryLogger("killed", log_dir=sys.argv[1], log_every=1, flush_interval=60)
log.log_start()
log.flush(60)
for step in range(300):
    log.log_step(step, train_loss=1.0)
print("logged", flush=True)
signal.pause()
"""

RUNS_FOR_A_WHILE = """
with TelemetryLogger("other", log_dir=sys.argv[1], log_every=1):
    time.sleep(1.5)
"""

RUNS_UNTIL_A_JOURNAL_IS_GONE = """
with TelemetryLogger("other", log_dir=sys.argv[1], log_every=1):
    wait_until(lambda: not os.path.exists(sys.argv[2]))
"""


def test_a_run_that_starts_recovers_a_killed_one_in_the_same_folder(tmp_path, start):
    killed = start(KEEPS_ALL_IN_ITS_JOURNAL, tmp_path)
    killed.wait_for_line("logged")
    # Before the kill: any run that starts on this machine recovers it, and not only the one below.
    on_disk = _lines_in(tmp_path / "killed" / "metrics.jsonl")
    ((journal, _),) = journals_of(tmp_path / "killed")
    killed.kill()

    assert start(RUNS_UNTIL_A_JOURNAL_IS_GONE, tmp_path, journal).end().code == 0

    assert on_disk < 300
    records = read_records(tmp_path / "killed")
    assert_nothing_is_missing(records)
    assert_steps(records, range(300))


def test_a_killed_run_whose_folder_is_away_for_a_while_is_not_given_up(tmp_path, start):
    killed = start(KEEPS_ALL_IN_ITS_JOURNAL, tmp_path / "disk")
    killed.wait_for_line("logged")
    killed.kill()
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    assert start(RUNS_FOR_A_WHILE, tmp_path).end().code == 0
    (tmp_path / "unmounted").rename(tmp_path / "disk")

    repair(tmp_path / "disk" / "killed")

    whole_run(tmp_path / "disk" / "killed", steps=range(300))


def test_a_run_that_was_moved_after_the_kill_is_made_whole_where_it_is_now(tmp_path, start):
    child = start(LOGS_FOR_EVER, tmp_path / "here", "run")
    child.wait_for_step(500)
    # What leads from the new place to the journal is written by a thread of its own.
    wait_until(lambda: read_manifest(tmp_path / "here" / "run").latest.journal, child)
    child.kill()
    (tmp_path / "here").rename(tmp_path / "there")

    repair(tmp_path / "there" / "run")

    whole_run(tmp_path / "there" / "run", steps=range(child.acknowledged + 1))


def test_a_killed_run_is_known_to_be_lost_even_before_its_parent_has_reaped_it(tmp_path, start):
    # Its parent is the one that started it: what is forked for tests has another, which reaps it at once.
    child = start(LOGS_FOR_EVER, tmp_path, "run", fresh=True)
    child.wait_for_step(10)
    child.process.send_signal(signal.SIGKILL)
    wait_until(lambda: ") Z " in Path(f"/proc/{child.process.pid}/stat").read_text())

    status = work_out_status(read_manifest(tmp_path / "run"), time.time())

    assert status.name == "lost", status


def _lines_in(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0
