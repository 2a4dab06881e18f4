"""torchtitan's structured logs: a JSONL file for each source and rank, with spans, scalars and markers."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.importers.files import LinesSource, Stream
from toolkit.telemetry.importers.folders import Folder, Found
from toolkit.telemetry.importers.json_text import parsed
from toolkit.telemetry.importers.source import (
    MAX_NAME_CHARS,
    NO_STEP,
    NO_TIME,
    Builder,
    Event,
    Piece,
    Status,
    as_number,
    run_info,
)

FORMAT: Final = "torchtitan"
_FOLDER: Final = "structured_logs"
_NAME: Final = re.compile(
    r"(.{1,100})\.global_rank_(\d{1,9})\.(\d{8}-\d{6})-[A-Z0-9]{1,20}\.jsonl", re.DOTALL
)
_MOST_RANKS: Final = 16
_LAST_SPAN: Final = "torch_distributed_teardown_end"
_SECONDS: Final = {"step": "sec_per_step"}
"""Spans whose seconds have a name of their own; those of others are `time/<span>`."""


class TorchtitanSource(LinesSource):
    """The files of one output folder; each start of a rank is a session."""

    def streams(self) -> Sequence[Stream]:
        """Return the files."""
        starts: dict[str, int] = {}
        found = []
        for index, piece in enumerate(self.info.pieces):
            found.append(Stream(piece.path, index, starts.setdefault(piece.prefix, 0)))
            starts[piece.prefix] += 1
        return found

    def line(self, stream: Stream, line: bytes, state: dict[str, Any], out: Builder) -> None:  # noqa: ARG002
        """Add one record."""
        record = parsed(line)
        kind = record.get("log_type_name") if record is not None else None
        if record is None or type(kind) is not str:
            out.pass_over("lines that are no record", piece=stream.piece)
            return
        place: dict[str, Any] = {"piece": stream.piece, "session": stream.session}
        step = record.get("step", NO_STEP)
        micros = as_number(record.get("time_us"))
        timestamp = NO_TIME if micros is None else micros / 1e6
        name, value = record.get("event_name"), record.get("value")
        if kind == "metric_value" and type(name) is str:
            out.value(name, step, timestamp, value, **place)
        elif kind.endswith("_end") and (took_ms := as_number(value)) is not None:
            span = kind[: -len("_end")]
            out.add(_SECONDS.get(span, f"time/{span}"), step, timestamp, took_ms / 1e3, **place)
        elif not kind.endswith("_start"):
            # A marker, or an error in a span, whose message says which.
            text = str(record.get("message") or kind)[:MAX_NAME_CHARS]
            at = step if type(step) is int else NO_STEP
            out.event(
                Event(kind="text", name=kind[:MAX_NAME_CHARS], step=at, time=timestamp, payload=text, **place)
            )
        if not self.info.pieces[stream.piece].prefix:
            self._end = (
                Status("finished", last_sign=timestamp, ended=timestamp) if kind == _LAST_SPAN else None
            )


def sources_in(folder: Folder) -> Found:
    """Return the run of a folder with such files."""
    files = sorted((match for name in folder.files if (match := _NAME.fullmatch(name))), key=_order)
    files = [match for match in files if _is_record(folder.head(match[0]))]
    if not files:
        return Found()
    name = folder.path.parent.name if folder.path.name == _FOLDER else folder.path.name
    kept = [match for match in files if int(match[2]) < _MOST_RANKS]
    main = kept[0][1] if kept else ""
    pieces = [Piece(folder.below(match[0]), _prefix(match, main)) for match in kept]
    info = run_info(FORMAT, os.path.realpath(folder.path), name or _FOLDER, folder.root, pieces)
    if len(kept) < len(files):
        info.note(f"only ranks 0 to {_MOST_RANKS - 1} are read")
    return Found([TorchtitanSource(info)], frozenset(match[0] for match in files))


def source_of_file(path: Path, head: bytes) -> TorchtitanSource | None:
    """Return the run of one such file; None if it is another."""
    if not _NAME.fullmatch(path.name) or not _is_record(head):
        return None
    return TorchtitanSource(run_info(FORMAT, os.path.realpath(path), path.stem, path.parent, [path.name]))


def _is_record(head: bytes) -> bool:
    record = parsed(head.split(b"\n")[0])
    return record is not None and "log_type_name" in record and "time_us" in record


def _order(match: re.Match[str]) -> tuple[bool, int, str, str]:
    # Rank 0 of the trainer first: its metrics have no prefix.
    return not match[1].startswith("train"), int(match[2]), match[1], match[3]


def _prefix(match: re.Match[str], main: str) -> str:
    source = "" if match[1] == main else f"{match[1]}/"
    return source + (f"rank_{int(match[2])}/" if int(match[2]) else "")
