"""What W&B scripts log besides numbers: images, tables, histograms, figures, videos, audio and HTML."""

# ruff: noqa: ARG002 - the parameters are W&B's, and some have no meaning here

from __future__ import annotations

import array
import io
import itertools
import math
import os
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.compat.null_object import NullObject, null_object, warn_once
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.records.media import (
    MOST_BINS,
    PLAIN,
    flat_items,
    histogram_of,
    image_file,
    listed,
    pixels_of,
    table_of,
)
from toolkit.telemetry.logger.records.png import animation_of
from toolkit.telemetry.logger.writing.media_writer import write_media_file
from toolkit.telemetry.runfolder.layout import SAMPLES

_MEDIA: Final = "media"
_MAX_LISTED: Final = 64
"""Values of an array that a step record lists; a larger array becomes a histogram, as in W&B."""
_BINS_OF_AN_ARRAY: Final = 32
_guard = Guard()
"""For failures that belong to no run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaTarget:
    """Where media are saved: the run, the key, the step, and the index among several."""

    log: TelemetryLogger
    key: str
    step: int
    index: int = 0

    def write(self, folder: str, ending: str, data: bytes) -> str:
        """Write a file into one of the run's folders, and return its path inside the run folder."""
        run = self.log.run_folder
        assert run is not None, "only a live run saves files"
        return write_media_file(run, folder, self.key, self.step, ending, data)

    def record(self, event: str, **fields: Any) -> None:
        """Write a record of this key and step."""
        self.log.log_event(event, name=self.key, global_step=self.step, **fields)


class Media:
    """Something with a file or a record of its own."""

    def save(self, target: MediaTarget) -> Any:
        """Save it in the run, and return what a table's cell shows. May raise: call it where failures are guarded."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return null_object(f"wandb.{type(self).__name__}.{name}")


class Sample(Media):
    """A file that is recorded as a sample, under its caption or its key."""

    caption: str | None = None
    format: str = ""
    data: bytes = b""
    """The file's content; empty if it could not be read."""

    def save(self, target: MediaTarget) -> Any:
        """Write the file and a record."""
        if not self.data:
            return None
        path = target.write(SAMPLES, f".{self.format}", self.data)
        shown = {"prompt": self.caption or target.key, "name": target.key, "caption": self.caption}
        target.log.log_sample(
            target.step, (target.log.run_folder or Path()) / path, index=target.index, **shown
        )
        return path

    def _read(self, given: Any) -> bool:
        """Take the content of a file that is given by its path, its bytes or open; False if it is something else."""
        if isinstance(given, (str, os.PathLike)):
            path = Path(given)
            self.format = path.suffix.lower().lstrip(".") or self.format
            self.data = path.read_bytes()
        elif isinstance(given, bytes):
            self.data = given
        elif hasattr(given, "read"):
            self.data = given.read()
        else:
            return False
        return True


class Image(Sample):
    """An image: a path, bytes, a PIL image, a figure or an array; encoded at once, as arrays are reused."""

    def __init__(
        self,
        data_or_path: Any,
        mode: str | None = None,
        caption: str | None = None,
        grouping: int | None = None,
        classes: Any = None,
        boxes: Mapping[str, Any] | None = None,
        masks: Mapping[str, Any] | None = None,
        file_type: str | None = None,
    ) -> None:
        self.caption = caption
        self.format = (file_type or "png").lower().lstrip(".")
        if boxes or masks or classes:
            warn_once("wandb.Image(boxes=…, masks=…)", "is shown without its boxes and masks")
        with _guard.catch("reading an image"):
            if isinstance(data_or_path, Image):
                self.data, self.format = data_or_path.data, data_or_path.format
                self.caption = caption or data_or_path.caption
            else:
                self.data, self.format = image_file(data_or_path, mode=mode, file_format=self.format)()


class Video(Sample):
    """A video: a path, or an array of frames, channels and pixels, which becomes an animated PNG."""

    def __init__(
        self,
        data_or_path: Any,
        caption: str | None = None,
        fps: float | None = None,
        format: str | None = None,  # noqa: A002 - W&B's name
    ) -> None:
        self.caption = caption
        self.format = (format or "gif").lower().lstrip(".")
        with _guard.catch("reading a video"):
            if not self._read(data_or_path):
                # W&B's default is four frames a second.
                self.format, self.data = "png", _animated(data_or_path, fps or 4)


def _animated(given: Any, fps: float) -> bytes:
    """Return frames as an animated PNG; several videos are placed side by side."""
    frames = pixels_of(given, is_image=False)
    if frames.ndim == 5:
        # Side by side: (video, frame, channel, height, width) to frames of the combined width.
        count, length, channels, height, width = frames.shape
        frames = frames.transpose(1, 2, 3, 0, 4).reshape(length, channels, height, count * width)
    if frames.ndim != 4:
        raise ValueError(
            f"an array of shape {tuple(frames.shape)} is not a video: frames, channels, height, width"
        )
    return animation_of(frames.transpose(0, 2, 3, 1), fps)


