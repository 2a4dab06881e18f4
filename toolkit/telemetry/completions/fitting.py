"""Texts that fit into one record: of those that are too long, the beginning and the end are kept."""

from __future__ import annotations

from typing import Any, Final

import orjson

from toolkit.runfolder.codec import encodable
from toolkit.runfolder.records import CUT, MAX_RECORD_BYTES
from toolkit.telemetry.privacy.masking import Masker

_ENVELOPE_BYTES: Final = 1024
_LEAST_FOR_TEXTS: Final = MAX_RECORD_BYTES // 2
"""What the texts get at least; should the other fields need more, these are shortened when the record is written."""
_MOST_BYTES_A_CHARACTER: Final = 6
_KEPT_IN_FRONT: Final = 2 / 3


def fit(fields: dict[str, Any]) -> dict[str, Any]:
    """Return `fields` with its longest texts shortened so far that all of it fits into a record.

    The names of those shortened stand under `cut`, and the text itself says how much of it is missing.
    """
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
    shortened = {name: _shorten(_masked(texts[name]), shares[name]) for name in cut}
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


def _masked(text: str) -> str:
    """Return `text` without secrets: of one that is cut through, the rest would not be known for what it is."""
    mask = Masker().rewrite_text
    if len(text) <= 2 * MAX_RECORD_BYTES:
        return mask(text)
    # Nothing of the middle will be left, so nobody has to wait until it has been looked through.
    middle = " " * (len(text) - 2 * MAX_RECORD_BYTES)
    return mask(text[:MAX_RECORD_BYTES]) + middle + mask(text[-MAX_RECORD_BYTES:])


def _shorten(text: str, room: int) -> str:
    kept = min(len(text) - 1, room)
    while True:
        shorter = _ends(text, kept)
        over = _size(shorter) - room
        if over <= 0 or kept <= 0:
            return shorter
        # At least one byte a character, and at most so many that the second try nearly always fits.
        kept = min(kept - 1, int(kept * room / (room + over)) - 64)


def _ends(text: str, kept: int) -> str:
    """Return the beginning and the end of `text`, `kept` characters together, and between them how many there are."""
    if len(text) <= kept:
        return text
    front = int(max(0, kept) * _KEPT_IN_FRONT)
    back = max(0, kept) - front
    middle = f" … [{len(text) - front - back:,} of {len(text):,} characters left out] … "
    return text[:front] + middle + (text[-back:] if back else "")


def _size(value: Any) -> int:
    try:
        return len(orjson.dumps(value))
    except orjson.JSONEncodeError:
        return len(orjson.dumps(encodable(value)))
