"""Connections to the engine for many threads. While it does not answer, every question fails at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from toolkit.telemetry.fleet.address import Address
from toolkit.telemetry.fleet.engine import Engine, EngineError, FullError, UnreachableError
from toolkit.telemetry.fleet.schema import require_tables
from toolkit.telemetry.runs.formatting import clean, clock

PATIENCE_S: Final = 5.0
"""How long a page waits for an answer, and how often an engine that gave none is asked again."""

_MAX_UNUSED: Final = 8
_T = TypeVar("_T")


class EngineLink:
    """Asks the engine, over a few kept connections. Thread-safe."""

    def __init__(self, address: Address, *, patience_s: float = PATIENCE_S) -> None:
        self.address = address
        self.patience_s = patience_s
        self._lock = threading.Lock()
        self._unused: list[Engine] = []
        self._failure: EngineError | None = None
        self._silent_since = 0.0
        self.version = ""

    @property
    def problem(self) -> str | None:
        """Since when and why the engine does not answer, as a sentence; None if it answered last time."""
        failure = self._failure
        if failure is None:
            return None
        return clean(
            f"The engine has not answered since {clock(self._silent_since)} ({failure}). "
            "The page shows what it had read before, and asks again every few seconds."
        )

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT, as `Engine.rows`.

        Raises:
            EngineError: it failed, or the engine did not answer just now.
        """
        return self._run(lambda engine: engine.rows(sql))

    def lines(self, sql: str) -> list[tuple[int, bytes]]:
        """Return numbers and lines, as `Engine.lines`; raises as `rows`."""
        return self._run(lambda engine: engine.lines(sql))

    def insert_rows(self, table: str, types: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows, as `Engine.insert_rows`; raises as `rows`."""
        self._run(lambda engine: engine.insert_rows(table, types, rows))

    def _run(self, ask: Callable[[Engine], _T]) -> _T:
        with self._lock:
            if self._failure is not None:
                # A new one: an exception that is raised again and again keeps the frames of all who caught it.
                raise UnreachableError(str(self._failure))
            engine = self._unused.pop() if self._unused else None
        try:
            if engine is None:
                engine = self._connect()
            answer = ask(engine)
        except EngineError as error:
            if engine is not None:
                engine.close()
            if isinstance(error, (UnreachableError, FullError)):
                self._wait_for_engine(error)
            raise
        with self._lock:
            if len(self._unused) < _MAX_UNUSED:
                self._unused.append(engine)
                return answer
        engine.close()
        return answer

    def _connect(self) -> Engine:
        engine = Engine(self.address, patience_s=self.patience_s)
        if not self.version:
            self.version = require_tables(engine).engine_version
        return engine

    def _wait_for_engine(self, error: EngineError) -> None:
        """Let every question fail until the engine answers again, which a thread finds out."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure, self._silent_since = error, time.time()
            for engine in self._unused:
                engine.close()
            self._unused.clear()
        threading.Thread(target=self._ask_again, name="asking the engine again", daemon=True).start()

    def _ask_again(self) -> None:
        while True:
            time.sleep(self.patience_s)
            engine = Engine(self.address, patience_s=self.patience_s)
            try:
                engine.query("SELECT 1 FROM commits LIMIT 1")
            except (UnreachableError, FullError):
                continue
            except EngineError:
                # It answers; the next question says what is wrong.
                pass
            finally:
                engine.close()
            with self._lock:
                self._failure = None
            return
