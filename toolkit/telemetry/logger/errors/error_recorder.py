"""Records the errors of one session: each distinct one once, with a count of its repetitions."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, NamedTuple

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.lifetime import exit_code, reason_of
from toolkit.telemetry.logger.errors.failure import STACK, describe_in_full, fingerprint_of
from toolkit.telemetry.logger.errors.memory import is_out_of_memory, memory_state
from toolkit.telemetry.logger.errors.stack import Stack, fingerprint, path_shower, walk_frame
from toolkit.telemetry.logger.options.blocks import ErrorOptions
from toolkit.telemetry.privacy.masking import mask_secrets

MAX_DISTINCT: Final = 100
"""Distinct errors; any further ones are only counted, together."""
AT_THE_END: Final = "end"
"""`caught_by` of an error that ends the run. It is recorded even if it is a repetition."""
_TAKEN: Final = "_telemetry_recorded"
_SPANS: Final = "_telemetry_spans"
_NO_FAILURES: Final = (StopIteration, StopAsyncIteration, GeneratorExit)
"""Signal the end of an iteration, such as the last batch of an epoch."""
_CALLED_OFF: Final = ("CancelledError",)
"""A cancelled task has not failed."""


class _Exit(NamedTuple):
    """A call of `sys.exit`."""

    status: Any
    at: Mapping[str, Any]
    """Step and epoch, to see whether the training continued."""
    stack: Sequence[str] = ()
    is_recorded: bool = False
    """Whether there is an error record of it."""


@dataclass(slots=True, eq=False)
class _DistinctError:
    """One distinct error."""

    fingerprint: str
    name: str
    count: int = 0


class ErrorRecorder:
    """Records each exception once, even if nested captures and the end of the run all see it."""

    def __init__(
        self,
        options: ErrorOptions,
        *,
        put: Callable[[dict[str, Any]], None],
        where: Callable[[], dict[str, Any]],
        spans: Callable[[], list[str]],
        open_spans: Callable[[], list[str]],
        output: Callable[[], list[str]],
        session: int,
        run_id: str,
        guard: Guard,
    ) -> None:
        """Make a recorder; `put` writes an error record.

        `where` returns step and epoch, `spans` the names of those that are open on this thread, `open_spans` of those
        of the training's, also short ones, and `output` the last lines.
        """
        self._options = options
        self._put_record = put
        self._where = where
        self._spans = spans
        self._open_spans = open_spans
        self._output = output
        self._session = session
        self._mark = f"{run_id}/{session}"
        self._guard = guard
        self._kinds: dict[str, _DistinctError] = {}
        self._others = 0
        self._signal: str | None = None
        self._exit: _Exit | None = None
        # Reentrant: a signal handler may interrupt it on the same thread.
        self._counting = threading.RLock()

    def take(self, error: BaseException, *, caught_by: str) -> None:
        """Record an exception that is being raised.

        What is not a failure (`StopIteration`, an interrupt, a pruned trial, an exit with 0) is not recorded.
        """
        if not self._options.enabled:
            return
        if self.has_seen(error):
            if caught_by == AT_THE_END:
                self._record_if_only_counted(error)
            return
        with self._guard.catch("remembering an error"):
            # On the exception itself: a reference here would keep all its frames alive, and its id may be reused later.
            vars(error).setdefault(_TAKEN, {})[self._mark] = None
        if not is_failure(error):
            return
        if isinstance(error, SystemExit):
            self._exit = _Exit(error.code, self._where(), is_recorded=True)
        kind, is_recorded = self._count(error)
        if is_recorded or caught_by == AT_THE_END:
            self._record(error, kind, caught_by=caught_by)
        else:
            with self._guard.catch("remembering an error"):
                vars(error)[_TAKEN][self._mark] = kind.fingerprint if kind is not None else ""

    def _record_if_only_counted(self, error: BaseException) -> None:
        key: str | None = None
        with self._guard.catch("remembering an error"):
            key = vars(error)[_TAKEN][self._mark]
            vars(error)[_TAKEN][self._mark] = None
        if key is not None:
            self._record(error, self._kinds.get(key), caught_by=AT_THE_END)

    def _record(self, error: BaseException, kind: _DistinctError | None, *, caught_by: str) -> None:
        fields = describe_in_full(error, self._guard)
        spans: list[str] = []
        with self._guard.catch("reading the spans of an error"):
            spans = vars(error).get(_SPANS) or self._spans()
        if is_out_of_memory(error):
            fields["memory"] = memory_state(self._guard)
        self._put(fields, kind, caught_by=caught_by, spans=spans)

    def record_signal(self, name: str, frame: FrameType | None) -> None:
        """Record a signal that ends the process, and where the main thread was."""
        self._signal = name
        kind, _ = self._count_kind(fingerprint(name), name)
        fields = {
            "type": name,
            "module": "signal",
            "message": f"{name} ends the process",
            "severity": "warning",
            "stack": mask_secrets(Stack(walk_frame(frame)).lines(path_shower())),
        }
        spans: list[str] = []
        with self._guard.catch("reading the spans of a signal"):
            spans = self._open_spans()
        self._put(fields, kind, caught_by="signal", spans=spans)

    def has_seen(self, error: BaseException) -> bool:
        """Return whether this exception object was recorded or counted before."""
        with self._guard.catch("remembering an error"):
            return self._mark in vars(error).get(_TAKEN, ())
        return False

    def how_it_ends(
        self, reason: str | None, error: BaseException | None
    ) -> tuple[str | None, BaseException | None]:
        """Return why a run ends that is closed without a reason, or by the end of its process.

        It has failed if a recorded exception is still being raised, as in a `finally`.
        """
        if error is not None or reason not in (None, "exit"):
            return reason, error
        on_its_way = sys.exc_info()[1]
        ends_by = reason_of(on_its_way)
        if on_its_way is not None and ends_by is not None:
            # Only a `finally` closes a run while SystemExit is being raised.
            if is_failure(on_its_way) and (isinstance(on_its_way, SystemExit) or self.has_seen(on_its_way)):
                return "failed", on_its_way
            if ends_by == "pruned" or (ends_by == "interrupted" and self.has_seen(on_its_way)):
                return ends_by, None
        left = self._exit
        # sys.exit(3) was called, and no step came after it.
        is_left = reason == "exit" and left is not None and left.at == self._where()
        if left is not None and is_left:
            return "failed", self._as_exception(left)
        return reason, None

    def note_exit(self, status: Any, frame: FrameType | None) -> None:
        """Remember a call of `sys.exit`; whether it ended the script is known only when the run ends."""
        if exit_code(status) == 0:
            self._exit = None
            return
        stack: list[str] = []
        with self._guard.catch("reading where the script exits"):
            stack = mask_secrets(Stack(walk_frame(frame)).lines(path_shower()))
        self._exit = _Exit(status, self._where(), stack=stack)

    def _as_exception(self, left: _Exit) -> SystemExit:
        """Return an exception that replaces the `SystemExit` that the interpreter has dropped."""
        error = SystemExit(left.status)
        about = vars(error)
        about[STACK] = left.stack
        if left.is_recorded:
            about[_TAKEN] = {self._mark: None}
        return error

    def totals(self) -> dict[str, Any]:
        """Return the error counts for the end record."""
        if not self._kinds:
            return {}
        kinds = [
            {"type": kind.name, "fingerprint": kind.fingerprint, "count": kind.count}
            for kind in list(self._kinds.values())
        ]
        total = self._others + sum(kind.count for kind in self._kinds.values())
        others = {"errors_of_other_kinds": self._others} if self._others else {}
        signal = {"signal": self._signal} if self._signal else {}
        return {"errors_total": total, "errors": kinds, **others, **signal}

    def _count(self, error: BaseException) -> tuple[_DistinctError | None, bool]:
        key, name = "?", "exception"
        with self._guard.catch("identifying an error"):
            name = str(type(error).__name__)
            key = fingerprint_of(error)
        return self._count_kind(key, name)

    def _count_kind(self, key: str, name: str) -> tuple[_DistinctError | None, bool]:
        """Return the distinct error with its fingerprint, and whether this occurrence is recorded."""
        with self._counting:
            kind = self._kinds.get(key)
            if kind is None and len(self._kinds) >= MAX_DISTINCT:
                self._others += 1
                return None, _is_power_of_ten(self._others)
            if kind is None:
                kind = self._kinds[key] = _DistinctError(key, name)
            kind.count += 1
            return kind, _is_power_of_ten(kind.count)

    def _put(
        self, fields: dict[str, Any], kind: _DistinctError | None, *, caught_by: str, spans: list[str]
    ) -> None:
        if kind is not None:
            known_by = kind.fingerprint
            fields |= {
                "id": f"{self._session}-error-{known_by}",
                "fingerprint": known_by,
                "count": kind.count,
            }
        else:
            fields |= {"id": f"{self._session}-errors-of-other-kinds", "count": self._others}
        with self._guard.catch("reading where an error was"):
            fields |= self._where()
            fields["thread"] = threading.current_thread().name
        fields["caught_by"] = caught_by
        if spans:
            fields["spans"] = [str(name) for name in spans]
        with self._guard.catch("reading the last output"):
            output = self._output()
            if output:
                fields["output"] = output
        self._put_record(fields)


def note_spans(error: BaseException | str | None, spans: Callable[[], list[str]]) -> None:
    """Note on an exception in which spans it was raised: when it is recorded, it has left them.

    Only the first call counts, which is that of the innermost span.
    """
    if isinstance(error, BaseException):
        about = vars(error)
        if _SPANS not in about:
            about[_SPANS] = spans()


def is_failure(error: BaseException) -> bool:
    """Return whether an exception means that something failed."""
    if isinstance(error, _NO_FAILURES) or type(error).__name__ in _CALLED_OFF:
        return False
    return reason_of(error) == "failed"


def _is_power_of_ten(count: int) -> bool:
    while count >= 10 and count % 10 == 0:
        count //= 10
    return count == 1
