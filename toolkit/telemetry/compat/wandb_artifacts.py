"""Artifacts of W&B scripts: the files are copied to `artifacts/<name>/v0/` of the run folder, with a record."""

# ruff: noqa: ARG002 - the parameters are W&B's, and some have no meaning here

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import orjson

from toolkit.telemetry.compat.null_object import null_object, warn_once
from toolkit.telemetry.compat.wandb_media import Table, as_json, no_run_guard
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.privacy.masking import mask_secrets
from toolkit.telemetry.privacy.secret_shapes import mask_name
from toolkit.telemetry.runfolder.layout import make_folders, safe_run_name
from toolkit.telemetry.runfolder.safefile import copy_file

ARTIFACTS: Final = "artifacts"


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
        self.base_name = mask_name(str(name).rpartition("/")[2].partition(":")[0]) or "artifact"
        self.type = str(type)
        self.description = description
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.version = ""
        """Empty until it is logged."""
        self.paths: dict[str, Path] = {}
        """Its files, by their names in the artifact."""
        self.references: dict[str, str] = {}
        self._new_files: tempfile.TemporaryDirectory[str] | None = None

    @property
    def name(self) -> str:
        """Its name, with the version once it is logged."""
        return f"{self.base_name}:{self.version}" if self.version else self.base_name

    def add_file(
        self, local_path: str | os.PathLike[str], name: str | None = None, *_: Any, **__: Any
    ) -> None:
        """Add a file, under its own name or another."""
        self.paths[_inside(name or Path(local_path).name)] = Path(local_path).absolute()

    def add_dir(
        self, local_path: str | os.PathLike[str], name: str | None = None, *_: Any, **__: Any
    ) -> None:
        """Add all files of a folder; links are not followed."""
        with no_run_guard.catch("adding a folder to an artifact"):
            root = Path(local_path).absolute()
            for folder, _folders, files in os.walk(root):
                for path in (Path(folder) / file for file in files):
                    if path.is_file() and not path.is_symlink():
                        self.paths[_inside(str(Path(name or "") / path.relative_to(root)))] = path

    def add(self, obj: Any, name: str, *_: Any, **__: Any) -> None:
        """Add a table, an image or similar."""
        data, ending = getattr(obj, "data", None), f".{getattr(obj, 'format', 'bin')}"
        if isinstance(obj, Table):
            data, ending = as_json(obj.content()), ".table.json"
        if not isinstance(data, bytes):
            warn_once(f"wandb.Artifact.add of a {type(obj).__name__}", "is left out")
            return
        with self.new_file(name if name.endswith(ending) else name + ending, mode="wb") as file:
            file.write(data)

    def add_reference(self, uri: Any, name: str | None = None, *_: Any, **__: Any) -> None:
        """Add a URL; nothing is fetched from it."""
        text = str(getattr(uri, "url", uri))
        self.references[_inside(name or text.rpartition("/")[2] or "reference")] = text

    @contextmanager
    def new_file(self, name: str, mode: str = "x", encoding: str | None = None) -> Iterator[IO[Any]]:
        """Open a new file of the artifact for writing."""
        if self._new_files is None:
            # Deleted with the artifact, even if it is never logged.
            self._new_files = tempfile.TemporaryDirectory(prefix="telemetry-", ignore_cleanup_errors=True)
        path = Path(self._new_files.name) / _inside(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode.replace("x", "w"), encoding=encoding) as file:
            yield file
        self.paths[_inside(name)] = path

    def wait(self, timeout: float | None = None) -> Artifact:
        """Return the artifact: nothing is pending."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return null_object(f"wandb.Artifact.{name}")


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
        artifact = artifact_or_path
        if not isinstance(artifact, Artifact):
            path = Path(artifact)
            artifact = Artifact(
                name or f"run-{getattr(self, 'id', 'run')}-{path.name}", type or "unspecified"
            )
            (artifact.add_dir if path.is_dir() else artifact.add_file)(path)
        folder = self.telemetry.run_folder
        if folder is None or not self.telemetry.is_live or artifact.version:
            return artifact
        with self.telemetry.guard.catch("wandb.log_artifact"):
            stored = _copy(artifact, folder)
            artifact.version = stored.name
            described = {
                "type": artifact.type,
                "aliases": [aliases] if isinstance(aliases, str) else [*map(str, aliases or ())],
                "tags": [*map(str, tags or ())],
                "description": artifact.description,
                "metadata": artifact.metadata,
                "references": artifact.references,
            }
            # As it would be written: an object in it becomes a text, which may have a secret.
            masked: dict[str, Any] = mask_secrets(orjson.loads(as_json(described)))
            self._event(
                "artifact",
                name=artifact.base_name,
                version=artifact.version,
                path=str(stored.relative_to(folder)),
                files=len(artifact.paths),
                bytes=sum(path.stat().st_size for path in stored.rglob("*") if path.is_file()),
                **masked,
            )
        return artifact

    def log_model(
        self, path: str | os.PathLike[str], name: str | None = None, aliases: Sequence[str] | None = None
    ) -> None:
        """Log a file or folder as an artifact of the type `model`."""
        self.log_artifact(path, name, "model", aliases)


def _copy(artifact: Artifact, run_folder: Path) -> Path:
    """Copy the files into a new folder, which has its name only when it is complete. Raises OSError if that fails."""
    mode = stat.S_IMODE(run_folder.stat().st_mode)
    base = run_folder / ARTIFACTS / safe_run_name(artifact.base_name)
    make_folders(base, mode)
    partial = Path(tempfile.mkdtemp(prefix=".", dir=base))
    try:
        os.chmod(partial, mode)
        for name, path in artifact.paths.items():
            make_folders((partial / name).parent, mode)
            copy_file(path, partial / name, mode=mode & 0o666)
        number = 0
        while os.path.lexists(base / f"v{number}"):
            number += 1
        return partial.rename(base / f"v{number}")
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _inside(name: str) -> str:
    """Return a safe relative path: without `..` or a leading slash."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    return "/".join(parts) or "file"
