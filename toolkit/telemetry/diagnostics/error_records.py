"""The errors and hangs in the records of a run: each once, with its count. Memory use is bounded."""

from __future__ import annotations

from typing import Final

from toolkit.telemetry.runfolder.records import ERROR, Record
from toolkit.telemetry.runfolder.untrusted import mappings_in

_MOST: Final = 1_000
_LONGEST_FAILURE: Final = 300


class ErrorRecords:
    """Collects errors and hangs, of all ranks and sessions."""

    def __init__(self) -> None:
        self.newest: dict[str, Record] = {}
        """The newest record of each, with the count of the end record and what only an earlier one has."""
        self.of_telemetry = 0
        """Errors of telemetry itself, which harm no training."""
        self.first_of_telemetry = ""
        """What the first of them says."""

    def add(self, record: Record, rank: int) -> str | None:
        """Add the record of an error or a hang of `rank`, and return its key; None if it is not kept."""
        if record.get("event") == ERROR and record.get("source") == "telemetry":
            self.of_telemetry += 1
            said = [record[name] for name in ("doing", "message") if isinstance(record.get(name), str)]
            self.first_of_telemetry = self.first_of_telemetry or ": ".join(said)[:_LONGEST_FAILURE]
            return None
        key = f"{rank} {record.get('session')} {record.get('id') or record.get('seq')}"
        if key not in self.newest and len(self.newest) >= _MOST:
            return None
        self.newest[key] = {**self.newest.get(key, {}), **record}
        return key

    def add_end(self, end: Record, rank: int) -> None:
        """Add how often each error of a session happened in all, from its end record."""
        session = end.get("session")
        kinds = [
            (f"error-{kind.get('fingerprint')}", kind.get("count")) for kind in mappings_in(end.get("errors"))
        ]
        for which, count in [*kinds, ("errors-of-other-kinds", end.get("errors_of_other_kinds"))]:
            key = f"{rank} {session} {session}-{which}"
            if type(count) is int and key in self.newest:
                self.newest[key]["count"] = count
