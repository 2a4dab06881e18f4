"""Whether and where anonymous figures are sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from toolkit.core import checks
from toolkit.core.hosts import HOST, is_this_machine


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageOptions:
    """Whether anonymous figures about a run are sent, and where."""

    enabled: bool = False
    host: str | None = None
    """The PostHog server that takes them, such as https://eu.i.posthog.com."""
    key_env: str = "TELEMETRY_USAGE_KEY"
    """The environment variable that holds that server's project key."""

    @classmethod
    def from_block(cls, name: str, value: bool | Mapping[str, Any] | None) -> UsageOptions:
        """Return what the block called `name` states; a mapping switches it on unless it says otherwise.

        Raises:
            OptionsError: a key or value is wrong, or nobody is named to send them to.
        """
        if value is None or isinstance(value, bool):
            options = cls(enabled=value is True)
        else:
            options = cls(**({"enabled": True} | checks.block(name, value, _CHECKS)))
        if options.enabled and options.host is None:
            raise checks.wrong(f"{name}.host", None, f"{_ADDRESS}: nothing is sent to nobody")
        return options

    @classmethod
    def check(cls, name: str, value: Any) -> None:
        """Raise `OptionsError` where the block is wrong."""
        cls.from_block(name, value)


class RunSettings(Protocol):
    """What the options of a run say that decides whether its reports are sent."""

    @property
    def enabled(self) -> bool:
        """Whether the run is logged at all."""
        ...

    @property
    def mode(self) -> str:
        """`local`, `offline` or `disabled`."""
        ...

    @property
    def may_send(self) -> bool:
        """Whether anything may leave the machine."""
        ...

    @property
    def close_timeout(self) -> float:
        """Seconds that closing may take."""
        ...

    @property
    def usage_options(self) -> UsageOptions:
        """The `usage_reports` block."""
        ...


_ADDRESS: Final = "the https address of a PostHog server, such as https://eu.i.posthog.com"


def _host(name: str, value: Any) -> None:
    if value is None:
        return
    checks.text(name, value)
    if "@" in value:
        raise checks.OptionsError(
            f"{name} has a login in it (not shown); it must be {_ADDRESS}, and the project key stands in key_env"
        )
    try:
        parts = urlsplit(value)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise checks.wrong(name, value, _ADDRESS) from None
    is_address = parts.scheme in ("http", "https") and HOST.fullmatch(host) is not None and port != 0
    if not is_address or "?" in value or "#" in value or not value.isprintable() or " " in value:
        # What stands behind a question mark may be a key.
        raise checks.wrong(name, value.partition("?")[0], _ADDRESS)
    if parts.scheme == "http" and not is_this_machine(host):
        raise checks.wrong(
            name, value, f"{_ADDRESS}: by http everybody on the way to {host} could read along and change it"
        )


def _variable(name: str, value: Any) -> None:
    if not checks.is_variable_name(value) or value.startswith(("phc_", "phx_")):
        raise checks.OptionsError(
            f"{name} is no name of an environment variable; it must be one, such as TELEMETRY_USAGE_KEY "
            f"(not shown: it may be the key itself)"
        )


_CHECKS: Final[Mapping[str, checks.Check]] = {
    "enabled": checks.boolean,
    "host": _host,
    "key_env": _variable,
}
