"""Anonymous usage events: one table of everything that may be sent, and what makes events of a run's records."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.privacy.public_names import DEVICE, is_public_model
from toolkit.telemetry.privacy.redaction import Redactor
from toolkit.telemetry.privacy.shareable import PUBLIC_PACKAGES, VERSION, is_known
from toolkit.telemetry.runfolder.records import END, EPOCH, ERROR, START, STEP, Record
from toolkit.telemetry.runfolder.untrusted import finite_in, mapping_in

Check = Callable[[Any], Any]
"""Returns what is sent of a value, or None to send nothing."""

OTHER: Final = "other"
"""Replaces a word, version or device that is not publicly known."""
_SCRIPT: Final = "(script)"
"""Replaces an exception or a frame of private code."""
_MODULES: Final = frozenset(name.replace("-", "_") for name in PUBLIC_PACKAGES)
_PLATFORM = re.compile(r"(?:Linux|macOS|Windows|FreeBSD)-[0-9]{1,5}(?:\.[0-9]{1,5})?")
_STANDARD_LIBRARY = re.compile(r".{0,200}/(?:lib/python3\.[0-9]{1,2}t?|Lib)/", re.ASCII)
_FRAME = re.compile(r"((?:\w{1,80}/){0,20}\w{1,80})\.py(:[0-9]{1,7} in [\w<>]{1,80})", re.ASCII)
_LEFT_OUT = re.compile(r"… [0-9]{1,7} frames …")


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= 10**15 else None


def _real(value: Any) -> float | None:
    number = finite_in(value)
    return None if number is None or abs(number) > 1e15 else float(f"{number:.6g}")


def _two_digits(value: Any) -> int | None:
    number = _real(value)
    return None if number is None else int(float(f"{number:.2g}"))


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(is_public: Callable[[str], object], instead: str | None = OTHER) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, str) or not value:
            return None
        return value if is_public(value) else instead

    return check


def _each(check: Check, most: int) -> Check:
    def check_all(value: Any) -> list[Any] | None:
        checked = map(check, value[:most]) if isinstance(value, list) else ()
        return [item for item in checked if item is not None] or None

    return check_all


def _mapping(checks: Mapping[str, Check]) -> Check:
    return lambda value: _allowed(checks, mapping_in(value)) or None


def _os(value: Any) -> str | None:
    # Without the kernel's own name.
    match = _PLATFORM.match(value) if isinstance(value, str) else None
    return match[0] if match else None


def _exception(value: Any) -> str | None:
    """Return `module:name` of an exception of Python or a public package as in `torch.OutOfMemoryError`."""
    module, _, name = str(value).partition(":")
    package = module.partition(".")[0]
    if package == "builtins":
        return name if hasattr(builtins, name) else _SCRIPT
    is_public = package in _MODULES or package in sys.stdlib_module_names
    # Letters alone: a random token is a possible name of a class, but has digits.
    return f"{package}.{name}" if is_public and name.isascii() and name.isalpha() else _SCRIPT


def _frame(value: Any) -> str:
    """Return module, line and function of a frame of Python or a public package."""
    text = value[:500].replace("\\", "/") if isinstance(value, str) else ""
    standard = _STANDARD_LIBRARY.match(text)
    match = _FRAME.fullmatch(text, standard.end() if standard else 0)
    if match is None:
        return text if _LEFT_OUT.fullmatch(text) else _SCRIPT
    package = match[1].partition("/")[0]
    # A package in the folder where the script runs is private, whatever its name.
    is_public = package in sys.stdlib_module_names if standard else package in _MODULES
    if not is_public or (standard is None and Path(package).exists()):
        return _SCRIPT
    return match[1].replace("/", ".") + match[2]


_word: Final = _text(is_known)
_version: Final = _text(VERSION.fullmatch)
_model: Final = _text(is_public_model, None)

_MOST_ERRORS: Final = 10
RUN_START: Final = "run-start"
RUN_PROGRESS: Final = "run-progress"
RUN_END: Final = "run-end"

_FIGURES: Final[Mapping[str, Check]] = {
    "global_step": _whole,
    **dict.fromkeys(("epoch", "train_loss", "lr", "grad_norm", "samples_per_sec", "sec_per_step"), _real),
    **dict.fromkeys(("peak_cpu_memory_mb", "peak_gpu_memory_gb"), _real),
}
EVENTS: Final[Mapping[str, Mapping[str, Check]]] = {
    RUN_START: {
        "os": _os,
        "python": _version,
        "packages": _mapping(dict.fromkeys(sorted(PUBLIC_PACKAGES), _version)),
        "cpu": _mapping({"logical": _whole}),
        "memory_gb": _two_digits,
        "accelerators": _each(
            _mapping({"kind": _word, "name": _text(DEVICE.fullmatch), "memory_gb": _two_digits}), most=64
        ),
        **dict.fromkeys(("session", "world_size", "resumed_from_step"), _whole),
        **dict.fromkeys(("model_name_or_path", "model_name"), _model),
        **dict.fromkeys(("model_total_params", "model_trainable_params"), _two_digits),
        **dict.fromkeys(("model_quantize", "quantize", "low_vram", "gradient_checkpointing"), _flag),
        **dict.fromkeys(("framework", "trainer", "architecture", "model_architecture", "optimizer"), _word),
        **dict.fromkeys(("scheduler", "dtype", "model_dtype", "lora_type"), _word),
        **dict.fromkeys(("lora_rank", "lora_conv_rank", "batch_size", "effective_batch_size"), _whole),
        **dict.fromkeys(("gradient_accumulation_steps", "max_steps", "warmup_steps"), _whole),
        **dict.fromkeys(("lora_alpha", "lora_conv_alpha", "lora_dropout", "learning_rate"), _real),
        **dict.fromkeys(("max_grad_norm", "max_epochs", "epochs"), _real),
    },
    RUN_PROGRESS: {**_FIGURES, "elapsed": _real},
    RUN_END: {
        "status": _word,
        "seconds": _real,
        **_FIGURES,
        **dict.fromkeys(("records_lost", "telemetry_errors", "errors_total"), _whole),
        "errors": _each(_mapping({"type": _exception, "stack": _each(_frame, most=31)}), _MOST_ERRORS),
    },
}
"""Each event with its properties, which have the names of the records' fields, and the check of each value.

