"""Whether usage reports may be sent: every reason why not wins over every wish."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from toolkit.mirrors.usage.options import RunSettings

VARIABLES: Final = ("DO_NOT_TRACK", "TELEMETRY_DO_NOT_TRACK", "AXOLOTL_DO_NOT_TRACK")
"""Whoever sets one of these is not tracked, whatever a YAML says. The last is what people of Axolotl set."""
SENT_TO: Final = "sent to "
OFF: Final = "off: "

_NO: Final = frozenset({"", "0", "false", "no", "off"})


def refused_by(environ: Mapping[str, str]) -> str | None:
    """Return the variable by which somebody does not want to be tracked, if there is one.

    Anything in it counts but 0, false, no, off and nothing: `DO_NOT_TRACK=please` means it too.
    """
    for name in VARIABLES:
        if environ.get(name, "").strip().lower() not in _NO:
            return name
    return None


def state_of(options: RunSettings, environ: Mapping[str, str]) -> str | None:
    """Return what a start record says of usage reports: where they go, or why not; None where none are asked for."""
    if not options.usage_options.enabled:
        return None
    reason = why_not(options, environ)
    return f"{SENT_TO}{options.usage_options.host}" if reason is None else f"{OFF}{reason}"


def why_not(options: RunSettings, environ: Mapping[str, str]) -> str | None:
    """Return in words why a run with these options sends no usage reports; None where it does."""
    usage = options.usage_options
    if not usage.enabled:
        return "telemetry.usage_reports does not ask for them"
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
    """There is no project key to send with; the sentence says why, without showing one."""


def project_key(key_env: str, environ: Mapping[str, str]) -> str:
    """Return the project key that the environment variable `key_env` holds.

    Raises:
        KeyUnusable: it holds none.
    """
    key = environ.get(key_env, "").strip()
    if not key:
        raise KeyUnusable(
            f"the environment variable {key_env}, which telemetry.usage_reports.key_env names, is not set"
        )
    if key.startswith(("phx_", "phs_")):
        raise KeyUnusable(
            f"{key_env} holds a key that may read or change things; it must be a project's (phc_…)"
        )
    if not key.isascii() or not key.isprintable() or " " in key or len(key) > 200:
        raise KeyUnusable(f"{key_env} holds no key: it has letters that none has")
    return key
