"""The details of an error or a hang as blocks of text: stacks, output, spans, memory.

A record may contain anything: unexpected values are skipped, and everything is limited in length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry.runfolder.records import MAX_RECORD_BYTES, Record
from toolkit.telemetry.runfolder.untrusted import mappings_in, texts_in

_MAX_LINES: Final = 400
_MAX_LINE: Final = 600
_MAX_BLOCKS: Final = 30
_MAX_DEPTH: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """One block of text."""

    title: str
    text: str


def details_of(record: Record) -> tuple[Detail, ...]:
    """Return stacks and context of the record, the most useful first."""
    found: list[Detail] = []
    for title, lines in _blocks(record):
        if lines and len(found) < _MAX_BLOCKS:
            more = [f"… {len(lines) - _MAX_LINES} more lines"] if len(lines) > _MAX_LINES else []
            text = "\n".join(line[:_MAX_LINE] for line in [*lines[:_MAX_LINES], *more])
            found.append(Detail(title=title, text=text))
    return tuple(found)


def _blocks(record: Record) -> Iterator[tuple[str, list[str]]]:
    # Our own records are never longer.
    yield "Traceback", _texts([str(record.get("traceback", ""))[:MAX_RECORD_BYTES]])
    yield "Stack, innermost call last", _texts(record.get("stack"))
    yield "Notes", _texts(record.get("notes"))
    for stack in mappings_in(record.get("stacks")):
        threads = _texts(stack.get("threads"))
        more = stack.get("more_threads")
        names = ", ".join([*threads, *([f"{more} more"] if isinstance(more, int) else [])])
        yield f"Stack of {names or 'a thread'}", _texts(stack.get("stack"))
    left_out = record.get("threads_left_out")
    if isinstance(left_out, int):
        yield "More threads", [f"{left_out} more threads did not fit into the record"]
    yield "Cause", _chain(record)
    yield "Exception group", _group(record, 0)
    yield "Last output", _texts(record.get("output"))
    yield "Context", _context(record)
    yield "Memory", _values(record.get("memory"))
    yield "GPU", _values(record.get("gpu"))


def _chain(record: Record) -> list[str]:
    lines = []
    for cause in mappings_in(record.get("caused_by")):
        how = "raised from" if cause.get("link") == "cause" else "while handling"
        first, *rest = _message(cause)
        lines += [f"{how} {first}", *(f"    {line}" for line in [*rest, *_texts(cause.get("stack"))])]
    return lines


def _group(record: Mapping[str, Any], depth: int) -> list[str]:
    lines = []
    indent = "    " * depth
    for each in mappings_in(record.get("group")):
        first, *rest = _message(each)
        lines += [
            f"{indent}{first}",
            *(f"{indent}    {line}" for line in [*rest, *_texts(each.get("stack"))]),
        ]
        if depth < _MAX_DEPTH:
            lines += _group(each, depth + 1)
    return lines


def _context(record: Record) -> list[str]:
    lines = []
    spans = record.get("spans")
    if isinstance(spans, list) and all(isinstance(span, str) for span in spans) and spans:
        lines.append(f"spans: {' > '.join(spans)}")
    # Earlier versions had both under the same name.
    for span in mappings_in(record.get("open_spans", spans)):
        thread = f" on {span['thread']}" if isinstance(span.get("thread"), str) else ""
        lines.append(f"open span: {span.get('name')}, {span.get('seconds')} s{thread}")
    for name in ("thread", "caught_by"):
        if isinstance(record.get(name), str):
            lines.append(f"{name.replace('_', ' ')}: {record[name]}")
    silent = _texts(record.get("not_answering"))
    if silent:
        lines.append(f"not responding: {', '.join(silent)}")
    return lines


def _message(record: Mapping[str, Any]) -> list[str]:
    return str(record.get("message") or record.get("type") or "?").split("\n")


def _values(value: object) -> list[str]:
    return [f"{name}: {number}" for name, number in _items(value) if isinstance(number, (int, float, str))]


def _items(value: object) -> list[tuple[str, Any]]:
    return [(str(name), item) for name, item in value.items()] if isinstance(value, dict) else []


def _texts(value: object) -> list[str]:
    return [line for item in texts_in(value) if item for line in item.split("\n")]
