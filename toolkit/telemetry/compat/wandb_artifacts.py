"""Artifacts of W&B scripts: named, versioned sets of files, stored in the folder of the run that logged them.

    <run folder>/artifacts/<name>/v0/…        its files
    <run folder>/artifacts/<name>/v0.json     its description

Versions are counted over all runs of a log directory, where `use_artifact` looks for them. A script may unpickle what
it gets, so that is only what a run of the same user logged in the same log directory: artifact_seal.py.
"""

# ruff: noqa: ARG002 - the parameters are W&B's, and some have no meaning here

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import orjson

from toolkit.privacy.masking import mask_secrets
from toolkit.privacy.secret_shapes import mask_text
from toolkit.runfolder.layout import make_folders, safe_run_name
from toolkit.runfolder.safefile import copy_file, open_regular, replace_file
from toolkit.runfolder.script_interrupts import pass_on_interrupt
from toolkit.telemetry.compat.artifact_seal import seal, why_not_sealed
from toolkit.telemetry.compat.null_object import null_object, warn_once
from toolkit.telemetry.compat.wandb_media import Table, as_json, no_run_guard
from toolkit.telemetry.logger import TelemetryLogger

ARTIFACTS: Final = "artifacts"
_LATEST: Final = "latest"
_LARGEST_DESCRIPTION: Final = 4 * 1024 * 1024
_MOST_RUNS: Final = 20_000
_CODE: Final = (".py", ".ipynb", "requirements.txt", "Dockerfile")
_NO_CODE: Final = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", "wandb", "logs"})


class Entry:
    """One file of an artifact."""

    def __init__(self, path: str, location: Path) -> None:
        self.path = self.name = path
        """Its name inside the artifact."""
        self._location = location

    @property
    def size(self) -> int:
        """Its size in bytes; 0 if it is gone."""
        try:
            return self._location.stat().st_size
        except OSError as error:
            pass_on_interrupt(error)
            return 0

    def download(self, root: str | None = None, *_: Any, **__: Any) -> str:
        """Return its path; with `root`, the path of a copy in there."""
        if root is None:
            return str(self._location)
        target = Path(root) / self.path
        with no_run_guard.catch("copying a file of an artifact"):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._location, target)
        return str(target)


