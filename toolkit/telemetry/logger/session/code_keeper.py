"""Keeps the code of a session in the run folder, in the background."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, Final

from toolkit.telemetry.core.background import FILES, background_job
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.own_code import OwnCode, find_own_code, own_modules
from toolkit.telemetry.logger.machine.repository import changed_names, changes_in, describe_repository
from toolkit.telemetry.logger.writing.session_folder import SessionFolder
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.privacy.source_masking import begins_statement, mask_code
from toolkit.telemetry.runfolder.evidence.code_snapshot import MOST_BYTES, CodeSnapshot, read_code
from toolkit.telemetry.runfolder.layout import CODE, MANIFEST, METRICS_JSONL, make_folders
from toolkit.telemetry.runfolder.safefile import replace_file

_SOURCES: Final = frozenset(
    ".py .pyi .pyx .sh .yaml .yml .toml .json .cfg .ini .c .cc .cpp .cu .cuh .h .hpp .jinja .r .jl".split()
)
_MOST_FILE_BYTES: Final = 200_000
_MOST_LINE: Final = 20_000
_MOST_NEW: Final = 200
"""New files that are kept, and files that are named as left out: a data set may be among them."""
_PIECE: Final = 4_000
"""Characters that are masked at once, about a millisecond of work."""
_MOST_WORK_S: Final = 0.3
_BREATH_S: Final = 0.0005
_SECRET_FILE: Final = re.compile(r"secret|credential|passw", re.IGNORECASE)
_NO_TIME: Final = f"masking the secrets took {_MOST_WORK_S:g} s for the rest"


class _NoTimeError(Exception):
    """Masking has taken its time."""


class CodeKeeper:
    """Keeps the script and the modules that it imported from its own folder; `with_changes`, what git says has changed.

    `put` writes the record, or returns False where it is too early for it.
    """

    def __init__(
        self,
        session_folder: SessionFolder,
        put: Callable[[Mapping[str, Any], bool], bool],
        guard: Guard,
        *,
        with_changes: bool,
    ) -> None:
        self.job = background_job("telemetry-code", self._turn, FILES, session_folder.folder.parent)
        self._folder = session_folder.folder
        self._modes = session_folder.modes
        self._session = session_folder.session.session
        self._began = session_folder.session.started
        self._put = put
        self._guard = guard
        self._with_changes = with_changes
        self._code: OwnCode | None = None
        self._known: dict[str, Any] = {}
        self._files: dict[str, str] = {}
        self._left_out: dict[str, str] = {}
        self._new: list[str] = []
        """New files of the repository, which come last."""
        self._earlier: list[CodeSnapshot] = []
        self._room = MOST_BYTES
        self._bytes = 0
        self._work_s = 0.0
        self._modules_seen = 0
        self._has_looked = False
        self._is_said = True

    def look_again(self) -> None:
        """Have modules kept that were imported since the last look."""
        if len(sys.modules) != self._modules_seen:
            self.job.wake()

    def close(self, timeout_s: float) -> None:
        """Have the last modules kept, and wait for it at most `timeout_s`."""
        if self.job.is_started:
            self.job.close(timeout_s)

    def _turn(self) -> float | None:
        with self._guard.catch("keeping the code"):
            is_last = self.job.is_closing
            if self._code is None:
                self._keep_first()
            self._keep_modules()
            self._has_looked = True
            self._is_said = self._is_said or self._put(self._fields(), is_last)
            if not is_last:
                return math.inf if self._is_said else 0.2
        return None

    def _keep_first(self) -> None:
        """Keep the script and what git says has changed."""
        self._code = code = find_own_code()
        self._earlier = list(read_code(self._folder).values())
        self._room -= sum(file.stat().st_size for file in (self._folder / CODE).rglob("*") if file.is_file())
        git = describe_repository() or {}
        self._known = {"kind": "git" if git else "files"}
        self._known |= {name: git[name] for name in ("commit", "branch") if name in git}
        masker = Masker()
        if code.script is not None:
            self._known["script"] = code.script.relative_to(code.root).as_posix()
            self._keep(self._known["script"], code.script, masker)
        if git and self._with_changes:
            self._keep_changes(code.root, masker)
        self._is_said = False

    def _keep_changes(self, root: Path, masker: Masker) -> None:
        changes = changes_in(root)
        self._left_out |= changes.left_out
        if changes.diff is not None:
            self._known["dirty"] = bool(changes.diff)
            self._keep_diff(changes.diff, masker)
            for name in changed_names(changes.diff):
                if PurePath(name).suffix in _SOURCES:
                    self._keep(name, root / name, masker)
        # Python's first: data may be in files of the other endings.
        self._new = sorted(self._not_of_runs(changes.untracked), key=lambda name: not name.endswith(".py"))

    def _not_of_runs(self, names: Sequence[str]) -> list[str]:
        """Return the names without those of run folders, which are often in the repository and hold copies of code."""
        assert self._code is not None
        root = os.path.realpath(self._code.root)
        own = os.path.realpath(self._folder)
        runs = {PurePath(os.path.relpath(place, root)) for place in (own, os.path.dirname(own))}
        runs |= {path.parent for path in map(PurePath, names) if path.name in (METRICS_JSONL, MANIFEST)}
        # A log directory may be the repository itself.
        runs.discard(PurePath())
        return [name for name in names if runs.isdisjoint(PurePath(name).parents)]

    def _keep_modules(self) -> None:
        assert self._code is not None
        self._modules_seen = len(sys.modules)
        before = len(self._files), len(self._left_out)
        masker = Masker()
        for file in own_modules(self._code.root):
            name = Path(os.path.relpath(os.path.realpath(file), os.path.realpath(self._code.root))).as_posix()
            if not name.startswith("../"):
                self._keep(name, Path(file), masker)
        most, self._new, new = len(self._files) + _MOST_NEW, [], self._new
        for name in new:
            if PurePath(name).suffix not in _SOURCES:
                self._left_out[name] = "no source file, by its ending"
            elif len(self._files) < most:
                self._keep(name, self._code.root / name, masker)
            else:
                self._left_out[name] = f"one of more than {_MOST_NEW} new files"
        if not self._is_said or before != (len(self._files), len(self._left_out)):
            left_out = dict(islice(self._left_out.items(), _MOST_NEW))
            if len(left_out) < len(self._left_out):
                unnamed = len(self._left_out) - _MOST_NEW
                left_out["other files"] = f"{unnamed:,} more, which are not named one by one"
            known = {"session": self._session, **self._known, "files": self._files, "left_out": left_out}
            self._write(f"{self._session}.json", json.dumps(known, indent=1).encode())
            self._is_said = False

    def _fields(self) -> dict[str, Any]:
        about = {name: value for name, value in self._known.items() if name in ("commit", "dirty")}
        kept = {
            "files": len(self._files),
            "bytes": self._bytes,
            "left_out": len(self._left_out),
        }
        return {**about, **kept, "seconds": round(self._work_s, 3), "path": f"{CODE}/{self._session}.json"}

    def _keep(self, name: str, path: Path, masker: Masker) -> None:
        """Keep a text, unless it is kept; say why where it is not."""
        if name in self._files or name in self._left_out:
            return
        try:
            text, why = self._read(name, path)
        except UnicodeDecodeError:
            text, why = "", "not a text in UTF-8"
        except OSError as error:
            text, why = "", error.strerror or type(error).__name__
        if not why:
            try:
                masked = "\n".join(self._masked(name, text.split("\n"), masker))
                self._files[name] = self._place(name, f"{self._session}/{name}", masked.encode())
            except _NoTimeError:
                why = _NO_TIME
        if why:
            self._left_out[name] = why

    def _read(self, name: str, path: Path) -> tuple[str, str]:
        """Return the text, or why it is not kept. Raises OSError and UnicodeDecodeError."""
        assert self._code is not None
        if self._work_s > _MOST_WORK_S:
            return "", _NO_TIME
        is_inside = ".." not in PurePath(name).parts and Path(os.path.realpath(path)).is_relative_to(
            os.path.realpath(self._code.root)
        )
        if path != self._code.script and not is_inside:
            return "", "a link to a file outside of the folder of the code"
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return "", "not a regular file"
        if not name.endswith(".py") and _SECRET_FILE.search(PurePath(name).name):
            return "", "its name says that it is a secret"
        if status.st_size > _MOST_FILE_BYTES:
            return "", f"{status.st_size:,} bytes, more than {_MOST_FILE_BYTES:,}"
        if status.st_size > self._room:
            return "", f"the {MOST_BYTES / 1e6:g} MB for the code of a run were full"
        if self._has_looked and status.st_mtime > self._began:
            return "", "changed after the run had begun, so that it may not be what ran"
        text = path.read_bytes().decode("utf-8")
        if max(map(len, text.split("\n"))) > _MOST_LINE:
            return "", f"has lines of more than {_MOST_LINE:,} characters"
        return text, ""

    def _keep_diff(self, diff: str, masker: Masker) -> None:
        if not diff:
            return
        assert self._code is not None
        after = {}
        for name in changed_names(diff):
            with suppress(OSError, UnicodeDecodeError):
                after[name], _ = self._read(name, self._code.root / name)
        # Imported where git is asked.
        from toolkit.telemetry.privacy.diff_masking import mask_diff

        try:
            masked = mask_diff(diff, lambda name, lines: self._masked(name, lines, masker), after)
            self._known["diff"] = self._place("", f"{self._session}.diff", masked.encode())
        except _NoTimeError:
            self._left_out["the diff"] = _NO_TIME

    def _masked(self, name: str, lines: list[str], masker: Masker) -> list[str]:
        """Return as many lines of the file without secrets, masked a piece at a time. Raises _NoTimeError."""
        masked: list[str] = []
        for piece in _pieces(lines):
            if self._work_s > _MOST_WORK_S:
                raise _NoTimeError
            began = time.thread_time()
            masked += mask_code(name, piece, masker.mask_lines)
            self._work_s += time.thread_time() - began
            # A regular expression keeps the interpreter to itself: the training comes in between.
            time.sleep(_BREATH_S)
        return masked

    def _place(self, name: str, place: str, data: bytes) -> str:
        """Return where in `code/` the text is: where an earlier session put the same one, else at `place`."""
        for snapshot in reversed(self._earlier):
            earlier = snapshot.files.get(name) if name else self._folder / CODE / f"{snapshot.session}.diff"
            if earlier is not None and _is_same(earlier, data):
                return earlier.relative_to(self._folder / CODE).as_posix()
        self._write(place, data)
        self._room -= len(data)
        self._bytes += len(data)
        return place

    def _write(self, place: str, data: bytes) -> None:
        path = self._folder / CODE / place
        make_folders(path.parent, self._modes.folder & 0o777)
        replace_file(path, data, mode=self._modes.file)


def _pieces(lines: list[str]) -> Iterator[list[str]]:
    """Yield parts of a text, cut where a statement begins, and not within a private key."""
    piece: list[str] = []
    length, in_key = 0, False
    for line in lines:
        if length > _PIECE and not in_key and begins_statement(line):
            yield piece
            piece, length = [], 0
        piece.append(line)
        length += len(line) + 1
        in_key = (in_key or "-----BEGIN " in line) and "-----END " not in line
    yield piece


def _is_same(path: Path, data: bytes) -> bool:
    try:
        return not path.is_symlink() and path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False
