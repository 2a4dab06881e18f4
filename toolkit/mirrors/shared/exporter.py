"""What an exporter is: a block of options that makes a sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.core.sink import Sink

if TYPE_CHECKING:
    from toolkit.mirrors.shared.span_filter import SpanFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRun:
    """What an exporter needs to know about the run, besides its own options."""

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


class Exporter:
    """The base of a frozen dataclass with the options of one exporter; its keys are keys of the `telemetry:` block."""

    def make_sink(self, run: ExportedRun) -> Sink | None:
        """Return the exporter, or None where the options do not ask for it.

        The module of the exporter is imported here and not before, so that a run without it starts faster.
        """
        raise NotImplementedError

    def sends(self) -> Sequence[str]:
        """Return the options that send something off the machine; the exporter is not made in offline mode then."""
        return ()

    def offline_changes(self) -> Mapping[str, Any]:
        """Return the options that offline mode changes, with their values."""
        return {}
