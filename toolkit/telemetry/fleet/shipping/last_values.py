"""The last values of live runs and the state of the shipper for Prometheus, for alarms; never the record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from toolkit.telemetry.core.prometheus import LONGEST_NAME, Sample, samples_of_values
from toolkit.telemetry.fleet.shipping.shipper import Shipper
from toolkit.telemetry.fleet.shipping.watch import ShippedRun
from toolkit.telemetry.runfolder.status import LOST

_SHOWN_AFTER_END_S: Final = 600.0
HELP: Final = {
    "telemetry_ship_behind_bytes": "Bytes of record files that are not in the engine yet.",
    "telemetry_ship_files": "Record files that are shipped.",
    "telemetry_ship_lines_total": "Lines that were shipped.",
    "telemetry_ship_batches_total": "Batches that were shipped.",
    "telemetry_ship_errors_total": "Failures, each try counted.",
    "telemetry_ship_objects_total": "Files that were stored for records that point to them.",
    "telemetry_ship_object_bytes_total": "Bytes of files that were sent to the store.",
    "telemetry_ship_object_errors_total": "Failures of storing files, each try counted.",
    "telemetry_ship_objects_waiting": "Files that wait to be stored.",
    "telemetry_ship_clock_ahead_seconds": "How far this machine's clock is ahead of the engine's.",
}
"""What the metrics of the shipper mean."""


def samples(shipper: Shipper) -> Iterator[Sample]:
    """Yield what is shown to Prometheus."""
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


def _of_run(run: ShippedRun, node: str) -> Iterator[Sample]:
    manifest, key = run.found.manifest, run.found.key
    assert manifest is not None
    labels = {
        "run": run.found.name[:LONGEST_NAME],
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
    # Once: its sender may forget it meanwhile.
    tail = file.tail if file is not None else None
    if tail is not None:
        yield from samples_of_values(labels, tail.last_values(), list(tail.open_findings.values()))
