"""Where files are stored for a fleet: a bucket on S3, or a folder that nodes and pages share.

Names are made by us and never by a user. A file is there whole or not at all.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol
from urllib.parse import unquote, urlsplit

from toolkit.telemetry.core.checks import HOST, is_this_machine
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.runfolder.layout import PRIVATE, SHARED, make_folders
from toolkit.telemetry.runfolder.safefile import (
    UnsafeFile,
    open_regular,
    rename_over,
    replace_file,
)

FORMS: Final = "s3://BUCKET/PREFIX or file:///FOLDER"

_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_SECRET_VARIABLES: Final = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_PREFIX: Final = re.compile(r"(?:[A-Za-z0-9_=+@-][A-Za-z0-9._=+@-]*(?:/|$))*")
_AWS_ERROR: Final = re.compile(r"AWS Error (\w+)")
_PATIENCE_S: Final = 5.0
_TRIES: Final = 2
_PART_BYTES: Final = 1024 * 1024
_MAX_REASON: Final = 200
_DENIED: Final = frozenset(
    {"ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "INVALID_CLIENT_TOKEN_ID"}
)


class PlaceError(ValueError):
    """An invalid place for files; the message says what is wrong and never contains a secret."""


class StoreError(Exception):
    """The store did not do what was asked; the message is one sentence and never contains a secret."""


class MissingError(StoreError):
    """The store has no such file."""


class DifferentError(StoreError):
    """The store has another content than was put there."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What a list says of a file."""

    size: int
    changed: float
    """When it was stored, or last changed, by the store's clock."""


class ObjectStore(Protocol):
    """Files by name."""

    def size(self, name: str) -> int | None:
        """Return how large a file is; None if it is missing. Raises StoreError."""

    def write(self, name: str, data: bytes) -> None:
        """Store a file, replacing one of that name. Raises StoreError."""

    def write_file(self, name: str, file: BinaryIO) -> None:
        """Store a copy of an open file, however large. Raises StoreError."""

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return a file's content. Raises StoreError, MissingError if it is missing or larger than `max_bytes`."""

    def read_file(self, name: str, path: Path) -> None:
        """Copy a file, however large, to a new one of this machine. Raises StoreError, MissingError."""

    def files(self) -> dict[str, StoredFile]:
        """Return all files by name. Raises StoreError."""


def object_store(text: str, endpoint: str | None = None, *, tries: int = _TRIES) -> ObjectStore:
    """Return the store at `text`; `endpoint` is that of an S3 server other than Amazon's.

    A request that S3 has not answered for 5 s is made again, `tries` times in all.

    Raises:
        PlaceError: it is invalid, or a package is missing.
    """
    scheme, _, rest = text.partition("://")
    if scheme == "file":
        return FolderStore(_folder_of(rest))
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
    return S3Store(bucket, prefix, _endpoint_of(endpoint, os.environ), tries)


