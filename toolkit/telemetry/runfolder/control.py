"""Writes and reads control.json, a request to a run."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from toolkit.telemetry.runfolder.layout import CONTROL
from toolkit.telemetry.runfolder.safefile import UnsafeFile, open_regular, replace_file, why_not_ours_alone
from toolkit.telemetry.runfolder.untrusted import LARGEST_WHOLE, is_number

KnobValue: TypeAlias = bool | int | float | str

# When it was last changed, in two ways, its size and its inode: enough to notice any new file without opening it.
Signature: TypeAlias = tuple[int, int, int, int]

LOG_EVERY_LOW: Final = 5
LOG_EVERY_HIGH: Final = 2000
LOG_EVERY_PAUSE_S: Final = 30.0
"""Seconds between two changes of `log_every`."""

MAX_BYTES: Final = 64 * 1024
MAX_ACTIONS: Final = 16
MAX_KNOBS: Final = 64
MAX_TEXT: Final = 1024

FIELDS: Final = ("id", "timestamp", "expires", "run_id", "log_every", "actions", "knobs")
"""The keys of a control file that are not knobs."""

_PLAIN_FIELDS = frozenset({"log_every", "timestamp", "run_id"})
_BODY_FIELDS = frozenset({"log_every", "actions", "knobs"})
_MAX_ID = 128
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+@-]{0,127}\Z")
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9._:+@-]")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}\Z")

# A file's time comes from the kernel's tick, which lags behind the clock that the run reads.
_FILE_CLOCK_LAG_S = 0.01


class ControlRefused(ValueError):  # noqa: N818 - a request is refused, which is an answer and no error
    """A control file that must not be obeyed; `reason` says why, `request_id` names the request if it was readable."""

    def __init__(self, reason: str, request_id: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.request_id = request_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRequest:
    """A request to a run. It is well formed; whether the run can do it is decided there."""

    id: str
    timestamp: float
    expires: float | None = None
    run_id: str | None = None
    log_every: int | None = None
    actions: tuple[str, ...] = ()
    knobs: Mapping[str, KnobValue] = field(default_factory=dict)
    is_plain: bool = field(default=False, compare=False)
    """Whether it is a file with nothing but a `log_every`, as a person writes it: its timestamp is the file's own."""


def write_request(run_folder: Path, **asked: Any) -> ControlRequest:
    """Ask of the run in `run_folder` what `new_request` takes, in place of anything asked before; return the request.

    The file appears whole or not at all. Limits are not applied here: the run does that, and answers under the id.

    Raises:
        ControlRefused: the request is malformed or asks for nothing, or the run would refuse what is in this folder.
        OSError: the file cannot be written.
    """
    request = new_request(**asked)
    deliver(run_folder, request)
    return request


def new_request(
    *,
    log_every: int | None = None,
    actions: Sequence[str] = (),
    knobs: Mapping[str, KnobValue] | None = None,
    expires_in_s: float | None = 600.0,
    run_id: str | None = None,
    now: float | None = None,
) -> ControlRequest:
    """Return a request with a new id. Raises ControlRefused if it is malformed or asks for nothing."""
    timestamp = time.time() if now is None else now
    content = {
        "id": os.urandom(8).hex(),
        "timestamp": timestamp,
        "expires": None if expires_in_s is None else timestamp + expires_in_s,
        "run_id": run_id,
        "log_every": log_every,
        "actions": list(actions) or None,
        "knobs": dict(knobs or {}) or None,
    }
    # Parse it as the run would, so that nothing is written that it could not read.
    return _request(_without_none(content), file_time=timestamp)


def deliver(run_folder: Path, request: ControlRequest) -> None:
    """Hand a request that was made elsewhere to the run in `run_folder`, in place of anything asked before.

    Raises:
        ControlRefused: the run would refuse it: the request is malformed or too large, or the folder belongs to
            another user or can be written by others.
        OSError: the file cannot be written.
    """
    data = encode_request(request)
    if len(data) > MAX_BYTES:
        raise ControlRefused(f"the request has {len(data)} bytes, more than {MAX_BYTES}", request.id)
    decode_request(data)
    require_own_folder(run_folder)
    # Durable, because a crash may leave the new name on an empty file otherwise.
    replace_file(run_folder / CONTROL, data, mode=0o600, durable=True)


def require_own_folder(run_folder: Path) -> None:
    """Check that the run in `run_folder` would accept a control file from this user.

    Raises:
        ControlRefused: it would not.
        OSError: the file system did not answer.
    """
    status = os.lstat(run_folder)
    if not stat.S_ISDIR(status.st_mode):
        raise ControlRefused("the run folder is a link or no folder")
    _require_ours(status, "the run folder")


