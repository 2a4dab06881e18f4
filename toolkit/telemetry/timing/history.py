"""Reads the time ledger of a run from its folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolkit.telemetry.runfolder.journal.end_record import with_end_record
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.manifest import ManifestError, read_manifest
from toolkit.telemetry.runfolder.reader import blocks_of, records_in
from toolkit.telemetry.runfolder.status import RUNNING, STALLED, work_out_status
from toolkit.telemetry.timing.ledger import Ledger, LedgerBuilder
from toolkit.telemetry.timing.span_summary import SpanSummaries, SpanSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """Where the time of one run went."""

    ledger: Ledger
    status: str | None
    """None if there is no readable manifest."""
    records: int
    bad_lines: int
    """Unreadable lines."""
    spans: Mapping[str, SpanSummary]
    """Spans by name, longest total first."""


def read_run_time(
    folder: Path, *, wall: Callable[[], float] = time.time, on_records: Callable[[int], None] | None = None
) -> RunTime:
    """Read a run folder, which may still grow; `on_records` is called with the number of records read so far.

    Raises:
        OSError: the record file is missing, unreadable, not a regular file, or was replaced while it was read.
    """
    builder, summaries = LedgerBuilder(), SpanSummaries()
    count = bad_lines = 0
    for block in blocks_of(folder / METRICS_JSONL):
        records, bad = records_in(block)
        builder.take(records)
        summaries.take(records)
        count += len(records)
        bad_lines += bad
        if on_records is not None:
            on_records(count)
    try:
        manifest = with_end_record(read_manifest(folder), folder)
    except (OSError, ManifestError):
        ledger, status = builder.ledger(), None
    else:
        now = wall()
        status = work_out_status(manifest, now).name
        last_sign = manifest.heartbeat.time if manifest.heartbeat is not None else None
        is_alive = status in (RUNNING, STALLED)
        ledger = builder.ledger(manifest.sessions, now if is_alive else None, last_sign=last_sign)
    return RunTime(
        ledger=ledger, status=status, records=count, bad_lines=bad_lines, spans=summaries.by_name()
    )
