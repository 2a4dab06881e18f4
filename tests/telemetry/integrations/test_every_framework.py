"""What holds for the callback of every framework: the same training, with the same claims on its run."""

from __future__ import annotations

import copy
import importlib
import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

import toolkit.telemetry
from tests.fork_server import ROOT, run_python
from tests.lengths import in_make_faults
from tests.records import read_records, state_of
from tests.telemetry.integrations import control_requests
from tests.telemetry.integrations.small_trainings import FRAMEWORKS, RATE, STEPS
from tests.telemetry.logged import QUIET, make_logger, run_program
from toolkit.telemetry import OptionsError, TelemetryLogger
from toolkit.telemetry.answers.evidence import read_evidence
from toolkit.telemetry.answers.resume import answer_resumes
from toolkit.telemetry.diagnostics.resume.judge import RNG
from toolkit.telemetry.runfolder.manifest import read_manifest

WITH_PHASES = [name for name, one in FRAMEWORKS.items() if one.parts is not None]
RESUMES = [name for name, one in FRAMEWORKS.items() if one.checkpoint is not None]
RAN = {}
"""Trainings that several tests read, by framework and options."""


def callback_of(name, folder=None, *given, **options):
    """Return the framework's callback, which writes a run `r` below the folder."""
    framework = FRAMEWORKS[name]
    make = getattr(importlib.import_module(framework.module), framework.name)
    if folder is not None:
        options = {"log_dir": folder / "logs", "run_name": "r", "log_every": 1, **QUIET, **options}
    return make(*given, **options)


def log_of(name, callback):
    return getattr(callback, FRAMEWORKS[name].log)


def records(folder, event=None, *, run="r", session=None):
    found = read_records(folder / "logs" / run / "metrics.jsonl", event)
    return [record for record in found if session in (None, record["session"])]


def status(folder, run="r"):
    return read_manifest(folder / "logs" / run).sessions[-1].status


def trained(name, tmp_path_factory, **options):
    """Return the folder of a whole training and what the framework says of it; each is trained once."""
    key = name, str(options)
    if key not in RAN:
        folder = tmp_path_factory.mktemp(name)
        callback = callback_of(name, folder, **options)
        RAN[key] = folder, FRAMEWORKS[name].train(folder, callback), callback
    return RAN[key]


@pytest.fixture(params=FRAMEWORKS)
def name(request):
    return request.param


@pytest.fixture
def plain(name, tmp_path_factory):
    return trained(name, tmp_path_factory)


def test_each_record_has_what_the_framework_itself_says(name, plain):
    folder, own, callback = plain
    steps = records(folder, "step")

    assert [step["global_step"] for step in steps] == [1, 2, 3, 4]
    assert [step["train_loss"] for step in steps] == pytest.approx(own.losses, rel=1e-3)
    assert [step["lr"] for step in steps] == [RATE] * STEPS
    assert [record["global_step"] for record in records(folder, "eval")] == [2, 4]
    saved = records(folder, "checkpoint")
    assert [record["global_step"] for record in saved] == [2, 4]
    assert all(record["bytes"] > 0 and Path(record["checkpoint_path"]).exists() for record in saved)
    (start,) = records(folder, "start")
    facts = FRAMEWORKS[name].start
    assert {field: start.get(field) for field in facts} == facts
    assert "resumed_from_step" not in start
    assert (status(folder), callback.guard.total) == ("finished", 0)
    assert records(folder, "end")[0]["telemetry_errors"] == 0


def test_public_hooks_alone_give_the_spans(name, plain):
    folder, own, _ = plain
    summary = [record["span_times"] for record in records(folder, "span_summary")]
    counts = {span: times["count"] for span, times in (summary[-1] if summary else {}).items()}

    assert counts == FRAMEWORKS[name].spans
    # Keras has no other hook of a step that does not wait for the device.
    assert own.patched == (FRAMEWORKS[name].wrapped if name == "keras" else set())
    assert own.left == set()


@pytest.mark.parametrize("name", WITH_PHASES)
def test_with_phases_the_parts_of_a_step_have_spans_until_the_training_ends(name, tmp_path_factory):
    folder, own, callback = trained(name, tmp_path_factory, phases=True)
    summary = records(folder, "span_summary")[-1]["span_times"]
    counts = {span: times["count"] for span, times in summary.items() if not span.startswith("profiling/")}

    assert counts == FRAMEWORKS[name].spans | FRAMEWORKS[name].parts
    assert FRAMEWORKS[name].wrapped <= own.patched
    assert own.left == set()
    assert callback.guard.total == 0


