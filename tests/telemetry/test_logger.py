"""What a training script calls: every call leaves its record, none raises, none changes the training."""

import copy
import json
import os
import pickle
import sys
import time

import numpy as np
import pytest
import torch

from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S, describe_at_once, make_logger, records_of
from tests.waiting import wait_until
from toolkit.telemetry import OptionsError, TelemetryLogger, TelemetryOptions
from toolkit.telemetry.core.clock import ManualClock
from toolkit.telemetry.logger import logger as logger_module
from toolkit.telemetry.logger.machine.checkpoint_files import look_at
from toolkit.telemetry.logger.writing.writer import Writer
from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.control import write_request
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runfolder.records import ENVELOPE


@pytest.fixture(autouse=True)
def _a_machine_that_is_described_at_once(monkeypatch):
    describe_at_once(monkeypatch, {"host": "here", "os": "an os"})


@pytest.fixture
def make(tmp_path):
    made = []

    def make(name="r", **options):
        log = make_logger(tmp_path / "logs", name, **options)
        made.append(log)
        return log

    yield make
    for log in made:
        log.close()
        if log._run is not None:
            # A test may have kept the end from stopping them, and they would go on next to all later tests.
            log._run.periodic.close(PATIENCE_S)
            if log._run._sampling is not None:
                log._run._sampling.stop(PATIENCE_S)


def last(log, event):
    return records_of(log, event)[-1]


def keep_house(log):
    """Have the run's chores done now, and here alone, instead of after some seconds."""
    log._run.periodic.close(PATIENCE_S)
    # What another thread finds meanwhile is written with the next chores alone.
    wait_until(lambda: chores_are_written(log))


def chores_are_written(log):
    for doing, _, do in log._run.periodic._tasks:
        with log.guard.catch(doing):
            do()
    until = time.monotonic() + 5.0
    while read_manifest(log.run_folder) != log._run.pipeline.manifest and time.monotonic() < until:
        time.sleep(0.01)
    return read_manifest(log.run_folder) == log._run.pipeline.manifest


# ---------------------------------------------------------------- making one


