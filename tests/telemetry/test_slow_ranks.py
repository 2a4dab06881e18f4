"""A rank that the others wait for is named, with its slow part: in a real job, in the live run, and afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from tests.lengths import in_make_faults, is_long
from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S, make_logger
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.runfolder.layout import rank_file
from toolkit.telemetry.runs.findings.alerts import alerts_of
from toolkit.telemetry.runs.sources.local_store import LocalStore

PROGRAM = Path(__file__).parent / "programs" / "train_with_a_slow_rank.py"


def stragglers(run):
    """Return what the run itself wrote about slow ranks."""
    return [each for each in read_records(run / "metrics.jsonl", "finding") if each["kind"] == "straggler"]


def launch(script, folder, ranks):
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={ranks}",
            script,
            folder,
        ],
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=450,
        check=False,
    )


def is_uneven(run, ranks):
    """Say whether the machine itself kept a rank behind the others, by what the records say."""
    usual = []
    for rank in range(ranks):
        steps = [step for step in read_records(rank_file(run, rank), "step") if "time/backward" in step]
        upto = [step["time/data_loading"] + step["time/forward"] for step in steps]
        waits = [step["time/backward"] for step in steps]
        usual.append((median(upto), median(waits), median(map(sum, zip(upto, waits, strict=True)))))
    upto, waits, whole = zip(*usual, strict=True)
    return any(max(each) - min(each) > 0.05 * min(whole) for each in (upto, waits, whole))


@in_make_faults
@pytest.mark.timeout(500)
@pytest.mark.parametrize("ranks", [2, 4] if is_long() else [2])
def test_the_slow_rank_of_a_real_job_is_named_while_it_runs_and_afterwards(tmp_path, ranks, capsys):
    pytest.importorskip("torch")
    logs = tmp_path / "logs"
    launched = launch(PROGRAM, logs, ranks)

    assert launched.returncode == 0, launched.stderr
    store = LocalStore([logs], cache_dir=None)
    for name, rank, words, metric in (
        ("data", ranks - 1, "in loading its data", "time/data_loading"),
        ("compute", 0, "in compute", "time/forward"),
    ):
        said = f"Rank {rank} is slower than the others {words} since step "
        live = stragglers(logs / name)
        assert {record["metric"] for record in live} == {metric}
        assert live[0]["message"].startswith(said)
        assert said in launched.stderr

        capsys.readouterr()
        main(["doctor", str(logs / name), "--kinds", "straggler", "--json"])
        (finding,) = json.loads(capsys.readouterr().out)["findings"]
        assert (finding["metric"], finding["evidence"]["rank"]) == (metric, rank)
        assert (finding["id"], finding["message"]) == (live[0]["id"], live[0]["message"])

        store.refresh(name)
        (alert,) = [alert for alert in alerts_of(store, name) if alert.kind == "straggler"]
        assert alert.message.startswith(said)
    if not is_uneven(logs / "clean", ranks):
        assert stragglers(logs / "clean") == []


# ------------------------------------------------------------ the live run


@pytest.fixture
def of_two(monkeypatch):
    """Be the first of two processes."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")


def parts(**seconds):
    return {"sec_per_step": 0.5, **{f"time/{name}": value for name, value in seconds.items()}}


def write_rank(log, rank, steps, *, session=1, **seconds):
    folder = log.run_folder / "ranks"
    folder.mkdir(exist_ok=True)
    with (folder / f"{rank:05d}.jsonl").open("a") as file:
        for step in steps:
            record = {"event": "step", "seq": step, "session": session, "rank": rank, "global_step": step}
            file.write(json.dumps({**record, "time": float(step), **parts(**seconds)}) + "\n")


def log_steps(log, steps, **seconds):
    for step in steps:
        log.log_step(step, train_loss=1.0 / step, **parts(**seconds))


@pytest.mark.usefixtures("of_two")
def test_what_other_ranks_wrote_is_examined_before_the_end_record(tmp_path):
    log = make_logger(tmp_path, log_every=1, ranks="all")
    write_rank(log, 1, range(1, 60), data_loading=0.3, forward=0.1, backward=0.1)
    log_steps(log, range(1, 60), data_loading=0.01, forward=0.1, backward=0.39)
    log.close()

    found = stragglers(log.run_folder)
    assert found[0]["message"].startswith("Rank 1 is slower than the others in loading its data since step 2")
    assert read_records(log.run_folder / "metrics.jsonl")[-1]["event"] == "end"


@pytest.mark.usefixtures("of_two")
def test_a_resumed_run_compares_the_ranks_of_its_own_session(tmp_path):
    first = make_logger(tmp_path, log_every=1, ranks="all")
    write_rank(first, 1, range(1, 60), data_loading=0.3, forward=0.1, backward=0.1)
    first.close()
    second = make_logger(tmp_path, log_every=1, ranks="all", resume=True)
    write_rank(second, 1, range(60, 120), session=2, data_loading=0.01, forward=0.1, backward=0.39)
    log_steps(second, range(60, 120), data_loading=0.01, forward=0.1, backward=0.39)
    second.flush(PATIENCE_S)
    second.close()

    assert second.run_folder == first.run_folder
    assert stragglers(second.run_folder) == []


@pytest.mark.usefixtures("of_two")
def test_a_rank_that_has_not_joined_the_resumed_session_is_not_called_dead(tmp_path):
    first = make_logger(tmp_path, log_every=1, ranks="all")
    write_rank(first, 1, range(1, 60), forward=0.1)
    first.close()
    second = make_logger(tmp_path, log_every=1, ranks="all", resume=True)
    log_steps(second, range(60, 70), forward=0.1)
    with pytest.raises(RuntimeError), second:
        raise RuntimeError("stopped before the other rank had started")

    kinds = {finding["kind"] for finding in read_records(second.run_folder / "metrics.jsonl", "finding")}
    assert kinds.isdisjoint({"rank_dead", "rank_silent", "rank_nan"})
