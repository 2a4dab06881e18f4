"""Reads what a report needs from a run on disk: its curves, thinned, and its latest pictures."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from toolkit.diagnostics.finding import Finding
from toolkit.importers.source import NO_STEP, RunSource, as_step, read_all
from toolkit.reports.content import window_of
from toolkit.reports.curve import SECONDS, STEP, Curve, CurveBuilder
from toolkit.reports.document import Picture
from toolkit.runfolder.inside import NotInside, read_inside
from toolkit.runfolder.metric_meaning import NOT_RESULTS
from toolkit.runfolder.metrics import CARRIES_METRICS, MAX_METRICS, as_float, metrics_of
from toolkit.runfolder.records import SAMPLE, Record
from toolkit.runs.formatting import count

OnPoints = Callable[[int], None]
"""Called with the number of points read so far."""

POINTS: Final = 2_400
"""Kept of a curve, at most."""
_MIN_POINTS: Final = 120
_POINTS_OF_ALL: Final = 3_000
_FEW: Final = 32
"""Points of metrics that are only listed: of the logger's own, and of names beyond the first hundred."""
_MANY: Final = 100
_MAX_EVIDENCE: Final = 20
_MAX_PICTURES: Final = 6
_MAX_CAPTION: Final = 300
_MAX_BYTES: Final = 20_000_000
_SMALL_BYTES: Final = 200_000
_SMALL: Final = 320
_MAX_PIXELS: Final = 40_000_000
_SIGNATURES: Final = ((b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_IMAGES: Final = (".png", ".jpg", ".jpeg", ".webp", ".gif")


def points_for(runs: int) -> int:
    """Return how many points of a curve a report of several runs keeps, so that the file stays small."""
    return max(_MIN_POINTS, min(POINTS, _POINTS_OF_ALL // max(1, runs)))


class CurveReader:
    """Reads all curves of a run in one pass, and those around its findings in detail."""

    def __init__(
        self,
        run: str,
        *,
        findings: Sequence[Finding] = (),
        steps: tuple[float, float] = (0.0, 0.0),
        points: int = POINTS,
    ) -> None:
        self._run = run
        self._points = points
        self._builders: dict[str, CurveBuilder] = {}
        self._axes: dict[str, str] = {}
        self._start = math.nan
        self._windows: dict[str, list[tuple[float, float, CurveBuilder]]] = {}
        self._evidence: dict[str, CurveBuilder] = {}
        for finding in findings[:_MAX_EVIDENCE]:
            window = window_of(finding, *steps)
            builder = CurveBuilder(finding.metric, run=run, points=points // 2)
            self._evidence[finding.id] = builder
            self._windows.setdefault(finding.metric, []).append((*window, builder))

    def read(self, source: RunSource, on_points: OnPoints = lambda _points: None) -> None:
        """Read a run to its end."""
        pieces = source.info.pieces
        read = 0
        for batch in read_all(source):
            if batch.replaced:
                self._builders.clear()
            for column in batch.columns:
                if not len(column) or column.repeated:
                    continue
                prefix = pieces[column.piece].prefix if column.piece < len(pieces) else ""
                name = f"{prefix}{column.metric}"
                self._take(name, column.kind, column.steps, column.times, column.values)
                read += len(column)
            on_points(read)

    def take(self, records: Iterable[Record]) -> None:
        """Take the next records of a run folder."""
        columns: dict[tuple[str, str], tuple[list[int], list[float], list[float]]] = {}
        for record in records:
            event = record.get("event")
            if not isinstance(event, str) or event not in CARRIES_METRICS:
                continue
            step, moment = record.get("global_step"), record.get("time")
            if type(step) is not int:
                step = as_step(step)
            moment = moment if type(moment) is float else as_float(moment)
            for name, value in metrics_of(record):
                column = columns.get((name, event))
                if column is None:
                    column = columns[name, event] = ([], [], [])
                column[0].append(step)
                column[1].append(moment)
                column[2].append(value)
        for (name, event), (steps, times, values) in columns.items():
            if name in self._builders or len(self._builders) < MAX_METRICS:
                self._take(name, event, steps, times, values)

    def curves(self) -> dict[str, Curve]:
        """Return the curve of each metric."""
        return {name: builder.curve() for name, builder in self._builders.items()}

    def evidence(self) -> dict[str, Curve]:
        """Return by the id of each finding its metric around it; those without points are left out."""
        found = {known_by: builder.curve() for known_by, builder in self._evidence.items()}
        return {known_by: curve for known_by, curve in found.items() if curve.records}

    def _take(
        self, name: str, event: str, steps: Sequence[int], times: Sequence[float], values: Sequence[float]
    ) -> None:
        xs: Sequence[float] = steps
        ys = values
        axis = self._axes.setdefault(name, STEP if steps[0] != NO_STEP else SECONDS)
        if axis == SECONDS:
            if math.isnan(self._start):
                self._start = times[0]
            xs = [moment - self._start for moment in times]
            is_usable = [not math.isnan(x) for x in xs]
        else:
            is_usable = [] if min(steps) != NO_STEP else [step != NO_STEP for step in steps]
        if is_usable and not all(is_usable):
            kept = [place for place, usable in enumerate(is_usable) if usable]
            xs, ys = [xs[place] for place in kept], [ys[place] for place in kept]
        if not len(ys):
            return
        builder = self._builders.get(name)
        if builder is None:
            few = name.startswith(NOT_RESULTS) or len(self._builders) >= _MANY
            builder = self._builders[name] = CurveBuilder(
                name,
                axis=axis,
                run=self._run,
                event=event,
                points=_FEW if few else self._points,
            )
        builder.take(xs, ys)
        for start, end, inside in self._windows.get(name, ()) if axis == STEP else ():
            if min(xs) <= end and max(xs) >= start:
                kept = [place for place, x in enumerate(xs) if start <= x <= end]
                if kept:
                    inside.take([xs[place] for place in kept], [ys[place] for place in kept])


# ------------------------------------------------------------ pictures


class LatestSamples:
    """The newest image of each prompt or name of a run folder."""

    def __init__(self) -> None:
        self._found: dict[str, Record] = {}

    def take(self, records: Iterable[Record]) -> None:
        """Take the next records of the folder."""
        for record in records:
            path = record.get("path") if record.get("event") == SAMPLE else None
            if isinstance(path, str) and path.lower().endswith(_IMAGES):
                title = str(record.get("prompt") or record.get("name") or path)[:_MAX_CAPTION]
                # Behind the others: it is the newest.
                self._found.pop(title, None)
                self._found[title] = record
                if len(self._found) > _MAX_PICTURES:
                    del self._found[next(iter(self._found))]

    def pictures(self, folder: Path) -> tuple[list[Picture], list[str]]:
        """Return the images, small, and why others are missing."""
        return _pictures(folder, self._found)


def _pictures(folder: Path, found: Mapping[str, Record]) -> tuple[list[Picture], list[str]]:
    pictures, problems = [], []
    for title, record in found.items():
        try:
            picture = small_picture(read_inside(folder, record["path"], max_bytes=_MAX_BYTES), "")
        except NotInside as error:
            problems.append(str(error))
            continue
        if picture is None:
            problems.append(f"{title[:60]!r} is too large for a report without Pillow, or not an image")
            continue
        step = record.get("global_step")
        at = f"step {count(step)}: " if type(step) is int else ""
        pictures.append(Picture(data=picture.data, content_type=picture.content_type, caption=f"{at}{title}"))
    return pictures, problems


def small_picture(data: bytes, caption: str) -> Picture | None:
    """Return an image with a longer side of at most some hundred pixels; None if it cannot be made or is too large.

    Without Pillow, an image that is small enough already is kept as it is.
    """
    content_type = next((name for start, name in _SIGNATURES if data.startswith(start)), None)
    if content_type is None and data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        content_type = "image/webp"
    if content_type is None:
        return None
    if len(data) > _SMALL_BYTES // 4:
        smaller = _scaled(data)
        if smaller is not None:
            return Picture(data=smaller, content_type="image/jpeg", caption=caption)
    if len(data) > _SMALL_BYTES:
        return None
    return Picture(data=data, content_type=content_type, caption=caption)


def _scaled(data: bytes) -> bytes | None:
    try:
        from PIL import Image
    except ImportError:
        return None
    packed = io.BytesIO()
    try:
        with Image.open(io.BytesIO(data)) as image:
            # From the header, before the image is decoded.
            if image.width * image.height > _MAX_PIXELS:
                return None
            image.draft("RGB", (_SMALL, _SMALL))
            scaled = image.convert("RGB")
        scaled.thumbnail((_SMALL, _SMALL))
        scaled.save(packed, "JPEG", quality=85)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return packed.getvalue()