def test_the_second_line_names_what_is_written(make, capsys):
    make(csv=False)

    assert capsys.readouterr().out.endswith("/metrics.jsonl\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("name", ["Köln", "日本語", "half \ud800"])
def test_a_terminal_that_cannot_show_the_name_is_no_reason_to_fail(tmp_path, monkeypatch, encoding, name):
    with open(tmp_path / "out", "w", encoding=encoding) as out:
        monkeypatch.setattr(sys, "stdout", out)
        with make_logger(tmp_path / "logs", name) as log:
            log.log_step(1, train_loss=0.5)

    assert len(records_of(log, "step")) == 1
    assert read_manifest(log.run_folder).latest.status == "finished"


def test_options_come_as_one_or_by_name(tmp_path):
    options = TelemetryOptions(log_dir=tmp_path, log_every=7, system=False, csv=False)
    with TelemetryLogger("a", options) as first, TelemetryLogger("b", options, log_every=3) as second:
        assert (first.log_every, second.log_every) == (7, 3)


def test_wrong_options_raise_at_once_and_leave_nothing_behind(tmp_path):
    with pytest.raises(OptionsError, match="did you mean 'log_every'"):
        TelemetryLogger("r", log_dir=tmp_path / "logs", log_evry=5)
    with pytest.raises(OptionsError, match=r"telemetry\.log_every is 0"):
        TelemetryLogger("r", log_dir=tmp_path / "logs", log_every=0)

    assert not (tmp_path / "logs").exists()


# ---------------------------------------------------------------- what is logged


def test_a_start_record_describes_run_training_and_machine(make):
    log = make(clock=ManualClock())
    log.log_start(
        config={"config": {"name": "x"}},
        lora={"rank": 16, "alpha": 8, "dropout": 0.1, "target_modules": ["q", "v"]},
        model={"name": "flux", "parameters": 12_000_000_000, "trainable_parameters": 5},
        training={"batch_size": 4, "optimizer": "adamw", "dtype": torch.bfloat16, "max_steps": 100},
        note="mine",
    )
    found = last(log, "start")

    assert (found["seq"], found["session"], found["time"], found["elapsed"]) == (0, 1, 1_700_000_000.0, 0.0)
    assert (found["run_name"], found["run_id"]) == ("r", log.run_id)
    assert (found["lora_rank"], found["lora_alpha"], found["lora_dropout"]) == (16, 8, 0.1)
    assert found["lora_target_modules"] == ["q", "v"]
    assert (found["model_name"], found["model_parameters"]) == ("flux", 12_000_000_000)
    assert (found["batch_size"], found["optimizer"], found["dtype"]) == (4, "adamw", "torch.bfloat16")
    assert (found["config"], found["note"]) == ({"config": {"name": "x"}}, "mine")
    assert (found["host"], found["os"]) == ("here", "an os")


def test_a_second_start_record_says_what_is_new(make):
    log = make()
    log.log_start(training={"batch_size": 4})
    log.log_start(training={"batch_size": 8})

    assert [record["batch_size"] for record in records_of(log, "start")] == [4, 8]


@pytest.mark.parametrize("name", ["event", "time", "elapsed", "seq", "session", "rank"])
def test_no_field_of_a_start_record_takes_the_place_of_ours(make, name):
    log = make()
    log.log_start(training={name: "theirs"}, **{name: "theirs too"})
    found = records_of(log)[0]

    assert (found["event"], found["seq"], found["session"]) == ("start", 0, 1)
    assert found.get("rank", 0) == 0
    assert type(found["time"]) is type(found["elapsed"]) is float
    assert "theirs too" in found.values()


def test_an_evaluation_an_epoch_and_an_event_are_recorded(make):
    log = make()
    log.log_eval(5, val_loss=torch.tensor(0.5), deep={"psnr": np.float32(30)})
    log.log_epoch(2, global_step=50, train_loss=0.25)
    log.log_epoch(3)
    log.log_event("my_event", a=1, b="text", c=None)

    found = last(log, "eval")
    assert (found["global_step"], found["val_loss"], found["deep/psnr"]) == (5, 0.5, 30.0)
    first, second = records_of(log, "epoch")
    assert (first["epoch"], first["global_step"], first["train_loss"]) == (2, 50, 0.25)
    assert "global_step" not in second
    found = last(log, "my_event")
    assert (found["a"], found["b"]) == (1, "text")
    assert "c" not in found


@pytest.mark.parametrize(
    "name",
    [
        *("event", "time", "seq", "session", "rank", "elapsed", "self", "name"),
        *("non_finite", "unencodable", "cut"),
    ],
)
def test_any_name_may_be_used_for_a_field(make, name):
    log = make(log_every=1)
    log.log_event("mine", **{name: 7})
    log.log_eval(1, **{name: 7})
    log.log_epoch(1, **{name: 7})
    log.log_checkpoint(1, "absent", **{name: 7})
    log.log_sample(1, "absent", **{name: 7})
    log.log_step(1, train_loss=0.5, **{name: 7})

    for event in ("mine", "eval", "epoch", "checkpoint", "sample", "step"):
        found = records_of(log, event, of_any_type=True)[-1]
        assert 7 in (found.get(name), found.get(f"x_{name}")), event
    assert log.guard.counts == {}


@pytest.mark.parametrize(
    ("event", "kept"), [("", "event"), ("x" * 500, "x" * 128), (5, "5"), ("a,\nb", "a,\nb")]
)
def test_an_event_of_any_name_is_kept(make, event, kept):
    log = make()
    log.log_event(event, n=1)

    assert [record["event"] for record in records_of(log) if record.get("n") == 1] == [kept]


def test_a_checkpoint_is_recorded_with_its_size(make, tmp_path, monkeypatch):
    monkeypatch.setattr(logger_module, "look_at", lambda path, _, guard: look_at(path, PATIENCE_S, guard))
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1234)
    (tmp_path / "folder").mkdir()
    for name in ("a", "b"):
        (tmp_path / "folder" / name).write_bytes(b"x" * 100)
    log = make()
    log.log_checkpoint(250, tmp_path / "model.safetensors", is_best=True, seconds=1.5)
    log.log_checkpoint(251, str(tmp_path / "folder"))
    log.log_checkpoint(252, "absent")
    first, second, third = records_of(log, "checkpoint")

    assert first["checkpoint_path"] == str(tmp_path / "model.safetensors")
    assert (first["global_step"], first["bytes"], first["is_best"], first["seconds"]) == (
        250,
        1234,
        True,
        1.5,
    )
    assert (second["bytes"], second["is_best"]) == (200, False)
    assert "bytes" not in third


