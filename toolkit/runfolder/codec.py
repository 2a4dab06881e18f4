"""A record to one JSON line, and back."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import orjson

from toolkit.runfolder.records import (
    CUT,
    ENVELOPE,
    MAX_RECORD_BYTES,
    NAN_INF_DETECTED,
    NON_FINITE,
    UNENCODABLE,
    Record,
)

# JSON has no NaN. Strict parsers reject the bare word Python would write.
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

# How hard an over-long record is shortened, round by round: characters a text keeps, items a list or mapping keeps.
_ROUNDS = ((16_384, 4_096), (4_096, 1_024), (1_024, 256), (256, 64), (64, 16))
_AS_LONG_AS_IT_IS = (sys.maxsize, sys.maxsize)

_MAX_DEPTH = 32
_MAX_KEYS = 4_096
_MAX_NOTES = 32
_SCALARS = frozenset({float, int, str, bool, type(None)})
_MAX_NAME = 256

# What a record is nothing without: left out only when all else is gone.
_KEPT_LONGEST = frozenset({*ENVELOPE, "global_step"})


class RecordError(ValueError):
    """A line that is not a record."""


def encode(record: Record) -> bytes:
    """Return `record` as one line of strict JSON, newline included, of at most 64 KiB, which `decode` takes back.

    The values are plain: text, numbers, booleans, None, and lists and mappings of these. A non-finite number becomes
    null and is named under `non_finite`; what is too long or nested too deeply is cut and named under `cut`; a field
    that there is no room for at all is named under `unencodable`. Never raises for such input.
    """
    if len(record) > _MAX_KEYS - 8 or _is_too_deep(record):
        record = _shorten(record, _AS_LONG_AS_IT_IS, max_fields=_MAX_KEYS - 8)
    found = dict(_find_non_finite(record, ""))
    if found:
        named = record.get(NON_FINITE)
        record = {
            **record,
            NAN_INF_DETECTED: True,
            NON_FINITE: {**named, **found} if type(named) is dict else found,
        }
    line = _dump(record)
    if len(line) <= MAX_RECORD_BYTES:
        return line
    return _encode_shortened(record)


def decode(line: bytes) -> Record:
    """Return the record that `line` holds.

    Raises:
        RecordError: the line is not one strict-JSON object, or is nested or filled beyond any record of ours.
    """
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise RecordError(f"not strict JSON: {error}") from error
    if type(record) is not dict:
        raise RecordError(f"a {type(record).__name__}, not an object")
    # Every level opens with a bracket, and nearly every line has only the one it begins with.
    if (b"[" in line or line.find(b"{", 1) > 0) and is_nested_too_deeply(record):
        raise RecordError(f"nested deeper than {_MAX_DEPTH}")
    if len(record) > _MAX_KEYS:
        raise RecordError(f"more than {_MAX_KEYS} fields")
    return record


def is_nested_too_deeply(value: Any) -> bool:
    """Say whether containers in `value` are nested deeper than in any file of ours, and than recursion could follow."""
    return _depth(value) > _MAX_DEPTH


def with_non_finite(record: Record) -> Record:
    """Return `record` with the numbers that JSON could not carry put back as NaN and infinities."""
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
    """Return a copy of `value` that JSON can carry: half characters written out, huge integers as text."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        if -(2**63) <= value < 2**64:
            return int(value)
        # str() of a huge integer is refused by Python beyond 4300 digits; nobody reads that many.
        return str(value) if value.bit_length() < 1024 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return float(value)
    if isinstance(value, dict):
        return {encodable(str(key)): encodable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encodable(item) for item in value]
    return f"<{type(value).__name__}>"


def name_of_non_finite(number: float) -> str:
    """Return the word that stands for a non-finite `number` in a record."""
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
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:
        # Half a character (a lone surrogate) or an integer of more than 64 bits: rare, so looked for only now.
        return orjson.dumps(encodable(record), option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)


