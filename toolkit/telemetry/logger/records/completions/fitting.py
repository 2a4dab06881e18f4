"""Texts that fit into one record: of those that are too long, the beginning and the end are kept."""

from __future__ import annotations

from typing import Any, Final

import orjson

from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.runfolder.codec import encodable
from toolkit.telemetry.runfolder.records import CUT, MAX_RECORD_BYTES

_ENVELOPE_BYTES: Final = 1024
_LEAST_FOR_TEXTS: Final = MAX_RECORD_BYTES // 2
"""What the texts get at least; should the other fields need more, these are shortened when the record is written."""
_MOST_BYTES_A_CHARACTER: Final = 6
_KEPT_IN_FRONT: Final = 2 / 3
_AROUND: Final = 2_048
"""Characters before and after a cut that are looked at for a secret that it goes through."""


def fit(fields: dict[str, Any]) -> dict[str, Any]:
    """Return `fields` with its longest texts shortened to fit a record; `cut` names them."""
    texts = {name: value for name, value in fields.items() if type(value) is str}
    # Nearly every completion is far too short to be measured.
    if _MOST_BYTES_A_CHARACTER * sum(map(len, texts.values())) < MAX_RECORD_BYTES // 2:
        return fields
    others = {name: value for name, value in fields.items() if name not in texts}
    room = max(_LEAST_FOR_TEXTS, MAX_RECORD_BYTES - _ENVELOPE_BYTES - _size(others))
    shares = _shares({name: _size(_ends(text, MAX_RECORD_BYTES)) for name, text in texts.items()}, room)
    cut = [name for name, text in texts.items() if _size(_ends(text, MAX_RECORD_BYTES)) > shares[name]]
    if not cut:
        return fields
    masker = Masker()
    shortened = {name: _shorten(texts[name], shares[name], masker) for name in cut}
    return {**fields, **shortened, CUT: cut}


def _shares(sizes: dict[str, int], room: int) -> dict[str, int]:
    """Divide `room`: a text that needs less than an equal share leaves the rest of it to the others."""
    shares: dict[str, int] = {}
    left = len(sizes)
    for name in sorted(sizes, key=sizes.__getitem__):
        shares[name] = min(sizes[name], room // left)
        room -= shares[name]
        left -= 1
    return shares


def _shorten(text: str, room: int, masker: Masker) -> str:
    kept = min(len(text) - 1, room)
    while True:
        shorter = _ends(text, kept)
        over = _size(shorter) - room
        if over <= 0 or kept <= 0:
            return _without_halves(text, kept, masker)
        # At least one byte a character, and at most so many that the second try nearly always fits.
        kept = min(kept - 1, int(kept * room / (room + over)) - 64)


def _without_halves(text: str, kept: int, masker: Masker) -> str:
    """Return the ends of `text` without half a secret at either, which would not be recognised as one."""
    front, back = _lengths(kept)
    for cut in (front, len(text) - back):
        around = text[max(0, cut - _AROUND) : cut + _AROUND]
        if masker.rewrite_text(around) != around:
            return _ends(_masked(text, masker), kept)
    return _ends(text, kept)


def _masked(text: str, masker: Masker) -> str:
    """Return `text` without secrets, as far as any of it is kept."""
    if len(text) <= 2 * MAX_RECORD_BYTES:
        return masker.rewrite_text(text)
    # Nothing of the middle will be left, so it is not looked through.
    middle = " " * (len(text) - 2 * MAX_RECORD_BYTES)
    first, last = text[:MAX_RECORD_BYTES], text[-MAX_RECORD_BYTES:]
    return masker.rewrite_text(first) + middle + masker.rewrite_text(last)


def _ends(text: str, kept: int) -> str:
    """Return the beginning and the end of `text`, `kept` characters together, and between them how many there are."""
    if len(text) <= kept:
        return text
    front, back = _lengths(kept)
    middle = f" … [{len(text) - front - back:,} of {len(text):,} characters left out] … "
    return text[:front] + middle + (text[-back:] if back else "")


def _lengths(kept: int) -> tuple[int, int]:
    """Return how many of `kept` characters are of the beginning, and how many of the end."""
    front = int(max(0, kept) * _KEPT_IN_FRONT)
    return front, max(0, kept) - front


def _size(value: Any) -> int:
    try:
        return len(orjson.dumps(value))
    except orjson.JSONEncodeError:
        return len(orjson.dumps(encodable(value)))