def test_a_sample_inside_the_run_folder_is_recorded_relative_to_it(make, tmp_path):
    log = make()
    log.log_sample(5, log.run_folder / "samples" / "a.png", prompt="a cat", seed=3)
    log.log_sample(6, tmp_path / "elsewhere.png")
    first, second = records_of(log, "sample")

    assert (first["path"], first["prompt"], first["seed"]) == (os.path.join("samples", "a.png"), "a cat", 3)
    assert second["path"] == str(tmp_path / "elsewhere.png")
    assert "prompt" not in second


def test_records_are_numbered_without_a_gap_and_stamped_when_the_caller_called(make):
    clock = ManualClock()
    log = make(clock=clock, log_every=1)
    for step in range(20):
        log.log_step(step, train_loss=0.5)
        log.log_event("tick")
        clock.advance(1.0)
    clock.set_wall(5.0)
    log.log_event("the clock was set back")
    log.close()
    found = records_of(log)

    assert [record["seq"] for record in found] == list(range(len(found)))
    assert [record["elapsed"] for record in found if record["event"] == "tick"] == [
        float(n) for n in range(20)
    ]
    assert (found[-2]["time"], found[-2]["elapsed"]) == (5.0, 20.0)


# ---------------------------------------------------------------- steering


def test_what_the_script_can_be_asked_for_is_in_the_manifest(make):
    log = make(control=True, log_every=20)
    log.declare_action("save")
    log.declare_action("stop", lambda: None)
    log.declare_knob("lr_scale", float, low=0.1, high=2.0, value=1.0)
    log.declare_knob("sampler", str, choices=["a", "b"])
    keep_house(log)
    control = read_manifest(log.run_folder).control

    assert control["log_every_now"] == 20
    assert control["log_every"] == {"low": 5, "high": 2000}
    assert set(control["actions"]) == {"save", "stop", "save_and_stop"}
    assert control["knobs"]["lr_scale"] == {"type": "float", "low": 0.1, "high": 2.0, "value": 1.0}
    assert control["knobs"]["sampler"]["choices"] == ["a", "b"]


def test_what_is_asked_is_handed_over_between_steps(make):
    log = make(control=True, log_every=10)
    log.declare_action("save")
    log.declare_knob("lr_scale", float, low=0.1, high=2.0, value=1.0)
    log.log_step(0, train_loss=0.5)
    request = write_request(log.run_folder, log_every=25, actions=["save"], knobs={"lr_scale": 0.5})
    keep_house(log)

    assert log.log_every == 10
    assert log.take_requests() == []

    log.log_step(1, train_loss=0.5)

    assert log.log_every == 25
    assert {(asked.name, asked.value, asked.id) for asked in log.take_requests()} == {
        ("save", None, request.id),
        ("lr_scale", 0.5, request.id),
    }
    (answer,) = records_of(log, "control_change")
    assert {name: value for name, value in answer.items() if name not in ENVELOPE} == {
        "id": request.id,
        "status": "applied",
        "source": "control.json",
        "setting": "log_every",
        "old": 10,
        "new": 25,
        "requested": 25,
        "actions": ["save"],
        "knobs/lr_scale/old": 1.0,
        "knobs/lr_scale/new": 0.5,
        "global_step": 1,
    }


