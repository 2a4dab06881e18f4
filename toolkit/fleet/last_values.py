"""The last values of live runs and the state of the shipper as Prometheus text, for alarms; never the record."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from typing import Final

from toolkit.core.hosts import HOST
from toolkit.fleet.address import AddressError
from toolkit.fleet.shipped import ShippedRun
from toolkit.fleet.shipper import Shipper
from toolkit.runfolder.status import LOST

MOST_METRICS: Final = 200
"""Metrics of one run that are shown: each is a series of its own in Prometheus."""

_LONGEST_NAME: Final = 200
_SHOWN_AFTER_END_S: Final = 600.0
_HELP: Final = {
    "telemetry_run_step": ("gauge", "The last step of a run."),
    "telemetry_run_heartbeat_timestamp_seconds": ("gauge", "When a run last showed a sign of life."),
    "telemetry_run_live": ("gauge", "1 while a run is running or stalled, 0 after its end."),
    "telemetry_run_lost": ("gauge", "1 if the process of a run is gone and its end was not recorded."),
    "telemetry_run_last_value": ("gauge", "The last value of a metric of rank 0."),
    "telemetry_run_findings_open": ("gauge", "Open findings by severity, since the shipper started."),
    "telemetry_ship_behind_bytes": ("gauge", "Bytes of record files that are not in the engine yet."),
    "telemetry_ship_files": ("gauge", "Record files that are shipped."),
    "telemetry_ship_lines_total": ("counter", "Lines that were shipped."),
    "telemetry_ship_batches_total": ("counter", "Batches that were shipped."),
    "telemetry_ship_errors_total": ("counter", "Failures, each try counted."),
    "telemetry_ship_objects_total": ("counter", "Files that were stored for records that point to them."),
    "telemetry_ship_object_bytes_total": ("counter", "Bytes of files that were sent to the store."),
    "telemetry_ship_object_errors_total": ("counter", "Failures of storing files, each try counted."),
    "telemetry_ship_objects_waiting": ("gauge", "Files that wait to be stored."),
    "telemetry_ship_clock_ahead_seconds": ("gauge", "How far this machine's clock is ahead of the engine's."),
}
_SEVERITIES: Final = ("info", "warning", "critical")

_Sample = tuple[str, Mapping[str, str], float]


def metrics_text(shipper: Shipper) -> bytes:
    """Return what Prometheus scrapes."""
    samples: dict[str, list[str]] = {name: [] for name in _HELP}
    for name, labels, value in _samples(shipper):
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        samples[name].append(f"{name}{{{inside}}} {_number(value)}" if inside else f"{name} {_number(value)}")
    lines = []
    for name, (kind, text) in _HELP.items():
        if samples[name]:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *samples[name]]
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


class MetricsServer:
    """Answers every request with the newest text; it reads nothing itself."""

    def __init__(self, address: tuple[str, int]) -> None:
        """Listen on `address`.

        Raises:
            OSError: it is in use or not ours.
        """
        server = self._server = _Server(address, _Handler)
        self._thread = threading.Thread(target=server.serve_forever, name="telemetry-metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def show(self, text: bytes) -> None:
        """Answer with `text` from now on."""
        self._server.text = text

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def host_and_port(text: str) -> tuple[str, int]:
    """Return the address in `text`.

    Raises:
        AddressError: it is not HOST:PORT.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not HOST.fullmatch(host) or not port.isdecimal() or int(port) > 65535:
        raise AddressError(f"{ascii(text)[:60]} is not HOST:PORT")
    return host, int(port)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    text = b""

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)


class _Handler(BaseHTTPRequestHandler):
    timeout = 30

    def do_GET(self) -> None:
        """Answer a scrape."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        assert isinstance(self.server, _Server)
        text = self.server.text
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is http.server's
        """Print nothing for a scrape."""


def _samples(shipper: Shipper) -> Iterator[_Sample]:
    now = time.time()
    for run in shipper.runs.values():
        if _is_shown(run, now):
            yield from _of_run(run, shipper.node)
    totals = shipper.totals
    yield "telemetry_ship_behind_bytes", {}, shipper.behind
    yield "telemetry_ship_files", {}, len(shipper.files)
    yield "telemetry_ship_lines_total", {}, totals.lines
    yield "telemetry_ship_batches_total", {}, totals.batches
    yield "telemetry_ship_errors_total", {}, totals.errors
    if shipper.objects is not None:
        files = shipper.objects.totals
        yield "telemetry_ship_objects_total", {}, files.stored
        yield "telemetry_ship_object_bytes_total", {}, files.bytes
        yield "telemetry_ship_object_errors_total", {}, files.errors
        yield "telemetry_ship_objects_waiting", {}, files.waiting
    if shipper.engine.clock_ahead_s is not None:
        yield "telemetry_ship_clock_ahead_seconds", {}, shipper.engine.clock_ahead_s


def _is_shown(run: ShippedRun, now: float) -> bool:
    manifest = run.found.manifest
    if manifest is None or manifest.latest is None or run.found.is_part or not run.is_listed:
        return False
    beat = manifest.heartbeat.time if manifest.heartbeat is not None else manifest.latest.started
    return run.report.is_running or now - beat < _SHOWN_AFTER_END_S


def _of_run(run: ShippedRun, node: str) -> Iterator[_Sample]:
    manifest, key = run.found.manifest, run.found.key
    assert manifest is not None
    labels = {
        "run": run.found.name[:_LONGEST_NAME],
        "run_id": key.run_id,
        "project": key.project,
        "host": node,
    }
    yield "telemetry_run_live", labels, float(run.report.is_running)
    status = run.report.status
    yield "telemetry_run_lost", labels, float(status is not None and status.name == LOST)
    beat = manifest.heartbeat
    if beat is not None:
        yield "telemetry_run_heartbeat_timestamp_seconds", labels, beat.time
        if beat.global_step is not None:
            yield "telemetry_run_step", labels, beat.global_step
    file = run.files.get(0)
    if file is None or file.tail is None:
        return
    values = ((name, value) for name, value in file.tail.last_values() if len(name) <= _LONGEST_NAME)
    for metric, value in islice(values, MOST_METRICS):
        yield "telemetry_run_last_value", {**labels, "metric": metric}, value
    for severity in _SEVERITIES:
        count = sum(found == severity for found in file.tail.open_findings.values())
        yield "telemetry_run_findings_open", {**labels, "severity": severity}, count


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