def peek(run_folder: Path) -> Signature | None:
    """Return a value that changes with the control file, from one `lstat`; None if there is no file.

    Raises:
        OSError: the file system did not answer.
    """
    try:
        status = os.lstat(run_folder / CONTROL)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns


def read_request(run_folder: Path) -> ControlRequest | None:
    """Return the request in the control file of `run_folder`; None if there is no file.

    Reads at most 64 KiB, never waits for a FIFO, follows no link, and runs nothing.

    Raises:
        ControlRefused: the folder or file is writable by other users, or the file is not a valid request.
        OSError: the file system did not answer.
    """
    try:
        data, changed = _read_trusted(run_folder)
    except FileNotFoundError:
        return None
    except UnsafeFile as error:
        raise ControlRefused(str(error)) from error
    except PermissionError as error:
        raise ControlRefused(f"{CONTROL} cannot be opened: {error.strerror}") from error
    return _request(_parse(data), file_time=changed.st_mtime + _FILE_CLOCK_LAG_S, file=changed)


def encode_request(request: ControlRequest) -> bytes:
    """Return `request` as the content of a control file."""
    known = {name: getattr(request, name) for name in ("id", "timestamp", "expires", "run_id")}
    return json.dumps({**_without_none(known), **_wishes(request)}, allow_nan=False).encode()


def encode_body(request: ControlRequest) -> bytes:
    """Return what `request` asks for, without its id and times."""
    return json.dumps(_wishes(request), allow_nan=False).encode()


def request_with_body(
    body: bytes, *, request_id: str, timestamp: float, expires: float, run_id: str
) -> ControlRequest:
    """Return the request that asks for `body`, as `encode_body` returned it.

    Raises:
        ControlRefused: it is too large, or not a request.
    """
    if len(body) > MAX_BYTES:
        raise ControlRefused(f"the request has {len(body)} bytes, more than {MAX_BYTES}")
    content = _parse(body)
    unknown = sorted(content.keys() - _BODY_FIELDS)
    if unknown:
        raise ControlRefused(f"{_shown(unknown[0])} is not a field of a request")
    known = {"id": request_id, "timestamp": timestamp, "expires": expires, "run_id": run_id}
    return _request({**content, **known}, file_time=None)


def _wishes(request: ControlRequest) -> dict[str, Any]:
    wishes = {
        "log_every": request.log_every,
        "actions": list(request.actions) or None,
        "knobs": dict(request.knobs) or None,
    }
    return _without_none(wishes)


def _without_none(content: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if value is not None}


def decode_request(data: bytes) -> ControlRequest:
    """Return the request that `data`, the content of a control file with a timestamp, holds.

    Raises:
        ControlRefused: it is not a request.
    """
    return _request(_parse(data), file_time=None)


def as_id(text: str) -> str:
    """Return `text` in the letters that the id of a request may have."""
    return _NOT_IN_AN_ID.sub("_", text)[:_MAX_ID]


def is_name(text: str) -> bool:
    """Return whether `text` is a valid name of an action or knob."""
    return _NAME.match(text) is not None


# ---------------------------------------------------------------- the file


def _read_trusted(run_folder: Path) -> tuple[bytes, os.stat_result]:
    """Return the bytes of the control file and which file it is, having checked that they can only be ours."""
    require_own_folder(run_folder)
    with os.fdopen(open_regular(run_folder / CONTROL, only_name=True), "rb") as file:
        status = os.fstat(file.fileno())
        _require_ours(status, CONTROL)
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ControlRefused(f"{CONTROL} has {max(status.st_size, len(data))} bytes, more than {MAX_BYTES}")
    return data, status


def _require_ours(status: os.stat_result, what: str) -> None:
    why = why_not_ours_alone(status)
    if why is not None:
        raise ControlRefused(f"{what} {why}")


# ---------------------------------------------------------------- the content


def _parse(data: bytes) -> dict[str, Any]:
    try:
        # Some editors put a byte-order mark before UTF-8.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ControlRefused(f"{CONTROL} is not UTF-8 text") from error
    try:
        content = json.loads(
            text, parse_constant=_finite, parse_float=_finite, object_pairs_hook=_without_repeats
        )
    except RecursionError as error:
        raise ControlRefused(f"{CONTROL} is nested too deeply") from error
    except ControlRefused:
        raise
    except ValueError as error:  # malformed, or an integer of thousands of digits
        raise ControlRefused(f"{CONTROL} is not JSON: {str(error)[:100]}") from error
    if not isinstance(content, dict):
        raise ControlRefused(f"{CONTROL} must hold one object, not a {type(content).__name__}")
    return content


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ControlRefused(f"{CONTROL} holds {text[:20]}, which is not a finite number")
    return number


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ControlRefused(f"{CONTROL} gives a key twice")
    return content


