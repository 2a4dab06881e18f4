"""Records without secrets, whatever a training script puts into them, at hardly any cost where all of it is numbers."""

from __future__ import annotations

import os
import time
from typing import Any, Final

from toolkit.runfolder.records import MAX_RECORD_BYTES
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.privacy.secret_names import Secrecy, secrecy_of
from toolkit.telemetry.privacy.tree import SPEAKING_KEYS, Place

_NUMBERS: Final = frozenset({int, float, bool, type(None)})
_OURS: Final = frozenset({"id", "parent_id", "span_id", "clock", "kept", "run_id"})
"""Fields that the logger itself fills, most of them on every span: there is nothing to look for."""

_LOOK_AGAIN_S: Final = 1.0
_MOST_KEPT: Final = 4096
_LONGEST_KEPT: Final = 200
_LOOKED_AT: Final = 20_000
"""Characters of a text beyond the size of a record: more than the codec leaves of it."""


class RecordMasker(Masker):
    """Masks what a live run writes; any thread may ask. Scripts add to the environment, so it is looked at anew."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, str] = {}
        """Short texts that were looked at, as they are written."""
        self._harmless_names: set[str] = set()
        """Names that are no secret, and under which nothing is hidden for their sake."""
        self._variables = len(os.environ)
        self._look_again_at = time.monotonic() + _LOOK_AGAIN_S

    def mask_fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return `fields` with their secrets masked: the same mapping where all of them are numbers. Never raises."""
        harmless = self._harmless_names
        if _NUMBERS.issuperset(map(type, fields.values())) and harmless.issuperset(fields):
            return fields
        if len(os.environ) != self._variables or time.monotonic() >= self._look_again_at:
            self._look_at_environment()
        if not harmless.issuperset(fields):
            self._look_at_names(fields)
        if not (harmless.issuperset(fields) and SPEAKING_KEYS.isdisjoint(fields)):
            masked: dict[str, Any] = self.rewrite(fields)
            return masked
        return {
            name: value if type(value) in _NUMBERS or name in _OURS else self._mask_one(name, value)
            for name, value in fields.items()
        }

    def mask_name(self, name: str) -> str:
        """Return the name of a record or a span without secrets."""
        known = self._known.get(name)
        return self.rewrite_text(name) if known is None else known

    def rewrite_text(self, text: str, place: Place = Place()) -> str:  # noqa: B008 - it cannot be changed
        """Return `text` with its secrets masked."""
        if len(text) > MAX_RECORD_BYTES:
            # No record has room for it, so that its end is cut off by the codec, which says how long it was.
            return super().rewrite_text(text[:_LOOKED_AT], place).ljust(len(text))
        if len(text) > _LONGEST_KEPT or place.path:
            return super().rewrite_text(text, place)
        known = self._known.get(text)
        if known is None:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            known = self._known[text] = super().rewrite_text(text, place)
        return known

    def _mask_one(self, name: str, value: Any) -> Any:
        """Mask what stands under a harmless name, at the top of a record or in a mapping of one."""
        if type(value) is str:
            return self.rewrite_text(value)
        if type(value) is dict and _has_plain_keys(value):
            return self.mask_fields(value)
        return self.rewrite({name: value})[name]

    def _look_at_names(self, fields: dict[str, Any]) -> None:
        if len(self._harmless_names) >= _MOST_KEPT:
            self._harmless_names.clear()
        for name in fields:
            is_open = secrecy_of(name) is Secrecy.OPEN and not _of_a_service(name)
            if is_open and self.mask_name(name) == name:
                self._harmless_names.add(name)

    def _look_at_environment(self) -> None:
        self._variables = len(os.environ)
        self._look_again_at = time.monotonic() + _LOOK_AGAIN_S
        secrets = Masker().secrets
        if secrets != self.secrets:
            self.secrets = secrets
            self._known.clear()
            self._keys.clear()
            self._harmless_names.clear()


def _has_plain_keys(mapping: dict[Any, Any]) -> bool:
    """Say whether the keys of `mapping` are texts, and say nothing about each other's values."""
    return SPEAKING_KEYS.isdisjoint(mapping) and all(type(key) is str for key in mapping)


def _of_a_service(name: str) -> bool:
    small = name.lower()
    return "wandb" in small or "ntfy" in small
