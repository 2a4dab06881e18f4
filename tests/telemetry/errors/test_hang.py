"""A hang is reported once, with all stacks; an explained pause may take longer, and sleep is not a hang."""

from __future__ import annotations

import threading

import pytest

from tests.records import read_records
from tests.telemetry.logged import make_logger, records_of
from tests.waiting import wait_until
from toolkit.telemetry.core.clock import ManualClock
from toolkit.telemetry.logger.errors import hang
from toolkit.telemetry.logger.errors.hang import HangWatch, TrainingProgress, thread_stacks
from toolkit.telemetry.logger.errors.main_thread import where_rank_is


class Training:
    """What a watch sees of a training that a test drives by hand."""

    def __init__(self, *, after_s=60.0, rank=0):
        self.clock = ManualClock()
        self.step = None
        self.words = self.done = 0
        self.planned = None
        self.spans = []
        self.reported = []
        self.watch = HangWatch(
            after_s=after_s,
            session=1,
            rank=rank,
            now=self.clock.monotonic,
            progress=self.progress,
            open_spans=lambda: [{"name": name, "seconds": 1.0} for name in self.spans],
            about_gpu=lambda: {"gpu": {"gpu_util": 100}, "not_answering": ["nvml"]},
            report=lambda finding, more: self.reported.append((finding, more)),
        )

    def progress(self):
        is_done = self.planned is not None and self.step == self.planned
        return TrainingProgress(
            step=self.step, steps=self.step, others=self.words, is_done=is_done, done=self.done
        )

    def wait(self, seconds):
        """Let time pass in which nothing comes."""
        for _ in range(int(seconds * 2)):
            self.clock.advance(0.5)
            self.watch.look()

    def train(self, steps, seconds=1.0):
        for _ in range(steps):
            self.wait(seconds)
            self.step = 1 if self.step is None else self.step + 1
        self.watch.look()

    @property
    def findings(self):
        return [(finding.state, finding.severity) for finding, _ in self.reported]


def test_no_step_for_a_minute_is_reported_once_and_is_over_with_the_next():
    training = Training()
    training.train(20)
    training.wait(59)
    assert training.reported == []
    training.wait(40)
    training.train(2)

    (hang, about), (over, more) = training.reported
    assert (hang.kind, hang.state, hang.severity) == ("hang", "open", "info")
    assert (hang.start_step, hang.noticed_step, hang.end_step) == (20, 20, None)
    assert hang.evidence["seconds"] == 60
    assert hang.evidence["usual_s"] == pytest.approx(1.0, abs=0.3)
    assert about["stacks"]
    assert about["gpu"] == {"gpu_util": 100}
    assert about["not_answering"] == ["nvml"]
    assert (over.id, over.state, over.resolved_step, over.end_step) == (hang.id, "resolved", 21, 21)
    assert 99 <= over.evidence["seconds"] <= 102
    assert more == {}


def test_slow_steps_get_five_times_their_usual_time():
    training = Training()
    training.train(10, seconds=30.0)
    training.wait(145)
    assert training.reported == []
    training.wait(10)

    assert training.findings == [("open", "info")]
    assert training.reported[0][0].evidence["seconds"] == pytest.approx(150, abs=2)


def test_a_script_that_logs_every_hundredth_step_is_measured_by_that():
    training = Training()
    for _ in range(10):
        training.wait(40)
        training.step = (training.step or 0) + 100
    training.watch.look()
    training.wait(190)
    assert training.reported == []
    training.wait(20)

    assert training.reported[0][0].evidence["usual_s"] == pytest.approx(0.4, abs=0.05), "seconds a step"


def test_it_becomes_loud_after_five_minutes_without_telling_the_stacks_again():
    training = Training()
    training.train(20)
    training.wait(400)

    assert training.findings == [("open", "info"), ("open", "warning")]
    assert training.reported[0][0].id == training.reported[1][0].id
    assert "stacks" not in training.reported[1][1]


def test_before_the_first_step_ten_times_as_long_is_waited_and_it_stays_quiet():
    training = Training()
    training.wait(599)
    assert training.reported == []
    training.wait(2000)
    training.train(1)

    assert training.findings == [("open", "info"), ("resolved", "info")]


