"""The state of a shipper for Prometheus, for alarms; `telemetry metrics` shows the runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from toolkit.telemetry.core.prometheus import Sample
from toolkit.telemetry.fleet.shipping.shipper import Shipper

HELP: Final = {
    "telemetry_ship_behind_bytes": "Bytes of record files that are not in the engine yet.",
    "telemetry_ship_files": "Record files that are shipped.",
    "telemetry_ship_lines_total": "Lines that were shipped.",
    "telemetry_ship_batches_total": "Batches that were shipped.",
    "telemetry_ship_errors_total": "Failures, each try counted.",
    "telemetry_ship_objects_total": "Samples and other files that were stored.",
    "telemetry_ship_object_bytes_total": "Bytes of files that were sent to the store.",
    "telemetry_ship_object_errors_total": "Failures of storing files, each try counted.",
    "telemetry_ship_objects_waiting": "Runs whose files wait to be stored.",
    "telemetry_ship_clock_ahead_seconds": "How far this machine's clock is ahead of the engine's.",
}
"""What the metrics of the shipper mean."""


def samples(shipper: Shipper) -> Iterator[Sample]:
    """Yield what is shown to Prometheus."""
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
