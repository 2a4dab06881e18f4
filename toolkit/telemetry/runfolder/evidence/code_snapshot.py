"""The code that the sessions of a run were made with, as kept in `code/` of the run folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from toolkit.telemetry.runfolder.layout import CODE
from toolkit.telemetry.runfolder.safefile import NotInside, parts_inside, read_inside
from toolkit.telemetry.runfolder.untrusted import clean, mapping_in, parse_object

MOST_BYTES: Final = 2_000_000
"""What the texts and diffs of all sessions of a run have room for."""

_MOST_READ: Final = 4 * MOST_BYTES
_MOST_LINES: Final = 20_000
"""Lines of all files that are compared one by one; the time grows faster than their number."""
_MOST_SESSIONS: Final = 200
_MOST_FILES: Final = 2_000
"""With `_MOST_READ` far more than telemetry keeps of a run; the newest sessions are read first."""
_NOT_COMPARED: Final = f"is not compared line by line: the files have more than {_MOST_LINES:,} lines"
_SNAPSHOT: Final = re.compile(r"([1-9][0-9]{0,8})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSnapshot:
    """The code of one session, as far as it was kept. Secrets in it read `***`."""

    session: int
    folder: Path
    """The run folder."""
    kind: str = ""
    """`git`, or `files` where there was no repository; empty where that is not known."""
    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None
    """Whether files of the commit were changed; new files do not count. None where that is not known."""
    script: str | None = None
    """The name of the script in `files`; None for a notebook, `python -c` or an installed command."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """The kept texts: their path from the repository (or from the script's folder), and where they are now."""
    diff: str | None = None
    """What was changed since the commit, in the form of `git diff`."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """What was not kept, by its path, and why."""
    problem: str | None = None
    """What of it could not be read, and why."""

    def text(self, name: str) -> str | None:
        """Return the text of one of `files`; None if it cannot be read. Links are not followed."""
        path = self.files.get(name)
        if path is None:
            return None
        try:
            return _text(self.folder, path.relative_to(self.folder).as_posix())
        except (NotInside, OSError):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeChange:
    """A file whose text differs between two snapshots."""

    path: str
    unified_diff: str
    only_in: Literal["a", "b"] | None = None
    """Where only one of the two kept the file: the other may have had it, unchanged since its commit and not used."""


def read_code(folder: Path) -> dict[int, CodeSnapshot]:
    """Return the code of each session of the run in `folder`, in their order; empty where none was kept.

    Never raises: what cannot be read of a session, or is more than telemetry keeps, is its `problem`.
    """
    try:
        names = os.listdir(folder / CODE)
    except OSError:
        return {}
    sessions = sorted(int(match[1]) for match in map(_SNAPSHOT.fullmatch, names) if match)
    room = _Room()
    found = {one: _read_session(folder, one, room) for one in reversed(sessions[-_MOST_SESSIONS:])}
    if len(sessions) > _MOST_SESSIONS:
        newest = found[sessions[-1]]
        said = f"only the newest {_MOST_SESSIONS} of {len(sessions):,} sessions are read"
        found[newest.session] = replace(newest, problem="; ".join(filter(None, (newest.problem, said))))
    return dict(sorted(found.items()))


def texts_of(folder: Path) -> dict[str, str]:
    """Return all that the sessions of a run kept, by path in the run folder; what cannot be read is not in it."""
    found: dict[str, str] = {}
    for session, snapshot in read_code(folder).items():
        kept = (path.relative_to(folder).as_posix() for path in snapshot.files.values())
        for place in (f"{CODE}/{session}.json", f"{CODE}/{session}.diff", *kept):
            with suppress(NotInside, OSError):
                found.setdefault(place, _text(folder, place))
    return found


def changed_files(a: CodeSnapshot, b: CodeSnapshot) -> list[CodeChange]:
    """Return the files whose texts differ, by path: first those that both kept."""
    changes, room = [], _MOST_LINES
    for path in sorted(a.files.keys() & b.files.keys()):
        if a.files[path] != b.files[path]:
            before, after = a.text(path), b.text(path)
            if before is not None and after is not None and before != after:
                room -= max(before.count("\n"), after.count("\n"))
                diff = _unified(path, before, after) if room >= 0 else f"{path} {_NOT_COMPARED}"
                changes.append(CodeChange(path=path, unified_diff=diff))
    # Of a file that one of them did not keep there is no text. At the same commit git's diff has the change.
    sides: tuple[tuple[Literal["a", "b"], CodeSnapshot, CodeSnapshot], ...] = (("a", a, b), ("b", b, a))
    for side, one, other in sides:
        known = _diffs_by_file(one) if one.commit is not None and one.commit == other.commit else {}
        for path in sorted(one.files.keys() - other.files.keys()):
            changes.append(CodeChange(path=path, unified_diff=known.get(path, ""), only_in=side))
    return changes


@dataclass(slots=True)
class _Room:
    """What may still be read of a run."""

    bytes: int = _MOST_READ
    places: set[Path] = field(default_factory=set)

    def take(self, path: Path) -> bool:
        """Return whether there is room for the file at `path`, which several sessions may have."""
        if path not in self.places:
            with suppress(OSError, ValueError):
                self.bytes -= os.lstat(path).st_size
            self.places.add(path)
        return self.bytes >= 0 and len(self.places) <= _MOST_FILES


def _read_session(folder: Path, session: int, room: _Room) -> CodeSnapshot:
    problems = []
    try:
        data = read_inside(folder, f"{CODE}/{session}.json", max_bytes=max(0, room.bytes))
        room.bytes -= len(data)
        known = parse_object(data, f"{CODE}/{session}.json", _MOST_READ, ValueError)
    except (OSError, ValueError) as error:
        return CodeSnapshot(session=session, folder=folder, problem=clean(str(error)))
    files: dict[str, Path] = {}
    listed = mapping_in(known.get("files"))
    for name, place in listed.items():
        try:
            path = folder.joinpath(CODE, *parts_inside(place if isinstance(place, str) else ""))
        except NotInside as error:
            problems.append(str(error))
            continue
        if not room.take(path):
            problems.insert(
                0, f"only {len(files):,} of {len(listed):,} files are read: more than a run keeps"
            )
            break
        files[clean(name)] = path
    diff = None
    where = known.get("diff", f"{session}.diff")
    try:
        diff = _text(folder, f"{CODE}/{where}")
    except (NotInside, OSError) as error:
        if "diff" in known:
            problems.append(str(error))
    texts = {
        name: known[name]
        for name in ("kind", "commit", "branch", "script")
        if isinstance(known.get(name), str)
    }
    dirty = known.get("dirty")
    return CodeSnapshot(
        session=session,
        folder=folder,
        **{name: clean(text) for name, text in texts.items()},
        dirty=dirty if isinstance(dirty, bool) else None,
        files=files,
        diff=diff,
        left_out={clean(name): clean(str(why)) for name, why in mapping_in(known.get("left_out")).items()},
        problem="; ".join(problems[:3]) or None,
    )


def _text(folder: Path, relative: str) -> str:
    return clean(read_inside(folder, relative, max_bytes=_MOST_READ).decode("utf-8", "replace"))


def _unified(path: str, before: str, after: str) -> str:
    # Here: a training reads snapshots too, and compares none.
    import difflib

    old, new = before.splitlines(), after.splitlines()
    return "\n".join(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", lineterm=""))


def _diffs_by_file(snapshot: CodeSnapshot) -> dict[str, str]:
    """Return the part of git's diff for each file that it changes."""
    parts = re.split(r"^(?=diff --git )", snapshot.diff or "", flags=re.MULTILINE)
    named = [(re.search(r"^\+\+\+ b/(.+?)\t?$", part, re.MULTILINE), part) for part in parts]
    return {match[1]: part for match, part in named if match is not None}
