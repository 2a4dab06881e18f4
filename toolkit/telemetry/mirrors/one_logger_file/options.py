"""The option of the OneLogger file exporter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.telemetry.core.checks import boolean_or_path
from toolkit.telemetry.core.fields import option
from toolkit.telemetry.mirrors.shared.exporter import Exporter
from toolkit.telemetry.runfolder.layout import ONE_LOGGER_FILE

if TYPE_CHECKING:
    from toolkit.telemetry.core.sink import Sink
    from toolkit.telemetry.mirrors.shared.exporter import ExportedRun


@dataclass(frozen=True, kw_only=True)
class OneLoggerFileOptions(Exporter):
    """A file in OneLogger's format."""

    one_logger_file: bool | str = option(
        False,
        "Write spans and events in OneLogger's file format: `true` for a file in the run folder, or a path.",
        boolean_or_path,
    )

    def make_sink(self, run: ExportedRun) -> Sink | None:
        """Return the exporter where `one_logger_file` is set."""
        if not self.one_logger_file:
            return None
        from toolkit.telemetry.mirrors.one_logger_file.exporter import OneLoggerFileExporter

        path = run.folder / ONE_LOGGER_FILE
        if isinstance(self.one_logger_file, str):
            path = Path(self.one_logger_file).expanduser()
        return OneLoggerFileExporter(path, run_id=run.run_id, span_filter=run.span_filter, mode=run.file_mode)
