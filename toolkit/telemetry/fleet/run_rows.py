"""What the engine knows of each run besides lines: manifest, status by its own node, labels; and of each shipper."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, NamedTuple
from urllib.parse import quote as percent_encoded

import orjson

from toolkit.telemetry.core.run_search import natural_key, text_of
from toolkit.telemetry.fleet.commits import newest_labels
from toolkit.telemetry.fleet.engine import Asks, Engine, chunks, quote
from toolkit.telemetry.fleet.native_form import types_of
from toolkit.telemetry.fleet.run_folders import RunFolder, file_bytes
from toolkit.telemetry.runfolder.codec import encodable
from toolkit.telemetry.runfolder.folder_list import Signature, signature_of
from toolkit.telemetry.runfolder.key_values import ValuesThatCount, trend_of
from toolkit.telemetry.runfolder.labels import MAX_LABELS_BYTES, Labels, LabelsError, parse_labels
from toolkit.telemetry.runfolder.layout import LABELS, MANIFEST, METRICS_JSONL
from toolkit.telemetry.runfolder.listed_run import (
    MISSING,
    Fields,
    encode_fields,
    fields_of,
    missing_records,
    progress_of,
    settled,
    values_at_the_end,
)
from toolkit.telemetry.runfolder.manifest import MAX_MANIFEST_BYTES
from toolkit.telemetry.runfolder.status import RUNNING, STALLED, Status
from toolkit.telemetry.runfolder.untrusted import clean, is_number, number_in, whole_in

TREND_POINTS: Final = 40
_VALUES: Final = ValuesThatCount()
_EVERY_S: Final = 15.0
_GIVEN_UP_S: Final = 60
"""A node that has not reported a live run for this long does not see it any more, although it may report others."""

_RUN_TYPES: Final = types_of(
    "project String, run_id String, version UInt64, name String, node String, folder String, status String, "
    "why String, sure UInt8, step Float64, manifest String, trend Array(Float32), "
    "behind UInt64, created Date, last_sign Float64, shown String, tags Array(String), "
    "tagged String, searched String, facts String, card String, control String"
)
LABELS_TABLE: Final = "labels"
LABEL_TYPES: Final = types_of(
    "run_id String, version UInt64, by String, labels String, deleted UInt8, created Date, "
    "archived UInt8, shown String, has_tags UInt8, tags Array(String), tagged String"
)


@dataclass(slots=True)
class RunReport:
    """What was sent to the engine about a run."""

    is_known: bool = False
    """Whether the engine was asked what it has."""
    is_deleted: bool = False
    """Whether someone deleted the run on a page: it is left alone."""
    version: int = 0
    node: str = ""
    """The node whose shipper reported the run last, when the engine was asked; empty if it has given it up."""
    labels_version: int = 0
    status: Status | None = None
    """The status that was sent last."""
    has_ended: bool = False
    """Whether the run was seen to end; the shipper then verifies it."""
    _sent: tuple[Any, ...] = ()
    has_changed: bool = True
    """Whether something in its folder has changed since its state was sent."""
    _labels_sent: Signature = ()
    next_due: float = 0.0
    """When the state of a live run is sent again, by the monotonic clock."""

    @property
    def is_running(self) -> bool:
        """Whether the run is live, as far as is known."""
        return self.status is None or self.status.name in (RUNNING, STALLED)

    def is_quiet(self, run: RunFolder) -> bool:
        """Return whether there is nothing to send of a run that is shipped, until its folder changes."""
        is_sent = (
            not (self.is_running or self.has_ended or self.has_changed) and _essence(run, 0) == self._sent
        )
        return self.is_known and (self.is_deleted or run.is_part or is_sent)

    def is_due(self, run: RunFolder, behind: int) -> bool:
        """Return whether the state of the run has to be sent now."""
        if self.is_deleted or run.is_part:
            return False
        if _essence(run, behind) != self._sent:
            return True
        # A log directory may have thousands of lost runs of other machines: only those that change are sent again.
        return time.monotonic() >= self.next_due and (self.is_running or self.has_changed)

    def forget(self) -> None:
        """Ask the engine again what it has of the run, and send its state again."""
        self.is_known, self._sent, self.has_changed = False, (), True


def ask(engine: Engine, runs: Iterable[tuple[RunReport, RunFolder]]) -> None:
    """Learn the versions that the engine has of these runs, and which of them are deleted.

    Raises:
        EngineError: it did not answer.
    """
    by_id: dict[str, list[RunReport]] = {}
    for report, run in runs:
        by_id.setdefault(run.key.run_id, []).append(report)
    for some in chunks(by_id):
        texts = ", ".join(map(quote, some))
        for run_id, version, node in engine.rows(
            "SELECT run_id, max(version), if(argMax(status, version) IN ('running', 'stalled') "
            f"AND toUInt32(now()) - argMax(toUInt32(received), version) > {_GIVEN_UP_S}, '', argMax(node, version)) "
            f"FROM runs WHERE run_id IN ({texts}) GROUP BY run_id"
        ):
            for report in by_id[run_id]:
                report.version, report.node = max(report.version, version), node
        for run_id, (version, is_deleted) in newest_labels(engine, some).items():
            for report in by_id[run_id]:
                report.labels_version, report.is_deleted = version, is_deleted
        for report in chain.from_iterable(by_id[run_id] for run_id in some):
            report.is_known = True


def send(
    engine: Engine, node: str, runs: Sequence[tuple[RunReport, RunFolder, int, str]], *, all_runs: bool
) -> None:
    """Send the state of the runs that changed, and of live ones every 15 s; or of `all_runs`.

    With each run comes how many of its bytes are not shipped yet, and whether requests are delivered to it.

    Raises:
        EngineError: it was not taken.
    """
    due = [
        (report, run, behind, control)
        for report, run, behind, control in runs
        if report.is_known
        and (report.is_due(run, behind) or (all_runs and not report.is_deleted and not run.is_part))
    ]
    _send_labels(engine, node, [(report, run) for report, run, *_ in runs])
    states, rows = [], []
    for report, run, behind, control in due:
        status, version = status_of(run), max(int(time.time() * 1000), report.version + 1)
        states.append((status, version))
        rows.append(_run_row(run, status, version, node, behind, control))
    if rows:
        engine.insert_rows("runs", _RUN_TYPES, rows)
    # Only what was taken counts as sent.
    for (report, run, behind, _), (status, version) in zip(due, states, strict=True):
        was_over = report.status is None or is_final(report.status)
        report.has_ended = is_final(status) and not was_over
        report.status, report.version, report.has_changed = status, version, False
        report._sent = _essence(run, behind)  # noqa: SLF001 - of its own kind
        report.next_due = time.monotonic() + _EVERY_S


def report_shipper(engine: Engine, *, node: str, files: int, behind: int, last_error: str) -> None:
    """Send the state of the shipper of a node.

    Raises:
        EngineError: it was not taken.
    """
    # How far its clock is ahead is worked out by the engine, when it gets this.
    ahead = f"{time.time()!r} - toFloat64(now64(3))"
    engine.query(
        "INSERT INTO shippers (node, clock_ahead_s, files, behind, last_error) VALUES "
        f"({quote(node)}, {ahead}, {files}, {behind}, {quote(last_error)})"
    )


class SaidByShipper(NamedTuple):
    """What the shipper of a node reported last."""

    node: str
    files: int
    behind: int
    last_error: str
    clock_ahead_s: float
    age_s: int


def reports_of_shippers(engine: Asks) -> list[SaidByShipper]:
    """Return the last report of each shipper.

    Raises:
        EngineError: the engine did not answer.
    """
    rows = engine.rows(
        "SELECT node, files, behind, last_error, clock_ahead_s, toInt64(toUInt32(now())) - toUInt32(received) "
        "FROM shippers FINAL ORDER BY node"
    )
    return [
        SaidByShipper(node, files, behind, last_error, float(ahead), age_s)
        for node, files, behind, last_error, ahead, age_s in rows
    ]


def status_of(run: RunFolder) -> Status:
    """Return the status of a run, by this machine, which can ask for its process."""
    return settled(run.manifest, run.folder, time.time())[1]


def is_final(status: Status) -> bool:
    """Return whether a run has ended for certain; it may still be resumed."""
    return status.sure and status.name not in (RUNNING, STALLED)


def _essence(run: RunFolder, behind: int) -> tuple[Any, ...]:
    """Return what is sent at once when it changes: all of run.json but the heartbeat of every few seconds.

    And of a run that has ended, that not all of it is shipped.
    """
    latest = run.manifest.latest
    if latest is None or latest.status != RUNNING:
        return (run.folder, run.signature, behind > 0)
    return (run.folder, latest.session, latest.status, run.manifest.control)


def _run_row(
    run: RunFolder, status: Status, version: int, node: str, behind: int, control: str
) -> tuple[Any, ...]:
    try:
        manifest = file_bytes(run.folder / MANIFEST, MAX_MANIFEST_BYTES)
    except OSError:
        manifest = b""
    try:
        trend = trend_of(run.folder / METRICS_JSONL, TREND_POINTS)
    except OSError:
        trend = []
    fields = _listed(run, status)
    step = number_in(fields.get("step"))
    searched = (run.key.run_id, fields.get("project") or "", fields.get("host", ""))
    return (
        *(run.key.project, run.key.run_id, version),
        *(run.manifest.name.encode("utf-8", "surrogateescape"), node),
        str(run.folder.absolute()).encode("utf-8", "surrogateescape"),
        *(status.name, status.why, int(status.sure)),
        *(math.nan if step is None else step, manifest, trend, behind),
        *(run.key.day, fields.get("last_sign") or 0.0),
        *(sorted_text(fields["name"]), *_tags(fields.get("tags", ())), BETWEEN.join(searched).casefold()),
        *(_facts(fields, values_at_the_end(run.folder)), encode_fields(fields), control),
    )


def _listed(run: RunFolder, status: Status) -> Fields:
    """Return what a list says of a run."""
    values = None
    with suppress(OSError):
        values = _VALUES.read(run.folder / METRICS_JSONL, run.manifest)
    manifest, _ = settled(run.manifest, run.folder, time.time())
    fields = fields_of(manifest, run.folder, status, time.time(), key_values=values)
    return {**fields, MISSING: missing_records(manifest, run.folder, status)}


# ------------------------------------------------------------ what the engine searches and sorts

BETWEEN: Final = "\x01"
"""Between texts in one column: no text for people contains it."""
NOT_FINITE: Final = "\x03"
KINDS: Final[Mapping[type, str]] = {float: "Float64", int: "Int64", bool: "Bool", str: "String"}
"""What the engine makes of a value in `runs.facts`."""
_MOST_LAST_VALUES: Final = 500
"""Of a run's metrics, those whose last values can be searched and sorted; evaluations are always among them."""


