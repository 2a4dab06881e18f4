"""ClickHouse over HTTP: queries, inserts and quoted texts, with errors that say what to do."""

from __future__ import annotations

import gzip
import http.client
import re
import socket
import ssl
import struct
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from email.utils import parsedate_to_datetime
from itertools import accumulate
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from toolkit.telemetry.fleet.address import Address, AddressError, read_password
from toolkit.telemetry.fleet.binary_form import block_of_rows, rows_of

PATIENCE_S: Final = 30.0
"""How long the engine may be silent before a request counts as failed."""

_WHOLE_ANSWER: Final = 10
"""How many times as long a whole answer may take."""
_MAX_ANSWER: Final = 256 * 1024**2
_GZIP_LEVEL: Final = 1
_SMALL_BODY: Final = 1024
_BUFFER_BYTES: Final = 1024 * 1024
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
_SHARD_DOWN: Final = frozenset({209, 210, 279})
_REPLICAS_DOWN: Final = frozenset({225, 242, 285, 286, 319, 999})
_OTHER_HOST: Final = frozenset({62, 64})
"""OpenSSL's codes for a certificate of another host name or IP address."""
_HANDSHAKE_S: Final = 2.0
"""A port that has not begun TLS by then is asked whether it speaks plain HTTP."""
_PROBE_S: Final = 10.0
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


