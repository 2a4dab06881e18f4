"""Masks the secrets in records, at almost no cost for records of numbers."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from typing import Any, Final

from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.privacy.secret_names import Secrecy, secrecy_of
from toolkit.telemetry.privacy.text_tree import NAME, SPEAKING_KEYS, Position
from toolkit.telemetry.runfolder.codec import bounded
from toolkit.telemetry.runfolder.records import RESERVED

_NUMBERS: Final = frozenset({int, float, bool, type(None)})
_OURS: Final = frozenset({"id", "parent_id", "span_id", "clock", "kept", "run_id"})
"""Fields that the logger itself fills, most of them on every span: they contain no secrets."""

_READ_AGAIN_S: Final = 1.0
_MOST_KEPT: Final = 4096
_LONGEST_KEPT: Final = 200
_MOST_LOOKED_AT: Final = 256
_FEW_FIELDS: Final = 100
_FEW_CHARACTERS: Final = 4_096
"""Records within these limits are not truncated; nearly all are."""


class RecordMasker(Masker):
    """Masks what a live run writes; thread-safe. The environment is read again regularly, as scripts add to it."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[tuple[str, str], str] = {}
        """Short texts and the names of their fields, with their masked form."""
        self._harmless_names: set[str] = set()
        """Names that neither are nor indicate a secret."""
        self.metric_names: set[str] = set()
        """Names of numbers that are written as they are: no secret, and without a meaning of ours."""
        self._variables = len(os.environ)
        self._read_again_at = time.monotonic() + _READ_AGAIN_S

    def mask_record(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the `fields` of a record with their secrets masked, truncated to what a record can hold."""
        characters = 0 if len(fields) <= _FEW_FIELDS else _FEW_CHARACTERS
        for value in fields.values():
            if type(value) is str:
                characters += len(value)
            elif type(value) not in _NUMBERS:
                characters = _FEW_CHARACTERS
            if characters >= _FEW_CHARACTERS:
                return self.mask_fields(bounded(fields, self.cut))
        return self.mask_fields(fields)

    def mask_fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return `fields` with their secrets masked: the same mapping if all of them are numbers. Never raises."""
        harmless = self._harmless_names
        if self.are_known_numbers(fields):
            return fields
        if len(os.environ) != self._variables or time.monotonic() >= self._read_again_at:
            self._read_environment()
        if not harmless.issuperset(fields):
            self._check_names(fields)
        if not (harmless.issuperset(fields) and SPEAKING_KEYS.isdisjoint(fields)):
            masked: dict[str, Any] = self.rewrite(fields)
            return masked
        return {
            name: value if type(value) in _NUMBERS or name in _OURS else self._mask_one(name, value)
            for name, value in fields.items()
        }

    def are_known_numbers(self, fields: dict[str, Any]) -> bool:
        """Return whether these are numbers alone, under names that were looked at before and are no secret's."""
        return _NUMBERS.issuperset(map(type, fields.values())) and self._harmless_names.issuperset(fields)

    def are_metric_names(self, names: Iterable[str]) -> bool:
        """Return whether all `names` are in `metric_names`; new ones are looked at once, some at a time."""
        new = [name for name in names if name not in self.metric_names]
        found = [name for name in new[:_MOST_LOOKED_AT] if self.name_of_metric(name) == name]
        return len(found) == len(new) and self.metric_names.issuperset(new)

    def name_of_metric(self, name: str) -> str | None:
        """Return the name under which a number is written; None if the number itself may be a password."""
        if name in self.metric_names:
            return name
        if secrecy_of(name) is Secrecy.ALWAYS:
            return None
        if name in RESERVED:
            return f"x_{name}"
        written = name if self._is_plain(name) else self.mask_name(name)
        if written == name and len(self.metric_names) < _MOST_KEPT:
            self.metric_names.add(name)
        return written

    def mask_name(self, name: str) -> str:
        """Return the name of a record or a span without secrets."""
        return self._mask_text(name, NAME)

    def _mask_text(self, text: str, position: Position) -> str:
        """Return `text`, of a name that is no secret's, masked."""
        if len(text) > _LONGEST_KEPT:
            return self.rewrite_text(text, position)
        known = self._known.get((position.name, text))
        if known is None:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            known = self._known[position.name, text] = self.rewrite_text(text, position)
        return known

    def _mask_one(self, name: str, value: Any) -> Any:
        """Mask the value of a harmless name, at the top level of a record or in one of its mappings."""
        if type(value) is str:
            return self._mask_text(value, Position(name=name, path=name))
        if type(value) is dict and _has_plain_keys(value):
            return self.mask_fields(value)
        return self.rewrite({name: value})[name]

    def _check_names(self, fields: dict[str, Any]) -> None:
        if len(self._harmless_names) >= _MOST_KEPT:
            self._harmless_names.clear()
        for name in fields:
            if name not in self._harmless_names and self._is_harmless(name):
                self._harmless_names.add(name)

    def _is_harmless(self, name: str) -> bool:
        if secrecy_of(name) is not Secrecy.OPEN or _of_a_service(name):
            return False
        return self._is_plain(name) or self.mask_name(name) == name

    def _is_plain(self, name: str) -> bool:
        # Words and small numbers match no pattern, but may be a secret of the environment.
        return _PLAIN_NAME.fullmatch(name) is not None and not any(secret in name for secret in self.secrets)

    def _read_environment(self) -> None:
        self._variables = len(os.environ)
        self._read_again_at = time.monotonic() + _READ_AGAIN_S
        secrets = Masker().secrets
        if secrets != self.secrets:
            self.secrets = secrets
            self._known.clear()
            self._keys.clear()
            self._harmless_names.clear()
            self.metric_names.clear()


_PLAIN_NAME = re.compile(
    r"[A-Za-z]{1,20}(?:_?[0-9]{1,5})?(?:[/._-][A-Za-z]{1,20}(?:_?[0-9]{1,5})?){0,12}", re.ASCII
)


def _has_plain_keys(mapping: dict[Any, Any]) -> bool:
    """Return whether the keys of `mapping` are texts, and none of them names the value of another."""
    return SPEAKING_KEYS.isdisjoint(mapping) and all(type(key) is str for key in mapping)


def _of_a_service(name: str) -> bool:
    small = name.lower()
    return "wandb" in small or "ntfy" in small