def test_the_training_is_the_same_without_us(name, plain, tmp_path):
    _, own, _ = plain
    alone = FRAMEWORKS[name].train(tmp_path)

    assert (alone.losses, alone.weights) == (own.losses, own.weights)


def test_a_step_that_is_not_logged_takes_few_calls(name, tmp_path):
    ours, first, last = str(Path(toolkit.telemetry.__file__).parent), 12, 20
    calls = Counter()

    def count(frame, event, _):
        # A property of the framework's costs as much as a function of ours.
        if event == "call" and any(one.f_code.co_filename.startswith(ours) for one in (frame, frame.f_back)):
            calls[frame.f_code.co_name] += 1

    def at_step(step):
        if step in (first, last):
            sys.setprofile(count if step == first else None)

    callback = callback_of(name, tmp_path, log_every=1000)
    try:
        FRAMEWORKS[name].train(tmp_path, callback, steps=last + 2, at_step=at_step, busy=False)
    finally:
        sys.setprofile(None)

    assert 0 < calls.total() / (last - first) <= 30, calls.most_common()


@pytest.mark.parametrize("phases", [False, True])
def test_a_failure_is_raised_unchanged_and_ends_the_run(name, tmp_path, phases):
    error = ValueError("no such sample")

    def fail(step):
        if step == 3:
            raise error

    if phases and name not in WITH_PHASES:
        pytest.skip("it has no phases")
    callback = callback_of(name, tmp_path, **({"phases": True} if phases else {}))
    with pytest.raises(ValueError, match="no such sample") as raised:
        FRAMEWORKS[name].train(tmp_path, callback, at_step=fail)
    assert raised.value is error

    is_reported = phases or FRAMEWORKS[name].reports_failures
    if not is_reported:
        # As one that the script caught: the next training says so.
        FRAMEWORKS[name].train(tmp_path / "next", callback)
    assert status(tmp_path) == "failed"
    assert [step["global_step"] for step in records(tmp_path, "step")] == [1, 2]
    assert records(tmp_path, "error")[0]["type"] == ("ValueError" if is_reported else "InterruptedError")


ENDS = """
import sys
from toolkit.telemetry.integrations.framework_run import FrameworkRun

class Callback(FrameworkRun):
    reports_failures = False

Callback(log_dir="logs", system=False).open_run("r")
try:
    raise KeyboardInterrupt if sys.argv[1] == "interrupted" else RuntimeError("the disk of the data is gone")
except RuntimeError:
    if sys.argv[1] != "caught":
        raise
"""


@pytest.mark.parametrize("how", ["raised", "caught", "interrupted"])
def test_a_training_whose_framework_reports_no_failure_is_not_finished_when_its_script_ends(tmp_path, how):
    run_python(["-c", ENDS, how], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})

    assert status(tmp_path) == ("stopped" if how == "interrupted" else "failed")
    assert len(records(tmp_path, "error")) == (how != "interrupted")


def test_switched_off_nothing_is_written_and_nothing_patched(name, tmp_path):
    callback = callback_of(name, tmp_path, enabled=False)
    own = FRAMEWORKS[name].train(tmp_path, callback)

    assert len(own.losses) == STEPS
    assert own.patched == set()
    assert not (tmp_path / "logs").exists()
    assert (callback.is_live, callback.guard.total) == (False, 0)


@pytest.mark.parametrize(
    ("name", "call"), [(name, call) for name, one in FRAMEWORKS.items() for call in one.calls]
)
def test_a_broken_logger_does_not_stop_the_training(name, call, tmp_path, monkeypatch, caplog):
    def fail(*_, **__):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(TelemetryLogger, call, fail)
    callback = callback_of(name, tmp_path)
    own = FRAMEWORKS[name].train(tmp_path, callback)

    assert len(own.losses) == STEPS
    assert own.left == set()
    assert callback.guard.total > 0
    assert "broken on purpose" in caplog.text


