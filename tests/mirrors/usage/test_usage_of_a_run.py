"""Real runs and a real client: what arrives at a server on this machine, and what never does."""

from __future__ import annotations

import json
import subprocess
import uuid

import pytest

from tests.fork_server import start_python
from tests.lengths import in_make_faults
from tests.mirrors.messages.local_receivers import never_answer, raw_receiving, receiving
from tests.mirrors.usage.posthog_server import KEY, KEY_ENV, arrived, bodies, names, reporting_to
from tests.records import read_records
from tests.telemetry.logged import make_logger
from tests.waiting import wait_until


def train(folder, url, *, steps=3, **options):
    """Train a little, reporting to `url`, and return the logger."""
    # On a busy machine the client takes its time to be imported.
    options = {"log_every": 1, "close_timeout": 60.0, **reporting_to(url), **options}
    with make_logger(folder, "greyjacket", **options) as log:
        log.log_start(
            config={"note": "/home/jane/orchid"},
            model={"name": "google/gemma-2b", "architecture": "Gemma2ForCausalLM"},
            training={"batch_size": 4, "max_steps": 3, "optimizer": "orchid_adam"},
        )
        for step in range(1, steps + 1):
            log.log_step(step, train_loss=1.0 / step, lr=1e-4)
        log.log_eval(steps, val_loss=9.0)
    return log


# ------------------------------------------------------------ what is sent


def test_a_run_is_reported_from_start_to_end(tmp_path, capsys, monkeypatch):
    (tmp_path / "netrc").write_text("default login jane password orchid\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with receiving() as server:
        log = train(tmp_path, server.url)

    start, end = arrived(server)
    assert [start["event"], end["event"]] == ["run-start", "run-end"]
    assert start["properties"]["model_name"] == "google/gemma-2b"
    assert start["properties"]["model_architecture"] == "Gemma2ForCausalLM"
    assert (start["properties"]["batch_size"], start["properties"]["optimizer"]) == (4, "other")
    assert end["properties"]["status"] == "finished"
    assert (end["properties"]["global_step"], end["properties"]["train_loss"]) == (3, 0.333333)
    assert end["properties"]["peak_cpu_memory_mb"] > 0
    headers = {name.lower() for got in server.got for name in got.headers}
    assert "authorization" not in headers
    assert {got.path for got in server.got} == {"/batch/"}
    assert log.guard.total == 0
    [said] = capsys.readouterr().err.splitlines()
    assert said == (
        f"[telemetry] anonymous usage reports are sent to {server.url}: "
        "`telemetry setup usage` prints them, DO_NOT_TRACK=1 stops them"
    )


def test_the_id_is_drawn_at_random_for_each_session_and_is_nowhere_in_the_folder(tmp_path):
    with receiving() as server:
        logs = [train(tmp_path, server.url, resume=True) for _ in range(2)]

    ids = [event["distinct_id"] for event in arrived(server)]
    assert len(ids) == 4
    assert ids[0] == ids[1] != ids[2] == ids[3]
    for one in {*ids}:
        assert uuid.UUID(one).version == 4
        assert one != logs[0].run_id
        for path in tmp_path.rglob("*"):
            assert path.is_dir() or one.encode() not in path.read_bytes()


def test_the_key_is_sent_to_the_server_and_written_nowhere_else(tmp_path, capsys, caplog):
    with receiving() as server:
        train(tmp_path, server.url)
        with receiving((401, {}, KEY.encode())) as refusing:
            train(tmp_path, refusing.url)

    assert json.loads(bodies(server)[0])["api_key"] == KEY
    said = capsys.readouterr()
    assert KEY not in said.out + said.err + caplog.text
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes()


# ------------------------------------------------------------ what is not


@pytest.mark.parametrize(
    ("environ", "options", "said"),
    [
        ({"DO_NOT_TRACK": "0", "TELEMETRY_DO_NOT_TRACK": "1"}, {}, "TELEMETRY_DO_NOT_TRACK is set"),
        ({}, {"mode": "offline"}, "telemetry.usage_reports will not be sent"),
        ({KEY_ENV: "phx_personal"}, {}, f"usage reports are off: {KEY_ENV}, the variable of"),
    ],
)
def test_nothing_is_sent_where_someone_does_not_want_it(
    tmp_path, monkeypatch, capsys, environ, options, said
):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with receiving() as server:
        log = train(tmp_path, server.url, **options)

    assert server.got == []
    assert log.guard.total == 0
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def test_of_two_ranks_only_the_first_reports(tmp_path, monkeypatch, capsys):
    options = {"log_every": 1, "ranks": "all", "close_timeout": 60.0}
    with receiving() as server:
        with make_logger(tmp_path, "r", **options, **reporting_to(server.url)) as zero:
            zero.log_step(1, train_loss=0.5)
            assert "usage reports" in capsys.readouterr().err
            monkeypatch.setenv("RANK", "1")
            monkeypatch.setenv("WORLD_SIZE", "2")
            with make_logger(tmp_path, "r", **options, **reporting_to(server.url)) as one:
                one.log_step(1, train_loss=0.5)

    assert names(server) == ["run-start", "run-end"]
    assert "usage reports" not in capsys.readouterr().err


# ------------------------------------------------------------ a server that is no good


@pytest.mark.parametrize("status", [401, 308])
def test_a_server_that_refuses_or_redirects_leaves_only_a_line_in_the_run(tmp_path, caplog, status):
    with receiving() as other:
        answer = (status, {"Location": f"{other.url}/batch/"}, b"oops")
        with receiving(*[answer] * 50) as server:
            log = train(tmp_path, server.url)

    assert server.got
    assert other.got == []
    assert read_records(log.run_folder / "metrics.jsonl", "end")[0]["status"] == "finished"
    said = [record.message for record in caplog.records if "usage reports" in record.message]
    assert len(said) == 1
    assert f"answered {status}" in said[0]


SCRIPT = """
import sys
from toolkit.telemetry import TelemetryLogger

log = TelemetryLogger.from_config({"config": {"name": "r"}, "telemetry": {
    "log_dir": sys.argv[1], "log_every": 1, "system": False, "close_timeout": 1.0,
    "usage_reports": {"host": sys.argv[2], "key_env": "USAGE_KEY_OF_THE_TESTS"}}})
log.log_step(1, train_loss=0.5)
sys.stdin.readline()
if sys.argv[3] == "close":
    log.close()
print("trained", flush=True)
"""


@in_make_faults
@pytest.mark.parametrize("how", ["close", "exit"])
def test_a_server_that_hangs_does_not_hold_up_the_process(tmp_path, how):
    with raw_receiving(never_answer) as server:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = start_python(["-c", SCRIPT, tmp_path, server.url, how], text=True, **pipes)
        wait_until(lambda: server.connections)
        out, err = process.communicate("\n", timeout=200)

        # It answers only when it is closed, so the process did not wait for it.
        assert server.connections
        assert not server.is_closing.is_set()
    assert process.returncode == 0, err
    assert "trained" in out
    assert "Traceback" not in err
    assert read_records(tmp_path / "r" / "metrics.jsonl", "end")[0]["status"] == "finished"
