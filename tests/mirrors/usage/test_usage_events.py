from __future__ import annotations

import itertools

from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S, make_logger
from toolkit.mirrors.usage.allow_list import EVENTS
from toolkit.mirrors.usage.event import OF_THE_SERVICE
from toolkit.mirrors.usage.usage_events import UsageEventReader, events_of

MACHINE = {"os": "Linux-6.1.0-x86_64-with-glibc2.36", "python": "3.11.9"}


class Run:
    """Records of a session, as they come one by one."""

    def __init__(self, session=1):
        self.session = session
        self.story = UsageEventReader(session)
        self._seq = itertools.count()
        self.events = []

    def tell(self, event, elapsed, **fields):
        record = {
            "event": event, "time": 1_700_000_000.0 + elapsed, "elapsed": elapsed, "seq": next(self._seq),
            "session": self.session, **fields,
        }  # fmt: skip
        self.events += self.story.take(record)
        return record

    @property
    def names(self):
        return [event.name for event in self.events]


def test_a_run_is_reported_from_start_to_end():
    run = Run()
    run.tell("start", 0.0, **MACHINE, batch_size=4)
    run.tell("step", 1.0, global_step=1, train_loss=0.5)
    run.tell("step", 70.0, global_step=50, train_loss=0.4)
    run.tell("end", 80.0, status="finished", seconds=80.0, global_step=50, records_lost=0, telemetry_errors=0)

    assert run.names == ["run-start", "run-progress", "run-end"]
    start, progress, end = (event.properties for event in run.events)
    assert (start["os"], start["batch_size"], start["is_resumed"]) == ("linux", 4, False)
    assert (progress["step"], progress["train_loss"]) == (50, 0.4)
    assert (end["status"], end["total_steps"], end["steps_per_second"]) == ("finished", 50, 0.625)
    assert [event.time for event in run.events] == [1_700_000_001.0, 1_700_000_070.0, 1_700_000_080.0]


def test_every_event_has_what_keeps_the_service_from_adding_to_it_and_nothing_else_beyond_the_list():
    run = Run()
    run.tell("start", 0.0, **MACHINE, run_name="orchid", run_id="abc", host="janes-gpu-box", seed=5)
    run.tell("step", 100.0, global_step=1, train_loss=0.5, orchid_metric=3.0)
    run.tell("step", 500.0, global_step=1, train_loss=0.5, orchid_metric=3.0)
    run.tell("end", 501.0, status="finished", reason="orchid")

    assert len(run.events) == 3
    for event in run.events:
        assert set(event.properties) <= {*EVENTS[event.name], *OF_THE_SERVICE}
        assert set(OF_THE_SERVICE) <= set(event.properties)


def test_the_start_waits_for_a_machine_that_is_described_late_and_for_what_is_trained():
    run = Run()
    run.tell("start", 0.0)
    run.tell("step", 0.5, global_step=1)
    run.tell("start", 0.6, batch_size=4)
    assert run.events == []

    run.tell("environment", 3.0, **MACHINE)

    assert run.names == ["run-start"]
    assert run.events[0].properties["batch_size"] == 4
    assert run.events[0].properties["python_version"] == "3.11.9"


def test_a_machine_that_is_never_described_does_not_hold_the_start_up_for_long():
    run = Run()
    run.tell("start", 0.0, batch_size=4)
    run.tell("system", 29.0)
    assert run.events == []
    run.tell("system", 30.0)

    assert run.names == ["run-start"]
    assert "os" not in run.events[0].properties


def test_a_run_that_ends_at_once_is_reported_whole():
    run = Run()
    run.tell("start", 0.0)
    run.tell("end", 0.1, status="failed")

    assert run.names == ["run-start", "run-end"]


def test_progress_is_reported_ever_more_seldom():
    run = Run()
    run.tell("start", 0.0, **MACHINE)
    month = 30 * 24 * 3600
    for number in range(0, month, 60):
        run.tell("step", float(number), global_step=number)
    reported = [event for event in run.events if event.name == "run-progress"]

    assert len(reported) < 100
    gaps = [later.time - earlier.time for earlier, later in itertools.pairwise(reported)]
    assert min(gaps) >= 300
    assert gaps == sorted(gaps)
    assert gaps[-1] > 10_000


