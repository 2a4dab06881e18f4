"""run.json: what a run is, who writes it, and how far it got, without reading its records."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import orjson

from toolkit.runfolder.layout import MANIFEST
from toolkit.runfolder.records import FORMAT
from toolkit.runfolder.safefile import open_regular, replace_file

MAX_MANIFEST_BYTES = 1024 * 1024


class ManifestError(ValueError):
    """A run.json that cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One start of the run, from its first record to its end, however that came."""

    session: int
    started: float
    pid: int
    pid_started: int | None = None
    host: str = ""
    boot_id: str | None = None
    journal: str | None = None
    """The mapped file that holds what is acknowledged and not yet in the record file."""
    ended: float | None = None
    status: str = "running"
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The last sign of life."""

    time: float
    seq: int = -1
    global_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What run.json says."""

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
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Latest values, so that a list of runs needs no records."""
    other: Mapping[str, Any] = field(default_factory=dict)
    """Keys of a later version, kept as they are."""

    @property
    def latest(self) -> Session | None:
        """The newest session, or None before the first."""
        return self.sessions[-1] if self.sessions else None

    def with_latest(self, **changes: Any) -> Manifest:
        """Return the manifest with its newest session changed."""
        if not self.sessions:
            raise ManifestError("the run has no session yet")
        return replace(self, sessions=(*self.sessions[:-1], replace(self.sessions[-1], **changes)))


def write_manifest(folder: Path, manifest: Manifest, *, mode: int = 0o600, durable: bool = False) -> None:
    """Put `manifest` into `folder`, in one piece or not at all."""
    replace_file(
        folder / MANIFEST,
        orjson.dumps(_to_mapping(manifest), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE),
        mode=mode,
        durable=durable,
    )


def read_manifest(folder: Path) -> Manifest:
    """Return what `folder`'s run.json says.

    Raises:
        FileNotFoundError: there is none.
        ManifestError: it cannot be used, with the reason.
    """
    descriptor = open_regular(folder / MANIFEST)
    try:
        data = os.read(descriptor, MAX_MANIFEST_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_MANIFEST_BYTES:
        raise ManifestError(f"{folder / MANIFEST} is larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        mapping = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ManifestError(f"{folder / MANIFEST} is not JSON: {error}") from error
    if not isinstance(mapping, dict):
        raise ManifestError(f"{folder / MANIFEST} holds a {type(mapping).__name__}, not an object")
    try:
        return _from_mapping(mapping)
    except (TypeError, ValueError, KeyError) as error:
        raise ManifestError(
            f"{folder / MANIFEST} lacks something or holds the wrong kind: {error!r}"
        ) from error


def _to_mapping(manifest: Manifest) -> dict[str, Any]:
    latest = manifest.latest
    return {
        **manifest.other,
        "format": manifest.format,
        "run_id": manifest.run_id,
        "name": manifest.name,
        "display_name": manifest.display_name,
        "project": manifest.project,
        "tags": list(manifest.tags),
        "created": manifest.created,
        # Whoever asks after the run now asks after its newest session, so that one is repeated here.
        "host": latest.host if latest else None,
        "pid": latest.pid if latest else None,
        "boot_id": latest.boot_id if latest else None,
        "status": latest.status if latest else None,
        "heartbeat": _plain(manifest.heartbeat) if manifest.heartbeat else None,
        "control": dict(manifest.control),
        "summary": dict(manifest.summary),
        "sessions": [_plain(session) for session in manifest.sessions],
    }


_DERIVED = frozenset({"host", "pid", "boot_id", "status"})


def _from_mapping(mapping: dict[str, Any]) -> Manifest:
    format_number = mapping["format"]
    if not isinstance(format_number, int) or format_number < 1:
        raise ManifestError(f"format is {format_number!r}, not a number from 1 on")
    heartbeat = mapping.get("heartbeat")
    known = {f.name for f in fields(Manifest)} | _DERIVED
    return Manifest(
        format=format_number,
        run_id=str(mapping["run_id"]),
        name=str(mapping["name"]),
        display_name=str(mapping.get("display_name") or mapping["name"]),
        project=mapping.get("project"),
        tags=tuple(str(tag) for tag in mapping.get("tags") or ()),
        created=float(mapping["created"]),
        sessions=tuple(_session(item) for item in mapping.get("sessions") or ()),
        heartbeat=_heartbeat(heartbeat) if heartbeat else None,
        control=_mapping(mapping.get("control")),
        summary=_mapping(mapping.get("summary")),
        other={key: value for key, value in mapping.items() if key not in known},
    )


def _session(item: Mapping[str, Any]) -> Session:
    names = {f.name for f in fields(Session)}
    session = Session(**{key: value for key, value in item.items() if key in names})
    int(session.session), float(session.started), int(session.pid)
    return session


def _heartbeat(item: Mapping[str, Any]) -> Heartbeat:
    step = item.get("global_step")
    return Heartbeat(
        time=float(item["time"]),
        seq=int(item.get("seq", -1)),
        global_step=step if isinstance(step, int) else None,
    )


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _plain(item: Session | Heartbeat) -> dict[str, Any]:
    return {f.name: getattr(item, f.name) for f in fields(item)}
