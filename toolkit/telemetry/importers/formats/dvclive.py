"""DVCLive: one TSV file a metric, in three layouts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.importers.files import HEAD_BYTES, LinesSource, Stream, open_below
from toolkit.telemetry.importers.folders import Folder, Found, files_below
from toolkit.telemetry.importers.source import (
    BATCH_BYTES,
    MAX_METRICS,
    NO_STEP,
    NO_TIME,
    Batch,
    BlobRef,
    Builder,
    Event,
    SourceInfo,
    as_number,
    as_step,
    run_info,
)

FORMAT: Final = "dvclive"
_LAYOUTS: Final = ("plots/metrics", "scalars", ".")
_MOST_FILES: Final = 5_000
_IMAGES: Final = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp"})


class DvcLiveSource(LinesSource):
    """One folder of DVCLive."""

    def __init__(self, info: SourceInfo, folder: str) -> None:
        super().__init__(info, settings=[_joined(folder, "params.yaml")])
        self._folder = folder
        self._seen_images: set[str] = set()

    def streams(self) -> Sequence[Stream]:
        """Return the files, a metric each; what a second layout repeats has a name that says so."""
        found: list[Stream] = []
        names: set[str] = set()
        for layout in _LAYOUTS:
            files = tsv_files(self.info.root, _joined(self._folder, layout), deep=layout != ".")
            for relative in files:
                name = relative.removesuffix(".tsv")
                if name.rpartition("/")[2] == "step":
                    # Its only numbers are the steps of the others.
                    continue
                shown = f"{name} (again, in {layout}/)" if name in names else name
                path = _joined(_joined(self._folder, layout), relative)
                found.append(Stream(path, repeated=shown != name, metric=shown))
            names.update(name.removesuffix(".tsv") for name in files)
            if layout == "scalars" and names:
                break
        return found

    def read(self, cursor: Any, *, max_bytes: int = BATCH_BYTES) -> Batch:
        """Return what is new, and the images that are new."""
        batch = super().read(cursor, max_bytes=max_bytes)
        for path in self._images():
            if path not in self._seen_images or cursor is None:
                self._seen_images.add(path)
                batch.not_numbers[(0, f"images: {Path(path).name}")] += 1
                batch.events.append(Event(kind="image", name=Path(path).stem, blob=BlobRef(path=path)))
        return batch

    def line(self, stream: Stream, line: bytes, state: dict[str, Any], out: Builder) -> None:
        """Add one row."""
        cells = line.decode("utf-8", "replace").rstrip("\r").split("\t", MAX_METRICS)
        names = state.get("names")
        if names is None:
            state["names"] = cells
            return
        step, timestamp, value = NO_STEP, NO_TIME, None
        own = stream.path.rpartition("/")[2].removesuffix(".tsv")
        for name, cell in zip(names, cells, strict=False):
            number = _number(cell)
            if name == own:
                # A metric called `step` or `timestamp` has the place of that column.
                value = number
            if name == "step":
                step = as_step(number)
            elif name == "timestamp" != own:
                timestamp = NO_TIME if number is None else number / 1000
            elif number is not None:
                value = number
        if value is not None:
            if step < state.get("step", step):
                state["session"] = state.get("session", 0) + 1
            state["step"] = step
            session = state.get("session", 0)
            out.add(stream.metric, step, timestamp, value, session=session, repeated=stream.repeated)
        elif any(cells):
            out.not_number(stream.metric)

    def _images(self) -> list[str]:
        folder = _joined(self._folder, "plots/images")
        names = files_below(self.info.root / folder, most=_MOST_FILES)
        return [f"{folder}/{name}" for name in names if Path(name).suffix.lower() in _IMAGES][:1000]


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return as_number(cell)


def _joined(folder: str, name: str) -> str:
    return name if folder == "." else folder if name == "." else f"{folder}/{name}"


def tsv_files(root: Path, folder: str, *, deep: bool) -> list[str]:
    """Return the TSV files with a column of steps in a folder, relative to it."""
    names = files_below(root / folder, most=_MOST_FILES, depth=8 if deep else 0)
    return [name for name in names if name.endswith(".tsv") and (deep or _has_metric(root / folder / name))]


def _has_metric(path: Path) -> bool:
    try:
        with open_below(path.parent, path.name) as file:
            return _is_metric(path.name, file.read(0, HEAD_BYTES))
    except OSError:
        return False


def _is_metric(name: str, head: bytes) -> bool:
    """Return whether a file has steps and the one metric that it is named after."""
    cells = head.split(b"\n")[0].decode("utf-8", "replace").strip().split("\t")
    own = Path(name).stem
    return {"step", own} <= set(cells) <= {"step", "timestamp", own}


def sources_in(folder: Folder) -> Found:
    """Return the run of a folder with DVCLive's metrics."""
    has_plots = "plots" in folder.folders and (folder.path / "plots" / "metrics").is_dir()
    has_scalars = "scalars" in folder.folders and any(
        tsv_files(folder.root, folder.below("scalars"), deep=True)[:1]
    )
    flat = [name for name in folder.files if name.endswith(".tsv")]
    flat = [name for name in flat[:_MOST_FILES] if _is_metric(name, folder.head(name))]
    if not (has_plots or has_scalars or flat):
        return Found()
    if has_plots and not tsv_files(folder.root, folder.below("plots/metrics"), deep=True):
        return Found()
    path = folder.path
    name = path.parent.name if path.name in ("dvclive", "live") else path.name
    info = run_info(FORMAT, os.path.realpath(path), name, folder.root, [folder.relative])
    return Found(
        [DvcLiveSource(info, folder.relative)], frozenset(flat), skipped=frozenset({"plots", "scalars"})
    )
