"""Images, tables and histograms as files and numbers, from whatever library a script has them in."""

from __future__ import annotations

import io
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.core.guard import MisuseError
from toolkit.telemetry.logger.records.png import png_of

MOST_BINS: Final = 512
PLAIN: Final = frozenset({int, float, bool, str})
_MOST_LEVELS: Final = 16
_IMAGES_IN_A_ROW: Final = 8
_POLL_S: Final = 0.002

Values = Callable[[], Any]
"""Returns what an array held when it was handed over. Call it on another thread: it may wait for a GPU."""


class Snapshot:
    """What an array held; calling it returns it, which may wait for a GPU."""

    def __init__(self, host: Any, arrived: Any = None) -> None:
        self._host, self._arrived = host, arrived

    @property
    def has_arrived(self) -> bool:
        """Whether it can be called without waiting."""
        return self._arrived is None or bool(self._arrived.query())

    def __call__(self) -> Any:
        """Return the copy, once it has arrived."""
        # Asked in turns and not waited for: torch's own wait keeps other threads from running on some drivers.
        while not self.has_arrived:
            time.sleep(_POLL_S)
        return self._host


def snapshot(given: Any) -> Snapshot:
    """Return a copy of an array or tensor as it is now, without waiting for a CUDA device that it is on."""
    if not hasattr(given, "detach"):
        return Snapshot(given.copy() if hasattr(given, "copy") and hasattr(given, "dtype") else given)
    tensor = given.detach()
    if not tensor.is_cuda:
        return Snapshot(tensor.clone() if tensor.device.type == "cpu" else tensor.cpu())
    torch = sys.modules["torch"]
    with torch.inference_mode(False):
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    pinned.copy_(tensor, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(tensor.device))
    return Snapshot(pinned, arrived)


def image_file(
    given: Any, *, mode: str | None = None, file_format: str = "png"
) -> Callable[[], tuple[bytes, str]]:
    """Return what makes an image's file: its bytes and its format.

    `given` is a path, the bytes of a file, a PIL image, a matplotlib figure, or an array or tensor. An array has its
    channels last (numpy) or first (torch); a batch of torch becomes one image. What may change is copied at once, what
    takes time is left to the returned function. A figure is drawn at once: matplotlib allows no other thread.

    Raises:
        MisuseError: it is something else.
    """
    if isinstance(given, bytes):
        encoded = given, "gif" if given.startswith(b"GIF8") else file_format
        return lambda: encoded
    if isinstance(given, (str, os.PathLike)):
        path = Path(given)
        return lambda: (path.read_bytes(), path.suffix.lower().lstrip(".") or file_format)
    figure: Any = given if hasattr(given, "savefig") else getattr(given, "figure", None)
    if hasattr(figure, "savefig"):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=file_format)
        drawn = buffer.getvalue(), file_format
        return lambda: drawn
    if hasattr(given, "save") and hasattr(given, "convert"):
        picture = given.convert(mode) if mode else given.copy()
        return lambda: (_saved(picture, file_format), file_format)
    if not hasattr(given, "shape"):
        raise MisuseError(
            "an image is a path, bytes, a PIL image, a matplotlib figure, an array or a tensor, "
            f"not a {type(given).__name__}"
        )
    values = snapshot(given)
    return lambda: (png_of(pixels_of(values())), "png")


def pixels_of(given: Any, *, is_image: bool = True) -> Any:
    """Return an array as numpy has it; that of an image has its channels last."""
    if hasattr(given, "detach"):
        given = given.detach().cpu()
        if given.is_floating_point():
            given = given.float()
        if is_image and given.ndim == 4:
            given = _side_by_side(given)
        if is_image and given.ndim == 3:
            given = given.permute(1, 2, 0)
    return given.numpy() if hasattr(given, "numpy") else given


def numbers_of(given: Any) -> Callable[[], Any]:
    """Return what gives the numbers of a histogram as they are now.

    Raises:
        MisuseError: there are texts among them that are no numbers.
    """
    try:
        for value in [given] if isinstance(given, str) else given if isinstance(given, (list, tuple)) else ():
            if isinstance(value, str):
                float(value)
    except ValueError as error:
        raise MisuseError(f"a histogram is made of numbers: {error}") from error
    return snapshot(given)


def histogram_of(given: Any, bins: int) -> tuple[list[float], list[float], int]:
    """Return how many values fall into each bin, the edges of the bins, and how many values are NaN or infinite.

    Raises:
        MisuseError: they are not numbers.
    """
    try:
        return _histogram_of(given, max(1, min(int(bins), MOST_BINS)))
    except (TypeError, ValueError) as error:
        raise MisuseError(f"a histogram is made of numbers: {error}") from error


