"""ClickHouse over HTTP: queries, inserts and quoted texts, with errors that say what to do."""

from __future__ import annotations

import gzip
import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlencode

import orjson

from toolkit.telemetry.fleet.address import Address, AddressError, read_password
from toolkit.telemetry.fleet.native_form import block_of_rows

PATIENCE_S: Final = 30.0
"""How long the engine may be silent before a request counts as failed."""

_WHOLE_ANSWER: Final = 10
"""How many times as long a whole answer may take."""
_MAX_ANSWER: Final = 256 * 1024**2
_GZIP_LEVEL: Final = 1
_SMALL_BODY: Final = 1024
_ITEMS_AT_ONCE: Final = 200
_CHARS_AT_ONCE: Final = 16_000
"""The engine takes queries of up to 256 KiB, and a character may become sixteen."""
_MAX_MESSAGE: Final = 300
_ERROR_CODE: Final = re.compile(r"Code: (\d+)")
_EXCEPTION: Final = re.compile(r"(?:DB::)?Exception: (.*?)(?:, e\.what\(\) = .*| \(version .*)?$", re.DOTALL)

_AUTHENTICATION: Final = frozenset({192, 193, 194, 516})
_UNKNOWN_DATABASE: Final = 81
_UNKNOWN_TABLE: Final = 60
_ACCESS: Final = frozenset({164, 291, 497})
_FULL: Final = frozenset({241, 243, 252})
_NO_SPACE: Final = "No space left on device"
_READ: Final = {
    # The answer comes once the query has succeeded; until then a short one is held in memory, not on the disk.
    "wait_end_of_query": 1,
    "buffer_size": 1024 * 1024,
    "output_format_json_quote_64bit_integers": 0,
    # As texts, which float() reads: JSON has no NaN.
    "output_format_json_quote_denormals": 1,
    "output_format_json_validate_utf8": 1,
}
_DROPPED: Final = (BrokenPipeError, ConnectionResetError, http.client.BadStatusLine)
_T = TypeVar("_T")


class EngineError(Exception):
    """The engine did not do what was asked; the message is one sentence and never contains a password."""

    code: int | None = None
    """ClickHouse's error code, if it answered."""


class UnreachableError(EngineError):
    """The engine does not answer; it may later."""


class RefusedError(EngineError):
    """Wrong user, password, certificate, database or rights: trying again does not help."""


class FullError(EngineError):
    """The engine is out of memory or disk space, or cannot keep up with merging; it may take the data later."""


def quote(text: str | bytes) -> str:
    r"""Return `text` as a string literal: whatever it contains, the engine reads exactly these bytes.

    Everything but letters, digits and a few harmless characters becomes `\xNN`, so no rule of escaping is relied on.
    """
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return "'" + "".join(_LITERAL[byte] for byte in data) + "'"


def chunks(items: Iterable[_T]) -> Iterator[list[_T]]:
    """Yield `items` in lists short enough for one query, even if each has a long id of any characters."""
    some: list[_T] = []
    size = 0
    for item in items:
        length = len(repr(item))
        if some and (len(some) >= _ITEMS_AT_ONCE or size + length > _CHARS_AT_ONCE):
            yield some
            some, size = [], 0
        some.append(item)
        size += length
    if some:
        yield some


_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 _-./:=+@,")
_LITERAL: Final = tuple(chr(byte) if byte in _PLAIN else f"\\x{byte:02x}" for byte in range(256))


class Asks(Protocol):
    """An engine, or several connections to one."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT without FORMAT: numbers and texts; one that is not finite is a text."""

    def lines(self, sql: str) -> list[tuple[int, bytes]]:
        """Return the rows of a SELECT without FORMAT of a whole number and the line of a record, as it is."""