class Artifact:
    """A set of files under one name. They are copied when it is logged; no call of it raises."""

    def __init__(
        self,
        name: str,
        type: str,  # noqa: A002 - W&B's name
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        incremental: bool = False,
        use_as: str | None = None,
        **_: Any,
    ) -> None:
        self.base_name = mask_text(str(name).rpartition("/")[2].partition(":")[0]) or "artifact"
        self.type = str(type)
        self.description = description
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.aliases: list[str] = []
        self.tags: list[str] = []
        self.version = ""
        """Empty until it is logged."""
        self.folder: Path | None = None
        """The folder of its files once it is logged."""
        self._files: dict[str, Path] = {}
        self._references: dict[str, str] = {}
        self._staged: tempfile.TemporaryDirectory[str] | None = None

    @property
    def name(self) -> str:
        """Its name, with the version once it is logged."""
        return f"{self.base_name}:{self.version}" if self.version else self.base_name

    @property
    def id(self) -> str:
        """Its name and version."""
        return self.name

    @property
    def state(self) -> str:
        """W&B's word for whether it is logged."""
        return "COMMITTED" if self.folder is not None else "PENDING"

    @property
    def size(self) -> int:
        """The size of its files in bytes."""
        return sum(entry.size for entry in self.files())

    @property
    def file_count(self) -> int:
        """How many files it has."""
        return len(self.files())

    # Adding files.

    def add_file(
        self, local_path: str | os.PathLike[str], name: str | None = None, *_: Any, **__: Any
    ) -> Entry:
        """Add a file, under its own name or another."""
        path = Path(local_path)
        inside = _inside(name or path.name)
        self._files[inside] = path.absolute()
        return Entry(inside, path)

    def add_dir(
        self, local_path: str | os.PathLike[str], name: str | None = None, *_: Any, **__: Any
    ) -> None:
        """Add all files of a folder; links are not followed."""
        with no_run_guard.catch("adding a folder to an artifact"):
            root = Path(local_path).absolute()
            for folder, _folders, files in os.walk(root):
                for file in files:
                    path = Path(folder) / file
                    if path.is_file() and not path.is_symlink():
                        inside = path.relative_to(root)
                        self._files[_inside(str(Path(name) / inside if name else inside))] = path

    def add(self, obj: Any, name: str, *_: Any, **__: Any) -> Entry:
        """Add a table, an image or similar."""
        inside = _inside(name)
        if isinstance(obj, Table):
            inside = inside if inside.endswith(".table.json") else f"{inside}.table.json"
            with self.new_file(inside, mode="wb") as file:
                file.write(as_json(obj.content()))
        elif isinstance(getattr(obj, "data", None), bytes):
            ending = f".{getattr(obj, 'format', 'bin')}"
            inside = inside if inside.endswith(ending) else inside + ending
            with self.new_file(inside, mode="wb") as file:
                file.write(obj.data)
        else:
            warn_once(f"wandb.Artifact.add of a {type(obj).__name__}", "is left out")
        return Entry(inside, self._files.get(inside, Path(inside)))

    def add_reference(self, uri: Any, name: str | None = None, *_: Any, **__: Any) -> Sequence[Entry]:
        """Add a URL; nothing is fetched from it."""
        text = str(getattr(uri, "url", uri))
        inside = _inside(name or text.rpartition("/")[2] or "reference")
        self._references[inside] = text
        return [Entry(inside, Path(text))]

    @contextmanager
    def new_file(self, name: str, mode: str = "x", encoding: str | None = None) -> Iterator[IO[Any]]:
        """Open a new file of the artifact for writing."""
        inside = _inside(name)
        path = self._stage() / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode.replace("x", "w"), encoding=encoding) as file:
            yield file
        self._files[inside] = path

    def remove(self, item: Any) -> None:
        """Remove a file or a folder."""
        inside = _inside(str(getattr(item, "path", item)))
        self._files = {
            name: path
            for name, path in self._files.items()
            if name != inside and not name.startswith(f"{inside}/")
        }

    # Reading files.

    def files(self, names: Sequence[str] | None = None, *_: Any, **__: Any) -> list[Entry]:
        """Return its files."""
        found = [Entry(name, path) for name, path in sorted(self._files.items())]
        return found if names is None else [entry for entry in found if entry.path in names]

    def get_entry(self, name: str) -> Any:
        """Return one of its files."""
        inside = _inside(str(name))
        if inside in self._files:
            return Entry(inside, self._files[inside])
        return null_object(f"the file {inside!r} of the artifact {self.name!r}", "does not exist")

    get_path = get_entry

    def get(self, name: str) -> Any:
        """Return a table that was added to it."""
        path = self._files.get(_inside(name)) or self._files.get(f"{_inside(name)}.table.json")
        if path is not None and path.name.endswith(".table.json"):
            with no_run_guard.catch("reading a table of an artifact"):
                content = orjson.loads(path.read_bytes())
                return Table(columns=content["columns"], data=content["data"])
        return null_object(f"{name!r} of the artifact {self.name!r}", "is not a table that was added to it")

    def download(self, root: str | os.PathLike[str] | None = None, *_: Any, **__: Any) -> str:
        """Return the folder of its files; with `root`, copy them there and return that folder."""
        if root is None and self.folder is not None:
            return str(self.folder)
        target = Path(root) if root is not None else self._stage()
        for entry in self.files():
            entry.download(str(target))
        return str(target)

    checkout = download

    def file(self, root: str | None = None) -> str:
        """Return its only file, or the first of several."""
        entries = self.files()
        return entries[0].download(root) if entries else ""

    # What W&B does in the background and this package at once.

    def wait(self, timeout: float | None = None) -> Artifact:
        """Return the artifact: nothing is pending."""
        return self

    def finalize(self) -> None:
        """Do nothing: it is complete."""

    def verify(self, root: str | None = None) -> None:
        """Do nothing: the files are the ones that were copied."""

    def new_draft(self) -> Artifact:
        """Return a new artifact with the same files, to be logged as the next version."""
        draft = Artifact(self.base_name, self.type, self.description, self.metadata)
        draft._files, draft._references = dict(self._files), dict(self._references)
        return draft

    def logged_by(self) -> None:
        """Return None: unknown here."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return null_object(f"wandb.Artifact.{name}")

    def __repr__(self) -> str:
        return f"<Artifact {self.name}>"

    # Used by the run that logs it.

    def describe(self) -> dict[str, Any]:
        """Return its description, without secrets."""
        described = {
            "name": self.base_name,
            "type": self.type,
            "version": self.version,
            "aliases": self.aliases,
            "tags": self.tags,
            "description": self.description,
            "metadata": self.metadata,
            "files": {name: entry.size for name, entry in ((entry.path, entry) for entry in self.files())},
            "references": self._references,
            "time": time.time(),
        }
        # As it would be written: an object in it becomes a text, which may have a secret.
        masked: dict[str, Any] = mask_secrets(orjson.loads(as_json(described)))
        return masked

    def copy_into(self, folder: Path, mode: int) -> None:
        """Copy its files into a new folder with `mode`, and use the copies from now on. Raises OSError if it fails."""
        copied = {}
        for name, path in self._files.items():
            target = folder / name
            make_folders(target.parent, mode)
            copy_file(path, target, mode=mode & 0o666)
            copied[name] = target
        self._files = copied

    def moved_to(self, folder: Path) -> None:
        """Note that its files are in `folder` now."""
        self._files = {name: folder / name for name in self._files}
        self.folder = folder
        if self._staged is not None:
            self._staged.cleanup()
            self._staged = None

    def _stage(self) -> Path:
        if self._staged is None:
            # Deleted with the artifact, even if it is never logged.
            self._staged = tempfile.TemporaryDirectory(
                prefix="telemetry-artifact-", ignore_cleanup_errors=True
            )
        return Path(self._staged.name)


class ArtifactStore:
    """The artifact methods of a run."""

    telemetry: TelemetryLogger
    _event: Callable[..., None]

    def log_artifact(
        self,
        artifact_or_path: Artifact | str | os.PathLike[str],
        name: str | None = None,
        type: str | None = None,  # noqa: A002 - W&B's name
        aliases: Sequence[str] | None = None,
        tags: Sequence[str] | None = None,
        **_: Any,
    ) -> Artifact:
        """Copy the files of an artifact, or a file or folder, into the run folder as the next version of its name."""
        artifact = _as_artifact(artifact_or_path, name, type, str(getattr(self, "id", "run")))
        folder = self.telemetry.run_folder
        if folder is None or not self.telemetry.is_live or artifact.folder is not None:
            return artifact
        with self.telemetry.guard.catch("wandb.log_artifact"):
            given = [aliases] if isinstance(aliases, str) else list(aliases or ())
            artifact.aliases = list(dict.fromkeys([*artifact.aliases, *map(str, given), _LATEST]))
            artifact.tags = [*artifact.tags, *map(str, tags or ())]
            stored = _store(artifact, folder)
            self._event(
                "artifact",
                name=artifact.base_name,
                type=artifact.type,
                version=artifact.version,
                aliases=artifact.aliases,
                path=str(stored.relative_to(folder)),
                files=artifact.file_count,
                bytes=artifact.size,
            )
        return artifact

    upsert_artifact = finish_artifact = log_artifact

    def use_artifact(
        self,
        artifact_or_name: Artifact | str,
        type: str | None = None,  # noqa: A002 - W&B's name
        aliases: Sequence[str] | None = None,
        use_as: str | None = None,
    ) -> Any:
        """Return an artifact that a run in this log directory has logged: `name`, `name:latest`, `name:v3`."""
        if isinstance(artifact_or_name, Artifact):
            return self.log_artifact(artifact_or_name, aliases=aliases)
        folder = self.telemetry.run_folder
        if folder is None:
            return null_object(f"the artifact {artifact_or_name!r}", "is not looked up: nothing is logged")
        found: Artifact | None = None
        refused: list[tuple[Path, str]] = []
        with self.telemetry.guard.catch("wandb.use_artifact"):
            found, refused = find_artifact(folder.parent, str(artifact_or_name))
            for place, why in refused:
                warn_once(f"the artifact in {place}", f"is not used: {why}")
            if found is not None:
                self._event(
                    "artifact_used", name=found.base_name, version=found.version, path=str(found.folder)
                )
        if found is None:
            by_whom = "no run of this user" if refused else "no run"
            return null_object(
                f"the artifact {artifact_or_name!r}", f"was logged by {by_whom} in {folder.parent}"
            )
        return found

    def log_model(
        self, path: str | os.PathLike[str], name: str | None = None, aliases: Sequence[str] | None = None
    ) -> None:
        """Log a file or folder as an artifact of the type `model`."""
        self.log_artifact(path, name, "model", aliases)

    def use_model(self, name: str) -> str:
        """Return the file of a logged model, or its folder if there are several."""
        found = self.use_artifact(name)
        if not isinstance(found, Artifact):
            return ""
        return found.file() if found.file_count == 1 else found.download()

    def log_code(
        self,
        root: str | None = ".",
        name: str | None = None,
        include_fn: Callable[..., bool] | None = None,
        exclude_fn: Callable[..., bool] | None = None,
    ) -> Artifact | None:
        """Log the Python files of a folder as an artifact of the type `code`."""
        artifact = Artifact(name or f"source-{getattr(self, 'project', 'run')}", "code")
        with self.telemetry.guard.catch("wandb.log_code"):
            base = Path(root or ".").absolute()
            for folder, folders, files in os.walk(base):
                folders[:] = [each for each in folders if each not in _NO_CODE]
                for file in files:
                    path = os.path.join(folder, file)
                    is_wanted = _matches(include_fn, path, base) if include_fn else file.endswith(_CODE)
                    if is_wanted and not (exclude_fn is not None and _matches(exclude_fn, path, base)):
                        artifact.add_file(path, os.path.relpath(path, base))
            if artifact.file_count:
                return self.log_artifact(artifact)
        return None


def _matches(function: Callable[..., bool], path: str, root: Path) -> bool:
    """Call a script's own filter function on a file; some take the root as well."""
    try:
        return bool(function(path, str(root)))
    except TypeError:
        return bool(function(path))