What is not listed is never sent.
"""
OF_THE_SERVICE: Final[Mapping[str, Any]] = {
    "$process_person_profile": False,
    "$geoip_disable": True,
    # PostHog stores the sender's address if an event has none, and treats null as none.
    "$ip": "0.0.0.0",  # noqa: S104 - nothing listens here
}
"""Has PostHog create no profile, look up no location and store no address."""
ANY_ID: Final = "<random, new at each start of a run>"

_ENVIRONMENT: Final = "environment"
"""The record that describes the machine, if the start record could not wait for it."""
_PROGRESS_S: Final = 60.0
_LONGER_BY: Final = 0.1
"""Progress is reported less often the longer a run takes: about a hundred times in a month."""
_PEAKS: Final = {
    "peak_cpu_memory_mb": re.compile("cpu_mem_(?:rss|peak)_mb"),
    "peak_gpu_memory_gb": re.compile("gpu_mem_(?:allocated|peak)|gpu/[0-9]{1,5}/mem_(?:allocated|peak)_gb"),
}
_LATEST_TIME: Final = 1e11


def _allowed(checks: Mapping[str, Check], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what may be sent of `found`."""
    sent = {name: check(found[name]) for name, check in checks.items() if name in found}
    return {name: value for name, value in sent.items() if value is not None}


def events_of(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """Yield the events of a run, which may have several sessions, as they are sent but for their random ids."""
    sessions: dict[int, UsageEvents] = {}
    for record in records:
        session = record.get("session")
        if isinstance(session, int):
            if session not in sessions:
                sessions[session] = UsageEvents(session)
            yield from sessions[session].take(record)


class UsageEvents:
    """Turns the records of one session into usage events: the same records always give the same events."""

    def __init__(self, session: int, *, environ: Mapping[str, str] | None = None) -> None:
        self._session = session
        self._redactor = Redactor(environ=environ)
        self._start: dict[str, Any] = {}
        self._figures: dict[str, Any] = {}
        self._errors: list[dict[str, Any]] = []
        self._last_seq = -1
        self._next_progress: float | None = None
        """None before the run-start event."""

    def take(self, record: Record) -> Iterator[dict[str, Any]]:
        """Yield the events that `record`, the next of the session, leads to; each record counts once."""
        seq, event = record.get("seq"), record.get("event")
        if record.get("session") != self._session or not isinstance(seq, int) or seq <= self._last_seq:
            return
        self._last_seq = seq
        self._keep(event, record)
        elapsed = finite_in(record.get("elapsed")) or 0.0
        is_complete = "python" in self._start and "global_step" in self._figures
        if self._next_progress is None and (event == END or is_complete):
            self._next_progress = elapsed + _PROGRESS_S
            yield self._event(RUN_START, record, self._start)
        if event == END:
            yield self._event(RUN_END, record, {**self._figures, **record, "errors": self._errors})
        elif event == STEP and self._next_progress is not None and elapsed >= self._next_progress:
            self._next_progress = elapsed + max(_PROGRESS_S, _LONGER_BY * elapsed)
            yield self._event(RUN_PROGRESS, record, {**self._figures, "elapsed": elapsed})

    def _keep(self, event: Any, record: Record) -> None:
        if event in (START, _ENVIRONMENT):
            self._start.update((name, record[name]) for name in EVENTS[RUN_START] if name in record)
        elif event == STEP:
            # Not of an evaluation, whose figures are not the training's.
            self._figures.update((name, record[name]) for name in _FIGURES if name in record)
        elif event == EPOCH:
            self._figures["epoch"] = record.get("epoch")
        elif event == ERROR and record.get("source") != "telemetry" and len(self._errors) < _MOST_ERRORS:
            # Never its message, which may contain anything.
            kind = f"{record.get('module') or 'builtins'}:{record.get('type') or ''}"
            self._errors.append({"type": kind, "stack": record.get("stack")})
        for peak, pattern in _PEAKS.items():
            found = [finite_in(value) for name, value in record.items() if pattern.fullmatch(name)]
            self._figures[peak] = max(filter(None, [self._figures.get(peak), *found]), default=None)

    def _event(self, name: str, record: Record, found: Mapping[str, Any]) -> dict[str, Any]:
        properties = {**_allowed(EVENTS[name], found), **OF_THE_SERVICE}
        seconds = min(max(finite_in(record.get("time")) or 0.0, 0.0), _LATEST_TIME)
        return {
            "event": name,
            "timestamp": datetime.fromtimestamp(seconds, timezone.utc).isoformat(),
            "distinct_id": ANY_ID,
            # What only looks like a public name may still be a secret.
            "properties": self._redactor.redact(properties),
        }