def _encode_shortened(record: Record) -> bytes:
    for limits in _ROUNDS:
        shorter = _shorten(record, limits)
        line = _dump(shorter)
        if len(line) <= MAX_RECORD_BYTES:
            return line
    # The notes of what is left out take room themselves: how much is known once they are written.
    for room in (MAX_RECORD_BYTES - 8_192, MAX_RECORD_BYTES // 2):
        line = _dump(_without_the_largest(shorter, room))
        if len(line) <= MAX_RECORD_BYTES:
            break
    return line


def _without_the_largest(record: Record, room: int) -> Record:
    """Leave out fields, the largest first, until the rest takes `room`; each is named, so that nothing goes unsaid."""
    kept = {key: value for key, value in record.items() if key not in (CUT, UNENCODABLE)}
    notes = _first_notes(record.get(UNENCODABLE))
    sizes = {key: len(_dump({key: value})) for key, value in kept.items()}
    total = sum(sizes.values())
    more = 0
    for key in sorted(sizes, key=lambda key: (key in _KEPT_LONGEST, -sizes[key])):
        if total <= room:
            break
        total -= sizes[key]
        del kept[key]
        if len(notes) < _MAX_NOTES:
            notes[key[:64]] = f"{sizes[key]} bytes, over the size of a record"
        else:
            more += 1
    if more:
        notes["…"] = f"{more} more fields"
    cuts = record.get(CUT)
    if type(cuts) is list:
        kept[CUT] = [str(cut)[:64] for cut in cuts[:_MAX_NOTES]]
    return {**kept, UNENCODABLE: notes}


def _first_notes(notes: Any) -> dict[str, str]:
    if type(notes) is not dict:
        return {}
    return {str(name)[:64]: str(note)[:64] for name, note in [*notes.items()][: _MAX_NOTES // 2]}


def _shorten(record: Record, limits: tuple[int, int], *, max_fields: int = _MAX_KEYS) -> Record:
    """Return `record` with its texts, lists and mappings cut to `limits`, and the names of those under `cut`."""
    earlier = record.get(CUT)
    cuts: list[str] = [str(cut) for cut in earlier] if type(earlier) is list else []
    # The record itself keeps nearly all its fields: which of them goes is decided by size, later.
    shorter = _shorten_mapping(record, limits, "", 1, max_fields, cuts)
    if len(record) > max_fields:
        more = shorter.pop("…")
        shorter[UNENCODABLE] = {**_first_notes(record.get(UNENCODABLE)), "…": f"{more} fields"}
    if cuts:
        shorter[CUT] = [cut[:_MAX_NAME] for cut in cuts[:_MAX_NOTES]]
    return shorter


def _shorten_any(value: Any, limits: tuple[int, int], path: str, depth: int, cuts: list[str]) -> Any:
    max_text, max_items = limits
    if isinstance(value, str) and len(value) > max_text:
        cuts.append(path)
        return f"{value[:max_text]}… [{len(value)} characters]"
    if isinstance(value, (dict, list, tuple)):
        if depth >= _MAX_DEPTH:
            cuts.append(path)
            return f"<nested deeper than {_MAX_DEPTH}>"
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
    mapping: dict[str, Any], limits: tuple[int, int], path: str, depth: int, max_items: int, cuts: list[str]
) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for count, (key, item) in enumerate(mapping.items()):
        if count == max_items:
            if path:
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


def _is_too_deep(record: Record) -> bool:
    return any(type(value) in _CONTAINERS and _depth(value) >= _MAX_DEPTH for value in record.values())


_CONTAINERS = frozenset({dict, list, tuple})


def _depth(value: Any) -> int:
    """Return how deep the containers in `value` are nested; beyond the limit it is not looked further."""
    level, depth = [value], 0
    while level and depth <= _MAX_DEPTH:
        depth += 1
        level = [
            item
            for parent in level
            for item in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(item, (dict, list, tuple))
        ]
    return depth