def _as_artifact(given: Any, name: str | None, kind: str | None, run: str) -> Artifact:
    if isinstance(given, Artifact):
        return given
    path = Path(given)
    artifact = Artifact(name or f"run-{run}-{path.name}", kind or "unspecified")
    if path.is_dir():
        artifact.add_dir(path)
    else:
        artifact.add_file(path)
    return artifact


def _store(artifact: Artifact, run_folder: Path) -> Path:
    mode = stat.S_IMODE(run_folder.stat().st_mode)
    base = run_folder / ARTIFACTS / safe_run_name(artifact.base_name)
    make_folders(base, mode)
    half_done = Path(tempfile.mkdtemp(prefix=".", dir=base))
    try:
        os.chmod(half_done, mode)
        artifact.copy_into(half_done, mode)
        number = 1 + max(
            (known["number"] for known in _versions(run_folder.parent, artifact.base_name)), default=-1
        )
        # Another run may have taken the number in its own folder by now; here it must be free.
        while os.path.lexists(base / f"v{number}"):
            number += 1
        artifact.version = f"v{number}"
        os.rename(half_done, base / artifact.version)
    except BaseException:
        artifact.version = ""
        shutil.rmtree(half_done, ignore_errors=True)
        raise
    stored = base / artifact.version
    artifact.moved_to(stored)
    described = artifact.describe()
    with no_run_guard.catch("sealing an artifact"):
        described |= seal(run_folder.parent, artifact.base_name, stored)
    replace_file(base / f"{artifact.version}.json", as_json(described), mode=mode & 0o666)
    return stored


