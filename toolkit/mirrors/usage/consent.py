"""Whether usage reports may be sent: any reason against wins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from toolkit.mirrors.usage.options import RunSettings

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
