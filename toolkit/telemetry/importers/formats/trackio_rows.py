"""What Trackio logs in one row, whatever the file."""

from __future__ import annotations

from typing import Any, Final

from toolkit.telemetry.importers.source import (
    MAX_TEXT_CHARS,
    NO_STEP,
    SYSTEM,
    BlobRef,
    Builder,
    Event,
    as_number,
    as_step,
)

FORMAT: Final = "trackio"
_KINDS: Final = {"trackio.image": "image", "trackio.table": "table", "trackio.histogram": "histogram"}


def add_row(
    metrics: dict[str, Any], step: Any, timestamp: float, state: dict[str, Any], media: str, out: Builder
) -> None:
    """Add the values of one row; where the step goes back, a new session begins."""
    at = as_step(step)
    if at != NO_STEP:
        if at < state.get("step", at):
            state["session"] = state.get("session", 0) + 1
        state["step"] = at
    session = state.get("session", 0)
    for name, value in metrics.items():
        number = as_number(value)
        if number is not None:
            out.add(name, at, timestamp, number, session=session)
        elif value is not None:
            out.not_number(name)
            _add_event(name, value, at, timestamp, session, media, out)


def add_system_row(metrics: dict[str, Any], timestamp: float, out: Builder) -> None:
    """Add measurements of the machine."""
    for name, value in metrics.items():
        number = as_number(value)
        if number is not None:
            out.add(name, NO_STEP, timestamp, number, kind=SYSTEM)


def _add_event(
    name: str, value: Any, step: int, timestamp: float, session: int, media: str, out: Builder
) -> None:
    about: dict[str, Any] = {"name": name, "step": step, "time": timestamp, "session": session}
    if type(value) is str:
        out.event(Event(kind="text", payload=value[:MAX_TEXT_CHARS], **about))
        return
    if type(value) is not dict:
        return
    kind = _KINDS.get(str(value.get("_type")))
    path = value.get("file_path")
    if kind == "image" and type(path) is str and len(path) < 1000:
        ref = BlobRef(path=f"{media}/{path}" if media else path)
        out.event(Event(kind=kind, payload={"caption": value.get("caption")}, blob=ref, **about))
    elif kind is not None:
        out.event(Event(kind=kind, payload=value.get("_value"), **about))
