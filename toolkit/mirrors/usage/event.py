"""One usage report: its name, when it happened and what it says."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

OF_THE_SERVICE: Final[Mapping[str, Any]] = {
    "$process_person_profile": False,
    "$geoip_disable": True,
    # PostHog notes the sender's address where an event names none, and takes null for none.
    "$ip": "0.0.0.0",  # noqa: S104 - nothing listens here
}
"""What tells PostHog to make no profile, to look up no place and to keep no address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageEvent:
    """An event as it is sent, but for the id of its run, which is drawn when the first one is."""

    name: str
    time: float
    """Seconds since the epoch."""
    properties: Mapping[str, Any]

    @property
    def timestamp(self) -> datetime.datetime:
        """When it happened."""
        return datetime.datetime.fromtimestamp(self.time, datetime.timezone.utc)

    def shown(self) -> dict[str, Any]:
        """Return it as people are shown it: all that is sent."""
        return {
            "event": self.name,
            "timestamp": self.timestamp.isoformat(),
            "distinct_id": "<random, new at each start of a run>",
            "properties": dict(self.properties),
        }
