"""A mistake in the caller's Python is said once, in a sentence, counted and recorded, and its values are kept."""

import subprocess
import sys
import threading
from collections import OrderedDict

import numpy as np
import pytest
import torch

from tests.fork_server import run_python
from tests.records import read_records
from tests.telemetry.logged import make_logger
from tests.waiting import PATIENCE_S, wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.core.guard import MisuseError
from toolkit.telemetry.diagnostics.history import diagnose


def step(*args, **fields):
    return lambda log: log.log_step(*args, **fields)


def after_steps(*numbers):
    def call(log):
        for number in numbers:
            log.log_step(number, train_loss=0.5)

    return call


MISTAKES = {
    "no step": (step(train_loss=1.0), "without a step", "step", {"global_step": 0, "train_loss": 1.0}),
    "None as step": (step(None, 1.0), "without a step", "step", {"global_step": 0, "train_loss": 1.0}),
    "a text as step": (step("12", 1.0), "the step is '12'", "step", {"global_step": 12, "train_loss": 1.0}),
    "a half step": (step(1.5, 1.0), "the step is 1.5", "step", {"global_step": 1, "train_loss": 1.0}),
    "no number as step": (step("a", 1.0), "the step is 'a'", "step", {"global_step": 0, "x_global_step": "a"}),
    "a mapping as loss": (
        step(6, {"train_loss": 1.0, "acc": 2}), "in the place of the loss", "step", {"train_loss": 1.0, "acc": 2},
    ),
    "a mapping as the step": (
        step(OrderedDict(train_loss=1.0, acc=2), 6), "in the place of the step", "step",
        {"train_loss": 1.0, "acc": 2, "global_step": 6},
    ),
    "a step beyond 64 bits": (
        step(2**70, 1.0), "the step is 1180591620717411303424", "step",
        {"global_step": 0, "x_global_step": str(2**70), "train_loss": 1.0},
    ),
    "values as the kind of an event": (
        lambda log: log.log_event({"images": 3}), "in the place of its kind", "event", {"images": 3},
    ),
    "a number in the place of the values": (
        lambda log: (log.log(5), log.log_event("note")), "the call is left out", "note", {},
    ),
    "more values than a record holds": (
        step(6, 1.0, **{f"m{number}": 0.5 for number in range(10_000)}), "5,920 values of one are left out", "end",
        {"values_lost": 2 * 5_920},
    ),
    "a mapping in the mapping": (
        step(6, {"train_loss": {"a": 1.0}}), "in the place of the loss", "step", {"x_train_loss/a": 1.0},
    ),
    "a list as loss": (step(6, [1.0, 2.0]), "train_loss is a list", "step", {"x_train_loss": [1.0, 2.0]}),
    "a list of one as lr": (step(6, lr=[0.5]), "lr is a list", "step", {"lr": 0.5}),
    "a text as loss": (step(6, "0.5"), "train_loss is a str", "step", {"train_loss": 0.5}),
    "a vector as loss": (step(6, np.zeros(3)), "train_loss is a list", "step", {"x_train_loss": [0.0] * 3}),
    "a tensor as loss": (step(6, torch.zeros(3)), "train_loss is a list of 3", "step", {"global_step": 6}),
    "a step back": (after_steps(3, 4, 0, 1), "step 0 was logged after step 4", "step", {"global_step": 3}),
    "a negative step": (after_steps(-1, 0, 1), "step -1 is negative", "step", {"global_step": -1}),
    "no step of an evaluation": (
        lambda log: log.log_eval(val_loss=0.5), "log_eval was called without a step", "eval", {"val_loss": 0.5},
    ),
    "metrics as the step": (
        lambda log: log.log_eval({"val_loss": 0.5}), "log_eval was called without a step", "eval", {"val_loss": 0.5},
    ),
    "a text as the step of an evaluation": (
        lambda log: log.log_eval("7", val_loss=0.5), "global_step is a str", "eval", {"global_step": 7},
    ),
    "no epoch": (lambda log: log.log_epoch({"a": 1}), "without an epoch", "epoch", {"a": 1}),
    "a path as the step": (
        lambda log: log.log_sample("a.png"), "log_sample was called without a step", "sample", {"path": "a.png"},
    ),
    "a number as image": (lambda log: log.log_image("x", 5), "an image is a path", None, {}),
    "no image": (lambda log: log.log_image("x"), "missing 1 required", None, {}),
    "a number as table": (lambda log: log.log_table("x", 5), "a table is a DataFrame", None, {}),
    "texts as a histogram": (lambda log: log.log_histogram("x", ["a"]), "a histogram is made of numbers", None, {}),
    "a file as configuration": (
        lambda log: log.log_start("a.yaml"), "the config is a str", "start", {"config": "a.yaml"},
    ),
    "a list to log": (lambda log: log.log([1.0]), "log takes values by name", None, {}),
    "a list as summary": (lambda log: log.summary.update([1]), "summary.update takes values by name", None, {}),
    "no name of a span": (
        lambda log: log.span().__enter__(), "a span was made without a name", "span", {"name": "span"},
    ),
    "an event called end": (lambda log: log.log_event("end", a=1), "log_event got 'end'", "x_end", {"a": 1}),
    "an event called step": (lambda log: log.log_event("step", a=1), "log_event got 'step'", "x_step", {"a": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_said_once_counted_and_recorded_and_what_it_means_is_kept(tmp_path, caplog, name):
    call, sentence, event, kept = MISTAKES[name]
    with make_logger(tmp_path, log_every=1) as log:
        call(log)
        call(log)
    said = [line for line in caplog.text.splitlines() if sentence in line]
    written = [record for record in read_records(log.run_folder) if kept.items() <= record.items()]

    assert len(said) == 1, caplog.text
    assert "Traceback" not in caplog.text
    assert log.guard.total >= 2
    # A machine that pauses is found as well.
    findings = [found for found in diagnose(log.run_folder).findings if found.kind == "wrong_call"]
    assert [sentence in found.message for found in findings] == [True]
    assert event is None or [record for record in written if record["event"] == event]
    assert read_records(log.run_folder, "end")[0]["telemetry_errors"] == log.guard.total

    with make_logger(tmp_path, "strict", strict=True, log_every=1) as log, pytest.raises(MisuseError):
        call(log)


def test_a_step_may_be_called_step_or_global_step_in_every_call(tmp_path):
    with make_logger(tmp_path, log_every=1, strict=True) as log:
        for number, name in ((1, "step"), (2, "global_step")):
            at = {name: number}
            log.log_step(train_loss=0.5, **at)
            log.write_step(loss=0.5, **at)
            log.log_eval(val_loss=0.5, **at)
            log.log_epoch(1, **at)
            log.log_checkpoint(path="a", **at)
            log.log_sample(path="a", **at)
            log.log_completion(prompt="a", completion="b", **at)
            log.log({"a": 1}, **at)
            log.log({"a": 1, **at})
            log.log(a=1, **at)
            log.log_image("a", np.zeros((2, 2, 3)), **at)
            log.log_table("a", [[1]], **at)
            log.log_histogram("a", [1.0], **at)
            log.log_event("mine", **at)
    found = [record for record in read_records(log.run_folder) if "global_step" in record][:-1]

    assert sorted(record["global_step"] for record in found) == [1] * 14 + [2] * 14


def test_write_step_takes_what_log_step_takes(tmp_path):
    with make_logger(tmp_path, log_every=100, strict=True) as log:
        log.write_step(1, 0.5, 1e-4, loss=0.25)
    (step,) = read_records(log.run_folder, "step")

    assert [step[name] for name in ("global_step", "train_loss", "lr", "loss")] == [1, 0.5, 1e-4, 0.25]


def test_a_second_training_of_a_run_may_begin_again_after_its_start_record(tmp_path):
    with make_logger(tmp_path, strict=True) as log:
        for _ in range(2):
            log.log_start(config={"lr": 0.5})
            after_steps(1, 2, 3)(log)
        with pytest.raises(MisuseError):
            log.log_step(1, train_loss=0.5)


def test_a_summary_takes_values_by_name(tmp_path):
    with make_logger(tmp_path, strict=True) as log:
        log.summary.update(a=1)
        log.summary.update({"b": 2}, c=3)

    assert [record.get("c") for record in read_records(log.run_folder, "summary")] == [None, 3]


LATE = """
import sys
from toolkit.telemetry import TelemetryLogger

with TelemetryLogger("r", log_dir=sys.argv[1], system=False) as log:
    log.log_step(1, train_loss=0.5)
    log.flush()
for step in range(498):
    log.log_step(2 + step, train_loss=0.25)
log.log_eval(500, val_loss=0.25)
log.summary["best"] = 0.25
log.flush(), log.close(), log.span("x")
"""


def test_what_is_logged_after_close_is_said_once_and_declared_lost(tmp_path):
    ended = run_python(["-c", LATE, tmp_path], capture_output=True, text=True, check=True)
    found = diagnose(tmp_path / "r")

    assert ended.stderr.count("log_step was called after close()") == 1
    assert len(ended.stderr.splitlines()) == 1
    assert sum(record["records"] for record in read_records(tmp_path / "r", "lost")) == 500
    assert "the run declared 500 records lost" in found.notes
    assert (found.ending.status, found.bad_lines) == ("finished", 0)


def test_a_call_during_which_the_run_is_closed_is_declared_lost(tmp_path, caplog):
    begun, is_closed = threading.Event(), threading.Event()

    class Slow(dict):
        def items(self):
            begun.set()
            assert is_closed.wait(PATIENCE_S)
            return super().items()

    log = make_logger(tmp_path)
    log.log_step(1, train_loss=0.5)
    thread = threading.Thread(target=log.log_event, args=["slow"], kwargs={"value": Slow(a=1)})
    thread.start()
    assert begun.wait(PATIENCE_S)
    log.close()
    is_closed.set()
    thread.join()

    (lost,) = wait_until(lambda: read_records(log.run_folder, "lost"))
    assert (lost["records"], lost["reason"]) == (1, "logged after close()")
    assert "log_event was called after close()" in caplog.text


def test_a_strict_logger_raises_after_close_and_one_that_is_off_does_not(tmp_path):
    log = make_logger(tmp_path, strict=True)
    log.close()
    with pytest.raises(MisuseError, match="log_event was called after close"):
        log.log_event("late")
    with pytest.raises(MisuseError, match="log_step was called after close"):
        log.log_step(1)
    with make_logger(tmp_path, "off", strict=True, enabled=False) as off:
        off.log_step(1)
        off.log_eval()

    assert off.guard.total == 0


def test_a_logger_shows_its_name_folder_step_and_status(tmp_path):
    with make_logger(tmp_path, "grey jacket") as log:
        assert repr(log) == f"<TelemetryLogger 'grey jacket': {log.run_folder}, no step yet, running>"
        log.log_step(7)
        assert repr(log).endswith("step 7, running>")
    assert repr(log).endswith("step 7, finished>")
    assert repr(TelemetryLogger("x", enabled=False)) == "<TelemetryLogger 'x': no folder, no step yet, off>"


def test_tab_completion_offers_what_exists(tmp_path):
    with make_logger(tmp_path) as log:
        assert [name for name in dir(log) if not hasattr(log, name)] == []
        assert "log_step" in dir(log)


CELL = """
log = TelemetryLogger("cell", log_dir=logs, system=False, close_timeout=60)
log.log_step(1, train_loss=0.5)

"""


def test_a_cell_that_is_executed_twice_ends_its_first_run_as_replaced(tmp_path):
    start = f"from toolkit.telemetry import TelemetryLogger; logs = {str(tmp_path)!r}\n"
    other = CELL.replace("cell", "other").replace("log =", "other =")
    ended = subprocess.run(
        [sys.executable, "-i", "-q"],
        input=start + CELL + other + CELL,
        capture_output=True,
        text=True,
        timeout=200,
    )
    ends = {folder.name: read_records(folder, "end")[0] for folder in tmp_path.iterdir()}

    assert {name: (end["status"], end["reason"]) for name, end in ends.items()} == {
        "cell": ("stopped", "replaced"),
        "cell-2": ("finished", "exit"),
        "other": ("finished", "exit"),
    }, ended.stderr
    assert ended.stderr.count("it is ended as replaced") == 1
    assert "run_name=cell folder=cell-2" in ended.stdout
    assert "it is ended as replaced" in read_records(tmp_path / "cell-2", "finding")[0]["message"]


WITHOUT = """
import sys
sys.modules["tensorboard"] = None
from toolkit.telemetry import TelemetryLogger

for strict in (False, True):
    with TelemetryLogger("r", log_dir=sys.argv[1], system=False, tensorboard=True, strict=strict) as log:
        log.log_step(1, train_loss=0.5)
"""


def test_a_mirror_without_its_package_is_said_in_one_line(tmp_path):
    ended = run_python(["-c", WITHOUT, tmp_path], capture_output=True, text=True)
    said = "telemetry.tensorboard is on and needs tensorboard, which is not installed; it is left out: pip install "

    assert ended.stderr.splitlines()[0].startswith(f"[telemetry] {said}")
    assert ended.stderr.count(said) == 2
    assert f"MisuseError: {said}" in ended.stderr.splitlines()[-1]
    assert [said in found["message"] for found in read_records(tmp_path / "r", "finding")] == [True]
    assert [folder.name for folder in tmp_path.iterdir()] == ["r"]