def _request(
    content: dict[str, Any], *, file_time: float | None, file: os.stat_result | None = None
) -> ControlRequest:
    """Check every field of `content`; `file_time` replaces a missing timestamp.

    In the plain form the timestamp may be copied from anywhere: together with `file` it distinguishes one request
    from the next.
    """
    request_id = _id(content.get("id"))
    is_plain = file is not None and _PLAIN_FIELDS.issuperset(content)
    try:
        timestamp = _number(content, "timestamp")
        if timestamp is None or is_plain:
            timestamp = file_time
        if timestamp is None:
            raise ControlRefused("timestamp is missing")
        steps = _number(content, "log_every", "a whole number of steps", is_whole=True)
        log_every = None if steps is None else int(steps)
        actions = _actions(content.get("actions"))
        knobs = _knobs(content)
        if log_every is None and not actions and not knobs:
            raise ControlRefused("it asks for nothing")
        return ControlRequest(
            id=request_id
            or _derived_id(_file_id(file) if is_plain else timestamp, log_every, actions, knobs),
            timestamp=timestamp,
            expires=_number(content, "expires"),
            run_id=None if content.get("run_id") is None else _text(content["run_id"], "run_id"),
            log_every=log_every,
            actions=actions,
            knobs=knobs,
            is_plain=is_plain,
        )
    except ControlRefused as refusal:
        raise ControlRefused(refusal.reason, request_id) from refusal


def _id(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not _ID.match(value):
        raise ControlRefused(f"id must be 1 to 128 letters, digits and . _ : + @ -, got {_shown(value)}")
    return value


def _derived_id(
    of: float | str, log_every: int | None, actions: tuple[str, ...], knobs: Mapping[str, KnobValue]
) -> str:
    # A value edited by hand is a new request, even with the old timestamp.
    asked = json.dumps([log_every, actions, sorted(knobs.items())])
    return f"plain-{of}-{zlib.crc32(asked.encode()):08x}"


def _file_id(file: os.stat_result | None) -> str:
    # Not its time of change, which a chmod moves on as well.
    return "" if file is None else f"{file.st_mtime_ns}-{file.st_ino}"


def _number(
    content: Mapping[str, Any], key: str, allowed: str = "seconds since 1970", *, is_whole: bool = False
) -> float | None:
    value = content.get(key)
    if value is None:
        return None
    if not is_number(value) or not abs(value) <= LARGEST_WHOLE or (is_whole and value != int(value)):
        raise ControlRefused(f"{key} must be {allowed}, got {_shown(value)}")
    return float(value)


def _actions(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_ACTIONS:
        raise ControlRefused(f"actions must be a list of at most {MAX_ACTIONS} names, got {_shown(value)}")
    for name in value:
        if not isinstance(name, str) or not is_name(name):
            raise ControlRefused(f"{_shown(name)} is not the name of an action")
    return tuple(dict.fromkeys(value))


def _knobs(content: Mapping[str, Any]) -> dict[str, KnobValue]:
    """Return the knobs, which may be under `knobs` or next to the other fields."""
    nested = content.get("knobs", {})
    if not isinstance(nested, dict):
        raise ControlRefused(f"knobs must be an object of names and values, got {_shown(nested)}")
    top_level = {key: value for key, value in content.items() if key not in FIELDS}
    both = sorted(nested.keys() & top_level.keys())
    if both:
        raise ControlRefused(f"{_shown(both[0])} is given twice")
    knobs = {**nested, **top_level}
    if len(knobs) > MAX_KNOBS:
        raise ControlRefused(f"it sets {len(knobs)} knobs, more than {MAX_KNOBS}")
    return {_knob_name(name): _knob_value(name, value) for name, value in knobs.items()}


def _knob_name(name: object) -> str:
    if not isinstance(name, str) or not is_name(name) or name in FIELDS:
        raise ControlRefused(f"{_shown(name)} is not the name of a knob")
    return name


def _knob_value(name: str, value: object) -> KnobValue:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, name)
    if isinstance(value, int) and abs(value) <= LARGEST_WHOLE:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ControlRefused(f"{name} must be a text, a finite number, true or false, got {_shown(value)}")


def _text(value: object, key: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise ControlRefused(f"{key} must be a text of at most {MAX_TEXT} characters, got {_shown(value)}")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ControlRefused(f"{key} holds half a character")
    return value


def _shown(value: object) -> str:
    """Return `value` in a form that is short and safe to put into a reason."""
    if isinstance(value, (list, dict)):  # however deep it goes
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 64:
        return "a huge integer"
    return ascii(value)[:60]
