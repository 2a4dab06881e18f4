"""The `usage_reports:` block, and whether reports may be sent: any reason against wins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from toolkit.telemetry.core.checks import Check, boolean, optional, text, variable_name, wrong
from toolkit.telemetry.core.fields import Block, option

_ADDRESS: Final = "the https address of a PostHog server, such as https://eu.i.posthog.com"
# Without a login, a query or a fragment, which may be secrets; http can be read and changed on the way.
_URL: Final = re.compile(
    r"(?:https://(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])|http://(?:localhost|127\.0\.0\.1|\[::1\]))"
    r"(?::[1-9][0-9]{0,4})?(?:/[A-Za-z0-9._~/-]*)?"
)
_KEY: Final = re.compile(r"(?!ph[xs]_)[!-~]{1,200}")
"""A key that may only write, not one with read access."""
DO_NOT_TRACK: Final = ("DO_NOT_TRACK", "TELEMETRY_DO_NOT_TRACK", "AXOLOTL_DO_NOT_TRACK")
"""Any of these disables reports, whatever the YAML says, by any value but these. The last one is Axolotl's."""
_NO: Final = frozenset({"", "0", "false", "no", "off"})


def _host(key: str, value: Any) -> str:
    if not _URL.fullmatch(text(key, value)):
        raise wrong(key, str(value).partition("?")[0], _ADDRESS)
    return str(value)


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
        variable_name("TELEMETRY_USAGE_KEY"),
    )

    def __post_init__(self) -> None:
        """Raise `OptionsError` where there is no host to send them to."""
        if self.enabled and self.host is None:
            raise wrong("telemetry.usage_reports.host", None, _ADDRESS)

    def state(self, mode: str, environ: Mapping[str, str]) -> str:
        """Return what becomes of the reports of a run in this mode: where they are sent, or why they are off."""
        reason = self.why_not(mode, environ)
        return f"sent to {self.host}" if reason is None else f"off: {reason}"

    def why_not(self, mode: str, environ: Mapping[str, str]) -> str | None:
        """Return why a run in this mode sends no usage reports; None if it does."""
        if not self.enabled:
            return "telemetry.usage_reports is not enabled"
        for name in DO_NOT_TRACK:
            if environ.get(name, "").strip().lower() not in _NO:
                return f"{name} is set"
        if mode != "local":
            return f"telemetry.mode is {mode}"
        if not _KEY.fullmatch(self.key_in(environ)):
            return f"{self.key_env}, the variable of telemetry.usage_reports.key_env, holds no project key"
        return None

    def key_in(self, environ: Mapping[str, str]) -> str:
        """Return the project key."""
        return environ.get(self.key_env, "").strip()
