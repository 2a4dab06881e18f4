"""Spans: their records, their place in the tree, what is added up, and that they never harm the training."""

import asyncio
import contextlib
import contextvars
import json
import threading
import weakref

import pytest

from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S, make_logger, records_of
from toolkit.telemetry import OptionsError, TelemetryOptions
from toolkit.telemetry.core.guard import MisuseError
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.spans.span import NO_SPAN, FoldedSpan, Span


@pytest.fixture
def make(tmp_path, clock, close_at_end):
    def make(**options):
        log = close_at_end(make_logger(tmp_path, **{"diagnostics": False, "clock": clock, **options}))
        if log.is_live:
            # The tests do its chores where they want them done, and two at once would not do.
            log._run.periodic.close(PATIENCE_S)
        return log

    return make


def spans_of(log, name=None):
    return [span for span in records_of(log, "span") if name is None or span["name"] == name]


def tend(log):
    """Do now what the housekeeper does every second."""
    log._run.spans.tend()


# ---------------------------------------------------------------- one span


def test_a_span_says_what_it_was_when_and_how_long(make, clock):
    log = make()
    clock.advance(2.0)
    with log.span("encode", images=4) as span:
        clock.advance(1.5)
        span.set(width=512)

    (record,) = spans_of(log)
    assert record["name"] == "encode"
    assert record["id"] == span.id
    assert len(span.id) == 16
    assert int(span.id, 16)
    assert "parent_id" not in record
    assert record["start"] == pytest.approx(clock.wall() - 1.5)
    assert record["duration"] == pytest.approx(1.5)
    assert record["clock"] == "host"
    assert record["attributes"] == {"images": 4, "width": 512}
    assert span.duration == pytest.approx(1.5)


def test_parents_are_what_is_open_around(make):
    log = make()
    with log.span("a") as a:
        with log.span("b") as b, log.span("c") as c:
            assert internals(log).current_span() is c
        with log.span("d") as d:
            pass
    assert internals(log).current_span() is None
    assert (b.parent_id, c.parent_id, d.parent_id) == (a.id, b.id, a.id)
    assert {span["name"]: span.get("parent_id") for span in spans_of(log)} == {
        "a": None,
        "b": a.id,
        "c": b.id,
        "d": a.id,
    }


def test_events_are_in_the_file_at_once_and_name_their_span(make):
    log = make()
    with log.span("training_loop") as span:
        span.event("cache_miss", key="a")
        (event,) = records_of(log, "span_event")
        assert event["span_id"] == span.id
        assert (event["span"], event["name"]) == ("training_loop", "cache_miss")
        assert event["attributes"] == {"key": "a"}


def test_started_and_stopped_in_any_order(make, clock):
    log = make()
    first = log.start_span("first", attributes={"n": 1})
    second = log.start_span("second")
    clock.advance(1.0)
    first.stop()
    third = log.start_span("third")
    clock.advance(1.0)
    second.stop()
    third.stop()

    recorded = {span["name"]: span for span in spans_of(log)}
    assert recorded["second"]["parent_id"] == first.id
    assert recorded["third"]["parent_id"] == second.id, "first is over: third is inside what is still open"
    assert [recorded[name]["duration"] for name in ("first", "second", "third")] == [1.0, 2.0, 1.0]
    assert internals(log).current_span() is None


def test_a_span_may_begin_and_end_in_the_past(make, clock):
    log = make()
    now = clock.wall()
    log.start_span("model_init", start_time=now - 100_000).stop(stop_time=now - 99_000)

    (record,) = spans_of(log)
    assert record["start"] == now - 100_000
    assert record["duration"] == 1000.0


def test_a_span_begun_elsewhere_is_given_its_parent(make):
    log = make()
    with log.span("a") as a:
        pass
    child = log.start_span("b", parent=a)
    other = log.start_span("c", parent="00000000000000aa")
    other.stop()
    child.stop()
    assert (child.parent_id, other.parent_id) == (a.id, "00000000000000aa")


# ---------------------------------------------------------------- threads and tasks


def test_a_thread_is_inside_the_application_and_not_inside_what_the_main_thread_is_doing(make):
    log = make()
    seen = {}

    def work(name):
        with log.span(name) as span:
            seen[name] = span

    with log.span("application") as application, log.span("validation_loop") as loop:
        thread = threading.Thread(target=work, args=("alone",), name="loader")
        thread.start()
        thread.join()
        thread = threading.Thread(target=contextvars.copy_context().run, args=(work, "with context"))
        thread.start()
        thread.join()

    assert seen["alone"].parent_id == application.id
    assert seen["with context"].parent_id == loop.id
    assert spans_of(log, "alone")[0]["thread"] == "loader"
    assert "thread" not in spans_of(log, "application")[0]


