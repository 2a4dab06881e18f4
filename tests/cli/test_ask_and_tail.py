"""`telemetry ask` and `telemetry tail` with a live run in another process, and with runs that are over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

from tests.cli.runs import write_run, write_table
from tests.project.markdown import ROOT
from tests.waiting import wait_until
from toolkit.telemetry.cli.main import main

LIVE = """
import sys, time
from toolkit.telemetry import TelemetryLogger

with TelemetryLogger("live", log_dir=sys.argv[1], log_every=1, system=False) as log:
    log.declare_action("save", lambda: None)
    log.declare_action("stop")
    log.declare_knob("lr_scale", float, low=0.1, high=2.0, value=1.0)
    step = 0
    while True:
        step += 1
        log.log_step(step, train_loss=1 / step)
        if any(request.name == "stop" for request in log.take_requests()):
            break
        time.sleep(0.02)
"""


@pytest.fixture
def live(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", LIVE, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    folder = tmp_path / "live"
    try:
        wait_until(lambda: (folder / "run.json").exists() and '"stop"' in (folder / "run.json").read_text())
        wait_until(lambda: b'"event":"step"' in (folder / "metrics.jsonl").read_bytes())
        yield folder
    finally:
        process.kill()
        process.wait()


def follow(*arguments):
    """Start `telemetry tail -f --json`."""
    command = [sys.executable, "-m", "toolkit.telemetry.cli", "tail", "-f", "--json", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_a_live_run_answers_and_is_followed_to_its_end(live, capsys):
    assert main(["ask", str(live)]) == 0
    offered = capsys.readouterr().out
    assert "--stop" in offered
    assert "--set lr_scale=VALUE    float, 0.1 to 2.0" in offered

    assert (
        main(["ask", str(live.parent), "--save", "--set", "lr_scale=1.5", "--log-every", "5", "--json"]) == 0
    )
    answer = json.loads(capsys.readouterr().out)
    assert answer["run"] == str(live)
    assert answer["asked"]["actions"] == ["save"]
    assert answer["answer"]["status"] == "applied"
    assert answer["answer"]["actions"] == ["save"]
    assert answer["answer"]["knobs"] == {"lr_scale": {"old": 1.0, "new": 1.5}}
    assert answer["answer"]["new"] == 5

    assert main(["ask", str(live), "--set", "lr_scale=9"]) == 1
    assert capsys.readouterr().out == "live: refused (lr_scale must be 0.1 to 2.0, got 9)\n"
    assert main(["ask", str(live), "--sample"]) == 1
    assert "this run has no action sample" in capsys.readouterr().out

    asked: list[int] = []
    stopping = threading.Thread(target=lambda: asked.append(main(["ask", str(live), "--stop"])))
    follower = follow("-n", "2", "--all", live)
    try:
        first = json.loads(follower.stdout.readline())
        stopping.start()
        followed = [first, *map(json.loads, follower.stdout)]
        stopping.join()
        follower.wait()
    finally:
        follower.kill()
        follower.stdout.close()
    assert follower.returncode == 0
    assert asked == [0]
    assert followed[-1]["event"] == "end"
    numbers = [record["seq"] for record in followed]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "every record once, in order"

    assert main(["ask", str(live), "--stop"]) == 2
    assert "the run is stopped and cannot answer" in capsys.readouterr().err


def test_a_run_that_dies_before_it_answers_is_reported(live, capsys, monkeypatch):
    pid = json.loads((live / "run.json").read_text())["pid"]
    os.kill(pid, 19)  # it can no longer answer
    threading.Timer(1.0, os.kill, (pid, 9)).start()

    assert main(["ask", str(live), "--save", "--timeout", "50"]) == 2
    assert "the run is lost" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--set", "lr"], ["--timeout", "0"], ["--log-every", "often"]])
def test_an_invalid_request_is_not_sent(tmp_path, capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        main(["ask", str(tmp_path), *arguments])
    assert ended.value.code == 2


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("tail"), "run", [1 / step for step in range(1, 40)])


def test_the_last_records_are_printed_one_to_a_line(run, capsys):
    assert main(["tail", str(run), "-n", "2", "--metric", "train_loss"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:] for line in lines] == [
        ["step", "38", "train_loss=0.026316"],
        ["step", "39", "train_loss=0.025641"],
    ]


def test_many_records_are_found_however_long_the_lines_between_are(run, capsys, monkeypatch):
    monkeypatch.setattr("toolkit.telemetry.cli.run_list._BLOCK_BYTES", 300)
    assert main(["tail", str(run), "-n", "1000", "--all", "--json"]) == 0

    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert records == [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_another_tool_s_file_is_read_and_followed_by_its_new_rows(tmp_path, capsys):
    table = write_table(tmp_path / "runs" / "metrics.csv", [3.0, float("nan"), 1.5])

    assert main(["tail", str(table), "-n", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["step", "1", "train/loss=nan"],
        ["step", "2", "train/loss=1.5"],
    ]
    follower = follow("-n", "1", table.parent)
    try:
        assert json.loads(follower.stdout.readline())["global_step"] == 2
        with table.open("a") as file:
            file.write("3,1.25\n")
        assert json.loads(follower.stdout.readline())["train/loss"] == 1.25
    finally:
        follower.kill()
        follower.wait()
        follower.stdout.close()
