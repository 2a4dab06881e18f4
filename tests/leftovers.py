"""Takes away what killed processes of tests leave behind outside of the tests' own folders."""

from __future__ import annotations

from pathlib import Path

from toolkit.runfolder.journal.journal import journals_in, record_file_of, shared_memory_folders


def remove_journals_of_runs_below(folder: Path) -> None:
    """Remove the journals in shared memory whose runs lie below `folder`."""
    place = folder.resolve()
    for shared in shared_memory_folders():
        for path in journals_in(shared):
            # A journal names the real path. To resolve it again would ask a disk that another test lets hang.
            record_file = record_file_of(path)
            if record_file is not None and place in record_file.parents:
                path.unlink(missing_ok=True)