def _histogram_of(given: Any, bins: int) -> tuple[list[float], list[float], int]:
    if hasattr(given, "detach"):
        given = given.detach().float().cpu().numpy()
    # Who has an array has numpy; for a plain list it is not imported.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numbers = numpy.asarray(given, dtype=float)
        finite = numbers[numpy.isfinite(numbers)]
        counts, edges = numpy.histogram(finite, bins=bins)
        return listed(counts), listed(edges), int(numbers.size - finite.size)
    every = listed(given)
    values = [value for value in every if math.isfinite(value)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    counted = [0.0] * bins
    for value in values:
        counted[min(bins - 1, int((value - low) / (high - low) * bins))] += 1
    return counted, [low + (high - low) * edge / bins for edge in range(bins + 1)], len(every) - len(values)


def listed(values: Any) -> list[float]:
    """Return numbers of any kind as a list of floats."""
    return [float(value) for value in (values.tolist() if hasattr(values, "tolist") else values)]


def table_of(given: Any, columns: Sequence[Any] | None = None) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and rows of a table: a DataFrame, mappings, a mapping of columns, or rows.

    Raises:
        MisuseError: it is something else.
    """
    if hasattr(given, "columns"):
        names = [str(name) for name in (given.columns if columns is None else columns)]
        # pandas has rows as an array, polars as a method.
        rows: Iterable[Any] = given.rows() if hasattr(given, "rows") else given.to_numpy().tolist()
        return names, [list(row) for row in rows]
    if isinstance(given, Mapping):
        names = [str(name) for name in given]
        return names, [list(row) for row in itertools.zip_longest(*map(_cells, given.values()))]
    if hasattr(given, "tolist"):
        given = given.tolist()
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise MisuseError(
            f"a table is a DataFrame, a list of rows or a mapping of columns, not a {type(given).__name__}"
        )
    rows = list(given)
    if rows and all(isinstance(row, Mapping) for row in rows):
        keys = (
            list(columns) if columns is not None else list(dict.fromkeys(key for row in rows for key in row))
        )
        return [str(key) for key in keys], [[row.get(key) for key in keys] for row in rows]
    cells = [_cells(row) for row in rows]
    width = max(map(len, cells), default=0)
    names = [str(name) for name in columns] if columns is not None else [f"column_{i}" for i in range(width)]
    return names, cells


def _cells(given: Any) -> list[Any]:
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def split_media(data: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the plain values, the images and the tables of `data`, each by its flat name such as `outer/inner`."""
    values: dict[str, Any] = {}
    images: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    for name, value in flat_items(data):
        into = images if _is_image(value) else tables if _is_table(value) else values
        into[name] = value
    return values, images, tables


def flat_items(data: Mapping[Any, Any], prefix: str = "", level: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield what nested mappings hold, each by its flat name such as `outer/inner`."""
    for key, value in data.items():
        # On the training's thread: checking for a mapping would take longer than all the rest, also in `leaves`.
        if type(value) not in PLAIN and isinstance(value, Mapping) and level < _MOST_LEVELS:
            yield from flat_items(value, f"{prefix}{key}/", level + 1)
        else:
            yield f"{prefix}{key}", value


def _is_image(value: Any) -> bool:
    """Say whether `value` is an image by its type: a PIL image or a matplotlib figure."""
    package = type(value).__module__.partition(".")[0]
    return (package == "PIL" and hasattr(value, "save")) or (
        package == "matplotlib" and hasattr(value, "savefig")
    )


def _is_table(value: Any) -> bool:
    """Say whether `value` is a table by its type: a DataFrame of pandas or polars."""
    return type(value).__name__ == "DataFrame" and hasattr(value, "columns")


def _saved(picture: Any, file_format: str) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG" if file_format == "jpg" else file_format.upper())
    return buffer.getvalue()


def _side_by_side(batch: Any) -> Any:
    """Return a batch of torch's images as one image, of rows of which the last is filled up with zeros."""
    count, channels, height, width = batch.shape
    columns = min(count, _IMAGES_IN_A_ROW)
    rows = -(-count // columns)
    grid = batch.new_zeros((rows * columns, channels, height, width))
    grid[:count] = batch
    grid = grid.reshape(rows, columns, channels, height, width).permute(2, 0, 3, 1, 4)
    return grid.reshape(channels, rows * height, columns * width)
