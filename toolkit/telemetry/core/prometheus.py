"""Gauges and counters for Prometheus: over HTTP, or in a file for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from toolkit.telemetry.core.install import install_extra

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

MOST_METRICS: Final = 200
"""Metrics of one run that are shown: each is a series of its own in Prometheus."""
LONGEST_NAME: Final = 200
SEVERITIES: Final = ("info", "warning", "critical")

Sample = tuple[str, Mapping[str, str], float]
"""Name, labels and value."""

_RUNS: Final = {
    "telemetry_run_step": "The last step of a run.",
    "telemetry_run_heartbeat_timestamp_seconds": "When a run last showed a sign of life.",
    "telemetry_run_age_seconds": "How long ago a run last showed a sign of life.",
    "telemetry_run_status": "1 for the status that a run has.",
    "telemetry_run_live": "1 while a run is running or stalled, 0 after its end.",
    "telemetry_run_lost": "1 if the process of a run is gone and its end was not recorded.",
    "telemetry_run_last_value": "The last value of a metric of rank 0.",
    "telemetry_run_findings_open": "Open findings by severity.",
}
_CLIENT_TIMEOUT_S: Final = 30


class PrometheusError(Exception):
    """The package is missing, or the address cannot be used."""


class Exposition:
    """Answers every scrape with the newest samples; it reads nothing itself."""

    def __init__(self, more: Mapping[str, str] | None = None) -> None:
        """Know what each metric means: those of runs, and `more`; one that ends in `_total` is a counter.

        Raises:
            PrometheusError: prometheus-client is not installed.
        """
        try:
            import prometheus_client
        except ImportError as error:
            raise PrometheusError(f"needs prometheus-client: {install_extra('metrics')}") from error
        self._client = prometheus_client
        self._help = {**_RUNS, **(more or {})}
        self._families: list[Metric] = []
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(self)
        self._server: Any = None

    def collect(self) -> Iterator[Metric]:
        """Yield what is shown now; prometheus-client calls this."""
        yield from self._families

    def show(self, samples: Iterable[Sample]) -> None:
        """Show these from now on."""
        families: dict[str, Metric] = {}
        for name, labels, value in samples:
            if name not in families:
                kind = "counter" if name.endswith("_total") else "gauge"
                families[name] = self._client.Metric(name.removesuffix("_total"), self._help[name], kind)
            whole = {key: text.encode("utf-8", "replace").decode() for key, text in labels.items()}
            families[name].add_sample(name, whole, value)
        self._families = [families[name] for name in self._help if name in families]

    def text(self) -> bytes:
        """Return what a scrape is answered with."""
        return self._client.generate_latest(self._registry)

    def write(self, path: Path) -> None:
        """Write it to a file, which is replaced as a whole. Raises OSError if that is not possible."""
        self._client.write_to_textfile(str(path), self._registry)

    def serve(self, host: str, port: int) -> int:
        """Listen, and return the port. Raises PrometheusError if the address is in use or not ours."""
        try:
            self._server, _ = self._client.start_http_server(port, addr=host, registry=self._registry)
        except OSError as error:
            raise PrometheusError(f"{host}:{port} cannot be used: {error.strerror or error}") from error
        # A client that sends nothing is not waited for.
        self._server.RequestHandlerClass.timeout = _CLIENT_TIMEOUT_S
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


def samples_of_values(
    labels: Mapping[str, str], values: Iterable[tuple[str, float]], open_findings: Iterable[str]
) -> Iterator[Sample]:
    """Yield the last values of a run's metrics, and how many of its findings are open, by severity."""
    shown = 0
    for metric, value in values:
        if len(metric) <= LONGEST_NAME and shown < MOST_METRICS:
            shown += 1
            yield "telemetry_run_last_value", {**labels, "metric": metric}, value
    counts = list(open_findings)
    for severity in SEVERITIES:
        yield "telemetry_run_findings_open", {**labels, "severity": severity}, counts.count(severity)
