"""Loggers with one promise broken on purpose: a state machine that passes them proves nothing."""

from __future__ import annotations

from typing import Any

MUTATIONS: dict[str, str] = {
    "keeps no journal": "acknowledged and gone",
    "numbers from the start": "not rising",
    "drops bytes": "acknowledged and gone|missing without a word|invented",
    "glues to a torn line": "acknowledged and gone|missing without a word",
    "writes twice": "is there twice|not rising",
}
"""What is broken in what is written, and what the machine must say of it."""

DIRECTED_MUTATIONS: dict[str, str] = {
    "forgets what it took": "was obeyed 2 times",
    "forgets what earlier sessions answered": r"was answered \['applied', 'expired'",
    "forgets when the session began": "was obeyed 2 times",
    "trusts the table that it finds": "other rows than there are records",
}
"""The same of what a search comes upon by luck alone: histories of their own show these."""


def apply(name: str) -> None:
    """Break this process's logger."""
    {
        "keeps no journal": _keep_no_journal,
        "glues to a torn line": _glue_to_a_torn_line,
        "numbers from the start": _number_from_the_start,
        "writes twice": _write_twice,
        "drops bytes": _drop_bytes,
        "trusts the table that it finds": _trust_the_table,
        "forgets what it took": _forget_what_it_took,
        "forgets what earlier sessions answered": _forget_what_was_answered,
        "forgets when the session began": _forget_when_the_session_began,
    }[name]()


def _keep_no_journal() -> None:
    from toolkit.telemetry.runfolder.journal.journal import Journal

    create = Journal.create.__func__  # type: ignore[attr-defined]

    def in_private_memory(cls: Any, _: Any, *arguments: Any, **options: Any) -> Any:
        return create(cls, [], *arguments, **options)

    Journal.create = classmethod(in_private_memory)  # type: ignore[assignment]


def _glue_to_a_torn_line() -> None:
    from toolkit.telemetry.logger.writing.record_appender import RecordFile
    from toolkit.telemetry.runfolder.journal import repair

    repair._torn_tail = lambda _: b""
    RecordFile._ends_in_half_line = property(lambda _: False, lambda *_: None)  # type: ignore[assignment]


def _number_from_the_start() -> None:
    from toolkit.telemetry.logger.writing import session_folder

    real = session_folder._new_session_of
    session_folder._new_session_of = lambda *given: real(*given)._replace(first_seq=0, missing=None)


def _write_twice() -> None:
    from toolkit.telemetry.runfolder.journal import repair

    repair.last_seq = lambda _: -1


def _drop_bytes() -> None:
    from toolkit.telemetry.logger.writing.record_appender import RecordFile

    append = RecordFile._append

    def shortened(self: Any, data: Any) -> int:
        whole = bytes(data)
        append(self, b"".join(whole[at : at + 99] for at in range(0, len(whole), 100)))
        return len(whole)

    RecordFile._append = shortened  # type: ignore[method-assign]


def _trust_the_table() -> None:
    from toolkit.telemetry.runfolder.table.csv_table import CsvTable

    begin = CsvTable.start_at

    def trusting(self: Any) -> int:
        found = self._path.read_bytes() if self._path.exists() else None
        offset = begin(self)
        if found is not None:
            self._path.write_bytes(found)
            self._size = len(found)
        return offset

    CsvTable.start_at = trusting  # type: ignore[method-assign]


def _forget_what_it_took() -> None:
    from toolkit.telemetry.logger.control import requests as control_requests

    control_requests.Newest.__contains__ = lambda *_: False  # type: ignore[method-assign]


def _forget_what_was_answered() -> None:
    from toolkit.telemetry.logger.session import live_run

    live_run.was_answered = lambda *_, **__: False


def _forget_when_the_session_began() -> None:
    from toolkit.telemetry.logger.control.poller import ControlPoller

    begin = ControlPoller.__init__

    def since_ever(self: Any, *given: Any, **options: Any) -> None:
        begin(self, *given, **{**options, "session_started": 0.0})

    ControlPoller.__init__ = since_ever  # type: ignore[method-assign]
