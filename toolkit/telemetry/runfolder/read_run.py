"""A run folder as tables, for notebooks and scripts: `read_run("logs/my-run").frame("step")`."""

from __future__ import annotations

import errno
import html
import importlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from toolkit.telemetry.runfolder.codec import with_non_finite
from toolkit.telemetry.runfolder.journal.end_record import with_end_record
from toolkit.telemetry.runfolder.layout import METRICS_JSONL, rank_file
from toolkit.telemetry.runfolder.manifest import Manifest, ManifestError, read_manifest
from toolkit.telemetry.runfolder.node_folders import record_files
from toolkit.telemetry.runfolder.reader import blocks_of, records_in
from toolkit.telemetry.runfolder.records import NON_FINITE, RESERVED, START, STEP, SUMMARY, Record
from toolkit.telemetry.runfolder.redone import counts, redone_from
from toolkit.telemetry.runfolder.status import Status, work_out_status

_MOST_NAMED: Final = 10
_NOT_METRICS: Final = RESERVED | {"global_step"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """What is in a run folder. NaN and infinity are numbers again, as the script logged them."""

    folder: Path
    manifest: Manifest | None
    """What run.json says; None where it is missing or broken."""
    status: Status | None
    """How the run is doing, and how that is known; None without a manifest."""
    records: list[Record] = field(repr=False)
    """Every record of the file, in its order."""
    bad_lines: int
    """Lines that could not be read."""

    def frame(self, event: str = STEP, *, library: Literal["pandas", "polars"] = "pandas") -> Any:
        """Return the records of one kind as a DataFrame, a row each. After a resume, `session` tells rows apart.

        Raises:
            ImportError: the library is not installed.
            ValueError: `library` is something else.
        """
        if library not in ("pandas", "polars"):
            raise ValueError(f"library is {library!r}; it must be 'pandas' or 'polars'")
        rows = [
            {name: value for name, value in record.items() if name != NON_FINITE}
            for record in self._of(event)
        ]
        module = _imported(library, "frame()")
        # polars infers types from every row: a metric that is first an int may be a float later.
        return module.DataFrame(
            rows, **({"infer_schema_length": None, "strict": False} if library == "polars" else {})
        )

    def figure(self, *metrics: str, also: Iterable[RunData | str | os.PathLike[str]] = ()) -> Any:
        """Return a plotly figure of metrics over the steps, a line each; `also` are other runs, or their folders.

        Steps that a resume did again count once, as on the pages. To save it as a picture or a PDF, plotly needs
        another package: `pip install kaleido`, then `figure.write_image("loss.pdf")`.

        Raises:
            ImportError: plotly is not installed.
            ValueError: no run has logged such a metric.
        """
        figure = _imported("plotly.graph_objects", "figure()").Figure()
        runs = [self, *(run if isinstance(run, RunData) else read_run(run) for run in also)]
        for metric in metrics or ("",):
            lines = [(run, points) for run in runs if (points := _points_of(run.records, metric))]
            if not lines:
                there = sorted({name for run in runs for name in _metrics_in(run.records)})[:_MOST_NAMED]
                raise ValueError(
                    f"no run here has a metric {metric!r}; they have {', '.join(there) or 'none'}"
                )
            for run, points in lines:
                words = ([run.folder.name] if len(runs) > 1 else []) + ([metric] if len(metrics) > 1 else [])
                steps, values = zip(*points, strict=True)
                # Plotly takes a name for HTML.
                figure.add_scatter(x=steps, y=values, name=html.escape(" · ".join(words) or metric))
        title = html.escape(metrics[0]) if len(metrics) == 1 else None
        return figure.update_layout(xaxis_title="step", yaxis_title=title).update_traces(mode="lines")

    @property
    def summary(self) -> dict[str, Any]:
        """What the script put into `log.summary`, the newest value of each name."""
        found: dict[str, Any] = {}
        for record in self._of(SUMMARY):
            found.update({name: value for name, value in record.items() if name not in RESERVED})
        return {name: value for name, value in found.items() if value is not None}

    @property
    def config(self) -> Any:
        """The configuration that the newest start record holds; None without one."""
        return next(
            (record.get("config") for record in reversed(self.records) if record.get("event") == START), None
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return shown_in_notebook(self.folder, repr(self))

    def _of(self, event: str) -> Iterator[Record]:
        return (record for record in self.records if record.get("event") == event)


def _imported(module: str, who: str) -> Any:
    """Return a module that a method needs, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        message = f"{who} needs {package}: pip install {package}; `records` has the same without it"
        raise ImportError(message, name=error.name) from error


def _metrics_in(records: Iterable[Record]) -> set[str]:
    return {
        name
        for record in records
        for name in record
        if name not in _NOT_METRICS and _are_numbers(record, name)
    }


def _are_numbers(record: Record, metric: str) -> bool:
    return type(record.get("global_step")) is int and type(record.get(metric)) in (int, float)


def _points_of(records: Sequence[Record], metric: str) -> list[tuple[int, float]]:
    """Return the steps that count and have a value of `metric`, each with its value."""
    limits = redone_from(records)
    return [
        (record["global_step"], record[metric])
        for record in records
        if metric not in _NOT_METRICS and _are_numbers(record, metric) and counts(record, limits)
    ]


def shown_in_notebook(folder: Path | None, text: str) -> dict[str, str]:
    """Return what a notebook shows of the run in `folder`, by MIME type: `text`, where there is nothing better."""
    try:
        # By name, when a notebook asks: what draws runs is far above the files of one.
        module = importlib.import_module("toolkit.telemetry.cli.notebook")
    except ImportError:
        return {"text/plain": text}
    shown: dict[str, str] = module.view_of(folder, text)
    return shown


def _no_run_in(folder: Path) -> str:
    """Return that `folder` is no run, and which are below it."""
    below: list[str] = []
    with suppress(OSError):
        below = sorted(name for name in os.listdir(folder) if (folder / name / METRICS_JSONL).is_file())
    if not below:
        return f"no run in {folder}: it has no {METRICS_JSONL}"
    more = f" and {len(below) - _MOST_NAMED:,} more" if len(below) > _MOST_NAMED else ""
    return (
        f"{folder} is a folder of runs, not a run; name one of them: {', '.join(below[:_MOST_NAMED])}{more}"
    )


def read_run(folder: str | os.PathLike[str], *, rank: int = 0) -> RunData:
    """Read a run folder, of a run that is over or still being written. A broken line is counted and passed over.

    Raises:
        FileNotFoundError: there is no run in `folder`.
        OSError: its records cannot be read.
    """
    folder = Path(folder)
    path = rank_file(folder, rank)
    if not rank and not os.path.lexists(path):
        raise FileNotFoundError(errno.ENOENT, _no_run_in(folder), os.fspath(path))
    if rank:
        with suppress(OSError):
            path = record_files(folder).get(rank, path)
    found: list[Record] = []
    bad_lines = 0
    for records, bad in map(records_in, blocks_of(path)):
        found.extend(map(with_non_finite, records))
        bad_lines += bad
    manifest: Manifest | None = None
    try:
        manifest = with_end_record(read_manifest(folder), folder)
    except (OSError, ManifestError):
        # The records are what counts; who looks at `manifest` sees that there is none.
        pass
    status: Status | None = None
    if manifest is not None:
        last = found[-1].get("time") if found else None
        last_sign = last if isinstance(last, (int, float)) else None
        status = work_out_status(manifest, time.time(), last_sign=last_sign)
    return RunData(folder=folder, manifest=manifest, status=status, records=found, bad_lines=bad_lines)
