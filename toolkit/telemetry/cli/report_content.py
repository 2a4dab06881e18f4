"""What a report needs to know about a run of the list: read once."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from toolkit.telemetry.cli.chosen_run import CommandError, printable
from toolkit.telemetry.cli.run_list import ListedRun
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.diagnostics.diagnosis import Diagnosis, NoRecordsError
from toolkit.telemetry.diagnostics.history import diagnose
from toolkit.telemetry.reports.content import RunContent
from toolkit.telemetry.runfolder.safefile import replace_file
from toolkit.telemetry.runs.formatting import size

if TYPE_CHECKING:
    from toolkit.telemetry.runs.store import RunStore

STDOUT: Final = "-"
_LIMIT_S: Final = 86_400.0
_LOOK_S: Final = 0.5

OnWork = Callable[[str], None]
"""Called with what is being done."""


class UnreadableRunError(CommandError):
    """A run cannot be read; the message says why."""


def has_columns() -> bool:
    """Return whether what reads columns is installed."""
    return all(find_spec(name) is not None for name in ("numpy", "pyarrow", "PIL"))


def require_columns(what: str = "a report") -> None:
    """Raise UnreadableRunError if what reads columns is not installed."""
    if not has_columns():
        raise UnreadableRunError(f"{what} needs {install_extra('dashboard')}")


def open_run(
    run: ListedRun, what: str = "a report", *, cache_dir: Path | None = None
) -> tuple[RunStore, str]:
    """Return the store that has `run`, and its key there; the run is not changed. Raises UnreadableRunError."""
    require_columns(what)
    from toolkit.telemetry.runs.sources.local_store import LocalStore
    from toolkit.telemetry.runs.store import UnknownRun

    store = LocalStore([], cache_dir=cache_dir, read_only=True, folders=run.folders)
    try:
        return store, store.card(run.card.key).key
    except UnknownRun as error:
        raise UnreadableRunError(f"{run.path} could not be read: {error}") from error


def content_of(run: ListedRun, *, points: int, on_work: OnWork) -> RunContent:
    """Return what a report says about `run`.

    Raises:
        UnreadableRunError: there is nothing to read, or what reads columns is not installed.
    """
    store, key = open_run(run)
    from toolkit.telemetry.reports.stored_run import content_of_run

    while (read := store.refresh(key, wait_s=_LOOK_S)).problem is None and not read.complete:
        on_work(f"{run.called}: {read.records:,} records")
    if not read.records and (read.problem or store.card(key).logged_by):
        raise UnreadableRunError(f"{run.path}: {read.problem or f'{run.called} has no numbers'}")
    on_work(f"{run.called}: findings")
    return content_of_run(store, key, name=run.called, points=points, wait_s=_LIMIT_S)


def diagnosis_of(run: ListedRun, on_work: OnWork) -> Diagnosis:
    """Return what the detectors find in `run`. Raises UnreadableRunError."""

    def on_records(records: int) -> None:
        on_work(f"{run.called}: {records:,} records")

    try:
        return diagnose(run.source or run.path, name=run.called, on_records=on_records)
    except FileNotFoundError as error:
        raise UnreadableRunError(f"{error.filename or run.path} does not exist") from error
    except (OSError, NoRecordsError) as error:
        raise UnreadableRunError(f"{run.path}: {getattr(error, 'strerror', None) or error}") from error


def write_report(target: Path, text: str | bytes) -> None:
    """Write a report. Raises CommandError if that is not possible."""
    if target.is_dir():
        raise CommandError(f"cannot write {target}: it is a folder")
    try:
        replace_file(target, text if isinstance(text, bytes) else text.encode("utf-8", "replace"))
    except OSError as error:
        raise CommandError(f"cannot write {target}: {error.strerror or error}") from error


def written_text(target: Path) -> str:
    """Return the line that says where a report is."""
    return printable(f"{target}: {size(target.stat().st_size)}, opens in any browser without a network")