@pytest.mark.parametrize("looks", [1, 2])
def test_a_loop_that_hangs_in_its_first_seconds_is_reported_in_time(looks):
    training = Training()
    for _ in range(looks):
        training.step = training.done = training.done + 300
        training.clock.advance(1.0)
        training.watch.look()
    training.wait(59)
    assert training.reported == []
    training.wait(2)

    assert training.findings == [("open", "info")]
    assert training.reported[0][0].evidence["usual_s"] == pytest.approx(1 / 300)


def test_whatever_else_the_training_says_is_a_sign_of_life():
    training = Training()
    training.train(20)
    for _ in range(20):
        training.wait(50)
        training.words += 1
    assert training.reported == []
    training.wait(70)
    training.words += 1
    training.watch.look()

    assert training.findings == [("open", "info"), ("resolved", "info")]


@pytest.mark.parametrize("name", ["validation_loop", "checkpoint_save_sync", "sampling", "checkpoint_load"])
def test_a_pause_that_an_open_span_explains_is_waited_for(name):
    training = Training()
    training.train(20)
    training.spans = ["training_loop", name]
    training.wait(599)
    assert training.reported == []
    training.wait(10)

    assert training.findings == [("open", "warning")]
    assert [span["name"] for span in training.reported[0][1]["open_spans"]] == ["training_loop", name]


def test_evaluations_that_take_long_make_longer_ones_usual():
    training = Training()
    training.train(20)
    for _ in range(2):
        training.spans = ["validation_loop"]
        training.wait(500)
        training.spans = []
        training.words += 1
        training.train(5)
    training.spans = ["validation_loop"]
    training.wait(2400)
    assert training.reported == []
    training.wait(200)

    assert training.findings == [("open", "warning")]


@pytest.mark.parametrize("name", ["training_loop", "my own", "forward"])
def test_other_spans_explain_nothing(name):
    training = Training()
    training.train(20)
    training.spans = [name]
    training.wait(61)

    assert len(training.reported) == 1


def test_a_machine_that_slept_is_no_hang():
    training = Training()
    training.train(20)
    training.wait(30)
    training.clock.advance(3600)
    training.watch.look()
    training.wait(25)
    assert training.reported == []
    training.wait(10)

    assert len(training.reported) == 1, "the time in which we looked counts"


def test_behind_the_last_planned_step_nothing_is_expected():
    training = Training()
    training.planned = 20
    training.train(20)
    training.wait(5000)

    assert training.reported == []


def test_the_same_step_that_hangs_again_is_the_same_incident_come_back():
    training = Training()
    training.train(20)
    for _ in range(3):
        training.wait(70)
        training.words += 1
        training.watch.look()

    assert [finding.repeats for finding, _ in training.reported] == [0, 0, 1, 1, 2, 2]
    assert len({finding.id for finding, _ in training.reported}) == 1


# ---------------------------------------------------------------- where a rank is


def of_ranks(monkeypatch, training, *, works):
    """Have this be one of several ranks, whose main thread works in a hang or does nothing."""
    monkeypatch.setattr(
        hang, "where_rank_is", lambda: {"line": "train.py:3 in train", "collective": "barrier"}
    )
    monkeypatch.setattr(hang, "processor_s", lambda: works * training.clock.monotonic())


@pytest.mark.parametrize("works", [0.0, 0.5])
def test_ten_seconds_later_a_rank_says_where_it_is_and_whether_it_only_waits(monkeypatch, works):
    training = Training()
    of_ranks(monkeypatch, training, works=works)
    training.train(20)
    training.wait(69)
    assert [more.get("where") for _, more in training.reported] == [None]
    training.wait(200)

    (_, (finding, more)) = training.reported
    assert (finding.state, finding.evidence["seconds"]) == ("open", pytest.approx(70, abs=1))
    assert more == {
        "where": {"line": "train.py:3 in train", "collective": "barrier", "is_idle": works == 0.0}
    }


def test_where_a_rank_is_comes_again_after_five_minutes(monkeypatch):
    training = Training()
    of_ranks(monkeypatch, training, works=0.5)
    training.train(20)
    training.wait(301)

    assert ["where" in more for _, more in training.reported] == [False, True, True]
    assert training.reported[-1][0].evidence["seconds"] >= 300