@dataclass(frozen=True, slots=True)
class FolderStore:
    """A folder, such as one of a file server. It must exist: one that is not mounted is not made."""

    folder: Path

    def __str__(self) -> str:
        return f"file://{self.folder}"

    def size(self, name: str) -> int | None:
        """Return how large a file is; None if it is missing."""
        try:
            with self._opened(name) as descriptor:
                return os.fstat(descriptor).st_size
        except MissingError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Store a file."""
        with self._place_for(name) as path:
            replace_file(path, data, mode=SHARED.file, durable=True)

    def write_file(self, name: str, file: BinaryIO) -> None:
        """Store a copy of an open file."""
        with self._place_for(name) as place:
            temporary = place.with_name(f".{place.name}.{os.urandom(8).hex()}.tmp")
            try:
                _copy(file, temporary, SHARED.file)
                rename_over(temporary, place)
            finally:
                temporary.unlink(missing_ok=True)

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return a file's content."""
        with self._opened(name) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
            return _at_most(file, max_bytes, f"{name} in {self}")

    def read_file(self, name: str, path: Path) -> None:
        """Copy a file to a new one."""
        with self._opened(name) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
            _copy(file, path, PRIVATE.file)

    def files(self) -> dict[str, StoredFile]:
        """Return all files by name, without links."""
        self._require_folder()
        found = {}
        for inside, _, names in os.walk(self.folder):
            for path in (Path(inside, name) for name in names):
                with suppress(FileNotFoundError):
                    status = os.lstat(path)
                    if stat.S_ISREG(status.st_mode):
                        name = path.relative_to(self.folder).as_posix()
                        found[name] = StoredFile(status.st_size, status.st_mtime)
        return found

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        try:
            descriptor = open_regular(self.folder / name)
        except FileNotFoundError as error:
            self._require_folder()
            raise MissingError(f"{self} has no {name}") from error
        except UnsafeFile as error:
            raise StoreError(f"{self}: {error}") from error
        except OSError as error:
            raise StoreError(f"{self} cannot be read: {error.strerror}") from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _place_for(self, name: str) -> Iterator[Path]:
        self._require_folder()
        path = self.folder / name
        try:
            make_folders(path.parent, SHARED.folder)
            yield path
        except OSError as error:
            raise StoreError(f"{self} cannot be written: {error.strerror}") from error

    def _require_folder(self) -> None:
        if not self.folder.is_dir():
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

    def size(self, name: str) -> int | None:
        """Return how large a file is; None if it is missing."""
        with self._explained(name):
            found = self._fs().get_file_info(self._path + name)
            return int(found.size) if found.is_file else None

    def write(self, name: str, data: bytes) -> None:
        """Store a file."""
        with self._explained(name), self._fs().open_output_stream(self._path + name) as stream:
            stream.write(data)

    def write_file(self, name: str, file: BinaryIO) -> None:
        """Store a copy of an open file."""
        with self._explained(name), self._fs().open_output_stream(self._path + name) as stream:
            shutil.copyfileobj(file, stream, _PART_BYTES)

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return a file's content."""
        with self._explained(name), self._fs().open_input_stream(self._path + name) as stream:
            return _at_most(stream, max_bytes, f"{name} in {self}")

    def read_file(self, name: str, path: Path) -> None:
        """Copy a file to a new one."""
        with self._explained(name), self._fs().open_input_stream(self._path + name) as stream:
            _copy(stream, path, PRIVATE.file)

    def files(self) -> dict[str, StoredFile]:
        """Return all files by name."""
        with self._explained(self._path):
            from pyarrow import fs

            below = fs.FileSelector(self._path.rstrip("/"), allow_not_found=True, recursive=True)
            return {
                one.path[len(self._path) :]: StoredFile(one.size, one.mtime_ns / 1e9)
                for one in self._fs().get_file_info(below)
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
        found = _AWS_ERROR.search(text)
        code = found[1] if found else ""
        if code in _DENIED:
            return f"{self} refused the key, or does not allow it to do this ({code})"
        if code == "NETWORK_CONNECTION":
            return f"{self} cannot be reached"
        if code == "NO_SUCH_BUCKET":
            return f"{self}: there is no such bucket"
        reason = " ".join(text.split())
        for variable in _SECRET_VARIABLES:
            if os.environ.get(variable):
                reason = reason.replace(os.environ[variable], "***")
        return f"{self} failed: {reason[:_MAX_REASON]}"


def _copy(file: Any, path: Path, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as copy:
        shutil.copyfileobj(file, copy, _PART_BYTES)
        copy.flush()
        os.fsync(copy.fileno())


def _at_most(file: Any, max_bytes: int, what: str) -> bytes:
    data = bytes(file.read(max_bytes + 1))
    if len(data) > max_bytes:
        raise MissingError(f"{what} is larger than {max_bytes:,} bytes")
    return data


def _folder_of(rest: str) -> Path:
    host, slash, path = rest.partition("/")
    folder = Path(unquote(slash + path))
    if host or not folder.is_absolute() or "\0" in rest or ".." in folder.parts:
        raise PlaceError("a folder has the form file:///FOLDER, with three slashes and the whole path")
    return folder


def _endpoint_of(text: str | None, environ: Mapping[str, str]) -> str | None:
    text = text or next((environ[name] for name in _ENDPOINT_VARIABLES if environ.get(name)), None)
    if text is None:
        return None
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urlsplit(""), "", None
    if parts.scheme not in ("http", "https") or not HOST.fullmatch(host) or parts.path.strip("/"):
        raise PlaceError("the endpoint of S3 has the form https://HOST:PORT")
    if parts.username is not None or parts.query:
        raise PlaceError("the endpoint of S3 must not contain a login or options")
    if parts.scheme == "http" and not is_this_machine(host):
        raise PlaceError(f"the endpoint of S3 on {host} must be https; only this machine may do without TLS")
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}" + (f":{port}" if port else "")