def find_artifact(log_dir: Path, asked: str) -> tuple[Artifact | None, list[tuple[Path, str]]]:
    """Return the artifact `entity/project/name:alias`, of those that this user's runs in `log_dir` logged.

    With it come the folders of newer ones that are not used, and why.
    """
    name, alias = map(mask_text, asked.rpartition("/")[2].partition(":")[::2])
    refused: list[tuple[Path, str]] = []
    for one in sorted(_versions(log_dir, name), key=lambda one: -one["number"]):
        if alias in ("", _LATEST, one["version"], *one["aliases"]):
            why = why_not_sealed(log_dir, name, one["folder"], one)
            if why is None:
                artifact = Artifact(name, one["type"], one.get("description"), one.get("metadata"))
                artifact.version, artifact.aliases = one["version"], one["aliases"]
                artifact.add_dir(one["folder"])
                artifact.folder = one["folder"]
                return artifact, refused
            refused.append((one["folder"], why))
    return None, refused


def _versions(log_dir: Path, name: str) -> list[dict[str, Any]]:
    """Return the description of each version of an artifact in all runs of a log directory; links are not followed."""
    found = []
    safe = safe_run_name(name)
    with os.scandir(log_dir) as runs:
        for number, run in enumerate(runs):
            if number >= _MOST_RUNS:
                break
            base = log_dir / run.name / ARTIFACTS / safe
            if run.is_dir(follow_symlinks=False) and base.is_dir() and not base.parent.is_symlink():
                found += [known for path in base.glob("v*.json") if (known := _described(path, name))]
    return found


def _described(path: Path, name: str) -> dict[str, Any] | None:
    """Return a description; None if it is another artifact's or invalid."""
    folder = path.with_suffix("")
    try:
        descriptor = open_regular(path)
        try:
            known = orjson.loads(os.read(descriptor, _LARGEST_DESCRIPTION))
        finally:
            os.close(descriptor)
        number = int(folder.name[1:])
    except (OSError, ValueError):
        return None
    if not isinstance(known, dict) or known.get("name") != name or not folder.is_dir() or folder.is_symlink():
        return None
    aliases, metadata = known.get("aliases"), known.get("metadata")
    return {
        **known,
        "number": number,
        "version": folder.name,
        "folder": folder,
        "type": str(known.get("type", "")),
        "aliases": [str(alias) for alias in aliases] if isinstance(aliases, list) else [],
        "metadata": metadata if isinstance(metadata, dict) else {},
    }


def _inside(name: str) -> str:
    """Return a safe relative path: without `..` or a leading slash."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    return "/".join(parts) or "file"
