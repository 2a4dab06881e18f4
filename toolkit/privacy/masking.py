"""A configuration, command line or record with its secrets masked."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

from toolkit.privacy.configured_secrets import kept_secrets
from toolkit.privacy.secret_names import Secrecy, secrecy_of
from toolkit.privacy.secret_shapes import MASK, SPECIAL_TOKEN, looks_made_by_chance, mask_text
from toolkit.privacy.text_tree import Place, TreeRewriter

SHORTEST_ENVIRONMENT_SECRET: Final = 8

_OptionsT = TypeVar("_OptionsT", bound=Any)
_LABELS: Final = ("project", "tags", "perf_tag", "session_tag")


def mask_secrets(value: Any) -> Any:
    """Return a copy of `value` in which every secret reads `***`. Never raises.

    A secret is known by the name it stands under (`hf_token`, `api_key`), by its look (`hf_…`, `AKIA…`, a private
    key, a login in a URL), by the option before it (`--hf-token abc`), because a secret-looking environment
    variable holds the same text, or because a logger's options send there. Structure, names and numbers are kept; what
    cannot be looked at is not shown.
    """
    return Masker().mask(value)


def without_secrets(options: _OptionsT) -> _OptionsT:
    """Return `options` with those that name the run, and end up in run.json, masked."""
    given = {name: getattr(options, name) for name in _LABELS}
    masked = mask_secrets(given)
    changed = {
        # What could not be looked through is a text of stars, also in the place of a list: then nothing is kept of it.
        name: masked[name] if type(masked[name]) is type(given[name]) else type(given[name])()
        for name in _LABELS
        if masked[name] != given[name]
    }
    return replace(options, **changed) if changed else options


class Masker(TreeRewriter):
    """Masks many values against the environment as it was when the masker was made."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        super().__init__()
        given = _environment_secrets(os.environ if environ is None else environ)
        self.secrets = _forms_of([*given, *kept_secrets()])

    def mask(self, value: Any) -> Any:
        """Return a copy of `value` in which every secret reads `***`. Never raises."""
        return self.rewrite(value)

    def add_secrets(self, texts: Iterable[str]) -> None:
        """Hide these texts, too."""
        self.secrets = _forms_of([*self.secrets, *texts])

    def cut(self, text: str, length: int) -> str:
        """Return the first `length` characters of `text`, masked; of a secret that is cut through nothing is left."""
        return self.rewrite_text(text[: length + min(length, _BEYOND_A_CUT)])[:length]

    def rewrite_text(self, text: str, place: Place = Place()) -> str:  # noqa: B008 - it cannot be changed
        """Return `text` with its secrets masked."""
        if not text or text == MASK:
            return text
        secrecy = place.secrecy
        if secrecy is Secrecy.ALL:
            return MASK
        if secrecy is Secrecy.TEXT and not SPECIAL_TOKEN.fullmatch(text):
            return MASK
        if secrecy is Secrecy.LOOK and looks_made_by_chance(text):
            return MASK
        if _OLD_WANDB_KEY.fullmatch(text) and "wandb" in place.path.lower():
            return MASK
        if "ntfy" in place.path.lower() and _TOPIC.search(place.name):
            return MASK
        for secret in self.secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        return mask_text(text)


_BEYOND_A_CUT: Final = 2_048
"""Characters behind a cut that are looked at for a secret that begins before it."""
_OLD_WANDB_KEY = re.compile(r"[0-9a-f]{40}")
_TOPIC = re.compile(r"topics?\Z", re.IGNORECASE)
# Variables run their words together more often than settings do: PGPASSWORD, MYTOKEN.
_SECRET_VARIABLE = re.compile(r"(?:TOKEN|SECRET|PASSWORD|PASSWD|_PASS|_KEY|_PAT)\Z", re.IGNORECASE)
_HEADERS = re.compile(r"OTLP\w*_HEADERS\Z")
_OPEN_VARIABLES: Final = frozenset({"PWD", "OLDPWD"})


def _environment_secrets(environ: Mapping[str, str]) -> set[str]:
    """Return the values of the variables that are called like secrets, and of those that hold headers."""
    headers = {
        unquote(header.partition("=")[2].strip())
        for variable, value in environ.items()
        if _HEADERS.search(variable)
        for header in (*value.split(","), f"={value}")
    }
    found = {header for header in headers if len(header) >= SHORTEST_ENVIRONMENT_SECRET}
    return found | {
        value
        for variable, value in environ.items()
        if len(value) >= SHORTEST_ENVIRONMENT_SECRET
        and variable not in _OPEN_VARIABLES
        and (secrecy_of(variable) is not Secrecy.OPEN or _SECRET_VARIABLE.search(variable))
    }


def _forms_of(secrets: Iterable[str]) -> list[str]:
    """Return `secrets` as they may be written, in JSON and in an address too, longest first."""
    written = {
        form
        for value in secrets
        for form in (value, json.dumps(value)[1:-1], quote(value), quote(value, safe=""))
    }
    return sorted(written, key=len, reverse=True)
