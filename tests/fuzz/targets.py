"""What is fuzzed: functions that take any bytes and raise only where a promise is broken.

Each target is a plain function of `bytes`, so that a coverage-guided fuzzer, a replay of stored inputs and a person
with an input at hand all call the same one. What a target lets pass is documented by the code that it calls; every
other exception is a finding, and so is a property that does not hold.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import shutil
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from toolkit.telemetry.cli import main as command_line
from toolkit.telemetry.core.clock import SystemClock
from toolkit.telemetry.core.outbox import NotSentError
from toolkit.telemetry.core.post import refusal
from toolkit.telemetry.diagnostics.error_details import details_of
from toolkit.telemetry.diagnostics.examiner import examine
from toolkit.telemetry.diagnostics.policy import policy_of_run
from toolkit.telemetry.importers.training_yaml import read_training_yaml
from toolkit.telemetry.logger.control.poller import ControlPoller
from toolkit.telemetry.logger.options import OptionsError, TelemetryOptions, options_from_config
from toolkit.telemetry.mirrors.messages.options import AddressError, web_address
from toolkit.telemetry.mirrors.messages.services import SERVICES
from toolkit.telemetry.mirrors.one_logger_file.exporter import OneLoggerFileExporter
from toolkit.telemetry.mirrors.shared.scalars import scalars_of
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.privacy.redaction import Redactor
from toolkit.telemetry.runfolder.codec import RecordError, decode, encode, with_non_finite
from toolkit.telemetry.runfolder.control import ControlRefused, decode_request, encode_request
from toolkit.telemetry.runfolder.journal.journal import head_of, pending_lines
from toolkit.telemetry.runfolder.journal.repair import drain_journal
from toolkit.telemetry.runfolder.key_values import trend_of
from toolkit.telemetry.runfolder.labels import LabelsError, read_labels, write_labels
from toolkit.telemetry.runfolder.layout import CONTROL, LABELS, MANIFEST, METRICS_JSONL
from toolkit.telemetry.runfolder.manifest import ManifestError, read_manifest, write_manifest
from toolkit.telemetry.runfolder.reader import (
    Cursor,
    blocks_of,
    last_record,
    offset_after,
    read_from,
    records_in,
)
from toolkit.telemetry.runfolder.records import MAX_RECORD_BYTES, Record
from toolkit.telemetry.runfolder.table.columns import ALL, SHORT, Columns
from toolkit.telemetry.runfolder.table.csv_table import build_table
from toolkit.telemetry.runs.columns.column_cache import ColumnCache
from toolkit.telemetry.runs.columns.completion_reader import CompletionReader
from toolkit.telemetry.runs.columns.run_log import RunLog
from toolkit.telemetry.runs.completions import CompletionQuery
from toolkit.telemetry.runs.formatting import clean
from toolkit.telemetry.runs.listing.config_diff import diff, flatten, to_yaml
from toolkit.telemetry.runs.listing.run_listing import RootListing, card_of, read_start
from toolkit.telemetry.runs.listing.search import QueryError, SortBy, matches, parse, sort_cards
from toolkit.telemetry.timing.chrome_trace import chrome_trace
from toolkit.telemetry.timing.ledger import LedgerBuilder
from toolkit.telemetry.timing.span_record import read_span

LONGEST_INPUT = 16 * 1024
"""Longer inputs find little more and are slow; what is about size has tests of its own."""

_WAIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One thing that is fuzzed."""

    name: str
    fuzz_one: Callable[[bytes], None]
    watched: tuple[str, ...]
    """Modules whose coverage guides the fuzzer."""
    tokens: tuple[bytes, ...] = ()
    """Words of the format, for a fuzzer to put into its inputs."""


TARGETS: dict[str, Target] = {}


def _target(*watched: str, tokens: tuple[bytes, ...] = ()) -> Callable[..., Callable[[bytes], None]]:
    def register(function: Callable[[bytes], None]) -> Callable[[bytes], None]:
        name = function.__name__.removeprefix("fuzz_")
        TARGETS[name] = Target(name=name, fuzz_one=function, watched=watched, tokens=tokens)
        return function

    return register


def _fields(names: str) -> tuple[bytes, ...]:
    return tuple(f'"{name}":'.encode() for name in names.split())


_JSON = (
    *b'{ } [ ] : , " null true false NaN -Infinity 1e999 1e308'.split(),
    *b'18446744073709551616 -9223372036854775809 "\\ud800"'.split(),
    *(b"\n", b"\xe2\x80\xa8", b"\xff", b"\0", b"\xef\xbb\xbf"),
)
_RECORD = (
    *_fields("event time elapsed seq session global_step train_loss non_finite rank"),
    *b'"step" "start" "end" "lost" "eval" "epoch" "system" "error"'.split(),
)
_SPAN = (
    *_fields("id parent_id name start duration clock attributes spans span_id"),
    *b'"span" "span_start" "span_event" "span_summary" "checkpoint" "ledger"'.split(),
)


