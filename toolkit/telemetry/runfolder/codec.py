"""Encodes a record as one JSON line, and decodes it."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

# By their names: at the very end of a process Python empties modules, before the last call is declared lost.
from orjson import OPT_APPEND_NEWLINE, OPT_NON_STR_KEYS, JSONDecodeError, JSONEncodeError, dumps, loads

from toolkit.telemetry.runfolder.records import (
    CUT,
    ENVELOPE,
    EPOCH,
    EVAL,
    MAX_RECORD_BYTES,
    NAN_INF_DETECTED,
    NON_FINITE,
    STEP,
    UNENCODABLE,
    Record,
)
from toolkit.telemetry.runfolder.untrusted import MAX_DEPTH, depth_of

# JSON has no NaN. Strict parsers reject the bare word Python would write.
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

CutText = Callable[[str, int], str]
"""Given a text and a length, returns at most that much of its beginning."""


def _beginning(text: str, length: int) -> str:
    return text[:length]


class _Limits(NamedTuple):
    """How much of a record is kept."""

    text: int
    """Characters of a text."""
    items: int
    """Items of a list or a mapping."""
    cut_text: CutText = _beginning


# How hard an over-long record is shortened, round by round.
_ROUNDS = (
    _Limits(16_384, 4_096),
    _Limits(4_096, 1_024),
    _Limits(1_024, 256),
    _Limits(256, 64),
    _Limits(64, 16),
)
_AS_LONG_AS_IT_IS = _Limits(sys.maxsize, sys.maxsize)

_MAX_KEYS = 4_096
_MOST_FIELDS = _MAX_KEYS - 8
_MAX_NOTES = 32
_NUMBERS = frozenset({float, int, bool, type(None)})
_MAX_NAME = 256
_OF_NUMBERS = (STEP, EVAL, EPOCH)

# Essential fields: dropped only when everything else is gone.
_KEPT_LONGEST = frozenset({*ENVELOPE, "global_step"})


MANY_FIELDS = 256
"""Up to so many fields of a record, their sizes are not added up."""
_LAST_FIELDS = 64
_LEAST_BYTES = 16
"""A field takes more, nearly always."""


class RecordError(ValueError):
    """A line that is not a record."""


def encode(record: Record) -> bytes:
    """Return `record` as one line of strict JSON, newline included, of at most 64 KiB, which `decode` takes back.

    The values are plain: text, numbers, booleans, None, and lists and mappings of these. A non-finite number becomes
    null and is named under `non_finite`; what is too long or nested too deeply is cut and named under `cut`; a field
    that does not fit at all is listed under `unencodable`. Never raises for such input.
    """
    if len(record) > _MOST_FIELDS:
        record = _that_fit(record, _least_size)
    if any(type(value) in _CONTAINERS and depth_of(value) >= MAX_DEPTH for value in record.values()):
        record = _shorten(record, _AS_LONG_AS_IT_IS)
    found = dict(_find_non_finite(record, ""))
    if found:
        named = record.get(NON_FINITE)
        record = {
            **record,
            NAN_INF_DETECTED: True,
            NON_FINITE: {**named, **found} if type(named) is dict else found,
        }
    line = _dump(record)
    for limits in _ROUNDS:
        if len(line) <= MAX_RECORD_BYTES:
            return line
        shorter = _shorten(record, limits)
        line = _dump(shorter)
    if len(line) <= MAX_RECORD_BYTES:
        return line
    return _dump(_that_fit(shorter, lambda name, value: len(_dump({name: value}))))


def bounded(fields: Record, cut_text: CutText) -> Record:
    """Return `fields` with no more in them than about a record holds, so that no work is done on what is not kept.

    Texts, lists and mappings are shortened as `encode` does it, by their lengths alone, which are quickly known; of
    too many fields the first are kept, and the last, where the logger puts its own. What is missing is named under
    `cut`, or counted under `unencodable`. `cut_text` is called for each text that is shortened.
    """
    if len(fields) > MANY_FIELDS:
        fields = _that_fit(fields, _least_size)
    elif _NUMBERS.issuperset(map(type, fields.values())):
        return fields
    for limits in (_AS_LONG_AS_IT_IS, *_ROUNDS):
        if _room_after(fields, limits, MAX_RECORD_BYTES, 1) >= 0:
            break
    return fields if limits is _AS_LONG_AS_IT_IS else _shorten(fields, limits._replace(cut_text=cut_text))


def _room_after(value: Any, limits: _Limits, room: int, depth: int) -> int:
    """Return what is left of `room` after `value`, a list or a mapping; negative if it is too large."""
    if type(value) is dict:
        room -= sum(len(key) + 4 for key in islice(value, limits.items) if type(key) is str)
    for item in islice(value.values() if type(value) is dict else value, limits.items):
        if type(item) is str:
            room -= min(len(item), limits.text) + 3
        elif type(item) in _CONTAINERS and depth < MAX_DEPTH:
            room = _room_after(item, limits, room - 2, depth + 1)
        else:
            room -= 2
        if room < 0:
            break
    return room


def _that_fit(record: Record, size_of: Callable[[str, Any], int]) -> Record:
    """Return the fields for which a record has room; the others are counted.

    What it is known by comes first, then the last fields, where the logger puts its own, then the first ones.
    """
    names = [name for name in record if name not in (CUT, UNENCODABLE)]
    earlier, cuts = record.get(UNENCODABLE), record.get(CUT)
    notes = {
        str(name)[:64]: str(note)[:64]
        for name, note in islice(earlier.items() if type(earlier) is dict else (), _MAX_NOTES // 2)
    }
    notes["…"] = more_fields(len(names), earlier)
    about: Record = {CUT: [str(cut)[:64] for cut in cuts[:_MAX_NOTES]]} if type(cuts) is list else {}
    room = MAX_RECORD_BYTES - len(_dump({**about, UNENCODABLE: notes}))
    kept: set[str] = set()
    for name in (*(_KEPT_LONGEST & record.keys()), *names[-_LAST_FIELDS:], *names):
        if room < _LEAST_BYTES or len(kept) == _MOST_FIELDS:
            break
        if name not in kept and (size := size_of(name, record[name])) <= room:
            kept.add(name)
            room -= size
    if len(kept) == len(names):
        return record
    notes["…"] = more_fields(len(names) - len(kept), earlier)
    return {**{name: record[name] for name in names if name in kept}, **about, UNENCODABLE: notes}


def _least_size(name: str, value: Any) -> int:
    """Return the approximate minimum size of a field in bytes, with its value shortened as far as possible."""
    if type(value) is str:
        return len(name) + 6 + min(len(value), _ROUNDS[-1].text)
    return len(name) + 4 + (4 if type(value) in _CONTAINERS else len(repr(value)))


def more_fields(more: int, notes: Any) -> str:
    """Return the note that `more` fields are missing, in addition to those that `notes` counts already."""
    return f"{more + count_left_out(notes)} more fields"


def count_left_out(notes: Any) -> int:
    """Return how many fields are missing in addition to those that the notes under `unencodable` name."""
    count = str(notes.get("…", "")).partition(" ")[0] if type(notes) is dict else ""
    return int(count) if count.isdecimal() else 0


def decode(line: bytes) -> Record:
    """Return the record that `line` holds.

    Other programs write the bare words NaN and Infinity, which JSON does not have: these are understood, and become
    what `encode` makes of such numbers.

    Raises:
        RecordError: the line is not one JSON object, or is nested or filled beyond any record of ours.
    """
    try:
        record = loads(line)
    except JSONDecodeError as error:
        record = _with_bare_words(line) if b"NaN" in line or b"Infinity" in line else None
        if record is None:
            raise RecordError(f"not strict JSON: {error}") from error
    if type(record) is not dict:
        raise RecordError(f"a {type(record).__name__}, not an object")
    # Every level opens with a bracket, and nearly every line has only the one it begins with.
    if (b"[" in line or line.find(b"{", 1) > 0) and depth_of(record) > MAX_DEPTH:
        raise RecordError(f"nested deeper than {MAX_DEPTH}")
    if len(record) > _MAX_KEYS:
        raise RecordError(f"more than {_MAX_KEYS} fields")
    return record


def _with_bare_words(line: bytes) -> Any:
    """Return what is in a line that is JSON but for the words NaN and Infinity; None if it is not."""
    try:
        # From bytes, Python's parser would also take other encodings and a byte order mark, which orjson rejects.
        record = json.loads(line.decode("utf-8"), parse_float=_finite)
        if type(record) is not dict or depth_of(record) > MAX_DEPTH or len(record) > _MAX_KEYS:
            return None
        found = dict(islice(_find_non_finite(record, ""), _MAX_KEYS))
        # Strict in everything else: Python's own parser takes half characters and numbers without end.
        plain = loads(dumps(record))
    except (ValueError, TypeError, RecursionError):
        return None
    named = plain.get(NON_FINITE)
    return {**plain, NAN_INF_DETECTED: True, NON_FINITE: {**named, **found} if type(named) is dict else found}


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number beyond every float")
    return number


def with_non_finite(record: Record) -> Record:
    """Return `record` with NaN and infinities restored."""
    named = record.get(NON_FINITE)
    if type(named) is not dict:
        return record
    restored = {
        key: _NON_FINITE[text]
        for key, text in named.items()
        if isinstance(text, str) and text in _NON_FINITE and record.get(key, 0) is None
    }
    return {**record, **restored}


def encodable(value: Any) -> Any:
    """Return a copy of `value` that JSON can represent: lone surrogates escaped, huge integers as text."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        if fits_json(int(value)):
            return int(value)
        # Python refuses str() of an integer beyond 4300 digits.
        return str(value) if value.bit_length() < 1024 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return float(value)
    if isinstance(value, dict):
        return {encodable(str(key)): encodable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encodable(item) for item in value]
    return f"<{type(value).__name__}>"


