"""run.json: identity, sessions and progress of a run, without reading its records."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from toolkit.telemetry.runfolder.codec import encodable, name_of_non_finite, with_non_finite
from toolkit.telemetry.runfolder.layout import COPIED, MANIFEST
from toolkit.telemetry.runfolder.metrics import Direction
from toolkit.telemetry.runfolder.records import FORMAT, NON_FINITE
from toolkit.telemetry.runfolder.safefile import replace_file
from toolkit.telemetry.runfolder.untrusted import (
    finite_in,
    is_number,
    mapping_in,
    number_in,
    parse_object,
    read_object,
    texts_in,
    whole_in,
)

MAX_MANIFEST_BYTES = 1024 * 1024
INCOMPLETE = "; incomplete: "
"""In the reason of a session before the mirrors that did not take everything, such as metrics.csv."""
IN_SUMMARY = ("epoch", "train_loss", "lr", "grad_norm", "sec_per_step", "samples_per_sec")
"""What run.json says of the last step."""


class ManifestError(ValueError):
    """An invalid run.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One start of the run, from its first record to its end."""

    session: int
    started: float
    pid: int
    pid_started: int | None = None
    pid_namespace: int | None = None
    """Where `pid` counts: a container has process numbers of its own."""
    host: str = ""
    boot_id: str | None = None
    journal: str | None = None
    """The file that holds what is acknowledged and not yet in the record file."""
    lock: str | None = None
    """The record file that this session has locked, by device and inode; None if it could not be locked."""
    ended: float | None = None
    status: str = "running"
    reason: str | None = None
    record_bytes: int | None = None
    """How long the record file was at its end: files of records only grow."""
    perf_tag: str | None = None
    """Names jobs that should be equally fast; several are joined by commas."""
    session_tag: str | None = None
    """Names jobs that together do one task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The last sign of life."""

    time: float
    seq: int = -1
    global_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of run.json."""

    run_id: str
    name: str
    display_name: str
    created: float
    format: int = FORMAT
    project: str | None = None
    tags: tuple[str, ...] = ()
    sessions: tuple[Session, ...] = ()
    heartbeat: Heartbeat | None = None
    control: Mapping[str, Any] = field(default_factory=dict)
    """What may be asked of the run: the bounds of `log_every`, declared actions and knobs, the interval in force."""
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    """Severities of kinds of findings from the run's YAML, or `off`; also used by later examinations."""
    table: str | None = None
    """The form of metrics.csv, `short` or `all`; None if an earlier version wrote it."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Latest values, so that a list of runs needs no records."""
    config: Mapping[str, Any] | None = None
    """The configuration in one level, by usual names; None if an earlier version wrote it."""
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    """The last and the best value of each metric that evaluates the model."""
    other: Mapping[str, Any] = field(default_factory=dict)
    """Keys that few runs have or that a later version wrote, kept as they are."""
    is_copy: bool = field(default=False, compare=False)
    """Whether `telemetry copy` made the folder of a run that may go on elsewhere; not in the file."""

    @property
    def latest(self) -> Session | None:
        """The newest session, or None before the first."""
        return self.sessions[-1] if self.sessions else None

    @property
    def part_of(self) -> str | None:
        """The node of rank 0, if the folder only has the ranks of another node; None for a whole run."""
        node = self.other.get("part_of")
        return node if isinstance(node, str) else None

    @property
    def node(self) -> str | None:
        """The node whose ranks a part has."""
        node = self.other.get("node")
        return node if isinstance(node, str) else None

    def with_latest(self, **changes: Any) -> Manifest:
        """Return the manifest with its newest session changed."""
        if not self.sessions:
            raise ManifestError("the run has no session yet")
        return replace(self, sessions=(*self.sessions[:-1], replace(self.sessions[-1], **changes)))


def incomplete_mirrors(manifest: Manifest | None) -> str:
    """Return the mirrors that did not take everything before the newest session ended; empty if all did."""
    session = manifest.latest if manifest is not None else None
    return (session.reason or "").partition(INCOMPLETE)[2] if session is not None else ""


def write_manifest(
    folder: Path, manifest: Manifest, *, mode: int = 0o600, durable: bool = False, **options: Any
) -> None:
    """Write `manifest` to `folder` atomically; see `replace_file`."""
    replace_file(folder / MANIFEST, encode_manifest(manifest), mode=mode, durable=durable, **options)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of a run.json."""
    return _dump(_to_mapping(manifest))


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest in `folder`.

    Raises:
        FileNotFoundError: there is no manifest.
        ManifestError: it is invalid; the message says why.
    """
    mapping = read_object(folder / MANIFEST, MAX_MANIFEST_BYTES, ManifestError)
    try:
        manifest = _from_mapping(mapping)
    except ManifestError as error:
        raise ManifestError(f"{folder / MANIFEST}: {error}") from error
    is_open = manifest.latest is not None and manifest.latest.status == "running"
    return replace(manifest, is_copy=True) if is_open and os.path.lexists(folder / COPIED) else manifest


def parse_manifest(data: bytes) -> Manifest:
    """Return the manifest in `data`, the content of a run.json.

    Raises:
        ManifestError: it is invalid; the message says why.
    """
    return _from_mapping(parse_object(data, MANIFEST, MAX_MANIFEST_BYTES, ManifestError))


def _dump(mapping: dict[str, Any]) -> bytes:
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    try:
        return orjson.dumps(mapping, option=option)
    except orjson.JSONEncodeError:
        # One invalid value, such as a lone surrogate in the name, must not prevent the heartbeat.
        return orjson.dumps(encodable(mapping), option=option)


