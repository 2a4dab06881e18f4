"""What an exporter needs to know about the run, besides its own options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.telemetry.mirrors.shared.span_filter import SpanFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRun:
    """The run whose records an exporter gets."""

    folder: Path
    run_id: str
    display_name: str
    session: int
    started: float
    """When the session began, by the wall clock."""
    file_mode: int
    project: str | None
    perf_tag: str | None
    session_tag: str
    span_filter: SpanFilter | None
    """Which spans to send; None for all."""
