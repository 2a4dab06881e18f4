"""Writes runs in the format of another tool, all of it or nothing."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolkit.telemetry.exchange.exported_run import ExportedRun, ExportError
from toolkit.telemetry.exchange.targets import run_folder, tables, tensorboard, wandb
from toolkit.telemetry.runfolder.layout import make_folders, safe_run_name

MARK: Final = ".telemetry-export"
"""An empty file in a folder that was exported: `--force` replaces only such a folder."""

_TABLES: Final[dict[str, Callable[..., int]]] = {
    "csv": tables.write_csv,
    "parquet": tables.write_parquet,
}
_FOLDERS: Final = {
    "tensorboard": (tensorboard.write, tensorboard.LOSES),
    "wandb": (wandb.write, wandb.LOSES),
    "run-folder": (run_folder.write, run_folder.LOSES),
}
FORMATS: Final = (*_FOLDERS, *_TABLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What was written."""

    out: Path
    points: int
    notes: tuple[str, ...]
    """What the format cannot keep, and what was left out."""


def read_about(runs: Sequence[ExportedRun]) -> None:
    """Read each run once; one whose name no other has is called by it alone.

    Raises:
        OSError: one cannot be read.
    """
    for run in runs:
        run.read_about()
    counts = Counter(run.name for run in runs)
    for run in runs:
        run.label = run.name if counts[run.name] == 1 else run.label


def default_out(runs: Sequence[ExportedRun], format_name: str) -> Path:
    """Return where an export goes unless it is said."""
    name = safe_run_name(runs[0].name if len(runs) == 1 else "runs")
    return Path(f"{name}.{format_name}" if format_name in _TABLES else f"{name}-{format_name}")


def export(runs: Sequence[ExportedRun], format_name: str, out: Path, *, force: bool = False) -> Export:
    """Write `runs` to `out`, a file for tables and a folder for tools. It appears when it is complete.

    Raises:
        ModuleNotFoundError: a package is missing; the message says which.
        ExportError: `out` exists.
        OSError: it cannot be written.
    """
    notes: list[str] = []
    is_table = format_name in _TABLES
    is_ours = tables.is_ours if is_table else lambda out: os.path.lexists(out / MARK)
    with whole(out, is_ours=is_ours, force=force) as half:
        if is_table:
            points = _TABLES[format_name](runs, half)
            notes.append(tables.LOSES)
        else:
            write, loses = _FOLDERS[format_name]
            points = write(runs, half)
            half.mkdir(0o700, exist_ok=True)
            (half / MARK).touch(0o600)
            notes.append(loses)
    for run in runs:
        notes += run.notes
        if run.left_out:
            again = "steps that a later session logged again"
            notes.append(
                f"{run.label}: {run.left_out:,} points of {again} were left out; --all-sessions keeps them"
            )
        if run.rounded:
            notes.append(
                f"{run.label}: {run.rounded:,} integers beyond 2^53 were rounded to the nearest double"
            )
        if run.started != run.started:
            notes.append(
                f"{run.label} has no times{'' if format_name in _TABLES else '; those of the copy mean nothing'}"
            )
    return Export(out=out, points=points, notes=tuple(dict.fromkeys(notes)))


@contextmanager
def whole(out: Path, *, is_ours: Callable[[Path], bool], force: bool = False) -> Iterator[Path]:
    """Yield the path to write to; it becomes `out` when all of it is written. With `force` it replaces what is ours.

    Raises:
        ExportError: `out` exists.
        OSError: it cannot be written.
    """
    if os.path.lexists(out):
        if not force:
            raise ExportError(
                f"{out} exists already; name another place with --out, or replace it with --force"
            )
        is_usual = not out.is_symlink() and (out.is_file() or out.is_dir())
        if not is_usual or not is_ours(out):
            raise ExportError(f"{out} was not written by `telemetry export`, and is not replaced")
    make_folders(out.parent, 0o775)
    half = out.with_name(f".{out.name}.{os.urandom(6).hex()}.export")
    try:
        yield half
        if force:
            _remove(out)
        os.rename(half, out)
    except BaseException:
        _remove(half)
        raise


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
