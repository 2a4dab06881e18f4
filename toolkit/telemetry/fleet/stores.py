"""Where files can be: a bucket on S3, or a folder, perhaps a shared one. A file is there whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol
from urllib.parse import unquote, urlsplit

from toolkit.telemetry.core.checks import HOST, is_this_machine
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.runfolder.layout import PRIVATE, SHARED, make_folders
from toolkit.telemetry.runfolder.safefile import NotInside, open_inside, parts_inside, rename_over

FORMS: Final = "s3://BUCKET/PREFIX or file:///FOLDER"

_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_SECRET_VARIABLES: Final = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_PREFIX: Final = re.compile(r"(?:[A-Za-z0-9_=+@-][A-Za-z0-9._=+@-]*(?:/|$))*")
_PATIENCE_S: Final = 5.0
_TRIES: Final = 2
_PART_BYTES: Final = 1024 * 1024
_LISTED_APART: Final = 20
"""So many folders of a bucket are listed one by one; of more, the whole bucket."""
_MAX_REASON: Final = 200
_BAD_NAME: Final = frozenset(
    {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ}
)
"""What is wrong with the name of a file, not with the disk."""


class PlaceError(ValueError):
    """An invalid place for files; the message says what is wrong and never contains a secret."""


class StoreError(Exception):
    """The store did not do what was asked; the message is one sentence and never contains a secret."""


class FileError(StoreError):
    """One file cannot be had or written as it should be; others can."""


class MissingError(FileError):
    """The store has no such file."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What a list says of a file."""

    size: int
    changed: float
    """When it was stored, or last changed, by the store's clock."""


class Source(Protocol):
    """Files to copy, by name."""

    def files(self, below: Collection[str] | None = None) -> dict[str, StoredFile]:
        """Return all files by name, or those whose first folder is named. Raises StoreError."""

    def open(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open a file for reading. Raises StoreError, FileError for this file alone."""


class Store(Source, Protocol):
    """Files by name, that can be replaced."""

    def write(self, name: str, file: BinaryIO, changed: float | None = None) -> None:
        """Store a copy of an open file, which was `changed` then, replacing one of that name. Raises StoreError."""


def store_at(text: str, *, tries: int = _TRIES) -> Store:
    """Return the store at `text`; a variable names the S3 server if it is not Amazon's, as for other tools.

    A request that S3 has not answered for 5 s is made again, `tries` times in all.

    Raises:
        PlaceError: it, or the variable, is invalid, or a package is missing.
    """
    scheme, _, rest = text.partition("://")
    if scheme == "file":
        return FolderStore(_folder_of(rest), is_shared=True)
    if scheme != "s3":
        raise PlaceError(f"{ascii(text)[:60]} is not a place for files; use {FORMS}")
    bucket, _, prefix = rest.partition("/")
    if "@" in bucket or ":" in bucket:
        raise PlaceError(
            "the address of a bucket must not contain a login: keys come from the AWS_* variables or ~/.aws/credentials"
        )
    prefix = prefix.strip("/")
    if not _BUCKET.fullmatch(bucket) or not _PREFIX.fullmatch(prefix):
        raise PlaceError(f"{ascii(text)[:60]} is not s3://BUCKET/PREFIX")
    if find_spec("pyarrow") is None:
        raise PlaceError(f"s3:// needs pyarrow: {install_extra('fleet')}")
    return S3Store(bucket, prefix, _endpoint_of(os.environ), tries)


@dataclass(frozen=True, slots=True)
class FolderStore:
    """A folder. If it is shared it must exist: one that is not mounted is not made. Links are not followed."""

    folder: Path
    runs: Mapping[str, Path] | None = None
    """Folders that are elsewhere, by name: these are all, and for reading."""
    is_shared: bool = False

    def __str__(self) -> str:
        return self.folder.as_uri() if self.is_shared else str(self.folder)

    def files(self, below: Collection[str] | None = None) -> dict[str, StoredFile]:
        """Return all files by name, without those in hidden folders."""
        self._require_folder()
        places = self.runs
        if places is None:
            places = {name: self.folder / name for name in ([""] if below is None else below)}
        found = {}
        for run, place in places.items():
            for inside, folders, names in os.walk(place):
                folders[:] = [name for name in folders if not name.startswith(".")]
                for name in names:
                    with suppress(FileNotFoundError):
                        status = os.lstat(os.path.join(inside, name))
                        if stat.S_ISREG(status.st_mode):
                            path = Path(run, os.path.relpath(inside, place), name).as_posix()
                            found[path] = StoredFile(status.st_size, status.st_mtime)
        return found

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Open a file for reading."""
        run, _, path = name.partition("/")
        inside = (self.runs[run], path) if self.runs is not None else (self.folder, name)
        try:
            descriptor = open_inside(*inside)
        except NotInside as error:
            self._require_folder()
            if error.is_missing:
                raise MissingError(f"{self} has no {name}") from error
            raise FileError(f"{self}: {error}") from error
        with os.fdopen(descriptor, "rb") as file:
            yield file

    def write(self, name: str, file: BinaryIO, changed: float | None = None) -> None:
        """Store a copy of an open file."""
        self._require_folder()
        modes = SHARED if self.is_shared else PRIVATE
        try:
            place = self.folder.joinpath(*parts_inside(name))
            make_folders(place.parent, modes.folder)
            temporary = place.with_name(f".{place.name[:100]}.{os.urandom(8).hex()}.tmp")
            try:
                with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, modes.file), "wb") as copy:
                    shutil.copyfileobj(file, copy, _PART_BYTES)
                    copy.flush()
                    os.fsync(copy.fileno())
                if changed is not None:
                    # By its time it is known at the next copy.
                    os.utime(temporary, (changed, changed))
                rename_over(temporary, place)
            finally:
                temporary.unlink(missing_ok=True)
        except (NotInside, UnicodeEncodeError) as error:
            raise FileError(f"{name[:100]!a} is not a valid file name") from error
        except OSError as error:
            kind = FileError if error.errno in _BAD_NAME else StoreError
            raise kind(f"{self}: {name[:100]!a} cannot be written: {error.strerror or error}") from error

    def _require_folder(self) -> None:
        if self.is_shared and not self.folder.is_dir():
            raise StoreError(f"the folder {self.folder} is missing; make or mount it")