def fits_json(value: Any) -> bool:
    """Say whether `value` is an integer of at most 64 bits; larger ones are texts, or floats."""
    return type(value) is int and -(2**63) <= value < 2**64


def as_number(value: Any) -> Any:
    """Return an integer beyond 64 bits as the nearest float, if there is one, and anything else as it is."""
    is_large = type(value) is int and not fits_json(value) and value.bit_length() < sys.float_info.max_exp
    return float(value) if is_large else value


def name_of_non_finite(number: float) -> str:
    """Return the text for a non-finite `number` in a record."""
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def _find_non_finite(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, float):
        if not math.isfinite(value):
            yield path, name_of_non_finite(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _find_non_finite(item, f"{path}/{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _find_non_finite(item, f"{path}/{index}")


def _dump(record: Record) -> bytes:
    try:
        return dumps(record, option=OPT_APPEND_NEWLINE)
    except JSONEncodeError:
        if record.get("event") in _OF_NUMBERS:
            record = {name: as_number(value) for name, value in record.items()}
        # Half a character (a lone surrogate) or an integer of more than 64 bits: rare, so looked for only now.
        return dumps(encodable(record), option=OPT_APPEND_NEWLINE | OPT_NON_STR_KEYS)


def _shorten(record: Record, limits: _Limits) -> Record:
    """Return `record` with its texts, lists and mappings cut to `limits`, and the names of those under `cut`."""
    earlier = record.get(CUT)
    cuts: list[str] = [str(cut) for cut in earlier] if type(earlier) is list else []
    # The record itself keeps its fields: which of them goes is decided by size, later.
    shorter = _shorten_mapping(record, limits, "", 1, sys.maxsize, cuts)
    if cuts:
        shorter[CUT] = [cut[:_MAX_NAME] for cut in [*dict.fromkeys(cuts)][:_MAX_NOTES]]
    return shorter


def _shorten_any(value: Any, limits: _Limits, path: str, depth: int, cuts: list[str]) -> Any:
    max_items = limits.items
    if isinstance(value, str) and len(value) > limits.text:
        cuts.append(path)
        earlier = _CUT_BEFORE.search(value, len(value) - 40) if value.endswith("]") else None
        if earlier is not None and earlier.start() <= limits.text:
            return value
        length = int(earlier[1]) if earlier is not None else len(value)
        return f"{limits.cut_text(value, limits.text)}… [{length} characters]"
    if isinstance(value, (dict, list, tuple)):
        if depth >= MAX_DEPTH:
            cuts.append(path)
            return f"<nested deeper than {MAX_DEPTH}>"
        if isinstance(value, dict):
            return _shorten_mapping(value, limits, path, depth + 1, max_items, cuts)
        kept = [
            _shorten_any(item, limits, f"{path}/{n}", depth + 1, cuts)
            for n, item in enumerate(value[:max_items])
        ]
        if len(value) > max_items:
            cuts.append(path)
            kept.append(f"… {len(value) - max_items} more")
        return kept
    return value


def _shorten_mapping(
    mapping: dict[str, Any], limits: _Limits, path: str, depth: int, max_items: int, cuts: list[str]
) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for count, (key, item) in enumerate(mapping.items()):
        if count == max_items:
            cuts.append(path)
            kept["…"] = f"{len(mapping) - count} more"
            break
        name = str(key)
        if len(name) > _MAX_NAME:
            # Two long names that differ only at the end stay two names.
            name = f"{name[: _MAX_NAME - 32]}… [{len(name)} characters, field {count}]"
            cuts.append(name)
        inner = f"{path}/{name}" if path else name
        kept[name] = _shorten_any(item, limits, inner, depth, cuts)
    return kept


_CUT_BEFORE = re.compile(r"… \[([0-9]{1,15}) characters\]\Z")


_CONTAINERS = frozenset({dict, list, tuple})