def test_an_evaluation_is_no_reason_to_report_and_no_step():
    run = Run()
    run.tell("start", 0.0, **MACHINE)
    run.tell("step", 1.0, global_step=1, train_loss=0.5)
    run.tell("eval", 400.0, global_step=1, train_loss=0.0, val_loss=3.0)
    assert run.names == ["run-start"]
    run.tell("end", 401.0, status="finished")

    assert run.events[-1].properties["train_loss"] == 0.5


def test_errors_are_reported_at_the_end_without_a_word_of_theirs():
    run = Run()
    run.tell("start", 0.0, **MACHINE)
    run.tell(
        "error", 1.0, type="ValueError", module="builtins", fingerprint="f", count=1,
        message="ValueError: /home/jane/orchid-merger is empty",
        stack=["orchid.py:5 in load", "json/decoder.py:3 in f"],
    )  # fmt: skip
    run.tell(
        "end",
        2.0,
        status="failed",
        errors_total=1,
        errors=[{"type": "ValueError", "fingerprint": "f", "count": 1}],
    )
    end = run.events[-1].properties

    assert end["status"] == "failed"
    assert end["errors"] == [{"type": "ValueError", "count": 1, "stack": ["(script)", "(script)"]}]
    assert end["errors_total"] == 1


def test_a_record_that_is_read_twice_is_looked_at_once():
    run = Run()
    first = run.tell("start", 0.0, **MACHINE)
    second = run.tell("step", 1.0, global_step=1)
    last = run.tell("end", 2.0, status="finished")
    for record in (first, second, last):
        assert run.story.take(record) == []

    assert run.events[-1].properties["total_steps"] == 1


def test_records_of_other_sessions_and_torn_ones_are_passed_over():
    story = UsageEventReader(2)
    whole = {"event": "end", "time": 5.0, "elapsed": 1.0, "seq": 9, "session": 2, "status": "finished"}

    for torn in ({**whole, "session": 1}, {**whole, "seq": None}, {**whole, "time": "x"}, {}):
        assert story.take(torn) == []
    assert [event.name for event in story.take({**whole, "elapsed": None})] == ["run-start", "run-end"]


def test_a_run_that_was_resumed_is_reported_by_session(tmp_path):
    for _ in range(2):
        with make_logger(tmp_path, resume=True, log_every=1) as log:
            log.log_start(training={"batch_size": 2})
            log.log_step(1, train_loss=0.5)
    events = list(events_of(read_records(tmp_path / "r" / "metrics.jsonl")))

    assert [event.name for event in events] == ["run-start", "run-end"] * 2
    assert [event.properties.get("is_resumed") for event in events] == [False, None, True, None]


def test_the_same_records_make_the_same_events(tmp_path):
    with make_logger(tmp_path, log_every=1) as log:
        log.log_start(model={"name": "google/gemma-2b"})
        log.log_step(1, train_loss=0.5)
        log.log_epoch(1)
    records = read_records(tmp_path / "r" / "metrics.jsonl")

    assert [event.shown() for event in events_of(records)] == [event.shown() for event in events_of(records)]


def test_the_redactor_has_nothing_to_do_behind_the_list(tmp_path):
    """What the allow-list lets through is harmless, so the second fence must leave it as it is."""
    with make_logger(tmp_path, log_every=1) as log:
        # A start does not wait for long for the machine's description, and this run is over at once.
        log._run._probe.result(PATIENCE_S)
        log.log_start(
            model={
                "name": "google/gemma-2b",
                "architecture": "Gemma2ForCausalLM",
                "total_params": 2_506_172_416,
            },
            lora={"rank": 16, "alpha": 32, "dropout": 0.05},
            training={
                "optimizer": "adamw_torch_fused",
                "scheduler": "cosine",
                "dtype": "bfloat16",
                "learning_rate": 1e-4,
            },
        )
        log.log_step(1, train_loss=0.5)
    start, end = (event.properties for event in events_of(read_records(tmp_path / "r" / "metrics.jsonl")))

    for value in (*start.values(), *end.values()):
        assert "***" not in str(value)
        assert "<" not in str(value)
    assert start["model"] == "google/gemma-2b"
    assert start["package_versions"]["torch"][0].isdigit()
