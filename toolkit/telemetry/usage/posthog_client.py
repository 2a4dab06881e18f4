"""PostHog's own client, told to do nothing but send what it is given."""

from __future__ import annotations

from typing import Any, Final

from toolkit.telemetry.usage.event import UsageEvent

INSTALL: Final = 'pip install "ai-toolkit-telemetry[usage]"'
REQUEST_TIMEOUT_S: Final = 5.0
_OF_A_MESSAGE: Final = ("event", "distinct_id", "timestamp", "uuid")


class NotSent(OSError):  # noqa: N818 - it says what happened
    """An event did not get there; the text says why, without what was sent or the key."""


class PostHogClient:
    """Sends one event after the other, on the thread that calls it.

    The client is imported by the first one. It has no threads, queues, exit handlers or exception hooks here, asks for
    no feature flags, and adds nothing to an event: what is sent is what the event holds.
    """

    def __init__(self, host: str, project_key: str, distinct_id: str) -> None:
        self._host = host
        self._key = project_key
        self._distinct_id = distinct_id
        self._client: Any = None
        self._sending: UsageEvent | None = None
        self._refusals: tuple[type[Exception], ...] = (OSError,)

    def send(self, event: UsageEvent) -> None:
        """Send `event`, or raise.

        Raises:
            NotSent: the server did not take it, or PostHog's client is not installed.
        """
        if self._client is None:
            self._client = self._make()
        self._sending = event
        try:
            taken = self._client.capture(
                event.name,
                distinct_id=self._distinct_id,
                properties=dict(event.properties),
                timestamp=event.timestamp,
                disable_geoip=True,
            )
        except self._refusals as error:
            # Its own words may repeat the server's, and those the key.
            status = getattr(error, "status", None)
            what = (
                f"answered {status}"
                if isinstance(status, int)
                else f"was not reached ({type(error).__name__})"
            )
            raise NotSent(f"{self._host} {what}") from None
        if taken is None:
            raise NotSent("PostHog's client did not take the event")

    def _make(self) -> Any:
        try:
            from posthog import Posthog
            from posthog.request import APIError
        except ImportError as error:
            raise NotInstalled(f"usage reports need PostHog's client: {INSTALL} ({error})") from error
        self._refusals = (OSError, APIError)
        client = Posthog(
            self._key,
            host=self._host,
            sync_mode=True,
            gzip=True,
            max_retries=0,
            timeout=int(REQUEST_TIMEOUT_S),
            disable_geoip=True,
            enable_exception_autocapture=False,
            before_send=self._exactly,
        )
        # It has the client raise what went wrong instead of writing it, with its traceback, to the script's log. Only
        # now: given to the constructor it would also turn on logging for the whole program.
        client.debug = True
        return client

    def _exactly(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Return a message without what the client has put into it: its own facts, the script's tags, a release."""
        if self._sending is None:
            return None
        kept = {name: value for name, value in message.items() if name in _OF_A_MESSAGE}
        return {**kept, "properties": dict(self._sending.properties)}


class NotInstalled(NotSent):
    """There is no client, and there will not be."""