def sorted_text(text: str) -> str:
    """Return what a text is sorted by, and after BETWEEN what it is searched in, whatever its case."""
    return f"{natural_key(text)}{BETWEEN}{text.casefold()}"


def value_path(kind: str, place: str, name: str) -> str:
    """Return the name of a value in `runs.facts`: `place` is field, config, last, best or summary."""
    # With its kind, so that the names of all values tell which columns to read. A dot would mean a value inside of one.
    return percent_encoded(f"{kind}:{place}:{name}", safe="", errors="replace").replace(".", "%2E")


def _facts(fields: Fields, last_values: Mapping[str, float]) -> bytes:
    """Return every value of a run that a search can name, as JSON."""
    evaluations, is_from_zero = fields["evaluations"], fields.get("from_zero", False)
    named = {"started": "created", "updated": "last_sign", "duration": "duration_s"}
    named |= {name: name for name in ("loss", "step", "max_steps", "epoch", "samples_per_sec", "project")}
    places: dict[str, Mapping[str, Any]] = {
        "field": {
            **{name: fields.get(field) for name, field in named.items()},
            "sessions": fields.get("sessions", 0),
            "host": fields.get("host", ""),
            "progress": progress_of(fields.get("step"), fields.get("max_steps"), from_zero=is_from_zero),
        },
        "config": fields["config"],
        "last": {name: item.last for name, item in evaluations.items()},
        "best": {name: item.best for name, item in evaluations.items()},
        "summary": {**dict(islice(last_values.items(), _MOST_LAST_VALUES)), **fields.get("summary", {})},
    }
    return orjson.dumps(
        {
            value_path(KINDS[type(fact)], place, name): fact
            for place, values in places.items()
            for name, value in values.items()
            if (fact := _fact(value)) is not None
        }
    )