def test_a_stop_is_seen_and_ends_the_run_as_stopped(make):
    log = make(control=True)
    log.declare_action("stop")
    log.log_step(0, train_loss=0.5)
    write_request(log.run_folder, actions=["stop"])
    keep_house(log)

    assert not log.should_stop

    log.log_step(1, train_loss=0.5)

    assert log.should_stop

    log.close()

    assert (last(log, "end")["status"], last(log, "end")["reason"]) == ("stopped", "stopped")


def test_without_control_nothing_is_ever_asked(make):
    log = make(control=False, log_every=10)
    log.declare_action("stop")
    write_request(log.run_folder, actions=["stop"], log_every=50)
    keep_house(log)
    log.log_step(1, train_loss=0.5)

    assert (log.should_stop, log.take_requests(), log.log_every) == (False, [], 10)
    assert records_of(log, "control_change") == []


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (None, "finished"),
        ("finished", "finished"),
        ("stopped", "stopped"),
        ("interrupted", "stopped"),
        ("signal", "stopped"),
        ("failed", "failed"),
        ("exit", "finished"),
    ],
)
def test_a_run_says_why_it_ended(make, reason, status):
    log = make(clock=ManualClock(), log_every=1)
    log.log_step(7, train_loss=0.5)
    log.close(reason)
    end = last(log, "end")
    manifest = read_manifest(log.run_folder)

    assert (end["status"], end["reason"]) == (status, reason or "finished")
    assert (end["global_step"], end["records"], end["records_lost"], end["telemetry_errors"]) == (7, 3, 0, 0)
    assert (manifest.latest.status, manifest.latest.reason) == (status, reason or "finished")
    assert manifest.latest.ended == 1_700_000_000.0
    assert manifest.latest.journal is None
    assert manifest.heartbeat.global_step == 7


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ValueError("bad loss"), "failed", "failed"),
        (KeyboardInterrupt(), "stopped", "interrupted"),
        (SystemExit(), "finished", "finished"),
        (SystemExit(0), "finished", "finished"),
        (SystemExit(3), "failed", "failed"),
    ],
)
def test_an_exception_in_the_block_is_recorded_and_passes_on(make, error, status, reason):
    log = make()
    log.log_step(1, train_loss=0.5)
    with pytest.raises(type(error)), log:
        raise error

    assert (last(log, "end")["status"], last(log, "end")["reason"]) == (status, reason)
    failures = records_of(log, "error")
    assert len(failures) == (status == "failed")
    if failures:
        assert failures[0]["type"] == type(error).__name__
        assert "test_logger.py" in failures[0]["stack"][-1]


@pytest.mark.parametrize("reason", ["because", "", 5, ["a list"], object()])
def test_an_unknown_reason_ends_the_run_and_is_not_taken_for_finished(make, reason):
    log = make()
    log.close(reason)

    assert last(log, "end")["status"] == "stopped"
    assert read_manifest(log.run_folder).latest.status == "stopped"


@pytest.mark.parametrize("is_drained", [True, False])
def test_a_writer_that_ends_late_has_lost_records_only_if_some_are_not_in_the_file(
    make, monkeypatch, is_drained
):
    log, close = make(close_timeout=1.0), Writer.close
    log.log_step(1, train_loss=0.5)
    monkeypatch.setattr(Writer, "close", lambda self, timeout_s: close(self, timeout_s) and False)
    if not is_drained:
        monkeypatch.setattr(Writer, "is_drained", False)
    log.close()

    assert ("closing: OSError" in log.guard.counts) is not is_drained
    assert ("closed_incomplete" in read_manifest(log.run_folder).latest.reason) is not is_drained


def test_the_journal_is_gone_once_all_is_written(make):
    log = make()
    journal = read_manifest(log.run_folder).latest.journal or log._run.pipeline._journal.path
    log.close()

    assert journal
    assert not os.path.exists(journal)


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda log: pickle.loads(pickle.dumps(log))])
def test_a_copy_of_a_logger_within_its_process_is_the_logger(make, copied):
    log = make()

    assert copied([log]) == [log]
    assert copied(make("off", enabled=False)).run_folder is None


# ---------------------------------------------------------------- sessions


