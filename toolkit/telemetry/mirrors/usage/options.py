"""The `usage_reports:` block, and whether reports may be sent: any reason against wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol
from urllib.parse import urlsplit

from toolkit.telemetry.core.checks import (
    HOST,
    Check,
    OptionsError,
    boolean,
    is_this_machine,
    is_variable_name,
    optional,
    text,
    wrong,
)
from toolkit.telemetry.core.fields import Block, option

_ADDRESS: Final = "the https address of a PostHog server, such as https://eu.i.posthog.com"


def _host(key: str, value: Any) -> str:
    text(key, value)
    if "@" in value:
        raise OptionsError(
            f"{key} contains a login (not shown); it must be {_ADDRESS}, and the project key belongs in key_env"
        )
    try:
        parts = urlsplit(value)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise wrong(key, value, _ADDRESS) from None
    is_address = parts.scheme in ("http", "https") and HOST.fullmatch(host) is not None and port != 0
    if not is_address or "?" in value or "#" in value or not value.isprintable() or " " in value:
        # What follows a question mark may be a key.
        raise wrong(key, value.partition("?")[0], _ADDRESS)
    if parts.scheme == "http" and not is_this_machine(host):
        raise wrong(key, value, f"{_ADDRESS}: http can be read and changed on the way to {host}")
    return str(value)


def _variable(key: str, value: Any) -> str:
    if not is_variable_name(value) or value.startswith(("phc_", "phx_")):
        raise OptionsError(
            f"{key} is not the name of an environment variable; it must be one, such as TELEMETRY_USAGE_KEY "
            f"(not shown: it may be the key itself)"
        )
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageOptions(Block):
    """Whether anonymous figures about a run are sent, and where."""

    UNKNOWN_HINT: ClassVar[str] = " (the project key belongs in an environment variable, which key_env names)"

    enabled: bool = option(False, "Send the figures; a mapping switches it on by itself.", boolean)
    host: str | None = option(
        None, "The PostHog server that takes them; required.", optional(Check(_host, _ADDRESS))
    )
    key_env: str = option(
        "TELEMETRY_USAGE_KEY",
        "The environment variable that contains that server's project key.",
        Check(_variable, "the name of an environment variable"),
    )

    @classmethod
    def from_block(cls, key: str, value: Any) -> UsageOptions:
        """Return the options that the block `key` states. A mapping switches it on unless it says otherwise.

        Raises:
            OptionsError: a key or value is wrong, or there is no host to send them to.
        """
        # Not super(): with slots the decorator makes a second class, and super() would look at the first.
        options = cls._read(key, value)
        if options.enabled and options.host is None:
            raise wrong(f"{key}.host", None, _ADDRESS)
        return options


class RunSettings(Protocol):
    """The options of a run that decide whether its usage reports are sent."""

    @property
    def enabled(self) -> bool:
        """Whether the run is logged at all."""

    @property
    def mode(self) -> str:
        """`local`, `offline` or `disabled`."""

    @property
    def may_send(self) -> bool:
        """Whether anything may leave the machine."""

    @property
    def close_timeout(self) -> float:
        """Seconds that closing may take."""

    @property
    def usage_options(self) -> UsageOptions:
        """The `usage_reports` block."""


VARIABLES: Final = ("DO_NOT_TRACK", "TELEMETRY_DO_NOT_TRACK", "AXOLOTL_DO_NOT_TRACK")
"""Any of these disables reports, whatever the YAML says. The last one is Axolotl's."""
SENT_TO: Final = "sent to "
OFF: Final = "off: "

_NO: Final = frozenset({"", "0", "false", "no", "off"})


def refused_by(environ: Mapping[str, str]) -> str | None:
    """Return the environment variable that disables reports, by any value but 0, false, no, off and nothing."""
    for name in VARIABLES:
        if environ.get(name, "").strip().lower() not in _NO:
            return name
    return None


def state_of(options: RunSettings, environ: Mapping[str, str]) -> str | None:
    """Return the state of usage reports for the start record: where they go, or why not; None if not enabled."""
    if not options.usage_options.enabled:
        return None
    reason = why_not(options, environ)
    return f"{SENT_TO}{options.usage_options.host}" if reason is None else f"{OFF}{reason}"


def why_not(options: RunSettings, environ: Mapping[str, str]) -> str | None:
    """Return why a run with these options sends no usage reports; None if it does."""
    usage = options.usage_options
    if not usage.enabled:
        return "telemetry.usage_reports is not enabled"
    refusal = refused_by(environ)
    if refusal is not None:
        return f"{refusal} is set"
    if not options.enabled:
        return "telemetry.enabled is false"
    if not options.may_send:
        return f"telemetry.mode is {options.mode}"
    try:
        project_key(usage.key_env, environ)
    except KeyUnusable as error:
        return str(error)
    return None


class KeyUnusable(OSError):  # noqa: N818 - it says what is wrong
    """There is no usable project key; the message says why, without showing it."""


def project_key(key_env: str, environ: Mapping[str, str]) -> str:
    """Return the project key in the environment variable `key_env`. Raises KeyUnusable if it holds none."""
    key = environ.get(key_env, "").strip()
    if not key:
        raise KeyUnusable(f"the environment variable {key_env} (telemetry.usage_reports.key_env) is not set")
    if key.startswith(("phx_", "phs_")):
        raise KeyUnusable(
            f"{key_env} holds a key with read or write access; it must be a project key (phc_…)"
        )
    if not key.isascii() or not key.isprintable() or " " in key or len(key) > 200:
        raise KeyUnusable(f"{key_env} is not a key: it contains invalid characters")
    return key
