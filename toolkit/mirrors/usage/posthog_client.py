"""PostHog's own client, configured to send nothing but the given events."""

from __future__ import annotations

import inspect
from typing import Any, Final

from toolkit.mirrors.usage.event import UsageEvent

INSTALL: Final = 'pip install "ai-toolkit-telemetry[usage]"'
REQUEST_TIMEOUT_S: Final = 5.0
_OF_A_MESSAGE: Final = ("event", "distinct_id", "timestamp", "uuid")


class ReportNotSent(OSError):  # noqa: N818 - it says what happened
    """An event was not delivered; the text says why, without its content or the key."""


class PostHogClient:
    """Sends one event at a time, on the calling thread.

    The client is imported with the first event. It has no threads, queues, exit handlers or exception hooks here,
    requests no feature flags, and adds nothing to an event. It sends to the configured server only: a redirect is a
    failure.
    """

    def __init__(self, host: str, project_key: str, distinct_id: str) -> None:
        self._host = host
        self._key = project_key
        self._distinct_id = distinct_id
        self._client: Any = None
        self._session: Any = None
        self._post: Any = None
        self._sending: UsageEvent | None = None
        self._messages: list[dict[str, Any]] = []
        self._refusals: tuple[type[Exception], ...] = (OSError,)

    def send(self, event: UsageEvent) -> None:
        """Send `event`, or raise.

        Raises:
            ReportNotSent: the server did not accept it, or PostHog's client is not installed.
        """
        if self._client is None:
            self._client = self._make()
        message = self._message_of(event)
        try:
            self._post(
                self._key,
                self._client.host,
                gzip=True,
                timeout=int(REQUEST_TIMEOUT_S),
                batch=[message],
                session=self._session,
            )
        except self._refusals as error:
            # Its own message may repeat the server's, which may contain the key.
            status = getattr(error, "status", None) or getattr(
                getattr(error, "response", None), "status_code", None
            )
            what = (
                f"answered {status}"
                if isinstance(status, int)
                else f"was not reached ({type(error).__name__})"
            )
            raise ReportNotSent(f"{self._host} {what}") from None

    def _message_of(self, event: UsageEvent) -> dict[str, Any]:
        """Return `event` in the client's format."""
        self._sending = event
        self._messages.clear()
        self._client.capture(
            event.name,
            distinct_id=self._distinct_id,
            properties=dict(event.properties),
            timestamp=event.timestamp,
            disable_geoip=True,
        )
        if not self._messages:
            raise ReportNotSent("PostHog's client did not accept the event")
        return self._messages[-1]

    def _make(self) -> Any:
        try:
            import requests
            from posthog import Posthog
            from posthog.request import APIError, batch_post, post
        except ImportError as error:
            raise NotInstalled(f"usage reports need PostHog's client: {INSTALL} ({error})") from error
        if "session" not in inspect.signature(post).parameters:
            raise NotInstalled(f"usage reports need PostHog's client from 7.4 on: {INSTALL} --upgrade")
        self._refusals = (OSError, APIError)
        self._post = batch_post
        self._session = requests.Session()
        # The client's own session follows redirects with the key, and adds a login from ~/.netrc.
        self._session.max_redirects = 0
        self._session.auth = _without_login
        client = Posthog(
            self._key,
            host=self._host,
            # It only builds the message; the session above sends it.
            send=False,
            sync_mode=True,
            disable_geoip=True,
            enable_exception_autocapture=False,
            before_send=self._exactly,
        )
        # Has the client raise its errors instead of logging them with a traceback. Set only now: in the constructor it
        # would also enable logging for the whole program.
        client.debug = True
        return client

    def _exactly(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Return a message without what the client has added: its own properties, the script's tags, a release."""
        if self._sending is None:
            return None
        kept = {name: value for name, value in message.items() if name in _OF_A_MESSAGE}
        self._messages.append({**kept, "properties": dict(self._sending.properties)})
        return self._messages[-1]


class NotInstalled(ReportNotSent):
    """PostHog's client is not installed."""


def _without_login(request: Any) -> Any:
    return request
