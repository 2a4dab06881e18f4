"""Takes the end of a run from its records if run.json was not updated any more.

The records are the truth. A close that was cut short, by a second Ctrl-C or a disk that answered too late, may leave
an end record in spite of a run.json that still says `running`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from toolkit.runfolder.layout import MANIFEST, METRICS_JSONL
from toolkit.runfolder.manifest import Manifest, ManifestError, read_manifest, write_manifest
from toolkit.runfolder.reader import end_of_session
from toolkit.runfolder.records import Record

_UNENDED: Final = "running"
_STATUSES: Final = frozenset({"finished", "failed", "stopped"})


def with_end_record(manifest: Manifest, folder: Path) -> Manifest:
    """Return `manifest` with the end of its newest session, read from the records if only they have it."""
    session = manifest.latest
    if session is None or session.status != _UNENDED:
        return manifest
    try:
        end = end_of_session(folder / METRICS_JSONL, session.session)
    except OSError:
        return manifest
    return ended_by(manifest, end)


def ended_by(manifest: Manifest, end: Record | None) -> Manifest:
    """Return `manifest` with its newest session ended by the record `end`; unchanged if that is not an end."""
    status, reason, when = ((end or {}).get(name) for name in ("status", "reason", "time"))
    if status not in _STATUSES:
        return manifest
    return manifest.with_latest(
        status=status,
        reason=reason if isinstance(reason, str) else None,
        ended=float(when) if isinstance(when, (int, float)) else None,
        lock=None,
    )


def settle_manifest(folder: Path) -> str | None:
    """Write the end in the records of `folder` into its run.json; return the status, None if it was there already.

    Raises:
        OSError: run.json cannot be written.
    """
    try:
        manifest = read_manifest(folder)
        mode = stat.S_IMODE((folder / MANIFEST).lstat().st_mode) & 0o666
    except (FileNotFoundError, ManifestError):
        return None
    settled = with_end_record(manifest, folder)
    ended = settled.latest
    if settled is manifest or ended is None:
        return None
    journal = ended.journal
    if journal is not None and not os.path.lexists(journal):
        # Else it holds what this user could not recover.
        settled = settled.with_latest(journal=None)
    write_manifest(folder, settled, mode=mode, durable=True)
    return ended.status
