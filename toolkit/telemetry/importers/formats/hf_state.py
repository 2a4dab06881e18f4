"""Hugging Face: `trainer_state.json`, of which each checkpoint has one with the history so far."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.importers.files import WholeSource, open_below, read_small
from toolkit.telemetry.importers.folders import Folder, Found
from toolkit.telemetry.importers.json_text import loaded
from toolkit.telemetry.importers.source import (
    EPOCH,
    EVAL,
    NO_TIME,
    STEP,
    Builder,
    Status,
    as_step,
    run_info,
    source_id,
)

FORMAT: Final = "huggingface"
NAME: Final = "trainer_state.json"
_LARGEST: Final = 64 * 1024**2
_HEAD: Final = 256 * 1024
_LARGEST_RUN: Final = 256 * 1024**2
_MOST_VALUES: Final = 20_000_000
_CHECKPOINT: Final = re.compile(r"checkpoint-(\d+)$")
_SETTINGS: Final = tuple(
    "max_steps num_train_epochs train_batch_size logging_steps eval_steps save_steps".split()
)

Row = dict[str, Any]


class HuggingFaceSource(WholeSource):
    """The states of one training, whose histories begin alike.

    What a state repeats of an earlier one is marked; a state that departs from an earlier one is a resume, a session.
    """

    def read_whole(self, out: Builder) -> None:
        """Add the rows of every state."""
        batch = out.batch
        histories: list[list[int]] = []
        sessions: list[int] = []
        self._end = None
        for piece, path in enumerate(self.paths):
            if batch.bytes_read > _LARGEST_RUN:
                out.pass_over("trainer states beyond the first 256 MB", len(self.paths) - piece)
                break
            state, size = _load(self.info.root, path)
            batch.bytes_read += size
            rows: list[Any] = state.get("log_history", []) if state is not None else []
            if state is None or type(rows) is not list:
                out.pass_over("files that are no trainer state", piece=piece)
                histories.append([])
                sessions.append(0)
                continue
            history = [row for row in rows if type(row) is dict]
            if len(history) < len(rows):
                out.pass_over("rows that are no objects", len(rows) - len(history), piece=piece)
            rows_as_hashes = [hash(repr(row)) for row in history]
            alike, like = _most_alike(rows_as_hashes, histories)
            session = sessions[like] if like >= 0 else 0
            if like >= 0 and alike < len(history) and alike < len(histories[like]):
                # It went on from a common row with other values.
                session = max(sessions) + 1
            _add(history, alike, piece, session, out)
            histories.append(rows_as_hashes)
            sessions.append(session)
            self._keep_config(state)
            has_end = any("train_runtime" in row for row in history[-1:])
            self._end = Status("finished", last_sign=self._last_sign) if has_end else None

    def _keep_config(self, state: Row) -> None:
        for name in _SETTINGS:
            value = state.get(name)
            if type(value) in (int, float):
                self.info.config[name] = value
        for name in ("trial_name", "best_model_checkpoint"):
            value = state.get(name)
            if type(value) is str:
                self.info.config[name] = value[:1000]
        best = state.get("best_metric")
        if isinstance(best, (int, float)) and math.isfinite(best):
            self.info.config["best_metric"] = best


def _add(history: list[Row], alike: int, piece: int, session: int, out: Builder) -> None:
    for index, row in enumerate(history):
        step = as_step(row.get("step"))
        is_end = "train_runtime" in row
        for name, value in row.items():
            if name == "step":
                continue
            # The last row has means over the whole training; rows of every kind have the epoch.
            kind = EVAL if name.startswith("eval") else EPOCH if is_end and name != "epoch" else STEP
            place = {"piece": piece, "session": session, "kind": kind, "repeated": index < alike}
            out.value(name, step, NO_TIME, value, **place)


def _most_alike(history: list[int], others: list[list[int]]) -> tuple[int, int]:
    """Return how many rows `history` shares with the one of `others` most like it, and which that is; -1 for none.

    A row is the hash of its text: NaN is not equal to itself, and the rows of many checkpoints take much memory.
    """
    best, which = 0, -1
    for index in range(len(others) - 1, -1, -1):
        common = 0
        for mine, theirs in zip(history, others[index], strict=False):
            if mine != theirs:
                break
            common += 1
        if common > best:
            best, which = common, index
    return best, which


def _load(root: Path, path: str) -> tuple[Row | None, int]:
    """Return the object in a state file, and how many bytes were read."""
    try:
        data = read_small(root, path, limit=_LARGEST)
    except OSError:
        return None, 0
    found = loaded(data, most=_MOST_VALUES)
    return found if type(found) is dict else None, len(data)


def _first_row(root: Path, path: str) -> bytes:
    """Return the text of a history's first row, by which the states of one training are known; nothing without one."""
    try:
        with open_below(root, path) as file:
            head = file.read(0, _HEAD)
    except OSError:
        return b""
    start = head.find(b"{", head.find(b'"log_history"') + 1)
    return head[start : head.find(b"}", start)] if start > 0 else b""


