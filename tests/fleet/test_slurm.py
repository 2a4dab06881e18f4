"""The prolog and the epilog of Slurm start the shipper of a job and have it send what is left."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fleet.engines import ROOT
from tests.fleet.shipped_runs import engine_bytes, id_of, record_bytes
from tests.waiting import wait_until

SCRIPTS = ROOT / "deploy" / "slurm"

TRAINING = """
import sys
from toolkit.telemetry import TelemetryLogger
with TelemetryLogger("job", log_dir=sys.argv[1], log_every=1) as log:
    log.log_start(training={"max_steps": 500})
    for step in range(1, 501):
        log.log_step(step, train_loss=1.0 / step)
"""


@pytest.fixture
def job(tmp_path):
    """The variables that Slurm gives a job, and those that name other places than an administrator's."""
    etc = tmp_path / "etc"
    etc.mkdir()
    said = tmp_path / "said"
    logger = tmp_path / "logger"
    logger.write_text(f'#!/bin/sh\necho "$@" >>{said}\n')
    logger.chmod(0o755)
    command = tmp_path / "telemetry"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m toolkit.telemetry.cli "$@"\n')
    command.chmod(0o755)
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SLURM_JOB_ID": "4713",
        "SLURM_ARRAY_JOB_ID": "4711",
        "SLURM_ARRAY_TASK_ID": "2",
        "SLURM_JOB_END_TIME": "4102444800",
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_USER": pwd.getpwuid(os.getuid()).pw_name,
        "TELEMETRY_ETC": str(etc),
        "TELEMETRY_RUN": str(tmp_path / "run"),
        "TELEMETRY_LOGS": str(tmp_path / "logs"),
        "TELEMETRY_COMMAND": str(command),
        "TELEMETRY_LOGGER": str(logger),
        "TELEMETRY_USER": pwd.getpwuid(os.getuid()).pw_name,
    }


def run(script, job):
    """Run a script as slurmd does, which kills what is left of its process group."""
    process = subprocess.Popen(
        [SCRIPTS / script], env=job, cwd="/", stderr=subprocess.PIPE, start_new_session=True
    )
    _, err = process.communicate()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, err


def test_after_the_epilog_nothing_is_behind_and_the_status_is_right(engine, ask, job, tmp_path):
    (tmp_path / "etc" / "fleet.toml").write_text(f'engine = "{engine.address()}"\n')
    assert run("prolog.sh", job) == (0, b"")
    pid = int((tmp_path / "run" / "4713.pid").read_text())
    training = [sys.executable, "-c", TRAINING, str(tmp_path / "logs")]
    subprocess.run(training, env=job, cwd=ROOT, check=True, capture_output=True)
    assert run("epilog.sh", job)[0] == 0

    folder = tmp_path / "logs" / "job"
    run_id = id_of(folder)
    assert engine_bytes(ask, run_id) == {(0, 1): record_bytes(folder)["metrics.jsonl"]}
    status, manifest = (
        ask.query(f"SELECT argMax({name}, version) FROM runs WHERE run_id = '{run_id}'")
        for name in ("status", "manifest")
    )
    assert status == b"finished\n"
    assert all(part in manifest for part in (b"4713", b"4711", b"4102444800"))
    assert not (tmp_path / "run" / "4713.pid").exists()
    assert "SLURM_JOB_ID=4713" not in _environment(pid)


def test_neither_script_fails_without_an_engine_a_command_or_a_prolog_and_the_log_of_the_system_says_why(
    job, tmp_path
):
    assert run("epilog.sh", job)[0] == 0
    job["TELEMETRY_COMMAND"] = str(tmp_path / "missing")
    assert run("prolog.sh", job)[0] == 0
    wait_until(lambda: "the shipper ended with 127: " in said_to_the_system(tmp_path))
    assert run("epilog.sh", job)[0] == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts a process for another user")
def test_the_shipper_of_a_job_runs_as_a_user_of_its_own_and_no_job_sees_a_secret(job):
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o777)
        etc, shipper, trainer = place / "etc", pwd.getpwnam("daemon"), pwd.getpwnam("games")
        etc.mkdir()
        (etc / "fleet.toml").write_text(
            'engine = "clickhouse://lab_ship@127.0.0.1:1/telemetry_lab"\n'
            'password-file = "lab_ship.password"\n'
        )
        for secret in ("lab_page.password", "lab_ship.password"):
            (etc / secret).write_text("hunter" * 10)
            (etc / secret).chmod(0o600)
        job |= {
            "TELEMETRY_ETC": str(etc),
            "TELEMETRY_LOGS": str(place / "home" / "logs"),
            "TELEMETRY_USER": "daemon",
            "SLURM_JOB_UID": str(trainer.pw_uid),
            "SLURM_JOB_USER": "games",
            # What runs the tests may be readable by root alone: this one says who it is, and what it can read.
            "TELEMETRY_COMMAND": str(place / "telemetry"),
        }
        (place / "telemetry").write_text(
            f"#!/bin/sh\n{{ id -u; env; cat {etc}/lab*; }} >{place}/seen\nexit 3\n"
        )
        (place / "telemetry").chmod(0o755)
        folder = Path(job["TELEMETRY_RUN"]).parent

        assert run("prolog.sh", job) == (0, b"")
        wait_until(lambda: "Permission denied" in said_to_the_system(folder))
        for secret in etc.iterdir():
            os.chown(secret, shipper.pw_uid, shipper.pw_gid)
        assert run("prolog.sh", job) == (0, b"")
        wait_until(lambda: "the shipper ended with 3" in said_to_the_system(folder).splitlines()[-1])
        seen = (place / "seen").read_text()
        logs = (place / "home" / "logs").stat()

    assert seen.startswith(f"{shipper.pw_uid}\n")
    assert seen.count("hunter") == 20
    assert "PASSWORD" not in seen
    assert (logs.st_uid, logs.st_gid, logs.st_mode & 0o7777) == (trainer.pw_uid, shipper.pw_gid, 0o2750)


def said_to_the_system(folder):
    said = folder / "said"
    return said.read_text() if said.exists() else ""


def test_a_process_that_was_given_the_number_of_the_shipper_is_left_alone(job, tmp_path):
    (tmp_path / "run").mkdir()
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (tmp_path / "run" / "4713.pid").write_text(f"{other.pid}\n")
        assert run("epilog.sh", job)[0] == 0
        other.communicate(b"\n")
    finally:
        other.kill()

    assert other.wait() == 0


def _environment(pid):
    try:
        with open(f"/proc/{pid}/environ") as file:
            return file.read()
    except OSError:
        return ""
