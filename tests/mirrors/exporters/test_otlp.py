"""OTLP for real: a receiver on the loopback decodes what it is sent with OpenTelemetry's own definitions."""

from __future__ import annotations

import base64
import itertools
import json
import socket
import traceback

import pytest

from tests.fleet.engines import free_ports
from tests.lengths import in_make_faults
from tests.mirrors.exporters.collector import attributes, collecting
from tests.records import read_records
from tests.waiting import wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.options import OptionsError
from toolkit.telemetry.logger.session import live_run
from toolkit.telemetry.logger.writing.mirror import Mirror
from toolkit.telemetry.mirrors.otlp.exporter import OtlpExporter
from toolkit.telemetry.mirrors.otlp.transport import OtlpError, signal_url
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.timing.history import read_run_time
from toolkit.telemetry.timing.ledger import LedgerBuilder

service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

SECRET = "hf_" + "a1B2c3D4e5" * 3
ORIGIN = 1_700_000_000.0
PATIENCE_S = 60.0
A, B, C = "00000000000000aa", "00000000000000bb", "00000000000000cc"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    """The loopback is asked directly, whatever the machine is set up for."""
    monkeypatch.setenv("no_proxy", "*")


_seq = itertools.count()


def record(event, time, **fields):
    return {"event": event, "time": ORIGIN + time, "seq": next(_seq), "session": 1, **fields}


def span(span_id, name, at, until, **fields):
    return record(
        "span", until, id=span_id, name=name, start=ORIGIN + at, duration=until - at, clock="host", **fields
    )


def event(span_id, name, at, **attributes):
    return record("span_event", at, span_id=span_id, span="any", name=name, attributes=attributes)


def exporter(url, **options):
    options = {"timeout_s": PATIENCE_S, **options}
    return OtlpExporter(url, service_name="greyjacket", run_id="run-1", **options)


def receiving(*statuses, **how):
    return collecting(service.ExportTraceServiceRequest, *statuses, **how)


