"""A run folder as tables, for notebooks and scripts: `read_run("logs/my-run").frame("step")`."""

from __future__ import annotations

import errno
import importlib
import os
import time
from collections.abc import Iterator
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
from toolkit.telemetry.runfolder.status import Status, work_out_status

_MOST_NAMED: Final = 10


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
        try:
            module = importlib.import_module(library)
        except ModuleNotFoundError as error:
            message = f"frame() needs {library}: pip install {library}; `records` has the same without it"
            raise ImportError(message, name=error.name) from error
        # polars infers types from every row: a metric that is first an int may be a float later.
        return module.DataFrame(
            rows, **({"infer_schema_length": None, "strict": False} if library == "polars" else {})
        )

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