def test_the_name_of_a_thread_has_no_secret(make):
    with make() as log:
        secret = "hf_" + "aB3dE5fG7h" * 4
        thread = threading.Thread(target=lambda: log.start_span("alone").stop(), name=secret)
        thread.start()
        thread.join()

    assert secret not in spans_of(log, "alone")[0]["thread"]


def test_tasks_that_interleave_keep_their_own_parents(make):
    log = make()

    async def job(name):
        with log.span(name) as outer:
            await asyncio.sleep(0.001)
            with log.span(f"{name} part") as inner:
                await asyncio.sleep(0.001)
            assert inner.parent_id == outer.id

    async def main():
        with log.span("root") as root:
            await asyncio.gather(*(job(f"job {n}") for n in range(5)))
        return root

    root = asyncio.run(main())
    outer = [span for span in spans_of(log) if span["name"].startswith("job") and "part" not in span["name"]]
    assert {span["parent_id"] for span in outer} == {root.id}


# ---------------------------------------------------------------- short spans


def train(log, clock, steps, *, first=1, forward=0.5):
    with log.span("training_loop"):
        for step in range(first, first + steps):
            with log.span("data_loading"):
                clock.advance(0.1)
            with log.span("training_iteration"):
                with log.span("forward"):
                    clock.advance(forward)
                with log.span("backward"):
                    clock.advance(0.25)
            log.log_step(step, train_loss=1.0)


def test_short_spans_are_added_up_on_the_step_records(make, clock):
    log = make(spans={"around": 0})
    train(log, clock, 20)

    assert [span["name"] for span in spans_of(log)] == ["training_loop"]
    first, tenth, last = records_of(log, "step")
    assert first["time/forward"] == pytest.approx(0.5)
    assert tenth["time/forward"] == pytest.approx(9 * 0.5)
    assert last["time/forward"] == pytest.approx(10 * 0.5)
    assert last["time/training_iteration"] == pytest.approx(10 * 0.75)
    assert last["time/data_loading"] == pytest.approx(10 * 0.1)


def test_the_ledger_gives_each_second_to_the_innermost_part(make, clock):
    log = make(log_every=1, spans={"around": 0})
    with log.span("training_iteration"):
        clock.advance(1.0)
        with log.span("data_loading"):
            clock.advance(2.0)
        with log.span("custom"), log.span("checkpoint_save_sync"):
            clock.advance(4.0)
        clock.advance(8.0)
    clock.advance(16.0)
    log.log_step(1, train_loss=1.0)

    (step,) = records_of(log, "step")
    assert {name: value for name, value in step.items() if name.startswith("ledger/")} == {
        "ledger/training": pytest.approx(9.0),
        "ledger/data_wait": pytest.approx(2.0),
        "ledger/checkpoint": pytest.approx(4.0),
    }


def test_the_ledger_is_right_where_spans_end_in_an_odd_order(make, clock):
    log = make(log_every=1)
    training = log.start_span("training_iteration")
    clock.advance(1.0)
    validation = log.start_span("validation_loop")
    clock.advance(2.0)
    training.stop()
    clock.advance(4.0)
    validation.stop()
    clock.advance(8.0)
    log.log_step(1, train_loss=1.0)

    (step,) = records_of(log, "step")
    assert step["ledger/training"] == pytest.approx(1.0)
    assert step["ledger/validation"] == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("name", "counted"),
    [("training_iteration", {"training": 1.0, "data_wait": 2.0}), ("validation_loop", {"validation": 3.0})],
)
def test_what_a_signal_handler_tore_out_of_its_beginning_does_not_count_for_ever(make, clock, name, counted):
    log = make(log_every=1, spans={"around": 0})
    with contextlib.suppress(KeyboardInterrupt), log.span(name):
        clock.advance(1.0)
        log.span("data_loading").__enter__()
        clock.advance(2.0)
        # Right after the beginning of the block: its end is never reached.
        raise KeyboardInterrupt
    clock.advance(4.0)
    log.log_step(1, train_loss=1.0)

    (step,) = records_of(log, "step")
    found = {name: value for name, value in step.items() if name.startswith("ledger/")}
    assert found == {f"ledger/{entry}": pytest.approx(seconds) for entry, seconds in counted.items()}