def test_a_logger_that_was_given_stays_open_for_its_owner(name, tmp_path):
    log = make_logger(tmp_path / "logs", log_every=1)
    FRAMEWORKS[name].train(tmp_path, callback_of(name, None, log))

    assert log.is_live
    log.close()
    assert [step["global_step"] for step in records(tmp_path, "step")] == [1, 2, 3, 4]
    # Its owner may have begun one.
    assert "application" not in {span["name"] for span in records(tmp_path, "span")}


def test_wrong_options_are_rejected_when_it_is_created(name, tmp_path):
    with pytest.raises(OptionsError, match="log_evry"):
        callback_of(name, None, log_evry=5)
    with pytest.raises(OptionsError, match="log_every"):
        callback_of(name, None, {"log_every": 0})
    with pytest.raises(OptionsError, match="log_dir"):
        callback_of(name, None, make_logger(tmp_path, enabled=False), log_dir="logs")
    if name not in WITH_PHASES:
        with pytest.raises(OptionsError, match="phases"):
            callback_of(name, None, {"phases": True})


@pytest.mark.parametrize("name", RESUMES)
def test_save_and_stop_is_carried_out_after_its_step(name, tmp_path):
    callback = callback_of(name, tmp_path)

    def ask(step):
        if step == 3:
            control_requests.ask(log_of(name, callback), actions=["save_and_stop"])

    own = FRAMEWORKS[name].train(tmp_path, callback, steps=40, at_step=ask)

    assert len(own.losses) == 3
    assert [record["global_step"] for record in records(tmp_path, "checkpoint")] == [2, 3]
    (answer,) = records(tmp_path, "control_change")
    assert (answer["status"], answer["actions"], answer["global_step"]) == ("applied", ["save_and_stop"], 3)
    assert status(tmp_path) == "stopped"


@pytest.mark.parametrize("name", RESUMES)
def test_a_training_from_a_checkpoint_resumes_its_run_with_the_state_that_was_saved(name, tmp_path):
    framework = FRAMEWORKS[name]
    framework.train(tmp_path, callback_of(name, tmp_path))
    saved = str(tmp_path / framework.checkpoint.format(STEPS))
    given = {"resume_from": saved, "resumed_from_step": STEPS} if name == "accelerate" else {}
    framework.train(tmp_path, callback_of(name, tmp_path, **given), steps=6, resume=saved)

    assert [folder.name for folder in (tmp_path / "logs").iterdir()] == ["r"]
    assert [step["global_step"] for step in records(tmp_path, "step", session=2)] == [5, 6]
    assert records(tmp_path, "start", session=2)[0]["resumed_from_step"] == STEPS
    began, _, last, loaded, *_ = records(tmp_path, "state")
    assert (began["at"], last["at"], loaded["at"]) == ("start", "save", "load")
    kept, again = (
        {field: value for field, value in state_of(one).items() if not field.startswith("rng")}
        for one in (last, loaded)
    )
    assert again == kept
    assert began["weights_norm"] != kept["weights_norm"]
    (said,) = answer_resumes(read_evidence(tmp_path / "logs" / "r"))
    # Lightning restores no random generators.
    assert {row.cause for row in said.evidence if row.differs} <= {RNG}


def test_a_copy_records_nothing_until_it_trains_itself(name, tmp_path):
    callback, copies = callback_of(name, tmp_path), []

    def take(step):
        if step == 2:
            copies.append(copy.deepcopy(callback))

    FRAMEWORKS[name].train(tmp_path, callback, at_step=take)
    assert not copies[0].is_live
    FRAMEWORKS[name].train(tmp_path / "again", copies[0])

    for run in ("r", "r-2"):
        assert [step["global_step"] for step in records(tmp_path, "step", run=run)] == [1, 2, 3, 4]
    assert callback.guard.total == copies[0].guard.total == 0


TWO_RANKS = Path(__file__).parent / "programs" / "two_ranks.py"


@in_make_faults
@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMES)
def test_two_ranks_write_one_run_and_stop_at_one_step(name, tmp_path):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    run_program(tmp_path, *launcher, TWO_RANKS, name)

    (answer,) = records(tmp_path, "control_change")
    step = answer["global_step"]
    assert answer["status"] == "applied"
    said = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    assert said == [{"steps": step, "left": [], "failures": 0}] * 2
    assert [record["global_step"] for record in records(tmp_path, "step")] == [*range(1, step + 1)]
    assert step in [record["global_step"] for record in records(tmp_path, "checkpoint")]
    assert status(tmp_path) == "stopped"