class Engine:
    """One kept connection to a ClickHouse server. Threads that share it wait for each other."""

    def __init__(self, address: Address, *, patience_s: float = PATIENCE_S, suffix: str = "") -> None:
        self.address = address
        self._suffix = suffix
        self.patience_s = patience_s
        self._lock = threading.RLock()
        self._connection: http.client.HTTPConnection | None = None
        self._host = 0
        self._context = _tls_context(address) if address.secure else None
        self.read_settings: dict[str, object] = {}
        """Settings of every query."""
        self.insert_settings: dict[str, object] = {}
        """Settings of every insert."""
        self.has_parameters = True
        """Whether views may have parameters."""
        self.clock_ahead_s: float | None = None
        """How far this machine's clock is ahead of the engine's, by the last answer; to a second."""

    def table(self, name: str) -> str:
        """Return what a table is called here: on a shard that is asked directly, its own part of it."""
        return name + self._suffix

    def query(self, sql: str, *, settings: Mapping[str, object] | None = None) -> bytes:
        """Run `sql` and return the answer's body.

        Raises:
            EngineError: it failed.
        """
        # The answer comes once the query has succeeded; until then a short one is held in memory, not on the disk.
        how = {"wait_end_of_query": 1, "buffer_size": _BUFFER_BYTES, **self.read_settings, **(settings or {})}
        return self._ask(sql.encode("utf-8"), how, gzipped=False)

    def rows(self, sql: str, *types: str) -> list[tuple[Any, ...]]:
        """Run a SELECT without FORMAT and return its rows; `types` are those of its columns.

        Raises:
            EngineError: it failed.
        """
        return list(self.iterate(sql, *types))

    def iterate(self, sql: str, *types: str) -> Iterator[tuple[Any, ...]]:
        """Run a SELECT without FORMAT and yield its rows; `types` are those of its columns.

        Raises:
            EngineError: it failed.
        """
        answer = self.query(f"{sql} FORMAT RowBinary")
        try:
            yield from rows_of(answer, types)
        except (struct.error, IndexError) as error:
            raise EngineError(f"{self.address} gave an answer of another form than asked for") from error

    def insert(self, table: str, columns: Sequence[str], block: bytes) -> None:
        """Insert a Native block; when this returns, the engine and on a cluster every shard has taken it.

        Raises:
            EngineError: it failed, or its answer did not come; the block may have been taken all the same.
        """
        settings = {
            "query": f"INSERT INTO {self.table(table)} ({', '.join(columns)}) FORMAT Native",
            "insert_distributed_sync": 1,
            # Several threads for a few rows take the engine half as much again.
            "max_threads": 1,
            **self.insert_settings,
        }
        self._ask(block, settings, gzipped=len(block) > _SMALL_BODY)

    def insert_rows(self, table: str, types: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> None:
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
            "X-ClickHouse-Key": self.address.password.encode(),
            "Content-Type": "application/octet-stream",
        }
        if gzipped:
            body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
            headers["Content-Encoding"] = "gzip"
        with self._lock:
            try:
                return self._ask_hosts(path, body, headers)
            except RefusedError as error:
                if not self._has_new_password(error):
                    raise
                headers["X-ClickHouse-Key"] = self.address.password.encode()
                return self._ask_hosts(path, body, headers)

    def _has_new_password(self, error: RefusedError) -> bool:
        """Return whether the password file has another password than the one that was refused, which is used then."""
        if error.code not in _AUTHENTICATION or self.address.password_file is None:
            return False
        try:
            password = read_password(self.address.password_file)
        except AddressError as problem:
            raise RefusedError(f"{error}; {problem}") from problem
        is_new = password != self.address.password
        self.address = replace(self.address, password=password)
        return is_new

    def _ask_hosts(self, path: str, body: bytes, headers: Mapping[str, str | bytes]) -> bytes:
        failures: list[UnreachableError] = []
        # Every host once, and a kept connection that the engine has closed meanwhile once more.
        for _ in range(len(self.address.hosts) + (self._connection is not None)):
            was_kept = self._connection is not None
            try:
                status, answer = self._send(path, body, headers)
            except UnreachableError as error:
                self.close()
                failures.append(error)
                if not was_kept:
                    self._host = (self._host + 1) % len(self.address.hosts)
                continue
            if status != http.client.OK:
                self.close()
                raise self._error_in(status, answer)
            return answer
        raise failures[-1]

    def _send(self, path: str, body: bytes, headers: Mapping[str, str | bytes]) -> tuple[int, bytes]:
        host, port = self.address.hosts[self._host]
        place = f"{host}:{port}"
        try:
            if self._connection is None:
                self._connection = self._connect(host, port)
            with _all_within(_WHOLE_ANSWER * self.patience_s, self._connection, place):
                self._connection.request("POST", path, body, headers)
                response = self._connection.getresponse()
                answer = response.read(_MAX_ANSWER + 1)
                if response.length and len(answer) <= _MAX_ANSWER:
                    raise http.client.IncompleteRead(answer, response.length)
            if len(answer) > _MAX_ANSWER:
                self.close()
                raise EngineError(f"{place} gave an answer of more than {_MAX_ANSWER // 1024**2} MiB")
        except ssl.SSLCertVerificationError as error:
            self.close()
            if error.verify_code in _OTHER_HOST:
                raise RefusedError(
                    f"the certificate of {place} is for another host: {error.verify_message.rstrip('.')}"
                ) from error
            raise RefusedError(
                f"the certificate of {place} is not trusted ({error.verify_message}); --ca names a CA that is"
            ) from error
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            self.close()
            raise UnreachableError(f"{place} closed the connection before it was encrypted") from error
        except ssl.SSLError as error:
            self.close()
            raise RefusedError(f"{place} does not speak TLS ({error.reason or 'no handshake'})") from error
        except socket.gaierror as error:
            raise UnreachableError(f"no machine is called {host}: {error.strerror}") from error
        except TimeoutError as error:
            raise UnreachableError(f"{place} has not answered for {self.patience_s:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, _DROPPED) and self._context is None and _speaks_tls(host, port):
                raise RefusedError(f"{place} wants TLS: add ?secure=1 to the address, or --ca") from error
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise UnreachableError(f"{place} cannot be reached: {reason}") from error
        self.clock_ahead_s = _clock_ahead(response.getheader("Date"), self.clock_ahead_s)
        return response.status, answer

    def _connect(self, host: str, port: int) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(host, port, timeout=self.patience_s)
        for wait_s in (min(_HANDSHAKE_S, self.patience_s), self.patience_s):
            connection = http.client.HTTPSConnection(host, port, timeout=wait_s, context=self._context)
            try:
                connection.connect()
            except TimeoutError:
                connection.close()
                if _speaks_http(host, port):
                    raise RefusedError(f"{host}:{port} does not speak TLS (it answers plain HTTP)") from None
            except OSError:
                connection.close()
                raise
            else:
                connection.sock.settimeout(self.patience_s)
                return connection
        raise TimeoutError

    def _error_in(self, status: int, answer: bytes) -> EngineError:
        host, port = self.address.hosts[self._host]
        text = answer[:4000].decode("utf-8", "replace")
        found = _ERROR_CODE.search(text)
        code = int(found[1]) if found else None
        said = _EXCEPTION.search(text.strip())
        reason = " ".join((said[1] if said else text).split())
        if self.address.password:
            reason = reason.replace(self.address.password, "***")
        reason = reason[:_MAX_MESSAGE] or f"status {status}"
        error = _explained(code, status, reason, self.address, f"{host}:{port}")
        error.code = code
        return error


def _explained(code: int | None, status: int, reason: str, address: Address, place: str) -> EngineError:
    user, database = address.user, address.database
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
    if code in _SHARD_DOWN:
        return UnreachableError(f"{place} cannot reach another node of its cluster: {reason}")
    if code in _REPLICAS_DOWN:
        return EngineError(f"{place} takes no inserts until its replicas and their keeper answer: {reason}")
    if code is None:
        return EngineError(f"{place} is not ClickHouse, or a proxy failed (status {status})")
    return EngineError(f"{place} answered with error {code}: {reason}")


@contextmanager
def _all_within(limit_s: float, connection: http.client.HTTPConnection, place: str) -> Iterator[None]:
    """Have the block fail after `limit_s`: a socket's own timeout begins again with each byte that comes."""
    is_over = threading.Event()

    def end() -> None:
        is_over.set()
        if connection.sock is not None:
            with suppress(OSError):
                # Not SSLSocket's own, which takes its state away from the thread that reads.
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not is_over.is_set():
            raise
    finally:
        timer.cancel()
    # Headers that are cut off are no error for http.client.
    if is_over.is_set():
        raise UnreachableError(f"{place} has not finished its answer after {limit_s:g} s")


_DROPPED: Final = (ConnectionResetError, BrokenPipeError, http.client.BadStatusLine)


def _speaks_tls(host: str, port: int) -> bool:
    try:
        with (
            socket.create_connection((host, port), timeout=_PROBE_S) as plain,
            ssl.create_default_context().wrap_socket(plain, server_hostname=host),
        ):
            return True
    except ssl.SSLCertVerificationError:
        return True
    except OSError:
        return False


def _speaks_http(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_PROBE_S) as plain:
            plain.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
            return plain.recv(5) == b"HTTP/"
    except OSError:
        return False


def _tls_context(address: Address) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(address.ca) if address.ca else None)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "reason", None) or error.strerror or "it is not a certificate"
        raise RefusedError(f"the CA file {address.ca} cannot be used: {reason}") from error