def sent_to(collector):
    """Return every span that a collector has taken, with the attributes of its session."""
    return [
        (span, attributes(resource.resource))
        for request in collector.requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def spans_of(collector):
    """Return those that have ended; events that came while theirs was open are in `points_of`."""
    return [span for span, _ in sent_to(collector) if "event_of" not in attributes(span)]


def points_of(collector):
    return [span for span, _ in sent_to(collector) if "event_of" in attributes(span)]


def records_of(log):
    path = log.run_folder / "metrics.jsonl"
    # Whole lines alone: one may be on its way.
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


QUIET = {"system": False, "csv": False, "control": False, "close_timeout": PATIENCE_S}


def test_spans_arrive_with_their_ids_parents_times_attributes_and_events():
    with receiving() as receiver:
        sink = exporter(receiver.url, resource={"run.session": 1, "perf_tag": ["fast", "new"]})
        sink.write(
            [
                record("start", 0),
                record("span_start", 0, id=A, name="training_loop", start=ORIGIN),
                event(A, "training_metrics_update", 1.5, current_iteration=5, avg_iteration_time_sec=0.25),
                span(
                    B,
                    "validation_loop",
                    2,
                    3.25,
                    parent_id=A,
                    global_step=7,
                    attributes={"deep": {"batches": 4}, "tags": ["x", 1], "api_key": "k", "note": SECRET},
                ),
                record("step", 4, train_loss=0.5),
                span(A, "training_loop", 0, 5),
            ]
        )
        sink.close()

    validation, loop = spans_of(receiver)
    assert (validation.name, loop.name) == ("validation_loop", "training_loop")
    assert (validation.span_id.hex(), loop.span_id.hex()) == (B, A)
    assert (validation.parent_span_id.hex(), loop.parent_span_id) == (A, b"")
    assert validation.trace_id == loop.trace_id
    assert any(loop.trace_id)
    assert validation.start_time_unix_nano == 1_700_000_002_000_000_000
    assert validation.end_time_unix_nano == 1_700_000_003_250_000_000
    assert attributes(validation) == {
        "deep.batches": 4,
        "tags": ["x", "1"],
        "api_key": "***",
        "note": "***",
        "global_step": 7,
        "session": 1,
        "clock": "host",
    }
    (update,) = loop.events
    assert (update.name, update.time_unix_nano) == (
        "training_metrics_update",
        1_700_000_001_500_000_000,
    )
    assert attributes(update) == {"current_iteration": 5, "avg_iteration_time_sec": 0.25}
    (point,) = points_of(receiver)
    assert (point.name, point.parent_span_id.hex()) == ("training_metrics_update", A)
    assert point.start_time_unix_nano == point.end_time_unix_nano == update.time_unix_nano
    assert attributes(point) == {**attributes(update), "event_of": "any", "session": 1}
    assert len(receiver.requests) == 1
    (resource,) = receiver.requests[0].resource_spans
    assert attributes(resource.resource) == {
        "service.name": "greyjacket",
        "run.id": "run-1",
        "run.session": 1,
        "host.name": socket.gethostname(),
        "perf_tag": ["fast", "new"],
    }


def test_an_error_becomes_the_status_of_its_span():
    with receiving() as receiver:
        exporter(receiver.url).write(
            [
                span(A, "x", 0, 1, error={"type": "ValueError", "message": f"ValueError: {SECRET}"}),
                span(B, "y", 1, 2),
            ]
        )

    failed, fine = spans_of(receiver)
    assert (failed.status.code, failed.status.message) == (2, "ValueError: ***")
    assert fine.status.code == 0


def test_the_sessions_of_a_run_are_one_trace_and_another_run_is_another():
    with receiving() as receiver:
        for run_id, span_id in (("r1", A), ("r1", B), ("r2", C)):
            sink = OtlpExporter(receiver.url, service_name="s", run_id=run_id, timeout_s=PATIENCE_S)
            sink.write([span(span_id, "x", 0, 1)])

    first, second, other = (one.trace_id for one in spans_of(receiver))
    assert first == second != other


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_a_collector_refuses_is_raised_and_sent_again_once(status):
    batch = [span(f"{one:016x}", "x", one, one + 1) for one in range(1, 601)]
    with receiving(200, status) as receiver:
        sink = exporter(receiver.url)
        with pytest.raises(OtlpError, match=f"/v1/traces answered {status}"):
            sink.write(batch)
        sink.write([*batch, span(A, "last", 0, 1)])
        sink.close()

    assert [one.span_id for one in spans_of(receiver)[:600]] == [
        int(one["id"], 16).to_bytes(8, "big") for one in batch
    ]
    assert [one.name for one in spans_of(receiver)[600:]] == ["last"]


def test_a_missing_collector_is_reported():
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(OtlpError, match="does not answer: .*refused"):
        exporter(url, timeout_s=0.5).write([span(A, "x", 0, 1)])


def test_spans_that_a_collector_refuses_are_counted_aloud_and_not_sent_again(caplog):
    answer = service.ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 3
    answer.partial_success.error_message = "too old"
    with receiving(body=answer.SerializeToString()) as receiver:
        sink = exporter(receiver.url)
        sink.write([span(A, "x", 0, 1)])
        sink.write([span(B, "x", 1, 2)])
        sink.close()

    assert [one.span_id.hex() for one in spans_of(receiver)] == [A, B]
    assert caplog.text.count("refused 3 spans: too old") == 1


def test_headers_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc, x-scope = me")
    with receiving() as receiver:
        exporter(receiver.url).write([span(A, "x", 0, 1)])

    [got] = receiver.taken
    assert got.path == "/v1/traces"
    assert got.headers["content-type"] == "application/x-protobuf"
    assert (got.headers["authorization"], got.headers["x-scope"]) == ("Bearer abc", "me")


def test_an_address_may_name_the_collector_or_its_path():
    assert signal_url("http://host:4318") == "http://host:4318/v1/traces"
    assert signal_url("https://host/") == "https://host/v1/traces"
    assert signal_url("https://host/otlp/v1/traces") == "https://host/otlp/v1/traces"
    for wrong in ("localhost:4318", "ftp://host", "http://", "file:///etc/passwd"):
        with pytest.raises(OptionsError, match="must be an http or https address"):
            signal_url(wrong)


def test_a_span_with_very_many_events_says_how_many_are_left_out():
    with receiving() as receiver:
        sink = exporter(receiver.url)
        sink.write([event(A, "tick", one) for one in range(1003)])
        sink.write([span(A, "training_loop", 0, 2000)])

    (found,) = spans_of(receiver)
    assert len(found.events) == 1000
    assert attributes(found)["events_left_out"] == 3


def test_values_that_fit_no_field_become_ones_that_do():
    with receiving() as receiver:
        exporter(receiver.url).write(
            [span("not hexadecimal", "x", 0, 1, attributes={"big": 2**80, "mixed": [1, "a"], "none": None})]
        )

    (found,) = spans_of(receiver)
    assert attributes(found) == {"big": float(2**80), "mixed": ["1", "a"], "session": 1, "clock": "host"}
    assert len(found.span_id) == 8
    assert any(found.span_id)


def test_the_spans_of_a_real_run_arrive_and_a_resumed_one_sends_nothing_twice(tmp_path):
    options = {"log_dir": tmp_path, "system": False, "csv": False, "control": False, "resume": True}
    options["close_timeout"] = PATIENCE_S
    with receiving() as receiver:
        options |= {"otlp": receiver.url, "export_spans": {"except": ["model_init"]}}
        for batches in (1, 2):
            with TelemetryLogger("r", **options) as log:
                with log.span("application"), log.span("model_init"):
                    with log.span("validation_loop", batches=batches) as loop:
                        loop.event("validation_metrics_update", current_iteration=3)

    spans = spans_of(receiver)
    assert [one.name for one in spans] == ["validation_loop", "application"] * 2
    assert [one.parent_span_id for one in spans] == [spans[1].span_id, b"", spans[3].span_id, b""]
    assert [attributes(one)["batches"] for one in spans[::2]] == [1, 2]
    assert [len(one.events) for one in spans] == [1, 0, 1, 0]
    assert len({one.span_id for one in spans}) == 4


@in_make_faults
def test_a_collector_that_comes_late_gets_everything(tmp_path, caplog, monkeypatch):
    monkeypatch.setitem(Mirror.__init__.__kwdefaults__, "interval_s", 0.01)
    (port,) = free_ports(1)
    sink = exporter(f"http://127.0.0.1:{port}", timeout_s=0.25)
    log = TelemetryLogger("r", log_dir=tmp_path, **QUIET, sinks=[sink])
    names = [f"encode {number}" for number in range(200)]
    for name in names[:100]:
        with log.span(name):
            pass
    wait_until(lambda: log.guard.counts.get("writing to otlp: OtlpError", 0) > 6)
    # A script that flushes does not wait for what is away.
    assert log.flush(10 * PATIENCE_S)
    with receiving(port=port) as receiver:
        for name in names[100:]:
            with log.span(name):
                pass
        log.close()

    # A try that took too long may have arrived all the same.
    assert {one.name for one in spans_of(receiver)} == set(names)
    assert "undelivered" not in records_of(log)[-1]
    assert "otlp is off" not in (log.run_folder / "metrics.jsonl").read_text()
    assert caplog.text.count("writing to otlp failed") == 1
    assert {found.name for found in caplog.records} == {"toolkit.telemetry"}


@in_make_faults
def test_events_arrive_while_their_span_is_open(tmp_path, monkeypatch):
    monkeypatch.setitem(Mirror.__init__.__kwdefaults__, "interval_s", 0.01)
    monkeypatch.setattr(live_run, "_TEND_EVERY_S", 0.1)
    with receiving() as receiver:
        with TelemetryLogger("r", log_dir=tmp_path, **QUIET, sinks=[exporter(receiver.url)]) as log:
            with log.span("application"), log.span("training_loop") as loop:
                for step in range(3):
                    loop.event("training_metrics_update", current_iteration=step)
                wait_until(lambda: len(points_of(receiver)) == 3)
                assert spans_of(receiver) == []

    assert [attributes(point)["current_iteration"] for point in points_of(receiver)] == [0, 1, 2]
    training_loop, application = spans_of(receiver)
    assert {point.parent_span_id for point in points_of(receiver)} == {training_loop.span_id}
    assert [one.name for one in training_loop.events] == ["training_metrics_update"] * 3
    assert (training_loop.name, application.name) == ("training_loop", "application")


@in_make_faults
def test_what_no_collector_has_taken_by_the_end_is_counted_and_said(tmp_path, caplog):
    sink = exporter(f"http://127.0.0.1:{free_ports(1)[0]}", timeout_s=0.5)
    options = {**QUIET, "close_timeout": 1.0}
    with TelemetryLogger("r", log_dir=tmp_path, **options, sinks=[sink]) as log:
        for _ in range(7):
            with log.span("validation_loop") as loop:
                loop.event("tick")
        wait_until(lambda: sum(record["event"] == "span" for record in records_of(log)) == 7)

    records = records_of(log)
    assert records[-1]["undelivered"] == 7
    said = "7 records did not arrive there; metrics.jsonl has them"
    assert [said in str(record.get("message")) for record in records].count(True) == 1
    assert caplog.text.count(said) == 1


def test_a_span_that_a_collector_never_takes_holds_up_no_other(tmp_path):
    names = [f"encode {number}" for number in range(30)]
    with receiving() as receiver:
        with TelemetryLogger("r", log_dir=tmp_path, **QUIET, sinks=[exporter(receiver.url)]) as log:
            for name in [*names[:20], "poison", *names[20:]]:
                with log.span(name):
                    pass

    assert [one.name for one in spans_of(receiver)] == names
    assert records_of(log)[-1]["undelivered"] == 1


def test_a_login_in_the_address_is_sent_as_one_and_shown_nowhere():
    with receiving() as receiver:
        address = receiver.url.replace("//", "//me:s3cret%21@")
        exporter(address).write([span(A, "training_loop", 0.0, 1.0)])
    with pytest.raises(OtlpError) as failure:
        exporter(address, timeout_s=0.5).write([span(B, "training_loop", 0.0, 1.0)])

    assert receiver.taken[0].headers["authorization"] == "Basic " + base64.b64encode(b"me:s3cret!").decode()
    assert "s3cret" not in str(failure.value)


def test_a_header_that_none_may_have_is_not_shown(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=s3cret%0As3cret")
    exporter = OtlpExporter("http://127.0.0.1:9", service_name="run", run_id="r")
    with pytest.raises(OtlpError, match="header") as failure:
        exporter.write([span(A, "training_loop", 0.0, 1.0)])

    assert "s3cret" not in "".join(traceback.format_exception(failure.value))


def test_tags_that_are_known_late_are_the_same_wherever_they_are_reported(tmp_path):
    with receiving() as receiver:
        log = TelemetryLogger("r", log_dir=tmp_path, otlp=receiver.url, system=False, csv=False, perf_tag="a")
        log.log_start()
        with log.training.application():
            with log.span("before"):
                pass
            log.flush(PATIENCE_S)
            log.training.configure(perf_tag=["b", "c"], session_tag="night")
            log.log_step(1, train_loss=0.5)
            with log.span("after"):
                pass
        log.close()
    found = read_records(log.run_folder / "metrics.jsonl")
    tags = {"perf_tag": "b,c", "session_tag": "night"}
    (reported,) = [record for record in found if record["event"] == "tags"]
    ledger = read_run_time(log.run_folder).ledger
    session = read_manifest(log.run_folder).sessions[-1]
    sent = {span.name: about for span, about in sent_to(receiver)}

    assert {name: reported[name] for name in tags} == tags
    assert {name: getattr(session, name) for name in tags} == tags
    assert [one.perf_tag for one in ledger.sessions] == ["b,c"]
    assert [one.perf_tag for one in _ledger_without_manifest(found).sessions] == ["b,c"]
    assert {name: sent["after"][name] for name in tags} == tags
    assert {name: sent["application"][name] for name in tags} == tags
    assert sent["before"]["perf_tag"] == "a", "it had been sent"


def _ledger_without_manifest(records):
    book = LedgerBuilder()
    book.take(records)
    return book.ledger()