def test_only_the_thread_that_trains_counts(make, clock):
    log = make(log_every=1, spans={"around": 0})

    def save():
        with log.span("checkpoint_save_async"):
            clock.advance(5.0)

    with log.span("training_iteration"):
        saver = threading.Thread(target=save)
        saver.start()
        saver.join()
    log.log_step(1, train_loss=1.0)

    (step,) = records_of(log, "step")
    assert step["ledger/training"] == pytest.approx(5.0)
    assert "ledger/checkpoint" not in step


def test_a_loop_on_another_thread_is_followed_there(make, clock):
    log = make(log_every=1, spans={"around": 0})
    worker = threading.Thread(target=train, args=(log, clock, 3))
    worker.start()
    worker.join()

    steps = records_of(log, "step")
    assert sum(step["ledger/training"] for step in steps) == pytest.approx(3 * 0.75)
    assert sum(step["ledger/data_wait"] for step in steps) == pytest.approx(3 * 0.1)


def test_threads_lose_no_short_span(make):
    log = make(spans={"around": 0}, clock=None)
    log.span("data_loading").__enter__().stop()

    def load():
        for _ in range(3000):
            with log.span("data_loading"):
                pass

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    load()
    for thread in threads:
        thread.join()
    log.close()
    (summary,) = read_records(log.run_folder / "metrics.jsonl", "span_summary")
    assert summary["span_times"]["data_loading"]["count"] == 5 * 3000 + 1


def test_the_first_and_last_steps_are_kept_one_by_one(make, clock):
    log = make(spans={"around": 3})
    train(log, clock, 40)
    with log.span("validation_loop"), log.span("validation_iteration"):
        clock.advance(1.0)
    log.close()

    kept = [span for span in read_records(log.run_folder / "metrics.jsonl", "span") if "kept" in span]
    at_start = [span for span in kept if span["kept"] == "start"]
    at_end = [span for span in kept if span["kept"] == "end"]
    assert {span["global_step"] for span in at_start if "global_step" in span} <= {2, 3, 4}
    assert sum(span["name"] == "forward" for span in at_start) in (3, 4)
    assert {span["global_step"] for span in at_end} == {38, 39, 40}
    iterations = {span["id"] for span in at_end if span["name"] == "training_iteration"}
    assert {span["parent_id"] for span in at_end if span["name"] == "forward"} <= iterations


def test_around_an_incident_short_spans_are_kept(make, clock):
    log = make(spans={"around": 2}, log_every=10)
    train(log, clock, 30)
    tend(log)
    log.log_step(31, train_loss=float("nan"))
    tend(log)
    train(log, clock, 30, first=32)

    kept = [span for span in spans_of(log) if span.get("kept") == "incident"]
    assert {29, 30} <= {span["global_step"] for span in kept} <= {29, 30, 31, 32, 33, 34}


def test_a_short_span_that_fails_is_kept(make, clock):
    log = make(spans={"around": 0})
    with log.span("training_loop") as loop, pytest.raises(ZeroDivisionError), log.span("forward", batch=3):
        raise ZeroDivisionError

    (failed,) = spans_of(log, "forward")
    assert failed["error"]["type"] == "ZeroDivisionError"
    assert failed["attributes"] == {"batch": 3}
    assert failed["parent_id"] == loop.id


def test_a_run_with_spans_offers_to_write_the_next_steps_one_by_one(make, clock):
    log = make(spans={"around": 2}, control=True)
    assert "trace" not in log._rank_control.poller.declared()["actions"]
    train(log, clock, 20)
    tend(log)
    assert "trace" in log._rank_control.poller.declared()["actions"]
    request = {"actions": ["trace"], "id": "t1", "timestamp": clock.wall()}
    (log.run_folder / "control.json").write_text(json.dumps(request))
    log._rank_control.poll()
    train(log, clock, 20, first=21)

    assert [change["status"] for change in records_of(log, "control_change")] == ["applied"]
    assert any(span.get("kept") == "asked" for span in spans_of(log))


def test_a_name_of_ones_own_that_comes_often_is_added_up(make, clock):
    log = make()
    for step in range(1, 501):
        with log.span("encode"):
            clock.advance(0.01)
        log.log_step(step, train_loss=1.0)

    spans = spans_of(log, "encode")
    assert len(spans) == 200
    assert spans[-1]["attributes"] == {"summed_from_here_on": True}
    assert records_of(log, "step")[-1]["time/encode"] == pytest.approx(0.1)