def _clock_ahead(
    date: str | None, otherwise: float | None, now: Callable[[], float] = time.time
) -> float | None:
    if date is None:
        return otherwise
    try:
        # The header is cut to whole seconds: its middle is the best guess.
        return now() - (parsedate_to_datetime(date).timestamp() + 0.5)
    except (TypeError, ValueError):
        return otherwise


_PATIENCE_S: Final = 5.0
LOCAL: Final = "_local"
"""After the name of a table: the part of it that a shard has."""


class Shards:
    """The shards of a cluster, chosen among as its Distributed tables do."""

    def __init__(self, engine: Engine, cluster: str | None) -> None:
        """Ask for the shards of `cluster`; None is a single engine.

        Raises:
            EngineError: the engine did not answer.
        """
        self._engine = engine
        self._ends = [1]
        self.engines = [engine]
        """The engine of each shard: its own, or one that passes everything on."""
        if cluster is not None:
            weights = engine.rows(
                "SELECT shard_num, max(shard_weight) FROM system.clusters "
                f"WHERE cluster = {quote(cluster)} GROUP BY shard_num ORDER BY shard_num",
                "UInt32",
                "UInt32",
            )
            if not weights:
                raise RefusedError(
                    f"the tables are on the cluster {cluster}, which the engine does not have any more"
                )
            self._ends = list(accumulate(weight for _, weight in weights))
            # Any host can say which shard a run is on: one that hangs is not waited for.
            self._engine = Engine(engine.address, patience_s=min(engine.patience_s, _PATIENCE_S))
            numbers = [number for number, _ in weights]
            hosts = _hosts_by_shard(engine, cluster, numbers)
            if hosts:
                self.engines = [
                    Engine(
                        replace(engine.address, hosts=tuple(hosts[number])),
                        patience_s=engine.patience_s,
                        suffix=LOCAL,
                    )
                    for number in numbers
                ]
                for one in self.engines:
                    one.insert_settings.update(engine.insert_settings)
                    one.has_parameters = engine.has_parameters
            else:
                self.engines = [engine] * len(numbers)

    def of(self, run_ids: Iterable[str]) -> dict[str, int]:
        """Return the shard of each run, counted from 0.

        Raises:
            EngineError: the engine did not answer.
        """
        ids = list(dict.fromkeys(run_ids))
        if len(self._ends) == 1:
            return dict.fromkeys(ids, 0)
        found: dict[str, int] = {}
        for some in chunks(ids):
            texts = ", ".join(map(quote, some))
            rows = self._engine.iterate(
                f"SELECT x, toUInt64(cityHash64(x) % {self._ends[-1]}) FROM (SELECT arrayJoin([{texts}]) AS x)",
                "Bytes",
                "UInt64",
            )
            found.update({run_id.decode(): bisect_right(self._ends, place) for run_id, place in rows})
        return {run_id: found[run_id] for run_id in ids}


def _hosts_by_shard(engine: Engine, cluster: str, numbers: list[int]) -> dict[int, list[tuple[str, int]]]:
    """Return the hosts of the address by the shard they are; nothing if a shard has none."""
    found: dict[int, list[tuple[str, int]]] = defaultdict(list)
    silent = []
    for host in engine.address.hosts:
        one = Engine(replace(engine.address, hosts=(host,)), patience_s=_PATIENCE_S)
        try:
            own = one.rows(
                f"SELECT shard_num FROM system.clusters WHERE cluster = {quote(cluster)} AND is_local = 1",
                "UInt32",
            )
        except UnreachableError:
            silent.append(host)
            continue
        finally:
            one.close()
        if own:
            found[own[0][0]].append(host)
    missing = [number for number in numbers if number not in found]
    if len(missing) == len(silent) == 1 and len(engine.address.hosts) == len(numbers):
        # The only one that does not answer is the only shard that was not found.
        found[missing.pop()] = silent
    return {} if missing else dict(found)
