"""The start record is the first line of each session, though spans may begin before anybody calls `log_start`."""

from __future__ import annotations

import signal
import textwrap
import threading

import pytest

from tests.fork_server import run_python
from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S, describe_at_once, make_logger, records_of
from toolkit.telemetry.core.clock import ManualClock
from toolkit.telemetry.logger.session import live_run
from toolkit.telemetry.runfolder.journal.repair import repair_run


@pytest.fixture(autouse=True)
def _a_machine_that_is_described_at_once(monkeypatch):
    describe_at_once(monkeypatch, {})


@pytest.fixture
def make(tmp_path, close_at_end):
    return lambda **options: close_at_end(make_logger(tmp_path, **options))


def events(log):
    return [record["event"] for record in read_records(log.run_folder / "metrics.jsonl")]


def numbers(log):
    return [record["seq"] for record in read_records(log.run_folder / "metrics.jsonl")]


def test_spans_before_the_start_follow_it(make):
    log = make()
    with log.span("application"), log.span("model_init"):
        pass
    log.log_start(config={"lr": 1e-3})
    log.log_step(1, train_loss=0.5)
    log.close()
    first, *others = read_records(log.run_folder / "metrics.jsonl")

    assert (first["event"], first["seq"], first["config"]) == ("start", 0, {"lr": 1e-3})
    assert [record["event"] for record in others[:4]] == ["span_start", "span_start", "span", "span"]
    assert numbers(log) == list(range(len(others) + 1))
    assert events(log).count("start") == 1


@pytest.mark.parametrize(
    "tell",
    [
        lambda log: log.log_step(1, train_loss=0.5),
        lambda log: log.log_eval(1, val_loss=0.5),
        lambda log: log.log_event("mine"),
        lambda log: log.flush(PATIENCE_S),
        lambda log: log.sync(),
        lambda log: None,
    ],
    ids=["step", "eval", "event", "flush", "sync", "close"],
)
def test_a_script_that_never_calls_log_start_has_a_start_all_the_same(make, tell):
    log = make()
    with log.span("model_init"):
        pass
    tell(log)
    log.close()

    assert events(log)[0] == "start"
    assert events(log).count("start") == 1
    assert numbers(log) == list(range(len(numbers(log))))


def test_spans_do_not_wait_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(live_run, "_TEND_EVERY_S", 3600.0)
    clock = ManualClock()
    log = make_logger(tmp_path, clock=clock, config={"name": "r"})
    with log.span("application"):
        log._run._put_overdue_start()
        log._run.pipeline._writer.flush(PATIENCE_S)
        file = log.run_folder / "metrics.jsonl"
        assert not file.exists() or read_records(file) == []

        clock.advance(live_run._LONGEST_START_S)
        log._run._put_overdue_start()
        log._run.pipeline._writer.flush(PATIENCE_S)
        assert events(log)[:2] == ["start", "span_start"]

        log.log_start(training={"max_steps": 5})
    log.close()
    first, second = read_records(log.run_folder / "metrics.jsonl", "start")

    assert (first["config"], "max_steps" in first) == ({"name": "r"}, False)
    assert second["max_steps"] == 5


def test_a_start_that_cannot_be_written_does_not_hold_the_rest_back(make, monkeypatch):
    log = make()
    monkeypatch.setattr(live_run, "start_fields", lambda **_: 1 / 0)
    with log.span("model_init"):
        pass
    log.log_start()
    found = records_of(log)

    assert "span" in [record["event"] for record in found]
    assert log.guard.total > 0


KILLED = """
    import os, signal, sys
    from toolkit.telemetry import TelemetryLogger

    log = TelemetryLogger("r", log_dir=sys.argv[1], system=False, csv=False)
    log.span("application").__enter__()
    with log.span("model_init"):
        pass
    if sys.argv[2] == "started":
        # Before the writer has had a turn.
        log._run.pipeline._writer._turn = lambda: None
        log.log_start(config={"lr": 1e-3})
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("when", ["unstarted", "started"])
def test_a_kill_before_the_start_is_written_loses_no_span(tmp_path, when):
    done = run_python(["-c", textwrap.dedent(KILLED), tmp_path, when], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr

    repair_run(tmp_path / "r")
    found = read_records(tmp_path / "r" / "metrics.jsonl")
    spans = [record["event"] for record in found if record["event"] != "start"]

    assert spans == ["span_start", "span_start", "span"]
    assert [record["event"] for record in found][: when == "started"] == ["start"] * (when == "started")


def test_an_end_waits_for_a_start_that_another_thread_is_writing(make, monkeypatch):
    begun, may_go_on = threading.Event(), threading.Event()
    describe = live_run.start_fields

    def slowly(**given):
        begun.set()
        assert may_go_on.wait(PATIENCE_S)
        return describe(**given)

    log = make(close_timeout=60.0)
    monkeypatch.setattr(live_run, "start_fields", slowly)
    other = threading.Thread(target=log.log_event, args=("from_another_thread",))
    other.start()
    assert begun.wait(PATIENCE_S)
    log.log_step(0, train_loss=1.0)
    threading.Timer(0.3, may_go_on.set).start()
    log.close()
    other.join(PATIENCE_S)

    assert (events(log)[0], events(log)[-1]) == ("start", "end")
