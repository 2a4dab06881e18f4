"""Images, tables, histograms and figures that W&B scripts log."""

# ruff: noqa: ARG002 - the parameters are W&B's, and some have no meaning here

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from toolkit.telemetry.compat.null_object import NullObject, null_object, warn_once
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.records.media import MOST_BINS, histogram_of, image_file, listed
from toolkit.telemetry.logger.writing.media_writer import write_media_file
from toolkit.telemetry.privacy.masking import mask_table
from toolkit.telemetry.runfolder.layout import SAMPLES, TABLES

MEDIA: Final = "media"
_MAX_LISTED: Final = 64
"""Values of an array that a step record lists; a larger array becomes a histogram, as in W&B."""
_BINS_OF_AN_ARRAY: Final = 32
no_run_guard = Guard()
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
        run = target.log.run_folder
        assert run is not None
        target.log.log_sample(
            target.step,
            run / path,
            prompt=self.caption or target.key,
            name=target.key,
            caption=self.caption,
            index=target.index,
        )
        return path


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
        with no_run_guard.catch("reading an image"):
            if isinstance(data_or_path, Image):
                self.data, self.format = data_or_path.data, data_or_path.format
                self.caption = caption or data_or_path.caption
            else:
                self.data, self.format = image_file(data_or_path, mode=mode, file_format=self.format)()


class Histogram(Media):
    """Counts of values per bin."""

    def __init__(self, sequence: Any = None, np_histogram: Any = None, num_bins: int = 64) -> None:
        self.histogram: list[float] = []
        self.bins: list[float] = []
        with no_run_guard.catch("counting a histogram"):
            if np_histogram is not None:
                counts, edges = np_histogram
                self.histogram, self.bins = listed(counts), listed(edges)
            elif sequence is not None:
                self.histogram, self.bins, _ = histogram_of(sequence, max(1, min(int(num_bins), MOST_BINS)))

    def save(self, target: MediaTarget) -> Any:
        """Write a record."""
        target.log.log_event(
            "histogram", name=target.key, global_step=target.step, values=self.histogram, bins=self.bins
        )
        return {"values": self.histogram, "bins": self.bins}


class Table(Media):
    """Rows under named columns, saved as a JSON file of `columns` and `data` in the run folder."""

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
        self.columns: list[Any] = ["Input", "Output", "Expected"]
        self.data: list[list[Any]] = []
        with no_run_guard.catch("reading a table"):
            if columns is not None:
                self.columns = list(columns)
            if dataframe is None and hasattr(data, "columns"):
                dataframe = data
            if dataframe is not None:
                self.columns = list(dataframe.columns)
                data = dataframe.values
            data = rows if data is None else data
            if data is not None:
                self.data = [list(row) for row in (data.tolist() if hasattr(data, "tolist") else data)]

    def add_data(self, *data: Any) -> None:
        """Add a row."""
        self.data.append(list(data))

    def add_row(self, *row: Any) -> None:
        """Add a row."""
        self.data.append(list(row))

    def add_column(self, name: str, data: Any, optional: bool = False) -> None:
        """Add a column with a value for each row; the first column creates the rows."""
        with no_run_guard.catch("adding a column to a table"):
            values = list(data)
            if not self.data:
                self.columns, self.data = [], [[] for _ in values]
            self.columns.append(name)
            for row, value in zip(self.data, values, strict=False):
                row.append(value)

    def get_column(self, name: str, convert_to: str | None = None) -> list[Any]:
        """Return the values of one column; empty if it does not exist."""
        if name not in self.columns:
            return []
        column = self.columns.index(name)
        return [row[column] for row in self.data if column < len(row)]

    def iterrows(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield each row with its number."""
        yield from enumerate(self.data)

    def get_dataframe(self) -> Any:
        """Return the rows as a pandas DataFrame, if pandas is imported."""
        pandas = sys.modules.get("pandas")
        if pandas is None:
            return null_object("wandb.Table.get_dataframe", "needs pandas to be imported first")
        width = len(self.columns)
        rows = [[*row[:width], *[None] * (width - len(row))] for row in self.data]
        return pandas.DataFrame(rows, columns=self.columns)

    def content(self, target: MediaTarget | None = None) -> dict[str, Any]:
        """Return the content of its file; media in its cells are saved to `target`, if given."""
        rows = [[_cell(cell, target) for cell in row] for row in self.data]
        columns, data = mask_table([*map(str, self.columns)], rows)
        return {"columns": columns, "data": data}

    def save(self, target: MediaTarget) -> Any:
        """Write the file and a record."""
        content = self.content(target)
        path = target.write(TABLES, ".table.json", as_json(content))
        target.log.log_event(
            "table",
            name=target.key,
            global_step=target.step,
            path=path,
            columns=content["columns"],
            rows=len(content["data"]),
        )
        return path


class Plotly(Media):
    """A plotly figure, saved as plotly's own JSON."""

    def __init__(self, figure: Any) -> None:
        self.json = ""
        with no_run_guard.catch("reading a figure"):
            self.json = figure.to_json()

    def save(self, target: MediaTarget) -> Any:
        """Write the file and a record."""
        if not self.json:
            return None
        path = target.write(MEDIA, ".plotly.json", self.json.encode("utf-8", "replace"))
        target.log.log_event("plot", name=target.key, kind="plotly", global_step=target.step, path=path)
        return path


def find_media(value: Any) -> list[Media] | None:
    """Return the media in `value`; None if it is an ordinary value."""
    if isinstance(value, Media):
        return [value]
    if isinstance(value, NullObject):
        return []
    if isinstance(value, (list, tuple)):
        if not value or not all(isinstance(item, (Media, NullObject)) for item in value):
            return None
        return [item for item in value if isinstance(item, Media)]
    return _media_of_others(value, type(value).__module__.partition(".")[0])


def _media_of_others(value: Any, package: str) -> list[Media] | None:
    """Return the media that W&B makes of an object of another package; None if it is an ordinary value."""
    if hasattr(value, "savefig") or (package == "matplotlib" and hasattr(value, "figure")):
        return [Image(value)]
    if package == "pandas" and hasattr(value, "columns"):
        return [Table(dataframe=value)]
    if package == "plotly" and hasattr(value, "to_json"):
        return [Plotly(value)]
    if package in ("numpy", "torch") and math.prod(getattr(value, "shape", ())) > _MAX_LISTED:
        if str(getattr(value, "device", "cpu")) == "cpu":
            return [Histogram(value, num_bins=_BINS_OF_AN_ARRAY)]
        # Fetching it would wait for the device.
        warn_once("wandb.log of many values on a GPU", "is left out: log wandb.Histogram(…) of them")
    return None


def as_json(content: Any) -> bytes:
    """Return a script's data as JSON: arrays as lists, and unknown objects as text."""
    return orjson.dumps(content, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def _cell(cell: Any, target: MediaTarget | None) -> Any:
    if isinstance(cell, Media):
        return None if target is None else cell.save(target)
    return None if isinstance(cell, NullObject) else cell


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)
