"""What an exporter is: a block of options that makes a sink, and what it needs to know about the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from toolkit.telemetry.core.sink import Sink
    from toolkit.telemetry.mirrors.shared.span_filter import SpanFilter


class Exporter:
    """The base of a frozen dataclass with the options of one exporter; its keys are keys of the `telemetry:` block."""

    NEEDS: ClassVar[tuple[str, str]] = ("", "")
    """The option that switches it on, which is also the name of its extra, and a module that it then needs."""

    def make_sink(self, run: ExportedRun) -> Sink | None:
        """Return the exporter, or None if the options do not ask for it; only then its module is imported."""
        raise NotImplementedError

    def sends(self) -> Sequence[str]:
        """Return the options that send something off the machine; the exporter is not made in offline mode then."""
        return ()

    def offline_changes(self) -> Mapping[str, Any]:
        """Return the options that offline mode changes, with their values."""
        return {}


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
