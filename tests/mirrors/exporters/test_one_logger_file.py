"""The file next to the one that OneLogger's own exporter writes for the same calls."""

from __future__ import annotations

import itertools
import json
import stat

import pytest

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.mirrors.one_logger_file.exporter import OneLoggerFileExporter

SECRET = "hf_" + "a1B2c3D4e5" * 3
ORIGIN = 1_700_000_000.0
_seq = itertools.count()


def record(event, time, **fields):
    return {
        "event": event,
        "time": ORIGIN + time,
        "elapsed": time,
        "seq": next(_seq),
        "session": 2,
        **fields,
    }


def start(span_id, name, at, **fields):
    return record("span_start", at, id=span_id, name=name, start=ORIGIN + at, **fields)


def span(span_id, name, at, until, **fields):
    return record("span", until, id=span_id, name=name, start=ORIGIN + at, duration=until - at, **fields)


def event(span_id, name, at, attributes=None, **fields):
    more = {"attributes": attributes} if attributes else {}
    return record("span_event", at, span_id=span_id, span="any", name=name, **more, **fields)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def exporter(folder, **options):
    return OneLoggerFileExporter(folder / "one_logger.jsonl", run_id="run-1", **options)


@pytest.fixture
def exported(tmp_path):
    """Return a function that exports batches and returns the lines."""

    def export(*batches, **options):
        sink = exporter(tmp_path, **options)
        for batch in batches:
            sink.write(batch)
        sink.close()
        return lines(tmp_path / "one_logger.jsonl")

    return export


def written_by_one_logger(path):
    """Return what OneLogger's exporter writes for a loop with a checkpoint, an event, an error and a loss of data."""
    pytest.importorskip("nv_one_logger.exporter.file_exporter")
    from nv_one_logger.core.attributes import Attributes
    from nv_one_logger.core.event import ErrorEvent, Event, TelemetryDataError
    from nv_one_logger.core.span import Span
    from nv_one_logger.core.time import TracingTimestamp
    from nv_one_logger.exporter.file_exporter import FileExporter

    def at(seconds):
        return TracingTimestamp.for_timestamp(
            ORIGIN + seconds, perf_counter=1000 + seconds, validate_timestamp=False
        )

    theirs = FileExporter(path)
    theirs.initialize()
    attributes = Attributes({"train_iterations_start": 0, "note": "é"})
    loop = Span.create("training_loop", span_attributes=attributes, start_time=at(0))
    theirs.export_start(loop)
    save = Span.create("checkpoint_save_sync", parent_span=loop, start_time=at(1.25))
    theirs.export_start(save)
    save.stop(stop_time=at(2))
    theirs.export_stop(save)
    update = Event.create(
        "training_metrics_update", Attributes({"current_iteration": 5, "tags": ["a", "b"]}), at(3)
    )
    loop.add_event(update)
    theirs.export_event(update, loop)
    error = TelemetryDataError(
        at(4), TelemetryDataError.ErrorType.INCOMPLETE_TELEMETRY_DATA, "7 records were lost: full"
    )
    theirs.export_telemetry_data_error(error)
    iteration = Span.create("TESTING_SINGLE_ITERATION", parent_span=loop, start_time=at(4.5))
    theirs.export_start(iteration)
    failure = ErrorEvent(at(5), "ValueError: boom", "ValueError", "boom")
    iteration.add_event(failure)
    theirs.export_error(failure, iteration)
    iteration.stop(stop_time=at(5))
    theirs.export_stop(iteration)
    loop.stop(stop_time=at(6))
    theirs.export_stop(loop)
    theirs.close()
    return lines(path)


def test_it_is_to_the_key_what_one_logger_writes_for_the_same_calls(tmp_path, exported):
    theirs = written_by_one_logger(tmp_path / "theirs.jsonl")
    about = {"train_iterations_start": 0, "note": "é"}

    ours = exported(
        [
            start("a" * 16, "training_loop", 0, attributes=about),
            start("b" * 16, "checkpoint_save_sync", 1.25, parent_id="a" * 16),
            span("b" * 16, "checkpoint_save_sync", 1.25, 2, parent_id="a" * 16),
            event("a" * 16, "training_metrics_update", 3, {"current_iteration": 5, "tags": ["a", "b"]}),
            record("lost", 4, records=7, reason="full"),
            span(
                "c" * 16,
                "testing_iteration",
                4.5,
                5,
                parent_id="a" * 16,
                error={"type": "ValueError", "message": "ValueError: boom"},
            ),
            span("a" * 16, "training_loop", 0, 6, attributes=about),
        ]
    )

    ids = {one["id"]: other["id"] for one, other in zip(theirs, ours, strict=True) if "id" in one}
    extra = {"run_id", "session", "parent_id"}
    for one, other in zip(theirs, ours, strict=True):
        assert list(one) == [key for key in other if key not in extra]
        for key in ("id", "span_id"):
            if key in one:
                assert other[key] == ids[one[key]]
                one[key] = other[key]
        assert {**one, "pid": 0} == {
            **{key: value for key, value in other.items() if key not in extra},
            "pid": 0,
        }
    assert [line["type"] for line in ours] == [
        *("start", "complete", "event", "telemetry_data_error"),
        *("start", "application_error", "stop", "stop"),
    ]