def test_a_run_is_found_again_by_its_id(make):
    first = make("one name", run_id="abc123")
    first.close()
    second = make("another name", run_id="abc123")

    assert first.run_id == "abc123"
    assert second.run_folder == first.run_folder


# ---------------------------------------------------------------- nothing raises


def bug(*_, **__):
    raise RuntimeError("a bug of ours")


@pytest.mark.parametrize(
    "target",
    [
        "toolkit.telemetry.logger.steps.step_records.StepRecords.put_rest",
        "toolkit.telemetry.logger.errors.error_recorder.describe_in_full",
        "toolkit.telemetry.logger.errors.error_recorder.fingerprint_of",
        "toolkit.telemetry.logger.errors.error_recorder.ErrorRecorder.take",
        "toolkit.telemetry.logger.errors.error_recorder.ErrorRecorder.totals",
        "toolkit.telemetry.logger.errors.error_recorder.ErrorRecorder.how_it_ends",
        "toolkit.telemetry.logger.control.rank_control.RankControl.close",
        "toolkit.telemetry.core.periodic.PeriodicTasks.close",
        "toolkit.telemetry.logger.machine.samplers.sampling.SystemSampling.stop",
        "toolkit.telemetry.logger.writing.pipeline.RecordPipeline.beat",
        "toolkit.telemetry.runfolder.table.csv_table.CsvTable.close",
    ],
)
def test_one_part_of_the_end_that_fails_does_not_affect_the_others(make, monkeypatch, target):
    log = make(csv=True, system=True, control=True, log_every=10)
    for step in range(5):
        log.log_step(step, train_loss=0.5)
    monkeypatch.setattr(target, bug)
    log.close("failed", error=ValueError("the training's own"))
    monkeypatch.undo()

    assert last(log, "end")["status"] == "failed"
    assert read_manifest(log.run_folder).latest.status == "failed"
    assert log.guard.total >= 1


def test_a_failure_is_counted_said_once_and_recorded(make, monkeypatch, caplog):
    log = make(log_every=1)
    log.log_step(0, train_loss=0.5)
    with monkeypatch.context() as patch:
        patch.setattr("toolkit.telemetry.logger.records.plain_values.PlainValues.fields", bug)
        for step in range(1, 11):
            log.log_step(step, train_loss=0.5, text="needs a closer look")
    log.log_step(11, train_loss=0.25)
    (error,) = records_of(log, "error")

    assert log.guard.counts == {"log_step: RuntimeError": 10}
    assert caplog.text.count("log_step failed") == 1
    assert (error["source"], error["doing"], error["type"]) == ("telemetry", "log_step", "RuntimeError")
    assert last(log, "step")["train_loss"] == 0.25


# ---------------------------------------------------------------- the training is not changed


def test_a_compiled_step_followed_by_a_record_is_not_broken_up(make):
    log = make(log_every=1)

    @torch.compile(backend="eager", fullgraph=True)
    def step(x):
        return (x * 2).sum()

    for number in range(3):
        log.log_step(number, train_loss=step(torch.ones(3)))

    assert [record["train_loss"] for record in records_of(log, "step")] == [6.0, 6.0, 6.0]


def test_logging_inside_of_a_compiled_function_breaks_its_graph_once_at_most(make):
    log = make(log_every=1)

    def step(x):
        loss = (x * 2).sum()
        log.log_step(3, train_loss=0.5)
        return loss * 3

    explained = torch._dynamo.explain(step)(torch.ones(3))
    print(
        f"{explained.graph_break_count} graph breaks: {[str(b.reason)[:100] for b in explained.break_reasons]}"
    )
    compiled = torch.compile(step, backend="eager")

    assert explained.graph_break_count <= 1
    assert compiled(torch.ones(3)).item() == 18.0
    assert {record["global_step"] for record in records_of(log, "step")} == {3}


# ---------------------------------------------------------------- the machine


def test_system_records_are_written_and_step_records_have_the_newest_sample(make):
    log = make(system=True, log_every=1)
    wait_until(lambda: log._run._sampling.latest().get("cpu_mem_rss_mb"))
    keep_house(log)
    log.log_step(1, train_loss=0.5)
    log.log_step(2, train_loss=0.5)

    assert last(log, "system")["cpu_mem_rss_mb"] > 1
    first, second = records_of(log, "step")
    assert first["cpu_mem_rss_mb"] > 1
    assert "cpu_mem_rss_mb" not in second


