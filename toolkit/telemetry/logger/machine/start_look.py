"""Looks at the machine, at the data of a run and at what its packages are set to, as it is started."""

from __future__ import annotations

import hashlib
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from toolkit.telemetry.core.background import MACHINE, background_job
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine import own_code  # noqa: F401 - it notes the script while that runs
from toolkit.telemetry.logger.machine.software import determinism, seeds
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.runfolder.untrusted import leaves

_NAMES: Final = re.compile(
    r"folder_path|(\w+_)?(data|dataset|corpus|text|images?|labels?|captions?|train|validation|vocab|splits?)"
    r"_(dir|path|root|files?)"
)
"""Settings that are paths of what is trained on; of other ones, such as a folder to write to, nothing is read."""
_MOST_FOLDERS: Final = 16
_MOST_FILES: Final = 2_000
_MOST_HASHED: Final = 64
_HEAD_BYTES: Final = 4_096
_LONGEST_S: Final = 0.2
_BREATH_S: Final = 0.0005
"""Long enough for the training to run in between."""
_LATEST_S: Final = 5.0
"""After so long the record of what was found is written without the data on a disk that does not answer,"""
_MACHINE_LATEST_S: Final = 10.0
"""and after so long without what a driver has not answered."""


class Look:
    """Fields about a run that take a while to find, in the background: a disk or a driver may not answer.

    `find` adds to the fields that are `known`. After `latest_s` what is missing is not waited for any longer.
    """

    def __init__(
        self,
        name: str,
        find: Callable[[dict[str, Any]], None],
        guard: Guard,
        *,
        known: Mapping[str, Any] | None = None,
        latest_s: float = math.inf,
    ) -> None:
        self._find = find
        self._guard = guard
        self._found = dict(known or {})
        self._latest = time.monotonic() + latest_s
        self._job = background_job(name, self._run, MACHINE)

    def start(self) -> None:
        """Begin. Raises RuntimeError where the system refuses a thread."""
        self._job.start()

    def is_done(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s`; return whether everything was found, or is not waited for any longer."""
        # Where the system refused a thread there is nothing to wait for.
        return not self._job.is_started or self._job.join(timeout_s) or time.monotonic() > self._latest

    def result(self) -> dict[str, Any]:
        """Return the fields that were found by now."""
        return dict(self._found)

    def _run(self) -> None:
        with self._guard.catch("describing the machine"):
            self._find(self._found)


def look_at_machine(guard: Guard) -> Look:
    """Return a look at the machine, the software and the repository."""

    def find(found: dict[str, Any]) -> None:
        # Imported in the background: a run can begin without it.
        from toolkit.telemetry.logger.machine import environment

        environment.describe_environment(guard, found)
        masker = Masker()
        for part in list(found.values()):
            # Patterns are compiled when a text first needs them: here one after the other, and not all at once when
            # the record is taken.
            masker.mask(part)
            time.sleep(_BREATH_S)

    return Look("telemetry-environment", find, guard, latest_s=_MACHINE_LATEST_S)


def look_at_start(paths: Sequence[str], guard: Guard, *, with_settings: bool) -> Look:
    """Begin to look at the data of a run and, unless they are known, at the settings of its packages.

    A function that torch compiles is not broken apart by that: it is asked on another thread.
    """
    data = [{"path": path, "problem": "not looked at in time"} for path in paths]

    def find(found: dict[str, Any]) -> None:
        if with_settings:
            found.update(settings())
        deadline = time.monotonic() + _LONGEST_S
        for number, path in enumerate(paths):
            data[number] = _describe(path, deadline)

    known = {"data": data} if data else {}
    look = Look("telemetry-start", find, guard, known=known, latest_s=_LATEST_S)
    # Where the system refuses a thread, the run is logged without this.
    with guard.catch("starting a thread"):
        look.start()
    return look


def settings() -> dict[str, Any]:
    """Return the fields `determinism` and `seeds`, as they are now."""
    found = {"determinism": determinism(os.environ), "seeds": seeds(os.environ)}
    return {name: value for name, value in found.items() if value}


def data_paths(given: Any, config: Any) -> list[str]:
    """Return the paths of data that the script gives, or that its configuration has under a usual name."""
    paths = (
        [given]
        if isinstance(given, (str, os.PathLike))
        else list(given)
        if isinstance(given, (list, tuple))
        else []
    )
    if not all(isinstance(path, (str, os.PathLike)) for path in paths):
        paths = []
    found = [os.fspath(path) for path in paths]
    for keys, value in leaves(config, depth=8, items=lambda items: items[:_MOST_FOLDERS]):
        # The last one that is a name: a list has numbers.
        name = next((key for key in reversed(keys) if isinstance(key, str)), "")
        if name and _NAMES.fullmatch(name) and isinstance(value, str) and "://" not in value:
            found.append(value)
    return [path for path in dict.fromkeys(found) if isinstance(path, str)][:_MOST_FOLDERS]


def _describe(path: str, deadline: float) -> dict[str, Any]:
    """Return what is at a path; `looked_at` says where the time or the number of files was not enough."""
    about: dict[str, Any] = {"path": path}
    try:
        status = os.stat(path)
        files = [(path, status)] if stat.S_ISREG(status.st_mode) else []
        is_whole = True
        if stat.S_ISDIR(status.st_mode):
            for found in _files_in(path):
                if len(files) >= _MOST_FILES or time.monotonic() > deadline:
                    is_whole = False
                    break
                files.append(found)
    except OSError as error:
        return {**about, "problem": error.strerror or type(error).__name__}
    files.sort(key=lambda file: file[0])
    about |= {"files": len(files), "bytes": sum(file.st_size for _, file in files)}
    about["modified"] = round(max([status.st_mtime, *(file.st_mtime for _, file in files)]), 3)
    if not is_whole:
        about["looked_at"] = "a part: it has more files than were looked at"
    elif (digest := _hash_of_heads(path, files, deadline)) is not None:
        about["hash"] = digest
    return about


def _files_in(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files below a folder, without following links to folders."""
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_file():
                    yield entry.path, entry.stat()


def _hash_of_heads(root: str, files: Sequence[tuple[str, os.stat_result]], deadline: float) -> str | None:
    """Return a hash of names and sizes, and of the first bytes of some files; None where there is no time for it."""
    digest = hashlib.blake2b(digest_size=8)
    every = max(1, len(files) // _MOST_HASHED)
    for number, (path, status) in enumerate(files):
        digest.update(f"{os.path.relpath(path, root)}\0{status.st_size}\0".encode("utf-8", "surrogateescape"))
        if number % every == 0:
            if time.monotonic() > deadline:
                return None
            try:
                with open(path, "rb") as file:
                    digest.update(file.read(_HEAD_BYTES))
            except OSError:
                return None
    return digest.hexdigest()