def test_a_process_of_its_own_has_no_place_among_ranks():
    assert where_rank_is() == {}


# ---------------------------------------------------------------- where threads stand


def wait_for_all(threads, arrived):
    """Wait until each thread is at its place: one that has started may not have come to its own code yet."""
    for _ in threads:
        assert arrived.acquire(timeout=60)


def test_every_thread_is_reported_but_ours_and_those_at_the_same_place_together():
    waiting, arrived = threading.Event(), threading.Semaphore(0)

    def wait_here():
        arrived.release()
        waiting.wait()

    def stacks_with_all_waiters_together():
        found = thread_stacks()["stacks"]
        together = [each for each in found if any("wait_here" in line for line in each["stack"])]
        return (found, *together) if len(together) == 1 else None

    threads = [
        threading.Thread(target=wait_here, name=f"waiter-{number}", daemon=True) for number in range(50)
    ]
    threads.append(threading.Thread(target=wait_here, name="telemetry-something", daemon=True))
    for thread in threads:
        thread.start()
    try:
        wait_for_all(threads, arrived)
        found, waiters = wait_until(stacks_with_all_waiters_together)
    finally:
        waiting.set()

    assert found[0]["threads"][0] == threading.main_thread().name
    assert waiters["threads"][:2] == ["waiter-0", "waiter-1"]
    assert all(name.startswith("waiter-") for name in waiters["threads"])
    assert (len(waiters["threads"]), waiters["more_threads"]) == (40, 10)
    assert not any(name.startswith("telemetry") for each in found for name in each["threads"])


# ---------------------------------------------------------------- of a run


def hang_of(log):
    return [record for record in records_of(log, "finding") if record["kind"] == "hang"]


def look(log):
    for _, _, do in log._run._watchman._tasks:
        do()


@pytest.fixture
def clock():
    return ManualClock()


def hanging(tmp_path, clock, **options):
    """Return a logger whose steps have stopped, and have it looked at for two minutes."""
    log = make_logger(tmp_path, clock=clock, log_every=1, **options)
    # The test looks by itself.
    log._run._watchman.close(5.0)
    for step in range(20):
        clock.advance(1.0)
        log.log_step(step, train_loss=1.0 / (step + 1))
        look(log)
    span = log.start_span("all_reduce")
    for _ in range(240):
        clock.advance(0.5)
        look(log)
    span.stop()
    return log


def test_a_run_writes_it_and_counts_it_among_its_findings(tmp_path, clock):
    log = hanging(tmp_path, clock)
    (record,) = hang_of(log)
    look(log)
    log.close()

    assert (record["global_step"], record["severity"], record["state"]) == (19, "info", "open")
    assert [span["name"] for span in record["open_spans"]] == ["all_reduce"]
    assert any("test_a_run_writes_it" in line for each in record["stacks"] for line in each["stack"])
    over = [
        each for each in read_records(log.run_folder / "metrics.jsonl", "finding") if each["kind"] == "hang"
    ]
    assert [each["state"] for each in over] == ["open", "resolved"]


@pytest.mark.parametrize(
    "options",
    [
        {"errors": {"hang": False}},
        {"errors": False},
        {"diagnostics": False},
        {"diagnostics": {"hang": "off"}},
    ],
)
def test_a_run_that_does_not_want_it_writes_none(tmp_path, clock, options):
    log = hanging(tmp_path, clock, **options)

    assert hang_of(log) == []
    log.close()


def test_a_rank_without_an_examiner_writes_its_own(tmp_path, clock, monkeypatch):
    for name, value in {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANK", "0")
    zero = make_logger(tmp_path, ranks="all")
    monkeypatch.setenv("RANK", "1")
    log = hanging(tmp_path, clock, ranks="all")
    log.flush()
    (record,) = [
        each
        for each in read_records(log.run_folder / "ranks" / "00001.jsonl", "finding")
        if each["kind"] == "hang"
    ]
    log.close()
    zero.close()

    assert record["id"].endswith("-rank-1")
    assert record["stacks"]