def _fact(value: Any) -> Any:
    if isinstance(value, str):
        return sorted_text(encodable(value))
    if isinstance(value, bool) or not is_number(value):
        return value if isinstance(value, bool) else None
    number = number_in(value)
    if number is None or not math.isfinite(number):
        return None if number is None else f"{NOT_FINITE}{BETWEEN}{text_of(number)}"
    return value if whole_in(value) is not None else number


def _tags(tags: Sequence[str]) -> tuple[list[str], str]:
    """Return the tags, and in one text: what the first is sorted by, and each between two BETWEEN."""
    folded = "".join(f"{tag.casefold()}{BETWEEN}" for tag in tags)
    return list(tags), f"{natural_key(tags[0])}{BETWEEN}{folded}" if tags else ""


def _send_labels(engine: Engine, node: str, runs: Iterable[tuple[RunReport, RunFolder]]) -> None:
    """Send labels.json where it is newer than the labels in the engine: the last writer wins."""
    rows, sent = [], []
    for report, run in runs:
        is_left_out = not report.is_known or report.is_deleted or run.is_part
        if is_left_out or not (report.has_changed or report.is_running):
            continue
        signature = signature_of(run.folder / LABELS)
        if not signature or signature == report._labels_sent:  # noqa: SLF001
            continue
        version = signature[0] // 1_000_000
        try:
            labels = file_bytes(run.folder / LABELS, MAX_LABELS_BYTES)
        except OSError:
            continue
        is_newer = bool(labels) and version > report.labels_version
        sent.append((report, signature, version if is_newer else report.labels_version))
        if is_newer:
            rows.append(label_row(run.key.run_id, version, by=node, data=labels, day=run.key.day))
    if rows:
        engine.insert_rows(LABELS_TABLE, LABEL_TYPES, rows)
    for report, signature, version in sent:
        report.labels_version = version
        report._labels_sent = signature  # noqa: SLF001


def label_row(
    run_id: str, version: int, *, by: str, data: bytes, day: int, deleted: bool = False
) -> tuple[Any, ...]:
    """Return the labels of a run as one writer left them, as a row; that with the highest version counts."""
    try:
        labels = parse_labels(data) if data else Labels()
    except LabelsError:
        labels = Labels()
    return (
        *(run_id, version, by, data, int(deleted), day),
        *(int(labels.archived), sorted_text(clean(labels.display_name)) if labels.display_name else ""),
        *(int(labels.tags is not None), *_tags([clean(tag) for tag in labels.tags or ()])),
    )
