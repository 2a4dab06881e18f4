"""Profiled functions and blocks: what is logged of them, and what is not."""

from __future__ import annotations

import asyncio
import functools

import pytest

from tests.records import read_records, with_event
from tests.telemetry.logged import make_logger


@pytest.fixture
def begin(tmp_path, clock, close_at_end):
    return lambda **options: close_at_end(make_logger(tmp_path, clock=clock, log_every=1, **options))


def read(log):
    log.close()
    return read_records(log.run_folder)


def steps(log):
    return with_event(read(log), "step")


def profiled(record):
    return {name: value for name, value in record.items() if name.startswith("profiling/")}


def test_blocks_are_on_the_next_step_record_in_seconds_of_several_calls_the_mean_and_the_longest(
    begin, clock
):
    log = begin()
    for name, seconds in (("forward_pass", 0.25), ("a", 0.1), ("a", 0.2), ("a", 0.6)):
        with log.profile_block(name):
            clock.advance(seconds)
    log.log_step(0, train_loss=1.0)
    log.log_step(1, train_loss=1.0)

    first, second = steps(log)

    assert profiled(first) == {
        "profiling/forward_pass": pytest.approx(0.25),
        "profiling/a": pytest.approx(0.3),
        "profiling/a/max": pytest.approx(0.6),
    }
    assert profiled(second) == {}


def test_a_method_is_called_by_its_class_and_a_function_by_its_name(begin, clock):
    log = begin()

    class Trainer:
        @log.profile
        def compute_loss(self, seconds, *, more=0):
            """Compute it."""
            clock.advance(seconds + more)
            return seconds

    @log.profile("load")
    def any_name():
        clock.advance(1)

    @log.profile(name="asked for", min_duration_ms=0)
    def another_name():
        pass

    @log.profile
    async def fetch():
        await asyncio.sleep(0)
        clock.advance(0.5)
        return "a"

    assert asyncio.run(fetch()) == "a"
    assert Trainer().compute_loss(0.5, more=0.25) == 0.5
    assert Trainer.compute_loss.__doc__ == "Compute it."
    any_name()
    another_name()
    log.log_step(0, train_loss=1.0)

    (step,) = steps(log)

    assert profiled(step) == {
        "profiling/Trainer.compute_loss": pytest.approx(0.75),
        "profiling/load": pytest.approx(1.0),
        "profiling/asked for": 0.0,
        "profiling/fetch": pytest.approx(0.5),
    }


def test_an_exception_passes_unchanged_and_the_time_up_to_it_is_recorded(begin, clock):
    log = begin()
    raised = ValueError("theirs")

    @log.profile
    def fails():
        clock.advance(0.5)
        raise raised

    with pytest.raises(ValueError, match="theirs") as from_function:
        fails()

    def fail_in_a_block():
        with log.profile_block("block"):
            clock.advance(0.25)
            raise raised

    with pytest.raises(ValueError, match="theirs") as from_block:
        fail_in_a_block()
    log.log_step(0, train_loss=1.0)

    assert from_function.value is raised
    assert from_block.value is raised
    assert raised.__context__ is None
    (step,) = steps(log)
    assert profiled(step) == {"profiling/fails": pytest.approx(0.5), "profiling/block": pytest.approx(0.25)}


def test_short_calls_are_not_counted_and_of_the_others_every_so_many_is_logged(begin, clock):
    log = begin(profiling={"min_duration_ms": 100, "log_interval": 3})
    for step in range(8):
        with log.profile_block("a"):
            clock.advance(0.01)
        with log.profile_block("a"):
            clock.advance(1 + step)
        log.log_step(step, train_loss=1.0)

    recorded = {record["global_step"]: profiled(record) for record in steps(log)}

    # The first long one, then the third and the sixth.
    assert {step: found["profiling/a"] for step, found in recorded.items() if found} == {
        0: pytest.approx(1.0),
        2: pytest.approx(3.0),
        5: pytest.approx(6.0),
    }


def test_limits_may_be_given_with_the_name(begin, clock):
    log = begin()

    @log.profile(min_duration_ms=1000, log_interval=2)
    def work(seconds):
        clock.advance(seconds)

    for step, seconds in enumerate((0.5, 2, 3, 4)):
        work(seconds)
        log.log_step(step, train_loss=1.0)

    assert [profiled(record).get("profiling/work") for record in steps(log)] == [
        None,
        pytest.approx(2),
        pytest.approx(3),
        None,
    ]


def test_off_means_off_everywhere(begin, clock):
    log = begin(profiling=False)

    def work():
        clock.advance(1)

    assert log.profile(work) is work
    with log.profile_block("a"):
        clock.advance(1)
    log.log_step(0, train_loss=1.0)
    records = read(log)

    assert not any(profiled(record) for record in records)
    assert not with_event(records, "span_summary")


def test_after_the_end_a_profiled_function_still_works(begin):
    log = begin()

    @log.profile
    def work():
        return 5

    log.close()

    assert work() == 5
    with log.profile_block("a"):
        pass


def test_names_without_end_are_added_up_and_odd_ones_are_named(begin, clock):
    log = begin()
    for number in range(300):
        with log.profile_block(f"block {number}"):
            clock.advance(1)
    for odd in (None, 5, ["a"], "", "x" * 5000):
        with log.profile_block(odd):
            clock.advance(1)
    log.log_step(0, train_loss=1.0)

    (step,) = steps(log)

    found = profiled(step)
    assert len([name for name in found if not name.endswith("/max")]) == 201
    assert found["profiling/(other names)"] == pytest.approx(1.0)
    assert max(map(len, found)) < 200


@pytest.mark.parametrize("decorator", ["profile", "timed", "capture_errors"])
def test_a_class_and_a_property_stay_what_they_are(begin, clock, decorator, caplog):
    log = begin()
    decorate = {"profile": log.profile, "timed": log.timed("timed"), "capture_errors": log.capture_errors}[
        decorator
    ]

    class Model:
        pass

    class Data(decorate(Model)):
        @decorate
        @property
        def size(self):
            """How large it is."""
            clock.advance(0.5)
            return 3

        @size.setter
        def size(self, size):
            self.given = size

        @decorate
        @functools.cached_property
        def loaded(self):
            return [1]

    data = Data()
    data.size = 4

    assert decorate(Model) is Model
    assert f"{decorator} decorates functions, methods and properties; the class Model" in caplog.text
    assert (data.size, data.given, type(data).size.__doc__) == (3, 4, "How large it is.")
    assert data.loaded is data.loaded
    log.log_step(1, train_loss=1.0)
    (step,) = steps(log)
    assert profiled(step) == ({"profiling/Data.size": 0.5} if decorator == "profile" else {})


def test_a_generator_is_not_timed(begin):
    log = begin(spans=True)

    def produce():
        yield 1

    assert log.profile(name="plain")(produce) is produce


@pytest.mark.parametrize("decorator", ["profile", "timed"])
def test_a_cached_function_keeps_the_calls_of_its_cache(begin, decorator):
    cached = getattr(begin(), decorator)("cached")(functools.lru_cache(abs))
    cached(-1), cached(-1)

    assert cached.cache_info().hits == 1