def _to_mapping(manifest: Manifest) -> dict[str, Any]:
    latest = manifest.latest
    mapping = {
        **manifest.other,
        "format": manifest.format,
        "run_id": manifest.run_id,
        "name": manifest.name,
        "display_name": manifest.display_name,
        "project": manifest.project,
        "tags": list(manifest.tags),
        "created": manifest.created,
        # Most readers want the newest session, so it is repeated here.
        **{name: getattr(latest, name, None) for name in _DERIVED},
        "heartbeat": _plain(manifest.heartbeat) if manifest.heartbeat else None,
        "control": dict(manifest.control),
        "diagnostics": dict(manifest.diagnostics) or None,
        "table": manifest.table,
        "summary": dict(manifest.summary),
        "config": manifest.config if manifest.config is None else dict(manifest.config),
        "evaluations": {name: item.as_json() for name, item in manifest.evaluations.items()} or None,
        "sessions": [_plain(session) for session in manifest.sessions],
    }
    return {name: value for name, value in mapping.items() if value is not None or name not in _OPTIONAL}


_T = TypeVar("_T", Session, Heartbeat)
_KINDS = {"int": "a whole number", "float": "a number", "str": "a text"}
_TABLES = ("short", "all")
_DERIVED = ("host", "pid", "boot_id", "status")
_OPTIONAL = ("diagnostics", "table", "config", "evaluations")


def _from_mapping(mapping: dict[str, Any]) -> Manifest:
    format_number = _typed("format", mapping.get("format"), "int")
    if format_number < 1:
        raise ManifestError(f"format is {format_number}, not a number from 1 on")
    known = {*(f.name for f in fields(Manifest)), *_DERIVED}
    name, run_id = (_typed(key, mapping.get(key), "str") for key in ("name", "run_id"))
    shown, project = (_typed(key, mapping.get(key) or "", "str") for key in ("display_name", "project"))
    tags, sessions, heartbeat = (mapping.get(key) for key in ("tags", "sessions", "heartbeat"))
    if not isinstance(sessions or [], list):
        raise _wrong("sessions", sessions, "a list")
    return Manifest(
        format=format_number,
        run_id=run_id,
        name=name,
        display_name=shown or name,
        project=project or None,
        tags=tuple(texts_in(tags)),
        created=_typed("created", mapping.get("created"), "float"),
        sessions=tuple(_read(Session, item, "a session") for item in sessions or ()),
        heartbeat=_read(Heartbeat, heartbeat, "heartbeat") if heartbeat is not None else None,
        control=mapping_in(mapping.get("control")),
        diagnostics=mapping_in(mapping.get("diagnostics")),
        table=mapping["table"] if mapping.get("table") in _TABLES else None,
        summary=mapping_in(mapping.get("summary")),
        config=_scalars(mapping.get("config")),
        evaluations=evaluations_from(mapping.get("evaluations")),
        other={key: value for key, value in mapping.items() if key not in known},
    )


def _read(kind: type[_T], item: Any, what: str) -> _T:
    """Return what a mapping says about a session or a heartbeat; what is null or missing has its default."""
    if not isinstance(item, dict):
        raise _wrong(what, item, "an object")
    given = {
        part.name: _typed(part.name, item.get(part.name), str(part.type).partition(" ")[0])
        for part in fields(kind)
        if part.default is MISSING or item.get(part.name) is not None
    }
    return kind(**given)


def _typed(key: str, value: Any, kind: str) -> Any:
    """Return a value of the file if it is of this kind."""
    if kind == "float" and is_number(value):
        return float(value)
    if (kind == "int" and type(value) is int) or (kind == "str" and type(value) is str):
        return value
    raise _wrong(key, value, _KINDS[kind])


def _scalars(value: Any) -> dict[str, Any] | None:
    """Return a mapping without what is neither a text nor a number nor a flag; None if it is no mapping."""
    if not isinstance(value, dict):
        return None
    return {key: item for key, item in value.items() if type(item) in (str, int, float, bool)}


def _wrong(key: str, value: Any, allowed: str) -> ManifestError:
    return ManifestError(f"{key} is {ascii(value)[:60]}, not {allowed}")


def _plain(item: Session | Heartbeat) -> dict[str, Any]:
    return {f.name: getattr(item, f.name) for f in fields(item)}


MAX_EVALUATIONS: Final = 200
"""Further metrics are left out: run.json is written every few seconds."""
MAX_NAME_CHARS: Final = 200


class Evaluation(NamedTuple):
    """What a run has reached in one metric."""

    last: float
    """NaN and infinity included."""
    last_step: int | None = None
    best: float | None = None
    """The best finite value; None without one, or if neither direction is better."""
    best_step: int | None = None
    direction: Direction | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it for run.json; a value that is not finite is null there, and named under `non_finite`."""
        is_finite = math.isfinite(self.last)
        return {
            "last": self.last if is_finite else None,
            **({} if is_finite else {NON_FINITE: {"last": name_of_non_finite(self.last)}}),
            "last_step": self.last_step,
            "best": self.best,
            "best_step": self.best_step,
            "direction": self.direction,
        }


def evaluations_from(mapping: Any) -> dict[str, Evaluation]:
    """Return the evaluations in a run.json; invalid ones are left out."""
    if not isinstance(mapping, Mapping):
        return {}
    found: dict[str, Evaluation] = {}
    for name, item in mapping.items():
        if len(found) >= MAX_EVALUATIONS:
            break
        if isinstance(name, str) and len(name) <= MAX_NAME_CHARS and isinstance(item, Mapping):
            last, best = number_in(with_non_finite(dict(item)).get("last")), finite_in(item.get("best"))
            direction = item.get("direction")
            found[name] = Evaluation(
                last=math.nan if last is None else last,
                last_step=whole_in(item.get("last_step")),
                best=best,
                best_step=whole_in(item.get("best_step")),
                direction=direction if direction in ("min", "max") else None,
            )
    return found