def test_what_is_kept_added_up_and_dropped_can_be_chosen(make, clock):
    log = make(spans={"keep": ["forward"], "fold": ["encode"], "drop": ["noise"], "around": 0})
    for _ in range(300):
        for name in ("forward", "encode", "noise"):
            with log.span(name):
                clock.advance(0.001)
    assert {span["name"] for span in spans_of(log)} == {"forward"}
    assert len(spans_of(log)) == 300
    assert type(log.span("encode")) is FoldedSpan
    assert log.span("noise") is NO_SPAN
    assert type(make(spans="all").span("forward")) is Span


def test_a_short_span_can_be_asked_whatever_a_long_one_can(make, clock):
    log = make(spans={"around": 0})
    for name in ("forward", "encode"):
        span = log.span(name)
        assert (span.start, span.duration) == (None, None)
        span.event("before it begins")
        span.stop()
        counted = log._run.spans.times.by_name.get(name)
        assert counted is None or counted.count == 0, "what never began is not counted"
        with span:
            assert span.start == pytest.approx(clock.wall())
            assert span.duration is None
        assert span.duration == 0.0
        with pytest.raises(AttributeError):
            _ = span.colour


def test_the_end_of_an_iterator_is_no_incident(make, clock):
    log = make(spans={"around": 2})
    train(log, clock, 30)
    tend(log)
    before = len(spans_of(log))
    with pytest.raises(StopIteration), log.span("data_loading"):
        next(iter(()))
    tend(log)
    train(log, clock, 5, first=31)

    assert [span["name"] for span in spans_of(log)[before:]] == ["training_loop"]

    @log.timed("batches")
    def batches():
        yield 1
        yield 2

    for _ in batches():
        break
    assert "error" not in spans_of(log, "batches")[0]


def test_incidents_without_end_do_not_fill_the_disk(make, clock):
    log = make(spans={"around": 2}, log_every=10_000)
    for second in range(60):
        train(log, clock, 5, first=1 + 5 * second, forward=0.0)
        log._run.spans.keep_around_an_incident()
        tend(log)
    steps = {span["global_step"] for span in spans_of(log) if span.get("kept") == "incident"}
    assert len(steps) < 150, "of three hundred"
    for _ in range(1000):
        with pytest.raises(ZeroDivisionError), log.span("forward"):
            raise ZeroDivisionError
    assert len([span for span in spans_of(log) if "error" in span]) <= 200 + 1


def test_short_spans_keep_no_reference_to_their_attributes(make):
    class Batch:
        pass

    log = make(spans={"around": 0, "keep": ["encode"]})
    left = []
    for name in ("forward", "encode"):
        batch = Batch()
        left.append(weakref.ref(batch))
        with log.span(name, batch=batch, text="x" * 100_000, shape=[1, 2]) as span:
            pass
        del batch
        assert span.attributes.get("shape") == ([1, 2] if name == "encode" else None)
    assert [reference() for reference in left] == [None, None]
    book = log._run.spans
    assert [span for span in (*book.closed, *book._detail._last) if span.name == "forward"]


def test_short_spans_written_later_find_the_part_that_was_around_them(make, clock):
    log = make(spans={"around": 3})
    train(log, clock, 30)
    begun, loaded = threading.Event(), threading.Event()

    def load():
        with log.span("data_loading"):
            begun.set()
            loaded.wait(PATIENCE_S)

    loader = threading.Thread(target=load, name="loader")
    with log.span("training_iteration"):
        clock.advance(0.1)
        loader.start()
        assert begun.wait(PATIENCE_S)
        with log.span("encode") as encode, log.span("forward"):
            clock.advance(0.1)
        with log.span("backward"):
            clock.advance(0.1)
    clock.advance(0.1)
    loaded.set()
    loader.join()
    log.log_step(31, train_loss=1.0)
    log.close()

    recorded = {
        span["name"]: span
        for span in read_records(log.run_folder / "metrics.jsonl", "span")
        if span.get("global_step") == 31
    }
    assert recorded["backward"]["parent_id"] == recorded["training_iteration"]["id"]
    assert recorded["forward"]["parent_id"] == encode.id
    assert "parent_id" not in recorded["data_loading"], "its thread is inside of nothing"


@pytest.mark.parametrize("spans", [{"around": 3}, "all"])
def test_what_is_inside_an_iteration_is_of_its_step(make, clock, spans):
    log = make(spans=spans)
    train(log, clock, 30)
    with log.span("training_iteration"):
        with log.span("encode"), log.span("forward"):
            clock.advance(0.1)
        log.log_step(31, train_loss=1.0)
        with log.span("zero_grad"):
            clock.advance(0.1)
        with log.span("sampling"):
            clock.advance(0.1)
    with log.span("validation_loop"):
        clock.advance(0.1)
    log.close()

    recorded = [
        span for span in read_records(log.run_folder / "metrics.jsonl", "span") if "global_step" in span
    ]
    steps = {span["name"]: span["global_step"] for span in recorded}
    names = ("training_iteration", "encode", "forward", "zero_grad", "sampling", "validation_loop")
    assert [steps[name] for name in names] == [31] * 6


