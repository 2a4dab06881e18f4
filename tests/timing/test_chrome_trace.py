"""A trace that a viewer opens: checked by a reader that knows the format and nothing of how it was written."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lengths import longer
from tests.made_runs import append, write_run
from tests.runfolder.plain_data import without_haste
from tests.timing.span_run import span_records, write_span_run
from tests.timing.test_span_record import begun, hostile, span
from tests.timing.trace_checker import check_trace, parents, slices
from toolkit.telemetry.runfolder.codec import decode, encode
from toolkit.telemetry.timing.chrome_trace import chrome_trace, trace_of_folder


def trace(*records, rank=0):
    return check_trace(b"".join(chrome_trace([(rank, list(records))])))


def named(found, name):
    return [event for event in found["traceEvents"] if event["name"] == name and event["ph"] in "Xi"]


def test_the_example_run_opens_and_every_span_is_drawn_inside_its_parent():
    records = span_records()
    found = trace(*records)

    expected = {
        record["id"]: record.get("parent_id")
        for record in records
        if record["event"] in ("span", "span_start")
    }
    assert parents(found) == expected
    assert found["otherData"]["spans"] == len(expected)
    assert found["otherData"]["skipped"] == 0


def test_a_span_says_when_it_was_how_long_it_took_and_what_it_was_about():
    found = trace(
        {"event": "start", "time": 100.0, "session": 1},
        span(
            "a", start=101.5, duration=0.25, name="encode", attributes={"images": 4}, global_step=7, session=1
        ),
    )
    encode = slices(found)[0]

    assert (encode["name"], encode["ts"], encode["dur"]) == ("encode", 1.5e6, 0.25e6)
    assert encode["args"]["attributes"] == {"images": 4}
    assert encode["args"]["global_step"] == 7
    assert encode["args"]["clock"] == "host"


def test_spans_that_cross_each_other_get_lanes_next_to_each_other():
    found = trace(span("a", start=100.0, duration=2.0), span("b", start=101.0, duration=2.0))
    first, second = slices(found)

    assert first["tid"] != second["tid"]
    assert (first["dur"], second["dur"]) == (2e6, 2e6)


def test_threads_ranks_and_the_device_have_rows_of_their_own():
    spans = [
        span("a"),
        span("b", thread="loader"),
        span("c", clock="cuda"),
    ]
    found = check_trace(b"".join(chrome_trace([(0, spans), (3, [span("d", rank=3)])], name="r")))
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in found["traceEvents"]
        if event["name"] == "thread_name"
    }
    processes = [event["args"]["name"] for event in found["traceEvents"] if event["name"] == "process_name"]

    assert {event["args"]["id"]: names[event["pid"], event["tid"]] for event in slices(found)} == {
        "a": "main",
        "b": "loader",
        "c": "main, by the GPU's clock",
        "d": "main",
    }
    assert processes == ["r, rank 0", "r, rank 3"]
    assert len({tid for _, tid in names}) == len(names), "a viewer may take equal numbers for one thread"


def test_what_happened_is_marked_where_it_happened():
    found = trace(
        begun("a", thread="saver", session=1),
        {"event": "span_event", "span_id": "a", "name": "cache_miss", "time": 100.5, "session": 1},
        {"event": "finding", "message": "a spike", "time": 100.6, "session": 1},
        {"event": "checkpoint", "checkpoint_path": "c/1", "time": 100.7, "session": 1},
        span("a", thread="saver", session=1),
    )
    missed, checkpoint = named(found, "cache_miss")[0], named(found, "checkpoint")[0]

    assert missed["tid"] == slices(found)[0]["tid"]
    assert checkpoint["tid"] != missed["tid"]
    assert checkpoint["args"]["checkpoint_path"] == "c/1"
    assert named(found, "finding")[0]["args"]["message"] == "a spike"


def test_a_span_that_its_process_died_in_ends_with_the_sessions_last_record():
    found = trace(
        begun("a", session=1, time=100.0),
        {"event": "system", "time": 108.0, "session": 1},
        {"event": "start", "time": 200.0, "session": 2},
    )

    assert slices(found)[0]["dur"] == 8e6
    assert slices(found)[0]["args"]["no_end_written"] is True


def test_the_loss_and_folded_spans_are_counters_that_a_long_run_thins():
    steps = [
        {"event": "step", "time": 100.0 + n, "train_loss": 1.0 / n, "time/forward": 0.5}
        for n in range(1, 25_001)
    ]
    found = trace(*steps, {"event": "step", "time": 1e6, "train_loss": None})
    losses = [e for e in found["traceEvents"] if e["ph"] == "C" and e["name"] == "train_loss"]

    assert 5_000 < len(losses) <= 10_000
    assert {"forward": 0.5} in [event["args"] for event in found["traceEvents"] if event["ph"] == "C"]


def test_a_run_folder_is_written_with_all_its_ranks_and_what_cannot_be_read_is_passed_over(tmp_path):
    folder = write_span_run(tmp_path, ranks=3)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"event": "span", "na\n')
    append(folder, [span("tail", session=2, start=1.7e9 + 1)])

    found = check_trace(b"".join(trace_of_folder(folder)))

    assert {event["pid"] for event in slices(found)} == {1, 2, 3}
    assert any(event["args"]["id"] == "tail" for event in slices(found))


def test_a_run_that_writes_meanwhile_does_not_spoil_its_trace(tmp_path):
    folder = write_run(tmp_path, "r", [span(str(n), start=100.0 + n) for n in range(3_000)])
    pieces = trace_of_folder(folder)
    first = next(pieces)
    append(folder, [span("later")])

    found = check_trace(first + b"".join(pieces))

    assert len(slices(found)) == 3_000


@settings(without_haste, max_examples=longer(25, 80))
@given(st.lists(hostile, max_size=12))
def test_whatever_the_records_hold_it_is_a_trace(records):
    # As they come out of a file; steps in the order of time, which a counter keeps.
    read = [decode(encode(record)) for record in records]
    trace(*({**record, "time": 50.0} if record["event"] == "step" else record for record in read))


times = st.floats(0, 50, allow_nan=False)


@settings(without_haste, max_examples=longer(25, 80))
@given(st.lists(st.tuples(times, st.floats(0, 20, allow_nan=False)), max_size=30))
def test_spans_in_any_position_are_drawn_at_their_time_and_nest(places):
    found = trace(*(span(f"{n}", start=1.7e9 + at, duration=took) for n, (at, took) in enumerate(places)))

    assert found["otherData"]["skipped"] == 0
    assert len(slices(found)) == len(places)
    base = found["otherData"]["began"]
    for event in slices(found):
        at, took = places[int(event["args"]["id"])]
        assert abs(event["ts"] / 1e6 + base - (1.7e9 + at)) < 1e-5
        assert abs(event["dur"] / 1e6 - took) < 1e-5