# ---------------------------------------------------------------- detection


def sources_in(folder: Folder) -> Found:
    """Return a run of one state; `merged` puts those of one training together."""
    if NAME not in folder.files or not _looks_right(folder.head(NAME)):
        return Found()
    return Found([_source(folder.root, [folder.below(NAME)])], frozenset({NAME}))


def source_of_file(path: Path, head: bytes) -> HuggingFaceSource | None:
    """Return the run of one file that was named."""
    is_it = (
        path.name.endswith(".json") and _looks_right(head) and (b'"log_history"' in head or path.name == NAME)
    )
    return _source(path.parent, [path.name]) if is_it else None


def _looks_right(head: bytes) -> bool:
    return head.lstrip()[:1] == b"{"


def _source(root: Path, paths: list[str]) -> HuggingFaceSource:
    folder = (root / paths[-1]).parent
    output = folder.parent if _CHECKPOINT.search(folder.name) else folder
    return HuggingFaceSource(run_info(FORMAT, os.path.realpath(output), output.name, root, paths), *paths)


def merged(found: Sequence[HuggingFaceSource]) -> list[HuggingFaceSource]:
    """Put the states of one output folder together where their histories begin alike."""
    outputs: dict[Path, list[str]] = {}
    seen: set[tuple[int, int]] = set()
    for source in found:
        path = source.info.pieces[0].path
        folder = (source.info.root / path).parent
        status = os.lstat(source.info.root / path)
        if status.st_ino and (status.st_dev, status.st_ino) in seen:
            # The same file under another name.
            continue
        seen.add((status.st_dev, status.st_ino))
        output = folder.parent if _CHECKPOINT.search(folder.name) else folder
        outputs.setdefault(output, []).append(path)
    result = []
    for paths in outputs.values():
        root = found[0].info.root
        groups: list[tuple[bytes, list[str]]] = []
        for path in sorted(paths, key=lambda path: _age(root, path)):
            first = _first_row(root, path) if len(paths) > 1 else b""
            for known, members in groups:
                if first and known == first:
                    members.append(path)
                    break
            else:
                groups.append((first, [path]))
        for number, (_, members) in enumerate(groups):
            source = _source(root, members)
            if number:
                # Another training that wrote into the same folder.
                source.info.source_id = source_id(FORMAT, f"{source.info.source_id} {members[0]}")
                source.info.name = f"{source.info.name} ({Path(members[0]).parent.name})"
            result.append(source)
    return result


def _age(root: Path, path: str) -> tuple[int, int, str]:
    """Sort checkpoints by their step, and the folder's own state last."""
    match = _CHECKPOINT.search((root / path).parent.name)
    return (0, int(match[1][:18]), path) if match else (1, 0, path)
