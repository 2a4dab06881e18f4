"""One usage report: its name, its time and its properties."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

OF_THE_SERVICE: Final[Mapping[str, Any]] = {
    "$process_person_profile": False,
    "$geoip_disable": True,
    # PostHog stores the sender's address if an event has none, and treats null as none.
    "$ip": "0.0.0.0",  # noqa: S104 - nothing listens here
}
"""Has PostHog create no profile, look up no location and store no address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageEvent:
    """An event as it is sent, except for the random id of its run."""

    name: str
    time: float
    """Seconds since the epoch."""
    properties: Mapping[str, Any]

    @property
    def timestamp(self) -> datetime.datetime:
        """The time as a datetime in UTC."""
        return datetime.datetime.fromtimestamp(self.time, datetime.timezone.utc)

    def shown(self) -> dict[str, Any]:
        """Return everything that is sent, to show it to the user."""
        return {
            "event": self.name,
            "timestamp": self.timestamp.isoformat(),
            "distinct_id": "<random, new at each start of a run>",
            "properties": dict(self.properties),
        }