class S3Store:
    """A bucket. Keys and region come from the AWS_* variables or ~/.aws, as for other tools."""

    def __init__(self, bucket: str, prefix: str, endpoint: str | None, tries: int) -> None:
        self._tries = tries
        self._endpoint = endpoint
        self._path = "/".join(part for part in (bucket, prefix) if part) + "/"
        self._files: Any = None

    def __str__(self) -> str:
        at = f" on {self._endpoint}" if self._endpoint else ""
        return f"s3://{self._path.rstrip('/')}{at}"

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Open a file for reading."""
        with self._explained(name), self._fs().open_input_stream(self._path + name) as stream:
            yield stream

    def write(self, name: str, file: BinaryIO, changed: float | None = None) -> None:  # noqa: ARG002 - S3 has its own times
        """Store a copy of an open file."""
        with self._explained(name), self._fs().open_output_stream(self._path + name) as stream:
            shutil.copyfileobj(file, stream, _PART_BYTES)

    def files(self, below: Collection[str] | None = None) -> dict[str, StoredFile]:
        """Return all files by name."""
        with self._explained(self._path):
            from pyarrow import fs

            names = below if below is not None and len(below) <= _LISTED_APART else [""]
            places = (f"{self._path}{name}".rstrip("/") for name in names)
            return {
                one.path[len(self._path) :]: StoredFile(one.size, one.mtime_ns / 1e9)
                for place in places
                for one in self._fs().get_file_info(
                    fs.FileSelector(place, allow_not_found=True, recursive=True)
                )
                if one.is_file
            }

    def _fs(self) -> Any:
        if self._files is None:
            from pyarrow import fs  # only here: it takes a while, and folders do without

            region = next((os.environ[name] for name in _REGION_VARIABLES if os.environ.get(name)), None)
            self._files = fs.S3FileSystem(
                endpoint_override=self._endpoint,
                # Servers other than Amazon's have no regions, and the signature needs one.
                region=region or ("us-east-1" if self._endpoint else None),
                connect_timeout=_PATIENCE_S,
                request_timeout=_PATIENCE_S,
                retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=self._tries),
                # A small file is one request.
                allow_delayed_open=True,
            )
        return self._files

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise MissingError(f"{self} has no {name}") from error
        except (OSError, ValueError, RuntimeError) as error:
            # The last two are other errors of pyarrow's.
            raise StoreError(self._sentence(str(error))) from error

    def _sentence(self, text: str) -> str:
        reason = " ".join(text.split())
        for variable in _SECRET_VARIABLES:
            if os.environ.get(variable):
                reason = reason.replace(os.environ[variable], "***")
        return f"{self} failed: {reason[:_MAX_REASON]}"


def read_at_most(store: Source, name: str, max_bytes: int) -> bytes:
    """Return the content of a small file. Raises StoreError, FileError if it is larger than `max_bytes`."""
    with store.open(name) as file:
        data = bytes(file.read(max_bytes + 1))
    if len(data) > max_bytes:
        raise FileError(f"{name} in {store} is larger than {max_bytes:,} bytes")
    return data


def _folder_of(rest: str) -> Path:
    host, slash, path = rest.partition("/")
    folder = Path(unquote(slash + path))
    if host or not folder.is_absolute() or "\0" in rest or ".." in folder.parts:
        raise PlaceError("a folder has the form file:///FOLDER, with three slashes and the whole path")
    return folder


def _endpoint_of(environ: Mapping[str, str]) -> str | None:
    text = next((environ[name] for name in _ENDPOINT_VARIABLES if environ.get(name)), None)
    if text is None:
        return None
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urlsplit(""), "", None
    is_plain = parts.scheme == "http" and is_this_machine(host)
    if not HOST.fullmatch(host) or not (parts.scheme == "https" or is_plain):
        raise PlaceError(
            "the endpoint of S3 must have the form https://HOST:PORT; only this machine may do without TLS"
        )
    if parts.username is not None or parts.query or parts.path.strip("/"):
        raise PlaceError("the endpoint of S3 must not contain a login, a path or options")
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}" + (f":{port}" if port else "")
