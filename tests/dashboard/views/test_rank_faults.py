"""NaN on one rank, and a rank that is killed: in real processes, live, by the doctor, and on the pages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dashboard.views.pages import chart_data, is_well, open_page, said, tables
from tests.lengths import in_make_faults
from tests.made_runs import write_run
from tests.records import read_records
from tests.waiting import wait_until
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.runfolder.layout import rank_file

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
    ranks[KILLED].kill()
    ranks[KILLED].wait()

    (nan, *_) = wait_until(lambda: findings(run, "rank_nan"), ranks[0])
    (dead,) = wait_until(lambda: findings(run, "rank_dead"), ranks[0])

    assert "train_loss is NaN or infinite on rank 1 since step 5" in nan["message"]
    assert dead["message"].startswith("The process of rank 2 is gone and left no end record")
    assert (dead["severity"], dead["state"]) == ("critical", "open")

    tab = open_page("alerts", "run")
    assert is_well(tab)
    assert "The process of rank 2 is gone" in said(tab)
    assert "NaN or infinite on rank 1" in said(tab)
    tab = open_page("machine", "run")
    assert is_well(tab)
    assert "**Rank 2: ✕ died**" in said(tab)
    assert "**Rank 1: ⚠ had NaN**" in said(tab)
    drawn = [json.loads(chart) for chart in chart_data(tab)]
    assert any("2 ✕ died" in json.dumps(chart, ensure_ascii=False) for chart in drawn)

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

    assert "No end record of rank 2, while the others have theirs" in said(open_page("alerts", "r"))
    tab = open_page("machine", "r")
    assert "**Rank 2: ✕ died**" in said(tab)
    (table,) = [table for table in tables(tab) if "status" in table]
    assert dict(zip(table["rank"], table["status"], strict=True)) == {
        2: "✕ died",
        0: "■ ended: failed",
        1: "■ ended: failed",
    }


def test_ranks_in_order_have_no_mark(logs):
    curve = {"train_loss": lambda step: 1.0, "sec_per_step": lambda step: 0.1}
    write_run(logs, "r", curves=curve, ranks=dict.fromkeys((1, 2), curve))

    assert not any(mark in said(open_page("machine", "r")) for mark in ("✕", "⚠", "… silent"))


@in_make_faults
@pytest.mark.timeout(300)
def test_the_rank_that_a_real_job_failed_of_is_named(logs, capsys):
    pytest.importorskip("torch")
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    launched = subprocess.run(
        [*launcher, PROGRAMS / "train_with_a_killed_rank.py", logs],
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    run = logs / "run"

    assert launched.returncode != 0
    # The exchange of gradients carries the NaN to all ranks in the next step.
    (*_, nan) = findings(run, "rank_nan")
    assert nan["message"] == (
        "train_loss was NaN or infinite on rank 2 first, at step 43; all ranks had it at step 44."
    )
    (dead,) = findings(run, "rank_dead")
    assert dead["evidence"]["rank"] == 2
    assert read_records(run / "metrics.jsonl")[-1]["event"] == "end"
    main(["doctor", str(run), "--kinds", "rank_nan,rank_dead,rank_silent", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert [each["id"] for each in report["findings"]] == [nan["id"], dead["id"]]
    assert "**Rank 2: ✕ died**" in said(open_page("machine", "run"))
