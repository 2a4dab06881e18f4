"""Masks the secrets in a configuration, command line or record."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

from toolkit.telemetry.privacy.configured_secrets import kept_secrets
from toolkit.telemetry.privacy.secret_names import Kind, Secrecy, kind_of, secrecy_of
from toolkit.telemetry.privacy.secret_shapes import MASK, NO_SECRET, as_name, looks_generated, mask_text
from toolkit.telemetry.privacy.text_tree import NAME, Position, TreeRewriter

SHORTEST_ENVIRONMENT_SECRET: Final = 8

_OptionsT = TypeVar("_OptionsT", bound=Any)
_LABELS: Final = ("project", "tags", "perf_tag", "session_tag")


def mask_secrets(value: Any) -> Any:
    """Return a copy of `value` in which every secret reads `***`. Never raises.

    A secret is recognised by its key (`hf_token`, `api_key`), by its pattern (`hf_…`, `AKIA…`, a private key, a login
    in a URL), by the option before it (`--hf-token abc`), because an environment variable with a secret's name has the
    same value, or because a logger's options contain it. Structure, names and numbers are kept; what cannot be
    inspected is hidden.
    """
    return Masker().mask(value)


def mask_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and rows of a table without secrets; a column's name may say that its cells are secret."""
    masker = Masker()
    of_columns = [masker.of_column(name) for name in columns]
    beyond = repeat(masker.of_column(""))
    names = [masker.mask_name(name) for name in columns]
    return names, [
        [mask(cell) for mask, cell in zip(chain(of_columns, beyond), row, strict=False)] for row in rows
    ]


def without_secrets(options: _OptionsT) -> _OptionsT:
    """Return `options` with the run's labels, which are written to run.json, masked."""
    masker = Masker()
    given = {name: getattr(options, name) for name in _LABELS}
    masked = {
        name: masker.mask_name(label)
        if isinstance(label, str)
        else label and tuple(map(masker.mask_name, label))
        for name, label in given.items()
    }
    return options if masked == given else replace(options, **masked)


class Masker(TreeRewriter):
    """Masks many values, with the environment as it was when the masker was created."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        super().__init__()
        given = _environment_secrets(os.environ if environ is None else environ)
        self.secrets = _forms_of([*given, *kept_secrets()])

    def mask(self, value: Any) -> Any:
        """Return a copy of `value` in which every secret reads `***`. Never raises."""
        return self.rewrite(value)

    def mask_name(self, name: str) -> str:
        """Return a name without the secrets that it surely holds; what only looks random stays, and two stay two."""
        return self.rewrite_text(name, NAME)

    def mask_lines(self, lines: Sequence[str]) -> list[str]:
        """Return as many lines without secrets, also those that take several lines."""
        masked = self.rewrite_text("\n".join(lines)).split("\n")
        # Each line by itself takes longer.
        return masked if len(masked) == len(lines) else self.mask([*lines])

    def cut(self, text: str, length: int) -> str:
        """Return the first `length` characters of `text`, masked; a secret at the cut is removed completely."""
        return self.rewrite_text(text[: length + min(length, _BEYOND_A_CUT)])[:length]

    def of_column(self, name: str) -> Callable[[Any], Any]:
        """Return a function that masks a cell of the column `name`; an object whose text has a secret becomes text."""
        position = Position(secrecy_of(name), name, name)
        text_of = lru_cache(_MOST_CELLS)(lambda text: self.rewrite_text(text, position))

        def masked(cell: Any) -> Any:
            if type(cell) is str:
                return text_of(cell)
            written = self._rewrite(cell, position)
            if written is not cell or isinstance(cell, _NUMBERS):
                return written
            text = str(cell)
            return cell if text_of(text) == text else text_of(text)

        return masked

    def rewrite_text(self, text: str, position: Position = Position()) -> str:  # noqa: B008 - it cannot be changed
        """Return `text` with its secrets masked."""
        if not text or text == MASK:
            return text
        secrecy = position.secrecy
        if secrecy is Secrecy.ALWAYS:
            return MASK
        if secrecy is Secrecy.IF_TEXT and not NO_SECRET.fullmatch(text):
            return MASK
        if secrecy is Secrecy.IF_RANDOM and looks_generated(text):
            return MASK
        if _OLD_WANDB_KEY.fullmatch(text) and "wandb" in position.path.lower():
            return MASK
        if "ntfy" in position.path.lower() and _TOPIC.search(position.name):
            return MASK
        masked = text
        for secret in self.secrets:
            if secret in masked:
                masked = masked.replace(secret, MASK)
        # Only a text by itself, or of several words, is free text. All others are names, paths and plain settings.
        kind = kind_of(position.name) if position.path else Kind.TEXT
        masked = mask_text(masked, guesses=kind is Kind.TEXT or (kind is Kind.SETTING and " " in text))
        return as_name(text, masked) if kind is Kind.NAME and masked != text else masked


_NUMBERS: Final = (int, float, type(None))
_MOST_CELLS: Final = 4_096
_BEYOND_A_CUT: Final = 2_048
"""Characters after the cut that are searched for the end of a secret."""
_OLD_WANDB_KEY = re.compile(r"[0-9a-f]{40}")
_TOPIC = re.compile(r"topics?\Z", re.IGNORECASE)
# Environment variables often have no separator: PGPASSWORD, MYTOKEN.
_SECRET_VARIABLE = re.compile(r"(?:TOKEN|SECRET|PASSWORD|PASSWD|_PASS|_KEY|_PAT)\Z", re.IGNORECASE)
_HEADERS = re.compile(r"OTLP\w*_HEADERS\Z")
_OPEN_VARIABLES: Final = frozenset({"PWD", "OLDPWD"})


def _environment_secrets(environ: Mapping[str, str]) -> set[str]:
    """Return the values of the variables with names of secrets, and of those that hold headers."""
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
    """Return `secrets` as they may appear, also escaped in JSON or in an address, longest first."""
    written = {
        form
        for value in secrets
        for form in (value, json.dumps(value)[1:-1], quote(value), quote(value, safe=""))
    }
    return sorted(written, key=len, reverse=True)