class Engine:
    """One kept connection to a ClickHouse server. Threads that share it wait for each other."""

    def __init__(self, address: Address, *, patience_s: float = PATIENCE_S) -> None:
        self.address = address
        self.patience_s = patience_s
        self._lock = threading.RLock()
        self._connection: http.client.HTTPConnection | None = None
        self._context = _tls_context(address) if address.secure else None

    def query(self, sql: str) -> bytes:
        """Run `sql` and return the answer's body.

        Raises:
            EngineError: it failed.
        """
        return self._ask(sql.encode("utf-8"), _READ, gzipped=False)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT without FORMAT: numbers and texts; a number that is not finite is a text.

        Raises:
            EngineError: it failed.
        """
        rows = self.query(f"{sql} FORMAT JSONCompactEachRow").splitlines()
        try:
            # Other JSON is from something else that listens there.
            return [tuple(orjson.loads(row if row[:1] == b"[" else b"")) for row in rows]
        except ValueError as error:
            raise EngineError(f"{self.address} gave an answer of another form than asked for") from error

    def lines(self, sql: str) -> list[tuple[int, bytes]]:
        """Return numbers and lines, as they are, that a SELECT without FORMAT has in its rows; raises as `rows`."""
        rows = (row.partition(b"\t") for row in self.query(f"{sql} FORMAT TSVRaw").split(b"\n")[:-1])
        try:
            return [(int(number), line) for number, _, line in rows]
        except ValueError as error:
            raise EngineError(f"{self.address} gave an answer of another form than asked for") from error

    def insert(self, table: str, columns: Sequence[str], block: bytes) -> None:
        """Insert a Native block; when this returns, the engine has taken it.

        Raises:
            EngineError: it failed, or its answer did not come; the block may have been taken all the same.
        """
        settings = {
            "query": f"INSERT INTO {table} ({', '.join(columns)}) FORMAT Native",
            # Several threads for a few rows take the engine half as much again.
            "max_threads": 1,
        }
        self._ask(block, settings, gzipped=len(block) > _SMALL_BODY)

    def insert_rows(self, table: str, types: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows whose columns have these names and types; raises as `insert` does."""
        self.insert(table, tuple(types), block_of_rows(types, rows))

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _ask(self, body: bytes, settings: Mapping[str, object], *, gzipped: bool) -> bytes:
        path = "/?" + urlencode({"database": self.address.database, **settings})
        headers: dict[str, str | bytes] = {
            "X-ClickHouse-User": self.address.user.encode(),
            "Content-Type": "application/octet-stream",
        }
        if gzipped:
            body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
            headers["Content-Encoding"] = "gzip"
        with self._lock:
            return self._ask_again(path, body, headers)

    def _ask_again(self, path: str, body: bytes, headers: Mapping[str, str | bytes]) -> bytes:
        was_kept = self._connection is not None
        try:
            status, answer = self._send(path, body, headers)
        except UnreachableError:
            self.close()
            if not was_kept:
                raise
            # The engine may have closed a kept connection meanwhile.
            return self._ask_again(path, body, headers)
        if status != http.client.OK:
            self.close()
            raise self._error_in(status, answer)
        return answer

    def _send(self, path: str, body: bytes, headers: Mapping[str, str | bytes]) -> tuple[int, bytes]:
        place, limit_s = self.address.place, _WHOLE_ANSWER * self.patience_s
        # A socket's own timeout begins again with each byte that comes.
        timer, ends_at = threading.Timer(limit_s, self._cut_off), time.monotonic() + limit_s
        timer.daemon = True
        try:
            if self._connection is None:
                self._connection = self._new_connection()
            timer.start()
            key = self.address.password.encode()
            self._connection.request("POST", path, body, {**headers, "X-ClickHouse-Key": key})
            response = self._connection.getresponse()
            answer = response.read(_MAX_ANSWER + 1)
            # Headers that are cut off are no error for http.client.
            if time.monotonic() > ends_at or (response.length and len(answer) <= _MAX_ANSWER):
                raise http.client.IncompleteRead(answer, response.length)
            if len(answer) > _MAX_ANSWER:
                self.close()
                raise EngineError(f"{place} gave an answer of more than {_MAX_ANSWER // 1024**2} MiB")
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise RefusedError(
                f"the certificate of {place} is refused ({error.verify_message}); --ca names the CA that signed it"
            ) from error
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            self.close()
            raise UnreachableError(f"{place} closed the connection before it was encrypted") from error
        except ssl.SSLError as error:
            self.close()
            raise RefusedError(f"{place} does not speak TLS ({error.reason or 'no handshake'})") from error
        except socket.gaierror as error:
            raise UnreachableError(f"no machine is called {self.address.host}: {error.strerror}") from error
        except TimeoutError as error:
            raise UnreachableError(f"{place} has not answered for {self.patience_s:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() > ends_at:
                raise UnreachableError(f"{place} has not finished its answer after {limit_s:g} s") from error
            reason = getattr(error, "strerror", None) or type(error).__name__
            if isinstance(error, _DROPPED) and self._context is None:
                reason += "; if it wants TLS, add ?secure=1 to the address, or --ca"
            raise UnreachableError(f"{place} cannot be reached: {reason}") from error
        finally:
            timer.cancel()
        return response.status, answer

    def _cut_off(self) -> None:
        with suppress(AttributeError, OSError):
            # Not SSLSocket's own, which takes its state away from the thread that reads.
            socket.socket.shutdown(self._connection.sock, socket.SHUT_RDWR)  # type: ignore[union-attr]

    def _new_connection(self) -> http.client.HTTPConnection:
        if self.address.password_file is not None:
            # It may have another one by now: what is refused ends the connection.
            try:
                password = read_password(self.address.password_file)
            except AddressError as error:
                raise RefusedError(str(error)) from error
            self.address = replace(self.address, password=password)
        host, port = self.address.host, self.address.port
        if self._context is None:
            return http.client.HTTPConnection(host, port, timeout=self.patience_s)
        return http.client.HTTPSConnection(host, port, timeout=self.patience_s, context=self._context)

    def _error_in(self, status: int, answer: bytes) -> EngineError:
        text = answer[:4000].decode("utf-8", "replace")
        found = _ERROR_CODE.search(text)
        code = int(found[1]) if found else None
        said = _EXCEPTION.search(text.strip())
        reason = " ".join((said[1] if said else text).split())
        if self.address.password:
            reason = reason.replace(self.address.password, "***")
        reason = reason[:_MAX_MESSAGE] or f"status {status}"
        error = _explained(code, status, reason, self.address)
        error.code = code
        return error


def _explained(code: int | None, status: int, reason: str, address: Address) -> EngineError:
    user, database, place = address.user, address.database, address.place
    if code in _AUTHENTICATION or (code is None and status in (401, 403)):
        return RefusedError(f"{place} refused user {user}: wrong user name or password")
    if code == _UNKNOWN_DATABASE:
        return RefusedError(f"{place} has no database {database}; `telemetry ship --set-up` makes it")
    if code == _UNKNOWN_TABLE:
        return RefusedError(
            f"the database {database} on {place} lacks a table ({reason}); `telemetry ship --set-up` makes it"
        )
    if code in _ACCESS:
        return RefusedError(f"user {user} may not do this on {place}: {reason}")
    if code in _FULL or _NO_SPACE in reason:
        return FullError(f"{place} cannot take more now: {reason}")
    if code is None:
        return EngineError(f"{place} is not ClickHouse, or a proxy failed (status {status})")
    return EngineError(f"{place} answered with error {code}: {reason}")


def _tls_context(address: Address) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(address.ca) if address.ca else None)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "reason", None) or error.strerror or "it is not a certificate"
        raise RefusedError(f"the CA file {address.ca} cannot be used: {reason}") from error