# ---------------------------------------------------------------- long spans, the end, and a kill


def test_a_long_span_is_recorded_when_it_begins(make, clock):
    log = make()
    with log.span("application") as application, log.span("encode") as encode:
        assert [record["id"] for record in records_of(log, "span_start")] == [application.id]
        clock.advance(1.5)
        tend(log)
        assert [record["id"] for record in records_of(log, "span_start")] == [application.id, encode.id]
        tend(log)
        assert len(records_of(log, "span_start")) == 2


def test_a_long_part_without_a_step_is_in_the_ledger_before_it_ends(make, clock):
    log = make(spans={"around": 0})
    with log.span("validation_loop"):
        clock.advance(6.0)
        tend(log)
        clock.advance(6.0)
        tend(log)
        recorded = [record["ledger/validation"] for record in records_of(log, "ledger")]
        assert recorded == [pytest.approx(6.0), pytest.approx(6.0)]


def test_a_run_without_spans_has_no_word_of_them(make):
    log = make()
    for step in range(30):
        log.log_step(step, train_loss=1.0)
    tend(log)
    log.close()
    lines = read_records(log.run_folder / "metrics.jsonl")
    assert {line["event"] for line in lines} <= {"start", "step", "environment", "end"}
    assert not [name for line in lines for name in line if "/" in name]


# ---------------------------------------------------------------- harm


def test_a_new_name_each_time_fills_neither_the_disk_nor_the_memory_nor_the_columns(make):
    log = make()
    book = log._run.spans
    for number in range(5000):
        with log.span(f"file {number}"):
            pass
    assert len(spans_of(log)) == 200 + 2000
    assert len(book._detail.foldable) + len(book.folding) < 10
    log.close()
    (summary,) = read_records(log.run_folder / "metrics.jsonl", "span_summary")
    assert len(summary["span_times"]) == 201
    assert summary["span_times"]["(other spans)"]["count"] == 4800
    everything = make(spans="all")
    for number in range(1000):
        with everything.span(f"file {number}"):
            pass
    assert len(spans_of(everything)) == 1000


def test_stopping_twice_is_reported_once_or_raised_if_configured(make):
    log = make()
    span = log.start_span("a")
    span.stop()
    span.stop()
    span.stop()
    assert len(spans_of(log)) == 1
    assert log.guard.total == 2

    strict = make(strict=True)
    span = strict.start_span("a")
    span.stop()
    with pytest.raises(MisuseError, match="'a' was stopped twice"):
        span.stop()


def test_tags_are_in_the_start_record_and_in_the_manifest(make):
    log = make(perf_tag=["a", "b"], session_tag=lambda: "night")
    log.log_start()
    (start,) = records_of(log, "start")
    assert (start["perf_tag"], start["session_tag"]) == ("a,b", "night")
    internals(log).set_tags(perf_tag="c")
    log.close()
    session = json.loads((log.run_folder / "run.json").read_bytes())["sessions"][-1]
    assert (session["perf_tag"], session["session_tag"]) == ("c", "night")
    assert TelemetryOptions(perf_tag=[]).perf_tags is None
    with pytest.raises(OptionsError, match="perf_tag"):
        make(perf_tag=7)


def test_spans_of_two_runs_that_overlap_are_inside_spans_of_their_own_run_alone(tmp_path):
    first, second = make_logger(tmp_path / "a"), make_logger(tmp_path / "b")
    outer = first.start_span("outer")
    other = second.start_span("other")
    with first.span("inner") as inner, second.span("within") as within:
        pass
    outer.stop()
    with second.span("last") as last:
        assert internals(first).current_span() is None
    other.stop()

    assert (inner.parent_id, within.parent_id, last.parent_id) == (outer.id, other.id, other.id)
    assert (outer.parent_id, other.parent_id) == (None, None)
    first.close()
    second.close()


def test_a_process_that_makes_run_after_run_keeps_one_context_variable_of_ours(tmp_path):
    def one_run(name):
        with make_logger(tmp_path / name) as log, log.span("mine"), log.span("forward"):
            pass

    one_run("first")
    before = len(contextvars.copy_context())
    for number in range(3):
        one_run(str(number))

    assert len(contextvars.copy_context()) == before
