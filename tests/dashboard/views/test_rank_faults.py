"""NaN on one rank, and a rank that is killed: in real processes, live, by the doctor, and on the pages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dashboard.views.pages import open_page
from tests.lengths import in_make_faults
from tests.made_runs import write_run
from tests.records import read_records
from tests.waiting import wait_until
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.runfolder.layout import rank_file
from toolkit.telemetry.runfolder.node_folders import process_of

PROGRAMS = Path(__file__).parents[2] / "telemetry" / "programs"
RANKS = 3
NAN, KILLED = 1, 2


def findings(run, *kinds):
    """Return what the run itself wrote about its ranks."""
    records = read_records(run / "metrics.jsonl", "finding", live=True)
    return [each for each in records if each["kind"] in kinds]


@pytest.fixture
def ranks(logs):
    """Start one process for each rank; end them afterwards."""
    environment = {
        **os.environ,
        "WORLD_SIZE": str(RANKS),
        "TORCHELASTIC_RUN_ID": logs.parent.name,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29400",
    }
    program = PROGRAMS / "log_as_a_rank.py"
    processes = []
    for rank in range(RANKS):
        processes.append(
            subprocess.Popen(
                [sys.executable, program, logs, str(NAN), str(KILLED)],
                env={**environment, "RANK": str(rank)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        # The others look for the folder of rank 0 for a limited time.
        wait_until((logs / "run" / "run.json").exists, processes[0])
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@in_make_faults
def test_a_nan_on_one_rank_and_a_killed_rank_are_named_live_and_afterwards(logs, ranks, capsys):
    run = logs / "run"
    wait_until(lambda: all((logs / f"rank_{rank}").exists() for rank in range(RANKS)), ranks[0])
    # Which process it is comes with its environment, some time after its first steps.
    wait_until(lambda: process_of(rank_file(run, KILLED), 1), ranks[0])
    ranks[KILLED].kill()
    ranks[KILLED].wait()

    (nan, *_) = wait_until(lambda: findings(run, "rank_nan"), ranks[0])
    (dead,) = wait_until(lambda: findings(run, "rank_dead"), ranks[0])

    assert "train_loss is NaN or infinite on rank 1 since step 5" in nan["message"]
    assert dead["message"].startswith("The process of rank 2 is gone and left no end record")
    assert (dead["severity"], dead["state"]) == ("critical", "open")

    tab = open_page("alerts", "run")
    assert "The process of rank 2 is gone" in tab.said()
    assert "NaN or infinite on rank 1" in tab.said()
    tab = open_page("machine", "run")
    (table,) = [table for table in tab.tables() if "status" in table]
    status = dict(zip(table["rank"], table["status"], strict=True))
    assert (status[NAN], status[KILLED]) == ("⚠ had NaN", "✕ died")
    assert "2 ✕ died" in json.dumps(tab.figures(), ensure_ascii=False)

    (logs / "stop").touch()
    assert [ranks[rank].wait(60) for rank in (0, 1)] == [0, 0]
    main(["doctor", str(run), "--kinds", "rank_nan,rank_dead", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert {each["kind"]: each["evidence"]["rank"] for each in report["findings"]} == {
        "rank_nan": NAN,
        "rank_dead": KILLED,
    }


def test_a_rank_without_an_end_record_in_a_failed_run_is_named_without_a_finding_of_the_run(logs):
    curve = {"train_loss": lambda step: 1.0, "sec_per_step": lambda step: 0.1}
    run = write_run(logs, "r", curves=curve, status="failed", ranks=dict.fromkeys((1, 2), curve))
    newest = read_records(rank_file(run, 1))[-1]
    end = {"event": "end", "status": "failed", "time": newest["time"], "seq": newest["seq"] + 1, "session": 1}
    with rank_file(run, 1).open("a") as file:
        file.write(json.dumps(end) + "\n")

    assert "No end record of rank 2, while the others have theirs" in open_page("alerts", "r").said()
    tab = open_page("machine", "r")
    (table,) = [table for table in tab.tables() if "status" in table]
    assert dict(zip(table["rank"], table["status"], strict=True)) == {
        2: "✕ died",
        0: "■ ended: failed",
        1: "■ ended: failed",
    }


def test_ranks_in_order_have_no_mark(logs):
    curve = {"train_loss": lambda step: 1.0, "sec_per_step": lambda step: 0.1}
    write_run(logs, "r", curves=curve, ranks=dict.fromkeys((1, 2), curve))

    assert not any(mark in open_page("machine", "r").said() for mark in ("✕", "⚠", "… silent"))