class Audio(Sample):
    """Audio: a path, a file's bytes, or an array of samples between -1 and 1, which becomes a WAV file."""

    def __init__(self, data_or_path: Any, sample_rate: int | None = None, caption: str | None = None) -> None:
        self.caption = caption
        self.format = "wav"
        with _guard.catch("reading a sound"):
            if self._read(data_or_path):
                return
            if sample_rate is None:
                warn_once("wandb.Audio of an array", "needs a sample_rate")
            else:
                self.data = _wav(data_or_path, int(sample_rate))


def _wav(given: Any, rate: int) -> bytes:
    given = given.detach().cpu() if hasattr(given, "detach") else given
    rows = given.tolist() if hasattr(given, "tolist") else list(given)
    channels = len(rows[0]) if rows and isinstance(rows[0], (list, tuple)) else 1
    # Integers are already 16-bit samples, and NaN is silence.
    levels = [
        value if isinstance(value, int) else max(-1.0, min(1.0, value)) * 32767 if value == value else 0
        for value in (rows if channels == 1 else itertools.chain.from_iterable(rows))
    ]
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(array.array("h", map(round, levels)).tobytes())
    return buffer.getvalue()


class Html(Media):
    """An HTML page: its text, a path, or an open file. It is stored as it is, and not shown in the dashboard."""

    def __init__(self, data: Any, inject: bool = True, data_is_not_path: bool = False) -> None:
        self.html = ""
        with _guard.catch("reading a page"):
            is_path = str(data).endswith((".html", ".htm")) and not data_is_not_path
            data = Path(data).read_text("utf-8", "replace") if is_path else data
            self.html = str(data.read() if hasattr(data, "read") else data)

    def save(self, target: MediaTarget) -> Any:
        """Write the file and a record."""
        path = target.write(_MEDIA, ".html", self.html.encode("utf-8", "replace"))
        target.record("html", path=path)
        return path


class Histogram(Media):
    """Counts of values per bin."""

    def __init__(self, sequence: Any = None, np_histogram: Any = None, num_bins: int = 64) -> None:
        self.histogram: list[float] = []
        self.bins: list[float] = []
        with _guard.catch("counting a histogram"):
            if np_histogram is not None:
                self.histogram, self.bins = map(listed, np_histogram)
            elif sequence is not None:
                self.histogram, self.bins, _ = histogram_of(sequence, max(1, min(int(num_bins), MOST_BINS)))

    def save(self, target: MediaTarget) -> Any:
        """Write a record."""
        target.record("histogram", values=self.histogram, bins=self.bins)
        return {"values": self.histogram, "bins": self.bins}


class Table(Media):
    """Rows under named columns, saved as a CSV file in the run folder."""

    def __init__(
        self,
        columns: Sequence[Any] | None = None,
        data: Any = None,
        rows: Any = None,
        dataframe: Any = None,
        dtype: Any = None,
        optional: Any = True,
        allow_mixed_types: bool = False,
        log_mode: str | None = "IMMUTABLE",
    ) -> None:
        self.columns: list[Any] = list(columns or ("Input", "Output", "Expected"))
        self.data: list[list[Any]] = []
        with _guard.catch("reading a table"):
            data = rows if data is None else data
            frame = data if dataframe is None and hasattr(data, "columns") else dataframe
            if frame is not None:
                self.columns, self.data = table_of(frame)
            elif data is not None:
                self.columns, self.data = table_of(data, self.columns)

    def add_data(self, *data: Any) -> None:
        """Add a row."""
        self.data.append(list(data))

    add_row = add_data

    def save(self, target: MediaTarget) -> Any:
        """Save the media in its cells, and the table."""
        rows = [[_cell(cell, target) for cell in row] for row in self.data]
        target.log.log_table(target.key, rows, columns=self.columns, step=target.step)


def _cell(cell: Any, target: MediaTarget) -> Any:
    if isinstance(cell, Media):
        return cell.save(target)
    return None if isinstance(cell, NullObject) else cell


def find_media(value: Any) -> list[Media] | None:
    """Return the media in `value`, such as those that W&B makes of figures and frames; None for an ordinary value."""
    if isinstance(value, (Media, NullObject)):
        value = [value]
    if isinstance(value, (list, tuple)):
        if not value or not all(isinstance(item, (Media, NullObject)) for item in value):
            return None
        return [item for item in value if isinstance(item, Media)]
    package = type(value).__module__.partition(".")[0]
    if hasattr(value, "savefig") or (package == "matplotlib" and hasattr(value, "figure")):
        return [Image(value)]
    if package == "pandas" and hasattr(value, "columns"):
        return [Table(dataframe=value)]
    if package in ("numpy", "torch") and math.prod(getattr(value, "shape", ())) > _MAX_LISTED:
        if str(getattr(value, "device", "cpu")) == "cpu":
            return [Histogram(value, num_bins=_BINS_OF_AN_ARRAY)]
        # Fetching it would wait for the device.
        warn_once("wandb.log of many values on a GPU", "is left out: log wandb.Histogram(…) of them")
    return None


def split_row(row: Mapping[Any, Any]) -> tuple[dict[str, Any], list[tuple[str, list[Media]]]]:
    """Return a row's values and its media, both under flat names such as `outer/inner`."""
    values: dict[str, Any] = {}
    media: list[tuple[str, list[Media]]] = []
    for name, value in flat_items(row):
        found = None if type(value) in PLAIN else find_media(value)
        if found is None:
            values[name] = value
        else:
            media.append((name, found))
    return values, media
