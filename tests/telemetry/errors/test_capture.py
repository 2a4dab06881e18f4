"""A captured exception is recorded once, and passes unchanged."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.lengths import in_make_faults
from tests.records import read_records
from tests.telemetry.logged import make_logger, records_of


@pytest.fixture
def log(tmp_path):
    log = make_logger(tmp_path, log_every=1)
    yield log
    log.close()


def errors_of(log):
    return [record for record in records_of(log, "error") if record.get("source") != "telemetry"]


def fail(text="bad"):
    raise ValueError(text)


# ---------------------------------------------------------------- re-raising is exact


def caught(function, *args):
    try:
        function(*args)
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("nothing was raised")


def test_a_context_is_neither_lost_nor_made(log):
    def run():
        with log.capture_errors():
            try:
                fail("first")
            except ValueError as error:
                raise RuntimeError("second") from error

    found = caught(run)

    assert str(found.__cause__) == str(found.__context__) == "first"
    assert found.__context__.__context__ is None


def test_an_exception_of_ours_on_the_way_does_not_show_in_theirs(log, monkeypatch):
    def bug(*_, **__):
        raise KeyError("ours")

    monkeypatch.setattr("toolkit.telemetry.logger.errors.error_recorder.describe_in_full", bug)

    def run():
        with log.capture_errors():
            fail()

    found = caught(run)

    assert (type(found), found.__context__) == (ValueError, None)
    assert log.guard.counts["_take_error: KeyError"] == 1


@pytest.mark.parametrize("ours", [RecursionError, MemoryError])
def test_without_memory_to_record_it_the_script_s_exception_passes(log, monkeypatch, ours):
    def no_room(*_):
        raise ours

    monkeypatch.setattr(log, "_take_error", no_room)

    def run():
        with log.capture_errors():
            fail()

    assert isinstance(caught(run), ValueError)


def test_a_recursion_without_end_is_reported(log):
    def dive():
        dive()

    found = caught(log.capture_errors()(dive))

    (error,) = errors_of(log)
    assert isinstance(found, RecursionError)
    assert error["type"] == "RecursionError"
    assert any(line.endswith(" frames …") for line in error["stack"])


# ---------------------------------------------------------------- what can be decorated


def test_a_function_keeps_its_name_its_result_and_its_arguments(log):
    @log.capture_errors()
    def add(one, *, other):
        """Add."""
        return one + other

    assert (add.__name__, add.__doc__) == ("add", "Add.")
    assert add(1, other=2) == 3
    assert errors_of(log) == []


def test_a_coroutine_function_stays_one(log):
    @log.capture_errors()
    async def load(number):
        await asyncio.sleep(0)
        if number:
            fail()
        return "loaded"

    assert asyncio.iscoroutinefunction(load)
    assert asyncio.run(load(0)) == "loaded"
    assert isinstance(caught(asyncio.run, load(1)), ValueError)
    assert [error["stack"][-1].rpartition(" ")[2] for error in errors_of(log)] == ["fail"]


def test_a_generator_is_reported_and_its_end_is_no_error(log):
    @log.capture_errors()
    def batches(last):
        got = yield 1
        yield got
        if last:
            return "done"
        fail()

    iteration = batches(True)
    assert (next(iteration), iteration.send("sent")) == (1, "sent")
    with pytest.raises(StopIteration) as end:
        next(iteration)
    batches(False).close()
    abandoned = batches(False)
    next(abandoned)
    del abandoned

    assert end.value.value == "done"
    assert errors_of(log) == []
    assert isinstance(caught(list, batches(False)), ValueError)
    assert len(errors_of(log)) == 1


# ---------------------------------------------------------------- what is recorded


def test_nested_captures_and_the_end_of_the_run_reports_one_exception_once(tmp_path):
    log = make_logger(tmp_path)
    with pytest.raises(ValueError), log, log.capture_errors():
        with log.capture_errors():
            log.capture_errors()(fail)()

    (error,) = read_records(log.run_folder / "metrics.jsonl", "error")
    (end,) = read_records(log.run_folder / "metrics.jsonl", "end")
    assert (error["caught_by"], error["count"]) == ("capture_errors", 1)
    assert (end["status"], end["errors_total"]) == ("failed", 1)


@pytest.mark.parametrize(
    "error", [StopIteration(), GeneratorExit(), KeyboardInterrupt(), SystemExit(), SystemExit(0)], ids=repr
)
def test_what_is_no_failure_passes_unsaid(log, error):
    def run():
        with log.capture_errors():
            raise error

    assert caught(run) is error
    assert errors_of(log) == []


def test_a_task_that_was_called_off_has_not_failed(log):
    async def use():
        @log.capture_errors()
        async def wait():
            await asyncio.sleep(60)

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled()

    assert asyncio.run(use())
    assert errors_of(log) == []


def test_step_epoch_thread_and_spans_are_those_of_the_place_where_it_arose(log):
    log.log_step(7, train_loss=1.0, epoch=2)

    def work():
        with (
            log.capture_errors(),
            log.span("application"),
            log.span("my own"),
            log.span("training_iteration"),
            log.span("forward"),
        ):
            fail()

    thread = threading.Thread(target=lambda: caught(work), name="worker")
    thread.start()
    thread.join()
    (one,) = errors_of(log)

    assert (one["global_step"], one["epoch"], one["thread"]) == (7, 2, "worker")
    assert one["spans"] == ["application", "my own", "training_iteration", "forward"]


# ---------------------------------------------------------------- repeats


def test_repeats_are_counted_and_reported_at_each_power_of_ten(log):
    for number in range(120):
        caught(log.capture_errors()(fail), f"batch {number}")
    errors = errors_of(log)
    log.close()

    assert [error["count"] for error in errors] == [1, 10, 100]
    assert len({(error["fingerprint"], error["id"]) for error in errors}) == 1
    assert errors[1]["message"] == "ValueError: batch 9"
    (end,) = read_records(log.run_folder / "metrics.jsonl", "end")
    assert end["errors_total"] == 120
    assert end["errors"] == [{"type": "ValueError", "fingerprint": errors[0]["fingerprint"], "count": 120}]
    assert end["status"] == "finished", "each of them was caught"


@in_make_faults
def test_errors_beyond_the_distinct_ones_that_are_kept_are_counted_together(log):
    def place(number):
        namespace = {}
        exec(compile("\n" * number + "def fail(): raise ValueError", "made.py", "exec"), namespace)
        return namespace["fail"]

    for number in range(150):
        for _ in range(2):
            caught(log.capture_errors()(place(number)))
    errors = errors_of(log)
    log.close()

    assert len({error["id"] for error in errors}) == 101
    assert len(errors) == 100 + len([1, 10, 100])
    (end,) = read_records(log.run_folder / "metrics.jsonl", "end")
    assert (end["errors_total"], len(end["errors"]), end["errors_of_other_kinds"]) == (300, 100, 100)


# ---------------------------------------------------------------- the error that ends the run is recorded


def test_the_error_that_ends_the_run_is_reported_however_often_it_came_before(tmp_path):
    log = make_logger(tmp_path, log_every=1)

    @log.capture_errors()
    def load(batch):
        raise OSError(f"batch {batch} cannot be read")

    for batch in range(3):
        with pytest.raises(OSError, match="batch"):
            load(batch)
    with pytest.raises(OSError, match="batch 3"), log:
        load(3)

    first, last = errors_of(log)
    assert (first["message"], first["count"]) == ("OSError: batch 0 cannot be read", 1)
    assert (last["message"], last["count"]) == ("OSError: batch 3 cannot be read", 4)
    assert (last["id"], last["caught_by"]) == (first["id"], "end")
    (end,) = records_of(log, "end")
    assert (end["status"], end["errors_total"]) == ("failed", 4)


# ---------------------------------------------------------------- ways to decorate


def test_it_works_above_other_decorators_and_without_parentheses(log):
    class Data:
        @log.capture_errors()
        @staticmethod
        def double(value):
            return 2 * value

        @log.capture_errors
        @classmethod
        def name(cls, text):
            return cls.__name__ + text

    assert (Data().double(2), Data.double(3), Data().name("!"), Data.name("?")) == (4, 6, "Data!", "Data?")
    with pytest.raises(ValueError, match="bad"):
        log.capture_errors(fail)()
    assert [error["type"] for error in errors_of(log)] == ["ValueError"]
