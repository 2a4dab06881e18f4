"""Free disk space where the run is logged."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.telemetry.logger.machine.samplers.sampler import Sample


class DiskSampler:
    """Asks the log folder's file system how much is free; apart from the host's metrics, as a lost server hangs."""

    name = "disk"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sample(self) -> Sample:
        """Return `disk_free_gb` (GiB) of the folder, or of its nearest parent that exists."""
        folder = self._folder.absolute()
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if hasattr(os, "statvfs"):
            about = os.statvfs(folder)
            free = about.f_bavail * about.f_frsize
        else:
            # Imported where it is needed: it brings the compression libraries with it.
            import shutil

            free = shutil.disk_usage(folder).free
        return {"disk_free_gb": round(free / 1024**3, 3)}

    def close(self) -> None:
        """Do nothing: nothing is open."""
