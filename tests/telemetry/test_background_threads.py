"""All loggers of a process share a few threads, and what hangs in one of them holds up no other."""

import threading
import time

import pytest

from tests.lengths import in_make_faults
from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S, records_of
from tests.waiting import wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.core import background as module


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    """Have background threads of this test alone; return a function that counts the threads of it."""
    monkeypatch.setattr(module, "_workers", {})
    before = set(threading.enumerate())
    return lambda: len(set(threading.enumerate()) - before)


@pytest.fixture
def make(tmp_path):
    made = []

    def make_one(log_dir=tmp_path, **options):
        made.append(TelemetryLogger("r", log_dir=log_dir, log_every=1, **options))
        return made[-1]

    yield make_one
    for log in made:
        log.close()


def test_a_logger_with_defaults_has_at_most_three_threads_and_none_once_it_is_closed(make, threads):
    log = make()
    log.log_step(1, train_loss=0.5)
    # Those that describe the machine end by themselves.
    assert log._run._probe.is_done(PATIENCE_S)
    wait_until(lambda: threads() <= 3)
    log.close()

    wait_until(lambda: not threads())


@pytest.mark.parametrize("count", [6, pytest.param(64, marks=in_make_faults)])
def test_many_loggers_of_a_log_directory_have_no_more_threads_than_one(make, threads, count):
    logs = [make() for _ in range(count)]
    for log in logs:
        log.log_step(1, train_loss=0.5)
    for log in logs:
        assert log._run._probe.is_done(PATIENCE_S)
    wait_until(lambda: threads() <= 3)
    for log in logs:
        log.close()
        assert [record["train_loss"] for record in records_of(log, "step")] == [0.5]

    wait_until(lambda: not threads())


def test_the_writer_of_an_idle_logger_sleeps_until_the_next_record_wakes_it(make):
    log = make(system=False)
    queue, writer = log._run.pipeline.record_queue, log._run.pipeline._writer
    for step in (1, 2):
        log.log_step(step, train_loss=0.5)
        wait_until(lambda step=step: len(read_records(log.run_folder, "step")) == step)
        wait_until(lambda: not queue._wake_at and writer._job.due - time.monotonic() > 1.0)


def test_a_thread_too_many_hides_no_turn_that_hangs(monkeypatch):
    hangs, is_chosen, goes_on, released, done = (threading.Event() for _ in range(5))
    worker = module.Worker("one kind", is_shared=False)
    choose = worker._next

    def choose_slowly_at_first(now):
        job = choose(now)
        if not is_chosen.is_set():
            is_chosen.set()
            goes_on.wait(PATIENCE_S)
        return job

    monkeypatch.setattr(worker, "_next", choose_slowly_at_first)
    module.Job("quick", lambda: 60.0, worker).start()
    assert is_chosen.wait(PATIENCE_S)
    module.Job("hangs", lambda: hangs.set() or (released.wait(10 * PATIENCE_S) and None), worker).start()
    first = worker._thread
    worker._start_thread()
    assert hangs.wait(PATIENCE_S)
    goes_on.set()
    first.join(PATIENCE_S)
    module.Job("is due", done.set, worker).start()

    wait_until(lambda: worker.help_out(time.monotonic()) or done.is_set(), timeout_s=PATIENCE_S)
    released.set()


class Stuck:
    """Stands for a method that a disk or a network holds up."""

    def __init__(self, method):
        self.method = method
        self.hangs, self.release = threading.Event(), threading.Event()

    def __call__(self, *args):
        self.hangs.set()
        self.release.wait(PATIENCE_S)
        return self.method(*args)


@pytest.mark.parametrize("count", [2, pytest.param(64, marks=in_make_faults)])
def test_of_loggers_half_of_whose_disks_hang_the_others_finish(make, monkeypatch, tmp_path, count):
    logs = [make(tmp_path / str(number), system=False) for number in range(count)]
    hung, others = logs[: count // 2], logs[count // 2 :]
    stuck = []
    for log in hung:
        assert log.flush(PATIENCE_S)
        file, table = log._run.pipeline._file, log._run.pipeline._mirrors[0].sink
        for place, name in ((file, "write"), (file, "sync"), (table, "write")):
            stuck.append(Stuck(getattr(place, name)))
            monkeypatch.setattr(place, name, stuck[-1])
        log.log_step(1, train_loss=0.5)
        assert not log.flush(0.1)
        assert stuck[-3].hangs.wait(PATIENCE_S)
    for log in others:
        for step in range(3):
            log.log_step(step, train_loss=0.5)
            assert log.flush(PATIENCE_S)
        log.close()
        assert len(records_of(log, "step")) == 3
    for one in stuck:
        one.release.set()

    for log in hung:
        assert log.flush(PATIENCE_S)
        log.close()
        assert len(records_of(log, "step")) == 1


class Sink:
    """A mirror of the script's own."""

    name = "own"

    def __init__(self):
        self.threads, self.release = set(), threading.Event()

    def write(self, batch):
        self.threads.add(threading.current_thread())
        self.release.wait(PATIENCE_S)

    def close(self):
        self.threads.add(threading.current_thread())


def test_a_mirror_of_the_scripts_own_is_called_on_one_thread_and_holds_up_no_other_logger(make):
    sink = Sink()
    with_sink, other = make(system=False, sinks=[sink]), make(system=False)
    with_sink.log_step(1, train_loss=0.5)
    wait_until(lambda: sink.threads)
    other.log_step(1, train_loss=0.5)
    assert other.flush(PATIENCE_S)
    sink.release.set()
    with_sink.close()

    assert [thread.name for thread in sink.threads] == ["telemetry-own"]


def test_loggers_share_their_samples_and_each_hears_of_a_failure(make, monkeypatch, tmp_path):
    class Failing:
        name = "failing"

        def sample(self):
            raise OSError("no such driver")

        def close(self):
            closed.append(1)

    made, closed = [], []

    def samplers(log_dir, guard):
        made.append(Failing())
        return made[-1:]

    monkeypatch.setattr("toolkit.telemetry.logger.session.live_run.default_samplers", samplers)
    logs = [make(), make()]
    for log in logs:
        wait_until(lambda log=log: log.guard.counts.get("sampling failing: OSError"))
    logs[0].close()
    assert not closed
    logs[1].close()

    assert len(made) == len(closed) == 1
    again = make()
    again.close()
    assert len(made) == len(closed) == 2
