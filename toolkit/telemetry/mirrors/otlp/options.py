"""The options of the OTLP exporter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from toolkit.telemetry.core.checks import address, is_this_machine, one_of, optional
from toolkit.telemetry.core.fields import option
from toolkit.telemetry.mirrors.shared.exporter import Exporter

if TYPE_CHECKING:
    from toolkit.telemetry.core.sink import Sink
    from toolkit.telemetry.mirrors.shared.exporter import ExportedRun


@dataclass(frozen=True, kw_only=True)
class OtlpOptions(Exporter):
    """An OpenTelemetry collector."""

    # Not `opentelemetry.proto`: a folder without a file of its own.
    NEEDS: ClassVar = ("otlp", "opentelemetry.proto.trace.v1.trace_pb2")

    otlp: str | None = option(
        None,
        "Collector that spans are sent to, such as `http://localhost:4318`, or `http://localhost:4317` for gRPC.",
        optional(address),
    )
    otlp_protocol: str | None = option(
        None,
        "OTLP protocol; default: `OTEL_EXPORTER_OTLP_PROTOCOL`, else `http`.",
        optional(one_of("http", "grpc")),
    )

    def make_sink(self, run: ExportedRun) -> Sink | None:
        """Return the exporter where `otlp` is set."""
        if self.otlp is None:
            return None
        from toolkit.telemetry.mirrors.otlp.exporter import OtlpExporter

        return OtlpExporter(
            self.otlp,
            service_name=run.display_name,
            run_id=run.run_id,
            resource={"run.session": run.session, "perf_tag": run.perf_tag, "session_tag": run.session_tag},
            span_filter=run.span_filter,
            protocol=self.otlp_protocol,
        )

    def sends(self) -> Sequence[str]:
        """Return `otlp` unless the collector runs on this machine."""
        return ("otlp",) if _is_elsewhere(self.otlp) else ()


@dataclass(frozen=True, kw_only=True)
class OtlpMetricsOptions(Exporter):
    """Metrics for an OpenTelemetry collector."""

    NEEDS: ClassVar = ("otlp_metrics", "opentelemetry.proto.metrics.v1.metrics_pb2")

    otlp_metrics: str | None = option(
        None,
        "Collector that numbers are sent to as OTLP metrics, such as `http://localhost:4318`; uses `otlp_protocol`.",
        optional(address),
    )

    def make_sink(self, run: ExportedRun) -> Sink | None:
        """Return the exporter where `otlp_metrics` is set."""
        if self.otlp_metrics is None:
            return None
        from toolkit.telemetry.mirrors.otlp.metrics import OtlpMetricsExporter

        return OtlpMetricsExporter(
            self.otlp_metrics,
            service_name=run.display_name,
            run_id=run.run_id,
            started=run.started,
            protocol=getattr(self, "otlp_protocol", None),
        )

    def sends(self) -> Sequence[str]:
        """Return `otlp_metrics` unless the collector runs on this machine."""
        return ("otlp_metrics",) if _is_elsewhere(self.otlp_metrics) else ()


def _is_elsewhere(address: str | None) -> bool:
    return address is not None and not is_this_machine(urlsplit(address).hostname or "")