def test_the_manifest_shows_how_far_the_run_is(make):
    clock = ManualClock()
    log = make(clock=clock, log_every=1, project="faces", tags=["a"])
    log.log_start(training={"max_steps": 100})
    log.log_step(7, train_loss=0.5, lr=1e-4)
    clock.advance(5)
    keep_house(log)
    manifest = read_manifest(log.run_folder)

    assert (manifest.display_name, manifest.project, manifest.tags) == ("r", "faces", ("a",))
    assert (manifest.latest.status, manifest.latest.pid) == ("running", os.getpid())
    assert (manifest.heartbeat.time, manifest.heartbeat.seq, manifest.heartbeat.global_step) == (
        1_700_000_005.0,
        1,
        7,
    )
    assert (manifest.summary["train_loss"], manifest.summary["lr"], manifest.summary["max_steps"]) == (
        0.5,
        1e-4,
        100,
    )


def test_every_line_of_a_busy_run_is_strict_and_short(make):
    log = make(csv=True, log_every=1)
    log.log_start(config={"long": "x" * 10**6, "nan": float("nan"), "deep": [[[[1]]]]})
    for step in range(50):
        log.log_step(
            step, train_loss=float("nan") if step % 7 == 0 else 0.5, text="é\u2028\ud800" * 50, big=2**80
        )
    log.log_event("huge", text="y" * 10**6, many=list(range(10**5)))
    log.close()
    lines = (log.run_folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)

    assert max(map(len, lines)) <= 64 * 1024
    assert len(read_records(log.run_folder / "metrics.jsonl")) == len(lines)
    assert all(encode(json.loads(line)) for line in lines)


class ComesLater:
    """A number that a device delivers after a while; it replaces one on a GPU, which is not here."""

    def __init__(self, delay_s):
        self._at = time.monotonic() + delay_s

    def poll(self):
        return 0.25 if time.monotonic() >= self._at else None


@pytest.mark.parametrize(
    "wait", [lambda log: log.close(), lambda log: log.flush(PATIENCE_S)], ids=["end", "flush"]
)
def test_what_a_device_still_computes_is_waited_for(make, wait):
    log = make()
    log._live().pipeline.record_queue.put("eval", 1.0, 1.0, {"global_step": 1}, {"val_loss": ComesLater(0.2)})
    wait(log)

    assert last(log, "eval")["val_loss"] == 0.25
    assert "unencodable" not in last(log, "eval")


def test_a_device_that_is_gone_holds_up_the_end_for_part_of_its_time_only(make):
    log = make(close_timeout=4.0)
    log._live().pipeline.record_queue.put(
        "eval", 1.0, 1.0, {"global_step": 1}, {"val_loss": ComesLater(3600)}
    )
    log.close()
    # A machine that pauses for as long as the end may take leaves the rest to the writer.
    wait_until(lambda: read_records(log.run_folder / "metrics.jsonl", "end"))

    assert last(log, "eval")["unencodable"] == {"val_loss": "its device did not deliver it"}
    assert last(log, "end")["status"] == "finished"


# ---------------------------------------------------------------- calls as the ai-toolkit fork makes them


def test_evaluations_epochs_and_checkpoints_can_be_logged_as_a_mapping_too(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"1234")
    log = make_logger(tmp_path)
    log.log_eval(10, {"val_loss": 0.5})
    log.log_epoch(1, {"val_loss": 0.25})
    log.log_checkpoint(10, tmp_path / "a.bin", True)
    log.log_eval(20, metrics=3)

    first, second = records_of(log, "eval")
    assert (first["val_loss"], second["metrics"]) == (0.5, 3)
    assert records_of(log, "epoch")[0]["val_loss"] == 0.25
    assert records_of(log, "checkpoint")[0]["is_best"] is True
    assert log.guard.total == 0
    log.close()