# ---------------------------------------------------------------- the record file


@_target("toolkit.telemetry.runfolder.reader", "toolkit.telemetry.runfolder.codec", tokens=_JSON + _RECORD)
def fuzz_records(data: bytes) -> None:
    """A reader shows each whole line that is a record, once, and nothing else; read as it grows or all at once."""
    path = _scratch() / METRICS_JSONL
    grown: list[Record] = []
    bad = 0
    cursor = Cursor()
    for _ in _growing(path, data):
        chunk = read_from(path, cursor)
        assert not chunk.replaced
        grown += chunk.records
        bad += chunk.bad_count
        cursor = chunk.cursor
    fresh = read_from(path)
    assert grown == fresh.records
    assert bad == fresh.bad_count
    lines = data.split(b"\n")[:-1]
    assert fresh.cursor.offset == len(data) - len(data.rpartition(b"\n")[2])
    assert len(fresh.records) + fresh.bad_count == sum(1 for line in lines if line)

    unclaimed = iter(lines)
    for record in fresh.records:
        # In the order of the lines, each from a line of its own, and as another parser understands that line.
        assert any(_is_the_record(line, record) for line in unclaimed), record

    blocks = [records_in(block) for block in blocks_of(path)]
    assert [record for records, _ in blocks for record in records] == fresh.records
    assert sum(count for _, count in blocks) == fresh.bad_count

    numbered = [record for record in fresh.records if type(record.get("seq")) is int]
    last = last_record(path)
    if numbered and not data.rpartition(b"\n")[2]:
        assert last == numbered[-1]
    seqs = [record["seq"] for record in numbered]
    if seqs and seqs == sorted(set(seqs)) and len(numbered) == len(fresh.records):
        middle = seqs[len(seqs) // 2]
        behind = read_from(path, offset_after(path, middle)).records
        assert [record["seq"] for record in behind if type(record.get("seq")) is int] == [
            seq for seq in seqs if seq > middle
        ]
    for record in fresh.records:
        line = encode(record)
        assert line.endswith(b"\n")
        assert b"\n" not in line[:-1]
        assert len(line) <= MAX_RECORD_BYTES
        if "cut" not in record and "unencodable" not in record and len(line) < 8_000:
            assert decode(line) == record


@_target(
    "toolkit.telemetry.runfolder.codec",
    tokens=(b"\xed\xa0\x80", b"non_finite", b"cut", b"unencodable", b"event", b"seq"),
)
def fuzz_encode(data: bytes) -> None:
    """Any plain record becomes one strict line of at most 64 KiB, which gives the same record back."""
    made = _Maker(data)
    record = made.mapping(depth=0, amplified=True)
    line = encode(record)
    assert line.endswith(b"\n")
    assert b"\n" not in line[:-1]
    assert len(line) <= MAX_RECORD_BYTES, len(line)
    back = decode(line)
    json.loads(line, parse_constant=_no_constant)
    is_as_it_was = not ({"cut", "unencodable", "non_finite"} & (record.keys() | back.keys()))
    if is_as_it_was and not made.has_odd_value:
        assert back == json.loads(json.dumps(record)), (back, record)
    flat = {key: value for key, value in record.items() if isinstance(value, float)}
    if len(flat) == len(record) and not made.has_odd_value and "non_finite" not in record and len(flat) < 400:
        assert repr({key: with_non_finite(back)[key] for key in flat}) == repr(flat)


@_target(
    "toolkit.telemetry.runfolder.journal.journal",
    "toolkit.telemetry.runfolder.journal.repair",
    tokens=(b'{"seq":1}\n', b'"seq":', b"\n", b"\0"),
)
def fuzz_journal(data: bytes) -> None:
    """Whatever lies in shared memory: what is recovered from it was committed there, and the record file only grows."""
    folder = _scratch()
    records, journal = folder / METRICS_JSONL, folder / "ai-toolkit-telemetry-0.journal"
    kind, head, lines = data[:1], data[1:65], data[65:]
    old = b""
    if kind and kind[0] & 1:
        # One of ours: a kill came while the lines were being written out.
        words = [min(len(lines), 4096)]
        old = lines[: kind[0] * 4]
    else:
        words = list(struct.unpack(f"={len(head) // 8}Q", head[: len(head) // 8 * 8]))
    header = struct.pack(f"={1 + len(words)}Q", 0x344C4E524A4B5441, *words)[:64].ljust(64, b"\0")
    about = {"run_id": "r", "rank": 0, "session": 1, "started": 1.0, "record_file": str(records)}
    about |= {"segment_bytes": 4096, "is_mapped": True, "pid": os.getpid()}
    journal.write_bytes((header + json.dumps(about).encode()).ljust(8192, b"\0") + lines)
    records.write_bytes(old)
    before = _seqs(old)
    committed = pending_lines(journal)
    about_it = head_of(journal)
    assert about_it is not None
    assert about_it.record_file == records
    assert [seq for seq, _ in committed] == sorted({seq for seq, _ in committed})
    for _, line in committed:
        assert line in lines
        assert line.endswith(b"\n")

    drain_journal(journal, records)
    after = records.read_bytes()
    assert after.startswith(old)
    assert not committed or after.endswith(b"\n")
    # A whole last line that lacks only its newline: what is before it was written before it.
    without_newline = _seqs(old + b"\n") - before
    newest = max([*before, *(seq - 1 for seq in without_newline)], default=-1)
    there = _seqs(after)
    assert all(seq in there for seq, _ in committed if seq > newest), (committed, there)
    known = {line for _, line in committed}
    # Not splitlines, to which a carriage return ends a line too.
    for line in after[len(old) :].split(b"\n")[1:-1]:
        assert line + b"\n" in known, line
    if journal.exists():
        # It holds nothing and is not a day old, or was never a journal of ours.
        assert not committed
    journal.unlink(missing_ok=True)


@_target(
    "toolkit.telemetry.runfolder.table.csv_table",
    "toolkit.telemetry.runfolder.table.columns",
    tokens=_JSON + _RECORD + (b'"=1"', b'"a,b"'),
)
def fuzz_table_of_records(data: bytes) -> None:
    """The table that is built of any record file has one row for each record, and pandas' rules understand it."""
    folder = _scratch()
    records, table = folder / METRICS_JSONL, folder / "metrics.csv"
    records.write_bytes(data)
    form = SHORT if len(data) % 2 else ALL
    rows = build_table(records, table, form=form).rows
    content = table.read_bytes()
    cells = list(csv.reader(io.StringIO(content.decode("utf-8"), newline="")))
    header = cells[0]
    shown, newest = iter(row[header.index("seq")] for row in cells[1:]), -1
    for record in read_from(records).records:
        if type(seq := record.get("seq")) is int and seq > newest:
            newest = seq
            assert not Columns(form).has_row(record) or str(seq) in shown, "a record without its row"
    assert len(set(header)) == len(header)
    assert len(cells) == rows + 1
    assert all(len(row) == len(header) for row in cells)
    for cell in (cell for row in cells for cell in row):
        assert not cell.startswith(("=", "+", "@", "\t", "\r")), cell
        assert not cell.startswith("-") or _is_number(cell), cell


# ---------------------------------------------------------------- small files


@_target(
    "toolkit.telemetry.runfolder.manifest",
    "toolkit.telemetry.runfolder.status",
    "toolkit.telemetry.runs.listing.run_listing",
    tokens=_JSON,
)
def fuzz_manifest(data: bytes) -> None:
    """A run.json is understood or refused; what is understood is shown, found, sorted and written again unchanged."""
    folder = _scratch()
    (folder / MANIFEST).write_bytes(data)
    (folder / METRICS_JSONL).write_bytes(b"")
    runs, problems = RootListing(folder.parent).scan()
    assert not problems
    if not runs:
        # Without one of our names it is another program's, such as Sacred's.
        assert json.loads(data).keys().isdisjoint({"format", "run_id", "sessions"})
        return
    (found,) = runs
    card = card_of(found, 1e9)
    for by in ("last sign", "started", "name", "loss", "progress", "duration", "status"):
        order: SortBy = by  # type: ignore[assignment]  # each is one
        assert sort_cards([card, card], order) == [card, card]
    matches(parse("loss<1 step>5 duration>1h a tag:b"), card)
    _ = card.progress, card.open_findings, card.live
    for text in (card.name, card.key, card.host, card.status.why, card.project or "", *card.tags):
        text.encode("utf-8")
    try:
        manifest = read_manifest(folder)
    except ManifestError as error:
        _require_short(error, 1_000)
        assert found.problem is not None
        return
    policy_of_run(manifest.diagnostics)
    write_manifest(folder, manifest)
    assert repr(read_manifest(folder)) == repr(manifest)


@_target("toolkit.telemetry.runfolder.labels", "toolkit.telemetry.runs.listing.run_listing", tokens=_JSON)
def fuzz_labels(data: bytes) -> None:
    """A labels.json is understood or refused, and what is understood can be written again unchanged."""
    folder = _scratch()
    (folder / LABELS).write_bytes(data)
    (folder / METRICS_JSONL).write_bytes(b"")
    (found,), _ = RootListing(folder.parent).scan()
    card_of(found, 1e9).name.encode("utf-8")
    try:
        labels = read_labels(folder)
    except LabelsError as error:
        _require_short(error, 1_000)
        return
    write_labels(folder, labels)
    assert repr(read_labels(folder)) == repr(labels)


# ---------------------------------------------------------------- control

_CONTROL = (
    *_fields("id timestamp expires run_id log_every actions knobs lr prompt flag"),
    *b'["save"] "save_and_stop" "the-run" 0.5 10'.split(),
)


@_target(
    "toolkit.telemetry.runfolder.control",
    "toolkit.telemetry.logger.control.control_file",
    "toolkit.telemetry.logger.control.declarations",
    "toolkit.telemetry.logger.control.poller",
    "toolkit.telemetry.logger.control.requests",
    tokens=_JSON + _CONTROL,
)
def fuzz_control(data: bytes) -> None:
    """A control file is obeyed once and within its bounds, or refused; it is answered once, in every case."""
    folder = _scratch()
    path = folder / CONTROL
    path.write_bytes(data)
    path.chmod(0o600)
    with contextlib.suppress(ControlRefused):
        request = decode_request(data)
        assert decode_request(encode_request(request)) == request

    said: list[dict[str, Any]] = []
    done: list[Any] = []
    first = _poller(folder, said, done)
    for _ in range(3):
        first.poll()
        first.apply(7)
        done += [(asked.name, asked.value) for asked in first.take_requests()]
    assert 5 <= first.log_every <= 2_000
    assert len(done) == len({name for name, _ in done}), "applied twice"
    for name, value in done:
        assert _is_allowed(name, value), (name, value)
    # The same file once more, as `touch` or a copy would make it.
    path.write_bytes(data)
    os.utime(path, ns=(1, 2))
    count = len(done)
    for _ in range(3):
        first.poll()
        first.apply(8)
        done += [(asked.name, asked.value) for asked in first.take_requests()]
    first.close()
    ids = [answer["id"] for answer in said]
    assert len(set(ids)) == len(ids), "answered twice"
    if any(not answer["id"].startswith(("file-", "plain-")) for answer in said):
        assert len(done) == count, "applied twice"
        assert len(ids) == 1
    for answer in said:
        assert encode({"event": "control_change", **answer})

    # Whoever reads the answers in the next session does nothing again.
    again: list[dict[str, Any]] = []
    repeated: list[Any] = []
    second = _poller(folder, again, repeated, answered=ids)
    for _ in range(3):
        second.poll()
        second.apply(9)
        repeated += second.take_requests()
    second.close()
    if ids and not any(one.startswith(("file-", "plain-")) for one in ids):
        assert not repeated
        assert not again


def _poller(
    folder: Path, said: list[dict[str, Any]], done: list[Any], answered: list[str] | None = None
) -> ControlPoller:
    poller = ControlPoller(
        folder,
        run_id="the-run",
        clock=SystemClock(),
        session_started=0.0,
        log_every=10,
        answer=lambda fields: said.append(dict(fields)),
        notify=lambda: None,
        was_answered=lambda request_id: request_id in (answered or ()),
    )
    poller.declare_action("save", lambda: done.append(("save", None)))
    poller.declare_action("stop")
    poller.declare_knob("lr", float, low=0.0, high=1.0)
    poller.declare_knob("steps", int, low=1, high=100, callback=lambda value: done.append(("steps", value)))
    poller.declare_knob("prompt", str)
    poller.declare_knob("flag", bool)
    poller.declare_knob("mode", str, choices=["a", "b"])
    return poller


def _is_allowed(name: str, value: Any) -> bool:
    return {
        "save": lambda: value is None,
        "stop": lambda: value is None,
        "save_and_stop": lambda: value is None,
        "lr": lambda: type(value) is float and 0.0 <= value <= 1.0,
        "steps": lambda: type(value) is int and 1 <= value <= 100,
        "prompt": lambda: type(value) is str and len(value) <= 1024 and bool(value.encode("utf-8") or True),
        "flag": lambda: type(value) is bool,
        "mode": lambda: value in ("a", "b"),
    }[name]()


# ---------------------------------------------------------------- the dashboard's readers


@_target(
    "toolkit.telemetry.runs.columns.run_log",
    "toolkit.telemetry.runs.columns.line_parser",
    "toolkit.telemetry.runs.columns.run_columns",
    "toolkit.telemetry.runs.columns.curve_points",
    "toolkit.telemetry.runs.columns.tiles",
    tokens=_JSON + _RECORD,
)
def fuzz_dashboard_log(data: bytes) -> None:
    """The columns of a log are the same whether it is read as it grows or at once."""
    path = _scratch() / METRICS_JSONL
    grown = RunLog(path, None)
    for _ in _growing(path, data):
        grown.refresh(_WAIT_S)
    one_by_one = RunLog(path, None)
    one_by_one.refresh(_WAIT_S)
    seen = columns_of(one_by_one)
    assert columns_of(grown) == seen
    known = sum(1 for line in data.split(b"\n")[:-1] if line)
    health = one_by_one.health()
    assert health.records + health.bad_count == known
    edges = [*struct.unpack("<dd", data[:16].ljust(16, b"\0"))]
    windows = (None, (min(edges), max(edges)), (-math.inf, math.inf))
    for number, name in enumerate([*one_by_one._columns.metrics][:3]):
        for axis in ("step", "time", "elapsed", "epoch"):
            window = windows[(len(data) + number) % 3]
            series = one_by_one.series(name, axis, window, 20)  # type: ignore[arg-type]
            for segment in series.segments:
                assert len(segment.x) == len(segment.y)
        one_by_one.means(name, 5)
        one_by_one.recent(name, 3)
        one_by_one.values_around(name, edges[0], 3)
    one_by_one.newest()
    one_by_one.sessions()
    trend_of(path, 10)
    start = read_start(path)
    orjson.dumps(flatten(start), default=str)
    diff([start, {}])
    to_yaml(start)


@_target(
    "toolkit.telemetry.runs.columns.span_reader",
    "toolkit.telemetry.runs.spans",
    "toolkit.telemetry.timing",
    tokens=_JSON + _RECORD + _SPAN,
)
def fuzz_spans(data: bytes) -> None:
    """Spans of any shape become a table, a ledger that adds up and a trace that is JSON."""
    path = _scratch() / METRICS_JSONL
    grown = RunLog(path, None)
    for _ in _growing(path, data):
        grown.refresh(_WAIT_S)
        grown.spans(_WAIT_S)
    fresh = RunLog(path, None)
    fresh.refresh(_WAIT_S)
    assert repr(grown.spans(_WAIT_S)) == repr(fresh.spans(_WAIT_S))

    records = read_from(path).records
    for record in records:
        read_span(record)
    whole = LedgerBuilder()
    whole.take(records)
    ledger = whole.ledger(now=2e9)
    assert math.isfinite(ledger.wall_s)
    assert ledger.wall_s >= 0.0
    assert all(math.isfinite(line.seconds) for line in ledger.lines)
    json.loads(b"".join(chrome_trace([(0, records)])), parse_constant=_no_constant)


@_target(
    "toolkit.telemetry.diagnostics", "toolkit.telemetry.diagnostics.error_details", tokens=_JSON + _RECORD
)
def fuzz_findings(data: bytes) -> None:
    """The detectors and the error details take any record, and what they say can be shown and written."""
    path = _scratch() / METRICS_JSONL
    path.write_bytes(data)
    records = read_from(path).records
    for finding in examine(records):
        line = encode({"event": "finding", **finding.to_fields()})
        assert decode(line)
        finding.message.encode("utf-8")
    for record in records:
        for detail in details_of(with_non_finite(record)):
            assert len(detail.title) + len(detail.text) <= 500_000
            clean(detail.text).encode("utf-8")


@_target(
    "toolkit.telemetry.runs.columns.completion_reader",
    "toolkit.telemetry.runs.completions",
    tokens=_JSON,
)
def fuzz_completions(data: bytes) -> None:
    """The same completions are found as a file grows as afterwards."""
    path = _scratch() / METRICS_JSONL
    grown = CompletionReader(RunLog(path, None))
    for _ in _growing(path, data):
        grown.find(CompletionQuery(), wait_s=_WAIT_S)
    fresh = CompletionReader(RunLog(path, None))
    for query in (
        CompletionQuery(),
        CompletionQuery(sort="Highest reward"),
        CompletionQuery(text="a", steps=(0, 1_000)),
    ):
        found = fresh.find(query, wait_s=_WAIT_S)
        also = grown.find(query, wait_s=_WAIT_S)
        assert repr(found.rows) == repr(also.rows)
        assert (found.matching, found.known, found.dropped) == (also.matching, also.known, also.dropped)
        for row in found.rows[:5]:
            assert repr(fresh.at(row.place)) == repr(row)
            fresh.siblings(row)
    expected = sum(record.get("event") == "completion" for record in read_from(path).records)
    assert fresh.find(CompletionQuery(), wait_s=_WAIT_S).known == expected
    for place in (0, len(data) // 2, len(data), 2**62, 2**70, -1):
        fresh.at(place)


@_target(
    "toolkit.telemetry.runs.columns.column_cache",
    tokens=(b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"),
)
def fuzz_column_cache(data: bytes) -> None:
    """A cache file that was torn or tampered with is left unused, or read; it never ends the process."""
    folder = _scratch()
    log = folder / METRICS_JSONL
    log.write_bytes(b"".join(encode(_step(seq)) for seq in range(20)))
    cache = ColumnCache(folder / "cache")
    honest = RunLog(log, None)
    honest.refresh(_WAIT_S)
    cache.prepare(log, honest._columns, honest._cursor)()
    (file,) = (folder / "cache").glob("*.arrow")
    content = bytearray(file.read_bytes())
    for at in range(0, len(data) - 3, 4):
        place, value, is_end = struct.unpack_from("<HBB", data, at)
        place %= len(content)
        content[place] = value
        if is_end == 0xFF:
            del content[place + 1 :]
    file.write_bytes(content)
    opened = RunLog(log, cache)
    opened.refresh(_WAIT_S)
    opened.metrics()
    opened.table(None)
    opened.events(None, 10)
    opened.sessions()
    shutil.rmtree(folder / "cache")


# ---------------------------------------------------------------- what others wrote


@_target(
    "toolkit.telemetry.diagnostics.history",
    "toolkit.telemetry.importers.formats.table_file",
    "toolkit.telemetry.cli.commands.look.doctor",
    tokens=_JSON + _RECORD + (b",", b";", b"\t", b"step,loss\n"),
)
def fuzz_foreign_file(data: bytes) -> None:
    """`telemetry doctor` says something of any file, in text and in JSON, and ends with a code that it documents."""
    folder = _scratch()
    kind = data[:1]
    path = folder / {b"c": "log.csv", b"t": "log.txt"}.get(kind, "log.jsonl")
    path.write_bytes(data[1:] if kind in (b"c", b"t", b"j") else data)
    for options in ([], ["--json"]):
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = command_line.main(["doctor", str(path), *options])
            out.flush()
            err.flush()
        assert code in (0, 1, 2), code
        if options and code != 2:
            json.loads(out.buffer.getvalue(), parse_constant=_no_constant)  # type: ignore[attr-defined]
    path.unlink()


@_target(
    "toolkit.telemetry.importers.training_yaml",
    "toolkit.telemetry.logger.options",
    "toolkit.telemetry.core.checks",
    "toolkit.telemetry.core.fields",
    tokens=(*_JSON, b"telemetry:\n  ", *b"messages: errors: !!python/object/apply:os.system &a *a".split()),
)
def fuzz_training_yaml(data: bytes) -> None:
    """A training's YAML gives options, or a sentence about what is wrong in it."""
    path = _scratch() / "train.yaml"
    path.write_bytes(data)
    try:
        config = read_training_yaml(path)
    except OptionsError as error:
        str(error).encode("utf-8")
        return
    try:
        options = options_from_config(config)
    except OptionsError as error:
        _require_short(error, 5_000)
        return
    assert isinstance(options, TelemetryOptions)


@_target(
    "toolkit.telemetry.logger.options",
    "toolkit.telemetry.core.checks",
    "toolkit.telemetry.core.fields",
    tokens=_JSON
    + _fields(" ".join(TelemetryOptions.__dataclass_fields__))
    + tuple(
        b'{"to":"slack","url_env":"A"} {"to":"webhook","url":"https://a.b/c"} "all" {"keep":["a"]}'.split()
    ),
)
def fuzz_options(data: bytes) -> None:
    """Any mapping of options is taken, or refused in words."""
    try:
        block = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(block, dict):
        return
    try:
        options = TelemetryOptions.from_mapping(block)
        for part in ("span_options", "error_options", "message_options", "completion_options"):
            getattr(options, part)
        _ = options.profiling_options, options.usage_options, options.not_sent, options.perf_tags
    except OptionsError as error:
        _require_short(error, 5_000)


@_target(
    "toolkit.telemetry.runs.listing.search",
    tokens=tuple(b'tag: status: loss< >= " - 1h30m 50% duration> progress< 1e-4'.split()),
)
def fuzz_search(data: bytes) -> None:
    """The search box understands a text or says what it does not; the time grows with its length alone."""
    text = data.decode("utf-8", "surrogateescape")[:2_100]
    began = time.thread_time()
    try:
        query = parse(text)
    except QueryError as error:
        _require_short(error, 500)
    else:
        folder = _scratch()
        (folder / METRICS_JSONL).write_bytes(b"")
        (found,), _ = RootListing(folder.parent).scan()
        matches(query, card_of(found, 1e9))
    assert time.thread_time() - began < 2.0


@_target(
    "toolkit.telemetry.privacy",
    tokens=(b"--password ", b"-----BEGIN ", *b"token= https://a:b@c.de/ /home/x/ hf_ AKIA eyJ @".split()),
)
def fuzz_masking(data: bytes) -> None:
    """A secret does not survive whatever is around it, and the time grows with the text's length alone."""
    text = data.decode("utf-8", "surrogateescape")
    secret = "hf_" + "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zA1bC"
    masker = Masker({"MY_SECRET_TOKEN": "correct-horse-battery"})
    half = len(text) // 2
    for planted in (f"{text}\n{secret}\n{text}", f"{text[:half]} {secret} {text[half:]}"):
        assert secret not in masker.mask(planted)
    assert "correct-horse-battery" not in masker.mask(f"{text}correct-horse-battery{text}")
    masker.mask({text[:half]: text[half:], "hf_token": text, "list": [text, secret]})
    long = (text * (1 + 20_000 // max(1, len(text))))[:20_000]
    began = time.thread_time()
    masker.mask(long)
    Redactor().redact({"x": long})
    took = time.thread_time() - began
    assert took < 4.0, f"{took:.1f} s for 20,000 characters"


@_target(
    "toolkit.telemetry.mirrors.messages",
    "toolkit.telemetry.core.post",
    tokens=(
        *_JSON,
        *b'"code": "ok":false "msg": https:// [::1] @ %00'.split(),
    ),
)
def fuzz_answers(data: bytes) -> None:
    """What a chat service answers, and an address that someone wrote, ends in a yes or in a sentence."""
    text = data.decode("latin-1")
    for service in SERVICES.values():
        try:
            service.check(data)
        except NotSentError as error:
            _require_short(error, 500)
            str(error).encode("utf-8")
    refused = refusal(500, data, text)
    assert len(str(refused)) < 500
    assert math.isfinite(refused.retry_after_s)
    try:
        address = web_address(text)
    except AddressError as error:
        _require_short(error, 500)
    else:
        assert text.lower().startswith(("http:", "https:"))
        assert not any(letter in address.url for letter in "\r\n\0 ")


@_target("toolkit.telemetry.mirrors", tokens=_JSON + _RECORD + _SPAN)
def fuzz_exporters(data: bytes) -> None:
    """Exporters take any record that a run may write, and what they write is JSON."""
    path = _scratch() / METRICS_JSONL
    path.write_bytes(data)
    records = read_from(path).records
    for record in records:
        for value in scalars_of(record).values():
            assert isinstance(value, (int, float))
    there = path.with_name("one_logger.jsonl")
    exporter = OneLoggerFileExporter(there, run_id="r")
    exporter.write(records[: len(records) // 2])
    exporter.write(records[len(records) // 2 :])
    exporter.close()
    if there.exists():
        for line in there.read_bytes().splitlines():
            json.loads(line, parse_constant=_no_constant)
        there.unlink()


# ---------------------------------------------------------------- helpers

_room: Path | None = None


def _scratch() -> Path:
    """Return a folder of this process's own in memory, the same each time: making one costs more than most calls."""
    global _room
    if _room is None or not _room.is_dir():
        memory = Path("/dev/shm")
        base = tempfile.mkdtemp(prefix="fuzz-", dir=memory if os.access(memory, os.W_OK) else None)
        _room = Path(base) / "run"
        _room.mkdir(mode=0o700)
    for entry in os.scandir(_room):
        if not entry.is_dir():
            os.unlink(entry.path)
    return _room


def forget_scratch() -> None:
    """Remove what the targets wrote."""
    global _room
    if _room is not None:
        shutil.rmtree(_room.parent, ignore_errors=True)
        _room = None


def _growing(path: Path, data: bytes) -> Iterator[None]:
    """Write `data` to `path` in parts, cut at places that depend on nothing but the data."""
    mix = zlib.crc32(data)
    cuts = sorted({mix % (len(data) + 1), (mix >> 8) % (len(data) + 1)})
    with path.open("wb", buffering=0) as file:
        for size in (0, *cuts, len(data)):
            file.write(data[file.tell() : size])
            yield


class _Word(str):
    """NaN, Infinity or -Infinity, as another program writes it."""

    __slots__ = ()


def _is_the_record(line: bytes, record: Record) -> bool:
    try:
        text = line.decode("utf-8")
        plain = json.loads(text, parse_constant=lambda _: None)
        words = dict(_words_in(json.loads(text, parse_constant=_Word)))
    except (ValueError, RecursionError):
        return False
    if words and isinstance(plain, dict):
        named = plain.get("non_finite")
        words = {**(named if isinstance(named, dict) else {}), **words}
        plain |= {"nan_inf_detected": True, "non_finite": words}
    return bool(_same(plain, record))


def _words_in(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from _words_in(item, f"{path}/{key}" if path else str(key))
    if isinstance(value, _Word):
        yield path, str(value)


def _same(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return theirs.keys() == ours.keys() and all(_same(theirs[key], ours[key]) for key in ours)
    if isinstance(theirs, list) and isinstance(ours, list):
        return len(theirs) == len(ours) and all(map(_same, theirs, ours))
    if type(theirs) is int and type(ours) is float:
        # Beyond 64 bits our parser has no integers.
        return not -(2**63) <= theirs < 2**64 and float(theirs) == ours
    return type(theirs) is type(ours) and theirs == ours


def _seqs(content: bytes) -> set[int]:
    """Return the numbers of the records in whole lines."""
    found = set()
    for line in content.split(b"\n")[:-1]:
        with contextlib.suppress(RecordError):
            seq = decode(line).get("seq")
            if type(seq) is int:
                found.add(seq)
    return found


def _require_short(error: Exception, limit: int) -> None:
    assert len(str(error)) < limit, f"a sentence of {len(str(error))} characters"


def _no_constant(word: str) -> None:
    raise AssertionError(f"{word} is not JSON")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _step(seq: int) -> Record:
    return {
        "event": "step",
        "time": 1e9 + seq,
        "elapsed": float(seq),
        "seq": seq,
        "session": 1,
        "global_step": seq,
        "train_loss": 1.0 / (seq + 1),
    }


def columns_of(log: RunLog) -> str:
    health = log.health()
    assert health.problem is None, health.problem
    with np.printoptions(threshold=sys.maxsize):
        return repr(
            (
                sorted(log.metrics(), key=lambda metric: metric.name),
                sorted(log.table(None).items()),
                sorted(log.counts().items()),
                log.events(None, 1_000),
                (health.records, health.bad_count, health.bad_lines),
                (health.lost_records, health.lost_reasons),
                log.sessions(),
            )
        )


class _Maker:
    """Makes plain values out of bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.has_odd_value = False

    def mapping(self, depth: int, *, amplified: bool = False) -> dict[str, Any]:
        made: dict[str, Any] = {}
        while self._at < len(self._data) and len(made) < 64:
            kind = self._byte()
            if kind == 0 and depth:
                break
            made[self._text()] = self._value(kind, depth)
        if amplified and made and self._data[0] & 0x10:
            # The same again under other names, and longer texts: what is shortened is most of what can go wrong.
            many = 4_500 if self._data[0] == 0xFF else 1 << (self._data[0] & 0x07)
            first = list(made.items())
            for number in range(many):
                name, value = first[number % len(first)]
                made[f"{name}{number}"] = value[:50] * 20 if isinstance(value, str) else value
        return made

    def _value(self, kind: int, depth: int) -> Any:
        kind %= 12
        if kind < 2:
            return struct.unpack("<d", self._next_bytes(8).ljust(8, b"\0"))[0]
        if kind == 2:
            number = int.from_bytes(self._next_bytes(10), "little", signed=True)
            # JSON as others read it has no larger ones: those become text.
            self.has_odd_value = self.has_odd_value or not -(2**63) <= number < 2**64
            return number
        if kind == 3:
            which = self._byte() % 8
            self.has_odd_value = self.has_odd_value or which == 6
            return [None, True, False, math.nan, math.inf, -math.inf, 10**400, -0.0][which]
        if kind == 4 and depth < 40:
            return self.mapping(depth + 1)
        if kind == 5 and depth < 40:
            return [self._value(self._byte(), depth + 1) for _ in range(self._byte() % 8)]
        if kind == 6:
            nested: Any = 1
            for _ in range(self._byte()):
                nested = [nested]
            self.has_odd_value = True
            return nested
        if kind == 7:
            return self._text() * (1 + self._byte() * 4)
        return self._text()

    def _text(self) -> str:
        raw = self._next_bytes(self._byte() % 24)
        text = raw.decode("utf-8", "surrogateescape")
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            self.has_odd_value = True
        return text

    def _byte(self) -> int:
        taken = self._next_bytes(1)
        return taken[0] if taken else 0

    def _next_bytes(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken
