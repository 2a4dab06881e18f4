"""OTLP metrics for real: a receiver on the loopback decodes them with OpenTelemetry's own definitions."""

from __future__ import annotations

import math
import sys
import threading

import pytest

from tests.mirrors.exporters.collector import attributes, collecting
from tests.records import read_records
from tests.waiting import wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.options import OptionsError, TelemetryOptions
from toolkit.telemetry.mirrors import registry
from toolkit.telemetry.mirrors.otlp import metrics
from toolkit.telemetry.mirrors.otlp.metrics import OtlpMetricsExporter
from toolkit.telemetry.mirrors.otlp.transport import OtlpError

service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")

ORIGIN = 1_700_000_000.0
PATIENCE_S = 60.0
QUIET = {"system": False, "csv": False, "control": False, "output": False, "close_timeout": PATIENCE_S}


@pytest.fixture(autouse=True)
def _direct_and_patient(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    # What is late is sent twice.
    monkeypatch.setattr(metrics, "_TIMEOUT_S", PATIENCE_S)


def exporter(url, **options):
    return OtlpMetricsExporter(url, service_name="greyjacket", run_id="run-1", started=ORIGIN, **options)


def record(event, seq, **fields):
    return {"event": event, "time": ORIGIN + seq, "seq": seq, "session": 1, **fields}


def receiving(*statuses):
    return collecting(service.ExportMetricsServiceRequest, *statuses)


def metrics_in(collector):
    return [
        metric
        for request in collector.requests
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]


def points_of(collector, name):
    return [
        point
        for metric in metrics_in(collector)
        if metric.name == name
        for point in (metric.sum if metric.WhichOneof("data") == "sum" else metric.gauge).data_points
    ]


def values_of(collector, name):
    return [point.as_double for point in points_of(collector, name)]


def test_numbers_arrive_with_standard_names_units_and_attributes():
    gpu = {"gpu/1/util": 93.0, "gpu/1/mem_used_gb": 2.0, "gpu/1/power_w": 300.5, "gpu/1/temp_c": 61}
    with receiving() as collector:
        sink = exporter(collector.url)
        sink.write(
            [
                record("start", 0, config={"lr": 1}),
                record(
                    "step",
                    1,
                    global_step=10,
                    train_loss=0.5,
                    sec_per_step=0.25,
                    cpu_mem_rss_mb=2.0,
                    **{"a b!": 1},
                ),
                record("system", 2, rank=3, ram_used_mb=1.0, cpu_percent=50.0, **gpu),
                record("eval", 3, global_step=10, val_loss=None, non_finite={"val_loss": "NaN"}),
            ]
        )
        sink.close()

    [request] = collector.requests
    assert collector.taken[0].path == "/v1/metrics"
    resource = attributes(request.resource_metrics[0].resource)
    assert {name: resource[name] for name in ("service.name", "run.id", "run.name")} == {
        "service.name": "greyjacket",
        "run.id": "run-1",
        "run.name": "greyjacket",
    }
    units = {metric.name: (metric.unit, metric.WhichOneof("data")) for metric in metrics_in(collector)}
    assert units == {
        "training.train_loss": ("", "gauge"),
        "training.sec_per_step": ("s", "gauge"),
        "training.a_b_": ("", "gauge"),
        "training.global_step": ("", "gauge"),
        "training.eval/val_loss": ("", "gauge"),
        "training.system/cpu_percent": ("%", "gauge"),
        "process.memory.usage": ("By", "sum"),
        "system.memory.usage": ("By", "sum"),
        "hw.gpu.utilization": ("1", "gauge"),
        "hw.gpu.memory.usage": ("By", "sum"),
        "hw.power": ("W", "gauge"),
        "hw.temperature": ("Cel", "gauge"),
    }
    (loss,) = points_of(collector, "training.train_loss")
    assert (loss.as_double, loss.time_unix_nano) == (0.5, 1_700_000_001_000_000_000)
    assert attributes(loss) == {"rank": 0, "run.session": 1}
    (use,) = points_of(collector, "hw.gpu.utilization")
    assert attributes(use) == {
        "rank": 3,
        "run.session": 1,
        "gpu.index": "1",
        "hw.id": "gpu1",
        "hw.type": "gpu",
        "hw.gpu.task": "general",
    }
    assert use.as_double == pytest.approx(0.93)
    assert values_of(collector, "hw.gpu.memory.usage") == [2.0 * 1024**3]
    assert values_of(collector, "process.memory.usage") == [2.0 * 1024**2]
    assert attributes(points_of(collector, "hw.temperature")[0])["hw.parent"] == "gpu1"
    assert attributes(points_of(collector, "system.memory.usage")[0])["system.memory.state"] == "used"
    assert [math.isnan(value) for value in values_of(collector, "training.eval/val_loss")] == [True]


def test_what_failed_is_sent_again_once_and_what_is_refused_is_counted(monkeypatch):
    monkeypatch.setattr(metrics, "_RECORDS_A_REQUEST", 2)
    batch = [record("step", seq, global_step=seq, train_loss=float(seq)) for seq in range(1, 7)]
    batch.insert(3, record("step", 100, global_step=3, poison=1.0))
    batch = [{**one, "seq": seq} for seq, one in enumerate(batch)]
    with receiving(200, 401) as collector:
        sink = exporter(collector.url)
        with pytest.raises(OtlpError, match="/v1/metrics answered 401"):
            sink.write(batch)
        sink.write(batch)

    assert values_of(collector, "training.train_loss") == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert sink.refused == 1
    assert [sink.is_undelivered(one) for one in (batch[-1], {**batch[-1], "seq": 99})] == [False, True]
    with pytest.raises(OptionsError, match="otlp_metrics is 'ftp://x'"):
        exporter("ftp://x")


def sends():
    return "telemetry-otlp_metrics" in {thread.name for thread in threading.enumerate()}


def test_a_run_sends_its_steps_and_none_where_it_is_offline(tmp_path, monkeypatch):
    # As in a script that has not imported OpenTelemetry.
    with monkeypatch.context() as fresh:
        for name in [name for name in sys.modules if name.startswith("opentelemetry.proto")]:
            fresh.delitem(sys.modules, name)
        wanted = TelemetryOptions(otlp="http://localhost", otlp_metrics="http://localhost")
        assert registry.missing_packages(wanted, may_send=True) == {}
    with receiving() as collector:
        with TelemetryLogger("r", log_dir=tmp_path, otlp_metrics=collector.url, **QUIET) as log:
            for step in (1, 2, 3):
                log.write_step(step, train_loss=1.0 / step)
            log.write_step(4, poison=1.0)
            assert sends()
        # A thread stays for a while after its last job.
        wait_until(lambda: not sends())
        made = len(collector.taken)
        elsewhere = collector.url.replace("127.0.0.1", "192.0.2.1")
        with TelemetryLogger("o", log_dir=tmp_path, otlp_metrics=elsewhere, mode="offline", **QUIET) as log:
            log.write_step(1, train_loss=1.0)
            sends_offline = sends()

    assert values_of(collector, "training.train_loss") == [1.0, 0.5, 1.0 / 3]
    assert not sends_offline
    assert len(collector.taken) == made
    # What a collector refuses is reported with its reason, and counted in the end record.
    records = read_records(tmp_path / "r")
    assert records[-1]["undelivered"] == 1
    said = [record["message"] for record in records if record["event"] == "error"]
    assert ["answered 400" in message for message in said] == [True, False]
