"""Requests to runs as rows of the engine, signed by the page that made them with a key that only nodes share."""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.fleet.address import AddressError, read_private
from toolkit.telemetry.fleet.binary_form import types_of
from toolkit.telemetry.runfolder.control import ControlRequest, encode_body

REQUESTS: Final = "requests"
REQUEST_TYPES: Final = types_of(
    "project String, run_id String, id String, asked Float64, expires Float64, by String, body String, mac String, "
    "created Date"
)
MIN_KEY_BYTES: Final = 32
MAX_BY_BYTES: Final = 256

_MAX_KEY_BYTES: Final = 4096
_PURPOSE: Final = b"telemetry request 1"
_MAKE_KEY: Final = "(umask 077; openssl rand -base64 48 > FILE)"


def read_key(path: Path) -> bytes:
    """Return the key in the file at `path`.

    Raises:
        AddressError: the file cannot be read, other users can read it, or the key is too short.
    """
    key = read_private(path, "key", limit=_MAX_KEY_BYTES).rstrip(b"\r\n")
    if len(key) < MIN_KEY_BYTES:
        raise AddressError(
            f"the key in {path} has {len(key)} bytes, fewer than {MIN_KEY_BYTES}; make one with {_MAKE_KEY}"
        )
    return key


def key_id_of(key: bytes) -> str:
    """Return what two programs compare to find out whether they have the same key."""
    return hmac.new(key, b"telemetry key id", hashlib.sha256).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    """A row of the table `requests`; nothing in it is trusted before the signature was checked."""

    run_id: bytes
    id: bytes
    asked: float
    """By the engine's clock."""
    expires: float
    by: bytes
    """Who asked: a login."""
    body: bytes
    mac: bytes = b""

    def is_signed_with(self, key: bytes) -> bool:
        """Return whether the signature is that of this very request."""
        return hmac.compare_digest(self.mac, self.signature(key))

    def signature(self, key: bytes) -> bytes:
        """Return the signature of this request."""
        times = struct.pack(">dd", self.asked, self.expires)
        fields = (_PURPOSE, self.run_id, self.id, times, self.by, self.body)
        # Each after its length: no two lists of fields have the same bytes.
        message = b"".join(struct.pack(">Q", len(field)) + field for field in fields)
        return hmac.digest(key, message, "sha256").hex().encode()


def request_row(request: ControlRequest, key: bytes, *, by: str, project: str, day: int) -> tuple[Any, ...]:
    """Return `request`, signed, as a row with the columns of REQUEST_TYPES."""
    assert request.run_id is not None
    assert request.expires is not None
    row = SignedRequest(
        run_id=request.run_id.encode(),
        id=request.id.encode(),
        asked=request.timestamp,
        expires=request.expires,
        by=by.encode("utf-8", "replace")[:MAX_BY_BYTES],
        body=encode_body(request),
    )
    return (project, row.run_id, row.id, row.asked, row.expires, row.by, row.body, row.signature(key), day)