def test_a_span_that_is_still_open_has_its_line(tmp_path):
    sink = exporter(tmp_path)
    sink.write([start("a", "training_loop", 0)])

    assert [line["type"] for line in lines(tmp_path / "one_logger.jsonl")] == ["start"]

    sink.write([span("a", "training_loop", 0, 1)])
    assert [line["type"] for line in lines(tmp_path / "one_logger.jsonl")] == ["start", "stop"]


def test_events_of_a_short_span_follow_its_start(exported):
    found = exported(
        [event("b", "cache_miss", 1.5), span("x", "other", 1, 1.6)],
        [span("b", "encode", 1, 2)],
    )

    assert [(line["type"], line.get("id", line.get("span_id"))) for line in found] == [
        ("complete", "x"),
        ("start", "b"),
        ("event", "b"),
        ("stop", "b"),
    ]


def test_an_event_whose_span_never_comes_is_not_lost(exported):
    found = exported([event("b", "cache_miss", 1.5)])

    assert [(line["type"], line["event"]["name"]) for line in found] == [("event", "cache_miss")]


def test_a_resumed_run_appends_and_ends_a_half_line_first(tmp_path):
    path = tmp_path / "one_logger.jsonl"
    for name in ("first", "second"):
        sink = exporter(tmp_path)
        sink.write([span("a", name, 0, 1)])
        sink.close()
        with path.open("ab") as file:
            file.write(b'{"type":"sta')

    found = path.read_text().splitlines()
    assert [json.loads(found[0])["name"], json.loads(found[2])["name"]] == ["first", "second"]
    assert found[1] == '{"type":"sta'


def test_a_disk_that_fails_gets_the_same_lines_again_and_once(tmp_path):
    sink = OneLoggerFileExporter(tmp_path / "taken" / "o.jsonl", run_id="r")
    (tmp_path / "taken").write_text("a file where the folder should be")
    batch = [span("a", "x", 0, 1), span("b", "y", 1, 2)]
    for _ in range(2):
        with pytest.raises(OSError):
            sink.write(batch)
    (tmp_path / "taken").unlink()

    sink.write([*batch, span("c", "z", 2, 3)])

    assert [line["id"] for line in lines(tmp_path / "taken" / "o.jsonl")] == ["a", "b", "c"]


def test_no_link_is_followed_and_the_file_is_its_owners(tmp_path):
    target = tmp_path / "elsewhere"
    target.write_text("")
    (tmp_path / "link.jsonl").symlink_to(target)
    with pytest.raises(OSError):
        OneLoggerFileExporter(tmp_path / "link.jsonl", run_id="r").write([span("a", "x", 0, 1)])
    exporter(tmp_path).write([span("a", "x", 0, 1)])

    assert target.read_text() == ""
    assert stat.S_IMODE((tmp_path / "one_logger.jsonl").stat().st_mode) == 0o600


def test_secrets_are_masked_and_deep_attributes_flat(exported):
    (found,) = exported(
        [
            span(
                "a",
                "x",
                0,
                1,
                attributes={"api_key": "k", "deep": {"note": SECRET, "n": [1, 2.5]}, "no": None},
            )
        ]
    )

    assert found["attributes"] == {
        "api_key": "***",
        "deep.note": "***",
        "deep.n": [1.0, 2.5],
        "duration_msec": 1000,
    }


def test_it_takes_the_spans_of_a_real_run(tmp_path):
    options = {"log_dir": tmp_path, "system": False, "csv": False, "control": False, "close_timeout": 60.0}
    with TelemetryLogger("r", **options, one_logger_file=True) as log:
        with log.span("application"), log.span("validation_loop", batches=2) as loop:
            loop.event("validation_metrics_update", current_iteration=3)
            with pytest.raises(KeyError), log.span("encode"):
                raise KeyError("lost")

    found = lines(tmp_path / "r" / "one_logger.jsonl")
    named = {line["id"]: line for line in found if "id" in line}
    encode = next(line for line in named.values() if line["name"] == "encode")
    validation = named[encode["parent_id"]]
    assert (validation["name"], named[validation["parent_id"]]["name"]) == ("validation_loop", "application")
    assert [line["type"] for line in found if line.get("span_id") == encode["id"]] == ["application_error"]
    assert [line["event"]["name"] for line in found if line.get("span_id") == validation["id"]] == [
        "validation_metrics_update"
    ]
