"""What a journal says of itself: which session of which run it belongs to, and who writes it.

    0     magic, the bytes committed in each of the two segments and after them, whether its writer closed it
          (8 bytes each, native order)
    64    the record file, the run, the session and the writer's process, as JSON, ended by a zero byte
    8192  the segments, back to back: whole lines each; then what was left in memory as the process ended

A journal that is written instead of mapped has no committed bytes: its lines go on to the first zero byte.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any, Final, NamedTuple

from toolkit.telemetry.runfolder.portable import pread
from toolkit.telemetry.runfolder.process import boot_id, is_alive, pid_namespace, process_started

HEADER_BYTES: Final = 8192
SEGMENTS: Final = 2
COMMITTED: Final = 1
"""Index of the first segment's commit word; that of the second follows, and that of what comes after them."""
CLOSED: Final = COMMITTED + SEGMENTS + 1
"""Index of the word that is not zero once the writer has closed the journal."""
WORDS: Final = CLOSED + 1

_MAGIC: Final = 0x344C4E524A4B5441
_ABOUT_AT: Final = 64
_LONGEST_ID: Final = 512
_MAX_RANK: Final = 10**9 - 1


class Owner(NamedTuple):
    """The session of a run that a journal belongs to."""

    run_id: str
    session: int
    started: float
    """Wall time at which the session began, as run.json has it: a run that is deleted and begun again under the same
    id has the same number for its first session, and another start."""
    rank: int = 0


class Head(NamedTuple):
    """What the head of a journal says."""

    record_file: Path
    """Where the record file was when the journal was made."""
    id_key: str
    """See `id_key`."""
    session: int
    started: float
    rank: int
    segment_bytes: int
    committed: tuple[int, ...]
    """Bytes of lines in each segment, and after them."""
    is_mapped: bool
    is_closed: bool
    """Whether its writer closed it and left something in it."""
    pid: int
    boot_id: str | None
    pid_namespace: int | None
    pid_started: int | None

    def writer_lives(self) -> bool | None:
        """Return whether the process that created it is alive; None if that is unknown here."""
        if self.boot_id is None or self.boot_id != boot_id() or self.pid_namespace != pid_namespace():
            return None
        return None if self.pid_started is None else is_alive(self.pid, self.pid_started)


def id_key(run_id: str) -> str:
    """Return a run's id as a journal has it: a very long one is shortened to a digest."""
    # run.json spells out half a character, too.
    data = run_id.encode("utf-8", "backslashreplace")
    return data.decode("utf-8") if len(data) <= _LONGEST_ID else f"sha256:{hashlib.sha256(data).hexdigest()}"


def make_head(record_file: Path, owner: Owner, *, segment_bytes: int, is_mapped: bool) -> bytes:
    """Return the head of a journal that this process is about to write. Raises OSError if a path is too long for it."""
    pid = os.getpid()
    about = {
        **owner._asdict(),
        "run_id": id_key(owner.run_id),
        "record_file": os.path.realpath(record_file),
        "segment_bytes": segment_bytes,
        "is_mapped": is_mapped,
        "pid": pid,
        "boot_id": boot_id(),
        "pid_namespace": pid_namespace(),
        "pid_started": process_started(pid),
    }
    said = os.fsencode(json.dumps(about, ensure_ascii=False))
    if len(said) >= HEADER_BYTES - _ABOUT_AT:
        raise OSError(errno.ENAMETOOLONG, "the path of the record file has no room in a journal")
    return struct.pack("=Q", _MAGIC).ljust(_ABOUT_AT, b"\0") + said.ljust(HEADER_BYTES - _ABOUT_AT, b"\0")


def read_head(descriptor: int) -> Head | None:
    """Return the head of an open file; None if the file is not a journal, or a value of it has the wrong type."""
    data = pread(descriptor, HEADER_BYTES, 0)
    if len(data) < HEADER_BYTES:
        return None
    magic, *committed, closed = struct.unpack_from(f"={WORDS}Q", data)
    try:
        said = json.loads(os.fsdecode(data[_ABOUT_AT:].partition(b"\0")[0])) if magic == _MAGIC else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or any(
        type(said.get(name)) not in kinds for name, kinds in _NEEDED.items()
    ):
        return None
    if not (0 <= said["rank"] <= _MAX_RANK and said["segment_bytes"] > 0 and said["record_file"]):
        return None
    known: dict[str, Any] = {name: said[name] for name in _NEEDED if name not in ("run_id", "record_file")}
    known |= {name: said[name] if type(said.get(name)) is kind else None for name, kind in _UNSURE.items()}
    return Head(
        record_file=Path(said["record_file"]),
        id_key=said["run_id"],
        committed=tuple(committed),
        is_closed=closed != 0,
        **known,
    )


_NEEDED: Final = {
    **dict.fromkeys(("run_id", "record_file"), (str,)),
    **dict.fromkeys(("session", "rank", "segment_bytes", "pid"), (int,)),
    "started": (int, float),
    "is_mapped": (bool,),
}
_UNSURE: Final = {"boot_id": str, "pid_namespace": int, "pid_started": int}
