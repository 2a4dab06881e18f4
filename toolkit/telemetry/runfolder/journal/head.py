"""What a journal says of itself: which session of which run it belongs to, and who writes it.

    0     magic, segment size, pid, session, then the bytes committed in each segment   (8 bytes each, native order)
    992   whether it was closed by its writer
    1024  the real path of the record file at the time, ended by a zero byte
    6144  run id, rank, start of the session and the writer's process, as JSON, ended by a zero byte
    8192  the segments, back to back: whole lines each

A journal that is written instead of mapped has no committed bytes: its lines go on to the first zero byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.runfolder.portable import pread
from toolkit.telemetry.runfolder.process import boot_id, is_alive, pid_namespace, process_started

HEADER_BYTES: Final = 8192
SEGMENTS: Final = 2
MAX_SEGMENTS: Final = 120
"""What comes after the first two has what is left in memory as a process ends, and had more in earlier versions."""
COMMITTED: Final = 4
"""Index of the first segment's commit word; those of the others follow."""
CLOSED: Final = COMMITTED + MAX_SEGMENTS
"""Index of the word that is not zero once the writer has closed the journal."""
WORDS: Final = CLOSED + 1

_MAGIC: Final = 0x334C4E524A4B5441
_PATH_AT: Final = 1024
_ABOUT_AT: Final = 6144
_LONGEST_ID: Final = 512
_MAX_RANK: Final = 10**9 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The session of a run that a journal belongs to."""

    run_id: str
    session: int
    started: float
    """Wall time at which the session began, as run.json has it: a run that is deleted and begun again under the same
    id has the same number for its first session, and another start."""
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What the head of a journal says."""

    record_file: Path
    """Where the record file was when the journal was made."""
    pid: int
    session: int
    segment_bytes: int
    words: tuple[int, ...]
    id_key: str
    """See `id_key`."""
    started: float
    is_mapped: bool = True
    rank: int = 0
    boot_id: str | None = None
    pid_namespace: int | None = None
    pid_started: int | None = None

    @property
    def is_closed(self) -> bool:
        """Whether its writer closed it and left something in it."""
        return self.words[CLOSED] != 0

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
    """Return the head of a journal that this process is about to write."""
    pid = os.getpid()
    about = {
        "run_id": id_key(owner.run_id),
        "rank": owner.rank,
        "started": owner.started,
        "is_mapped": is_mapped,
        "boot_id": boot_id(),
        "pid_namespace": pid_namespace(),
        "pid_started": process_started(pid),
    }
    head = bytearray(HEADER_BYTES)
    struct.pack_into("=4Q", head, 0, _MAGIC, segment_bytes, pid, owner.session)
    for at, end, text in (
        (_PATH_AT, _ABOUT_AT, os.fsencode(os.path.realpath(record_file))),
        (_ABOUT_AT, HEADER_BYTES, json.dumps(about).encode("ascii")),
    ):
        kept = text[: end - at - 1]
        head[at : at + len(kept)] = kept
    return bytes(head)


def read_head(descriptor: int) -> Head | None:
    """Return the head of an open file; None if the file is not a journal."""
    data = pread(descriptor, HEADER_BYTES, 0)
    if len(data) < HEADER_BYTES:
        return None
    words = struct.unpack_from(f"={WORDS}Q", data)
    path = data[_PATH_AT:_ABOUT_AT].split(b"\0", 1)[0]
    about = _about(data) if words[0] == _MAGIC and path else None
    if about is None:
        return None
    return Head(
        record_file=Path(os.fsdecode(path)),
        pid=words[2],
        session=words[3],
        segment_bytes=words[1],
        words=words,
        **about,
    )


def _about(data: bytes) -> dict[str, Any] | None:
    """Return the JSON part; None if a value has the wrong type, since the file is not trusted."""
    try:
        said = json.loads(data[_ABOUT_AT:].split(b"\0", 1)[0])
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    run_id, rank, started = said.get("run_id"), said.get("rank"), said.get("started")
    if type(run_id) is not str or type(rank) is not int or type(started) not in (int, float):
        return None
    if not 0 <= rank <= _MAX_RANK:
        return None
    boot, namespace, pid_started = (said.get(name) for name in ("boot_id", "pid_namespace", "pid_started"))
    return {
        "id_key": run_id,
        "rank": rank,
        "started": started,
        "is_mapped": said.get("is_mapped") is not False,
        "boot_id": boot if type(boot) is str else None,
        "pid_namespace": namespace if type(namespace) is int else None,
        "pid_started": pid_started if type(pid_started) is int else None,
    }
