"""What is known about a run that needs help: what it died in, its last good checkpoint, how to resume it."""

from __future__ import annotations

import math

import pytest

from tests.dashboard.troubled_runs import steps, with_findings
from tests.made_runs import write_run
from toolkit.telemetry.runs.findings.what_now import what_now
from toolkit.telemetry.runs.listing.run_start import start_of, training_settings
from toolkit.telemetry.runs.sources.local_store import LocalStore


@pytest.fixture
def store(tmp_path):
    return LocalStore([tmp_path], cache_dir=None)


def asked(store, tmp_path, *, status="lost", **more):
    write_run(tmp_path, "r", status=status, **more)
    store.refresh("r", wait_s=60.0)
    store.examine("r", wait_s=60.0)
    return what_now(store, "r")


def checkpoint(step, path=None):
    return {
        "event": "checkpoint",
        "session": 1,
        "time": 1.7e9 + step,
        "global_step": step,
        "bytes": 1000,
        "checkpoint_path": path or f"output/neon/{step}.safetensors",
    }


@pytest.mark.parametrize("survived", [False, True])
def test_a_failed_run_names_the_error_that_ended_it(store, tmp_path, survived):
    error = {
        "event": "error",
        "session": 1,
        "id": "e1",
        "time": 1.7e9,
        "global_step": 20 if survived else 99,
        "severity": "critical",
        "type": "RuntimeError",
        "message": "RuntimeError: shapes differ",
        "stack": ["train.py:7 in step"],
    }
    end = {"event": "end", "session": 1, "time": 1.7e9, "status": "failed", "reason": "RuntimeError"}

    known = (
        asked(store, tmp_path, extra=[error])
        if survived
        else asked(store, tmp_path, status="failed", extra=[error, end])
    )

    found = known.ending.error and (known.ending.error.message, known.ending.error.where)
    assert found == (None if survived else ("RuntimeError: shapes differ", "train.py:7 in step"))


def test_the_last_good_checkpoint_is_from_before_the_loss_went_wrong(store, tmp_path):
    records = with_findings(steps("nan"))

    known = asked(store, tmp_path, records=records, extra=[checkpoint(100), checkpoint(190), checkpoint(300)])

    assert known.spoiled_since == 200
    assert known.checkpoint.step == 190
    assert known.newer.step == 300


def test_a_run_that_was_wrong_before_its_first_checkpoint_has_no_good_one(store, tmp_path):
    known = asked(store, tmp_path, records=with_findings(steps("nan")), extra=[checkpoint(300)])

    assert (known.checkpoint, known.newer.step) == (None, 300)


def test_what_is_known_of_the_machine_after_some_steps_says_how_to_resume(store, tmp_path):
    machine = {"command_line": ["/run.py", "/a.yaml"], "accelerators": [{"name": "H200", "type": "cuda"}]}
    config = {"config": {"name": "flux", "process": [{"training_folder": "/data/output"}]}}

    late = {"event": "environment", "session": 1, "time": 1.7e9, **machine}
    known = asked(store, tmp_path, start=config, extra=[late])

    assert (known.resume.command, known.save_folder) == ("python /run.py /a.yaml", "/data/output/flux")


def test_a_run_that_must_not_resume_is_not_said_to(store, tmp_path):
    config = {"config": {"process": [{"type": "tiny_lora_trainer", "train": {"resume": "never"}}]}}

    known = asked(store, tmp_path, start={**config, "command_line": ["run.py", "/a.yaml"]})

    assert not known.resume.resumes
    assert any("train.resume: never" in note for note in known.resume.notes)


def test_another_script_is_not_claimed_to_resume(store, tmp_path):
    known = asked(store, tmp_path, start={"command_line": ["/train.py", "--hf-token", "***"]})

    assert not known.resume.resumes
    assert known.resume.command == "python /train.py --hf-token '***'"
    assert any("Secrets" in note for note in known.resume.notes)


def test_the_start_records_of_one_session_complete_each_other(store, tmp_path):
    first = {"event": "start", "seq": 0, "session": 1, "time": 1.7e9, "command_line": ["run.py"], "host": "a"}
    second = {"event": "start", "seq": 1, "session": 1, "time": 1.7e9, "learning_rate": 1.0, "host": "b"}
    write_run(tmp_path, "r", [first, second])
    store.refresh("r", wait_s=60.0)

    start = start_of(store, "r")

    assert (start["command_line"], start["learning_rate"], start["host"]) == (["run.py"], 1.0, "b")


@pytest.mark.parametrize(
    ("start", "settings"),
    [
        ({}, []),
        ({"config": {"seed": 1}}, []),
        ({"learning_rate": 2e-4, "max_grad_norm": 1.0}, ["learning rate 2e-4", "gradient clipping 1"]),
        (
            {"config": {"train": [{"lr": 1.0, "warmup_ratio": 0.03, "max_grad_norm": None}]}},
            ["learning rate 1", "warm-up 0.03", "no gradient clipping in the configuration"],
        ),
        ({"learning_rate": math.nan, "warmup_steps": 1e300}, None),
    ],
)
def test_the_settings_that_decide_about_stability(start, settings):
    found = training_settings(start)

    assert settings is None or found == settings
