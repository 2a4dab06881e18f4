"""Aim: its repository is in a private encoding, so the installed `aim` reads a copy of it in a process of its own."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import IO, Any, Final

from toolkit.telemetry.core.install import install_command
from toolkit.telemetry.importers.files import WholeSource
from toolkit.telemetry.importers.folders import Folder, Found
from toolkit.telemetry.importers.json_text import loaded
from toolkit.telemetry.importers.limited_child import Limits, run_limited
from toolkit.telemetry.importers.source import (
    MAX_RUNS,
    NO_TIME,
    Builder,
    RunSource,
    SourceInfo,
    Status,
    as_number,
    flattened,
    run_info,
)

FORMAT: Final = "aim"
_LARGEST: Final = 1024**3
_SETTINGS: Final = frozenset({"hparams", "hyper_params", "args"})
"""Where trainers put the settings of a run, which are called as elsewhere without it."""

_PROGRAM: Final = """
import json, os
os.environ["AIM_UI_TELEMETRY_ENABLED"] = "0"
from aim import Repo
from toolkit.telemetry.importers.limited_child import Limits
Limits(int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])).apply()
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for run in Repo(sys.argv[1]).iter_runs():
    about = {"run": run.hash, "name": run.name, "experiment": run.experiment, "end": run.end_time}
    try:
        about["params"] = json.loads(json.dumps(run[...], default=str))
    except KeyError:
        about["params"] = {}
    print(json.dumps(about, default=str), file=out)
    for metric in run.metrics():
        context = metric.context.to_dict()
        name = metric.name + (" " + json.dumps(context, sort_keys=True) if context else "")
        steps, columns = metric.data.items_list()
        values, epochs, times = (list(columns) + [[], [], []])[:3]
        row = {"metric": name, "steps": list(map(int, steps)), "values": list(map(float, values)), "times": list(times)}
        print(json.dumps(row), file=out)
"""


class Repository:
    """What the installed Aim says about a repository, kept until its files change."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self._signature: list[float] = []
        self._runs: dict[str, list[dict[str, Any]]] = {}
        self.problem = ""

    def signature(self) -> list[float]:
        """Return size and time of its newest file."""
        return list(_size_of(self._top))

    def rows(self, run: str) -> list[dict[str, Any]]:
        """Return what the child process printed about one run: a line about it, then a line for each metric."""
        signature = self.signature()
        if signature != self._signature:
            self._signature = signature
            self._runs, self.problem = {}, ""
            if signature[0] > _LARGEST:
                self.problem = "Aim repositories of more than 1 GB"
            elif _is_installed():
                self._read()
        return self._runs.get(run, [])

    def _read(self) -> None:
        size = int(self._signature[0])
        printed, self.problem = _read(self._top, size)
        current: list[dict[str, Any]] = []
        most = 16 * 1024**2 + 20 * size
        for line in printed:
            most -= len(line)
            if most < 0:
                self.problem = "what an Aim repository holds beyond what its size explains"
                break
            row = loaded(line, most=len(line))
            if type(row) is dict:
                if "run" in row:
                    current = self._runs.setdefault(str(row["run"]), [])
                current.append(row)


class AimSource(WholeSource):
    """One run of a repository."""

    def __init__(self, info: SourceInfo, repository: Repository) -> None:
        super().__init__(info)
        self._repository = repository

    def signature(self) -> Any:
        """Return size and time of the repository."""
        found = self._repository.signature()
        self._last_sign = found[1]
        return found

    def read_whole(self, out: Builder) -> None:
        """Add what Aim says about the run."""
        rows = self._repository.rows(self.info.run_id)
        for row in rows:
            self._add_row(row, out)
        if not rows and not self._repository.problem and _is_installed():
            self.info.note("Aim itself does not find this run in the repository")
        if self._repository.problem:
            out.pass_over(self._repository.problem)

    def _add_row(self, row: dict[str, Any], out: Builder) -> None:
        if "run" in row:
            self.info.name = str(row.get("name") or self.info.name)[:1000]
            self.info.group = str(row.get("experiment") or "")[:1000]
            params = row.get("params")
            for name, values in params.items() if type(params) is dict else ():
                is_group = name in _SETTINGS and type(values) is dict
                self.info.keep(flattened(values if is_group else {name: values}))
            end = as_number(row.get("end"))
            self._end = None if end is None else Status("finished", last_sign=self._last_sign, ended=end)
            return
        lists = [row.get(name) for name in ("steps", "times", "values")]
        if not all(type(values) is list for values in lists):
            out.pass_over("metrics that are no lists")
            return
        steps, times, values = (list(values or ()) for values in lists)
        for index, value in enumerate(values):
            number = as_number(value)
            timestamp = as_number(times[index]) if index < len(times) else None
            step = steps[index] if index < len(steps) else index
            if number is not None:
                out.add(str(row.get("metric")), step, NO_TIME if timestamp is None else timestamp, number)


def _is_installed() -> bool:
    return importlib.util.find_spec("aim") is not None


def _size_of(top: Path) -> tuple[int, float]:
    size, newest = 0, NO_TIME
    for folder, _, names in os.walk(top):
        for name in names:
            try:
                status = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            size += status.st_size
            newest = status.st_mtime if not (newest >= status.st_mtime) else newest
    return size, newest


def _not_copied(folder: str, names: list[str]) -> list[str]:
    """Return what a library would follow or act on: links, and journals, which may name a file to delete."""
    left = [
        name
        for name in names
        if name.endswith("-journal") or not _is_plain(os.lstat(os.path.join(folder, name)).st_mode)
    ]
    # The index has only runs that `aim up` has seen; without it, Aim reads all of them one by one.
    return [*left, "index"] if os.path.basename(folder) == "meta" else left


def _is_plain(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _read(top: Path, size: int) -> tuple[IO[bytes], str]:
    """Copy the repository, which opening would change; return what the child process prints, and what went wrong."""
    limits = Limits(1024**3 + 2 * size, 10 + size / 1024**2, 256 * 1024**2 + 20 * size)
    with tempfile.TemporaryDirectory(prefix="telemetry-aim-") as folder:
        try:
            shutil.copytree(top, os.path.join(folder, ".aim"), ignore=_not_copied)
            given = [folder, str(limits.memory), str(limits.seconds), str(limits.output)]
            printed, is_whole = run_limited(_PROGRAM, given, limits, cwd=folder)
        except (OSError, shutil.Error) as error:
            return io.BytesIO(), f"Aim repositories that cannot be read ({type(error).__name__})"
    return printed, "" if is_whole else "Aim repositories that Aim itself cannot read"


def sources_in(folder: Folder) -> Found:
    """Return the runs in a folder's `.aim`."""
    if ".aim" not in folder.folders:
        return Found()
    top = folder.path / ".aim"
    try:
        inside = set(os.listdir(top))
        with os.scandir(top / "meta" / "chunks") as entries:
            hashes = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return Found()
    if not {"meta", "seqs"} <= inside:
        return Found()
    repository = Repository(top)
    found: list[RunSource] = []
    for run in hashes[:MAX_RUNS]:
        info = run_info(FORMAT, run, run, folder.root, [folder.below(f".aim/{run}")], run_id=run)
        if not _is_installed():
            info.note(f"Aim repositories need Aim itself: {install_command('aim')}")
        found.append(AimSource(info, repository))
    return Found(found, skipped=frozenset({".aim"}))
