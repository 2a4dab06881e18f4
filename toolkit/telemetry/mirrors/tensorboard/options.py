"""The options of the TensorBoard exporter."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from toolkit.telemetry.core.checks import boolean, optional, path
from toolkit.telemetry.core.fields import option
from toolkit.telemetry.mirrors.shared.exporter import Exporter
from toolkit.telemetry.runfolder.layout import TENSORBOARD

if TYPE_CHECKING:
    from toolkit.telemetry.core.sink import Sink
    from toolkit.telemetry.mirrors.shared.exporter import ExportedRun


@dataclass(frozen=True, kw_only=True)
class TensorBoardOptions(Exporter):
    """TensorBoard event files."""

    NEEDS: ClassVar = ("tensorboard", "tensorboard")

    tensorboard: bool = option(False, "Write TensorBoard event files.", boolean)
    tensorboard_dir: str | None = option(
        None, "Folder for event files; default: `tensorboard` in the run folder.", optional(path)
    )

    def make_sink(self, run: ExportedRun) -> Sink | None:
        """Return the exporter where `tensorboard` is on."""
        if not self.tensorboard:
            return None
        from toolkit.telemetry.mirrors.tensorboard.exporter import TensorBoardExporter

        folder = run.folder / TENSORBOARD
        if self.tensorboard_dir:
            stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(run.started))
            folder = Path(self.tensorboard_dir).expanduser().absolute() / f"{run.folder.name}_{stamp}"
        return TensorBoardExporter(folder, run_folder=run.folder)
