"""Keeps what killed processes left in shared memory to the worker of the tests that started them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from toolkit.telemetry.logger.writing import pipeline
from toolkit.telemetry.runfolder.journal.journal import head_of, journals_in, shared_memory_folders

_BELOW = "RECOVER_RUNS_BELOW"


def recover_only_runs_below(folder: Path | None = None) -> None:
    """Have the runs of this process, and of those forked from it, recover no killed runs but those below `folder`.

    Every run recovers those of its user. Between the kill of one test and its look at the journal, that would be a run
    of another test, in another worker.
    """
    place = Path(os.environ[_BELOW]) if folder is None else folder.resolve()
    os.environ[_BELOW] = str(place)

    def of_these_tests(memory: Path, *, of_others: bool = False) -> Iterator[Path]:
        for path in journals_in(memory, of_others=of_others):
            head = head_of(path)
            if head is None or place in head.record_file.parents:
                yield path

    pipeline.journals_in = of_these_tests


def journals_of_runs_below(folder: Path) -> list[Path]:
    """Return the journals in shared memory whose runs lie below `folder`."""
    place = folder.resolve()
    heads = {path: head_of(path) for shared in shared_memory_folders() for path in journals_in(shared)}
    # A journal names the real path. To resolve it again would ask a disk that another test lets hang.
    return [path for path, head in heads.items() if head is not None and place in head.record_file.parents]


def remove_journals_of_runs_below(folder: Path) -> None:
    """Remove the journals in shared memory whose runs lie below `folder`."""
    for path in journals_of_runs_below(folder):
        path.unlink(missing_ok=True)
