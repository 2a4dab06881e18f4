"""Turns the records of a session into usage events: the same records always give the same events.

Only step records count as steps: an evaluation's figures are not the training's. Unknown values are omitted.
"""

from __future__ import annotations

import builtins
import datetime
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.mirrors.usage.allowed import (
    MODULES,
    MOST_EPOCHS,
    MOST_ERRORS,
    MOST_FRAMES,
    RUN_END,
    RUN_PROGRESS,
    RUN_START,
    allowed,
)
from toolkit.telemetry.privacy.public_names import is_public_model
from toolkit.telemetry.privacy.redaction import Redactor
from toolkit.telemetry.runfolder.records import (
    END,
    EPOCH,
    ERROR,
    START,
    STEP,
    SYSTEM,
    Record,
    shows_count_from_zero,
    steps_done,
)
from toolkit.telemetry.runfolder.untrusted import finite_in

OF_THE_SERVICE: Final[Mapping[str, Any]] = {
    "$process_person_profile": False,
    "$geoip_disable": True,
    # PostHog stores the sender's address if an event has none, and treats null as none.
    "$ip": "0.0.0.0",  # noqa: S104 - nothing listens here
}
"""Has PostHog create no profile, look up no location and store no address."""

_ENVIRONMENT: Final = "environment"
"""The record that describes the machine, if the start record could not wait for it."""
_WAIT_S: Final = 30.0
"""How long a run-start event waits for all its properties."""
_FIRST_PROGRESS_S: Final = 60.0
_PROGRESS_S: Final = 300.0
_LONGER_BY: Final = 0.1
"""Progress is reported less often the longer a run takes: about a hundred times in a month."""
_GPU = re.compile(r"gpu/(?P<index>[0-9]{1,5})/mem_(?:allocated|peak)_gb")
_CPU_MB: Final = ("cpu_mem_rss_mb", "cpu_mem_peak_mb")
_GPU_GB: Final = ("gpu_mem_allocated", "gpu_mem_peak")


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageEvent:
    """An event as it is sent, except for the random id of its run."""

    name: str
    time: float
    """Seconds since the epoch."""
    properties: Mapping[str, Any]

    def shown(self, distinct_id: str = "<random, new at each start of a run>") -> dict[str, Any]:
        """Return everything that is sent."""
        return {
            "event": self.name,
            "timestamp": datetime.datetime.fromtimestamp(self.time, datetime.timezone.utc).isoformat(),
            "distinct_id": distinct_id,
            "properties": dict(self.properties),
        }


def events_of(records: Iterable[Record]) -> Iterator[UsageEvent]:
    """Yield the events of the records of a run, which may have several sessions."""
    readers: dict[int, UsageEventReader] = {}
    for record in records:
        session = record.get("session")
        if isinstance(session, int):
            yield from readers.setdefault(session, UsageEventReader(session)).take(record)


class UsageEventReader:
    """Turns the records of one session into usage events. Each value passes the allow-list, then the redactor."""

    def __init__(self, session: int, *, environ: Mapping[str, str] | None = None) -> None:
        self._session = session
        self._redactor = Redactor(environ=environ)
        self._start: Record = {}
        self._began: float | None = None
        self._has_started = False
        self._is_over = False
        self._next_progress = 0.0
        self._progress = _Progress(is_resumed=session > 1)
        self._errors: dict[Any, dict[str, Any]] = {}
        self._last_seq = -1

    def take(self, record: Record) -> list[UsageEvent]:
        """Return the events that `record`, the next of the session, leads to; each record counts once."""
        seq, time = record.get("seq"), record.get("time")
        if record.get("session") != self._session or not isinstance(seq, int) or seq <= self._last_seq:
            return []
        if not isinstance(time, (int, float)):
            return []
        self._last_seq = seq
        if self._is_over:
            return []
        event = record.get("event")
        if event in (START, _ENVIRONMENT):
            self._start = {**self._start, **record}
        if event == START and self._began is None:
            self._began = _elapsed(record)
        if event == ERROR:
            self._take_error(record)
        self._progress.take(record)
        return list(self._events_at(record))

    def _events_at(self, record: Record) -> Iterator[UsageEvent]:
        elapsed, is_end = _elapsed(record), record.get("event") == END
        if not self._has_started and (is_end or self._is_start_complete(elapsed)):
            self._has_started = True
            self._next_progress = elapsed + _FIRST_PROGRESS_S
            yield self._event(RUN_START, record, self._about_start())
        if is_end:
            self._is_over = True
            counted = ("status", "records_lost", "telemetry_errors", "errors_total")
            found = {**self._progress.totals(record), **{name: record.get(name) for name in counted}}
            yield self._event(RUN_END, record, {**found, "errors": self._errors_with_counts(record)})
        elif self._has_started and record.get("event") == STEP and elapsed >= self._next_progress:
            self._next_progress = elapsed + max(_PROGRESS_S, _LONGER_BY * elapsed)
            yield self._event(RUN_PROGRESS, record, self._progress.since_last_report())

    def _is_start_complete(self, elapsed: float) -> bool:
        """Return whether a run-start event has all its properties, or has waited long enough for them."""
        if self._began is None:
            return False
        return (self._progress.has_stepped and "python" in self._start) or elapsed - self._began >= _WAIT_S

    def _about_start(self) -> dict[str, Any]:
        start = self._start
        names = [start.get(field) for field in ("model_name_or_path", "model_name")]
        by_axolotl = "axolotl" if "axolotl_version" in start and start.get("framework") is None else None
        return {
            **start,
            **about_machine(start),
            "trainer": by_axolotl if start.get("trainer") is None else start["trainer"],
            "model": next((name for name in names if isinstance(name, str) and is_public_model(name)), None),
            "is_resumed": self._session > 1 or bool(start.get("resumed_from_step")),
        }

    def _take_error(self, record: Record) -> None:
        """Count an error; telemetry's own failures are counted elsewhere, and messages may contain anything."""
        if record.get("source") == "telemetry":
            return
        key = record.get("fingerprint") if isinstance(record.get("fingerprint"), str) else len(self._errors)
        if key in self._errors or len(self._errors) < MOST_ERRORS:
            count = record.get("count")
            self._errors[key] = {
                "type": public_type(record.get("type"), record.get("module")),
                "count": count if isinstance(count, int) else 1,
                "stack": public_stack(record.get("stack")),
            }

    def _errors_with_counts(self, end: Record) -> list[dict[str, Any]]:
        counted = end.get("errors")
        for kind in counted if isinstance(counted, list) else ():
            if isinstance(kind, dict) and kind.get("fingerprint") in self._errors:
                self._errors[kind["fingerprint"]]["count"] = kind.get("count")
        return list(self._errors.values())

    def _event(self, name: str, record: Record, found: Mapping[str, Any]) -> UsageEvent:
        properties = self._redactor.redact({**allowed(name, found), **OF_THE_SERVICE})
        return UsageEvent(name=name, time=record["time"], properties=properties)


def _elapsed(record: Record) -> float:
    return finite_in(record.get("elapsed")) or 0.0


# ------------------------------------------------------------ the machine

# Linux-6.1.0-17-amd64-x86_64-with-glibc2.36, macOS-14.4-arm64-arm-64bit, Windows-10-10.0.19045-SP0
_PLATFORM = re.compile(r"(?P<os>[A-Za-z]+)-(?P<version>[0-9]{1,5}(?:\.[0-9]{1,5})?)")
_MACHINE = re.compile(
    r"(?<![A-Za-z0-9_])(?:x86_64|amd64|AMD64|aarch64|arm64|ppc64le|riscv64|s390x)(?![A-Za-z0-9_])"
)


def about_machine(start: Record) -> dict[str, Any]:
    """Return the machine's properties from the start record, rounded, without the kernel's own name."""
    platform, cpu, found = start.get("os"), start.get("cpu"), start.get("accelerators")
    system = _PLATFORM.match(platform) if isinstance(platform, str) else None
    # The processor comes last: the name of a Debian kernel contains one as well.
    machines = _MACHINE.findall(platform) if system is not None and isinstance(platform, str) else []
    devices = [device for device in found if isinstance(device, Mapping)] if isinstance(found, list) else []
    return {
        "os": system and system["os"],
        "os_version": system and system["version"],
        "machine": machines[-1] if machines else None,
        "cpu_count": cpu.get("logical") if isinstance(cpu, Mapping) else None,
        "memory_gb": _rounded(start.get("memory_gb")),
        "accelerator_type": devices[0].get("kind") if devices else None,
        # Without any there may be one that is visible only once torch uses it.
        "accelerator_count": len(devices) or None,
        "accelerator_models": [device.get("name") for device in devices],
        "accelerator_memory_gb": [_rounded(device.get("memory_gb")) for device in devices],
    }


def _rounded(value: Any) -> int | None:
    number = finite_in(value)
    return None if number is None else round(number)


# ------------------------------------------------------------ speed, progress and memory


class _Progress:
    """Steps, epochs, speed and peak memory of one session."""

    def __init__(self, *, is_resumed: bool) -> None:
        self._is_resumed = is_resumed
        self._elapsed = 0.0
        self._steps = 0
        self._last_step: int | None = None
        self.has_stepped = False
        self._latest: Record = {}
        self._max_steps: float | None = None
        self._from_zero = False
        self._reported = (0.0, 0)
        """Seconds and steps at the last report."""
        self._epoch_began: float | None = None
        self._last_epoch: Any = None
        self._epochs = 0
        self._epoch_seconds: dict[str, float] = {}
        self._epoch_total, self._epochs_timed = 0.0, 0
        self._peaks: dict[str, float] = {}
        """In bytes, by the name of the property."""

    def take(self, record: Record) -> None:
        """Process the next record of the session."""
        self._elapsed = max(self._elapsed, _elapsed(record))
        event = record.get("event")
        self._from_zero = self._from_zero or shows_count_from_zero(record)
        if event == START:
            self._max_steps = finite_in(record.get("max_steps")) or self._max_steps
            self._is_resumed = self._is_resumed or bool(finite_in(record.get("resumed_from_step")))
            if self._last_step is None and not self._is_resumed:
                self._epoch_began = self._elapsed
        elif event == STEP:
            self.has_stepped = True
            if _is_step(record.get("global_step")):
                folded: Any = record.get("steps_folded")
                self._count_up_to(record["global_step"], folded if _is_step(folded) else 0)
                self._latest = record
        elif event == EPOCH:
            self._take_epoch(record)
        if event in (STEP, SYSTEM, END):
            self._take_memory(record)

    def since_last_report(self) -> dict[str, Any]:
        """Return the current figures, with the speed since the last report."""
        before, steps_before = self._reported
        self._reported = self._elapsed, self._steps
        return {
            **self._last_figures(),
            "steps_per_second": _rate(self._steps - steps_before, self._elapsed - before),
            "elapsed_seconds": self._elapsed,
            "seconds_since_last_report": self._elapsed - before,
        }

    def totals(self, end: Record) -> dict[str, Any]:
        """Return the totals of the session."""
        seconds = finite_in(end.get("seconds"))
        seconds = self._elapsed if seconds is None else seconds
        if _is_step(end.get("global_step")):
            # The last steps may have no record of their own.
            self._count_up_to(max(self._last_step or 0, end["global_step"]))
        return {
            **self._last_figures(),
            "total_time_seconds": seconds,
            "total_steps": self._steps or None,
            "steps_per_second": _rate(self._steps, seconds),
            "epochs_completed": self._epochs or None,
            "epoch_times": self._epoch_seconds,
            "average_epoch_time_seconds": self._epoch_total / self._epochs_timed
            if self._epochs_timed
            else None,
            "gpu_memory": self._peaks,
        }

    def _last_figures(self) -> dict[str, Any]:
        step, done = self._last_step, None
        if step is not None and self._max_steps:
            done = min(1.0, steps_done(step, from_zero=self._from_zero) / self._max_steps)
        return {**self._latest, "step": step, "progress": done, **self._peaks}

    def _count_up_to(self, step: int, folded: int = 0) -> None:
        # Steps without a loss are merged into others without being counted, so the step numbers are more reliable.
        if self._last_step is None or step < self._last_step:
            self._steps += 1 + folded
        else:
            self._steps += step - self._last_step
        self._last_step = step

    def _take_epoch(self, record: Record) -> None:
        epoch = record.get("epoch")
        if epoch == self._last_epoch:
            # Its metrics may come in several records.
            return
        self._last_epoch = epoch
        self._epochs += 1
        seconds = finite_in(record.get("seconds"))
        if seconds is None and self._epoch_began is not None:
            seconds = self._elapsed - self._epoch_began
        self._epoch_began = self._elapsed
        if seconds is None:
            # The rest of an epoch that an earlier session began does not show how long an epoch takes.
            return
        self._epoch_total += seconds
        self._epochs_timed += 1
        number = finite_in(epoch)
        if number is not None and number >= 0 and len(self._epoch_seconds) < MOST_EPOCHS:
            self._epoch_seconds[f"epoch_{int(number)}_seconds"] = seconds

    def _take_memory(self, record: Record) -> None:
        for name in _CPU_MB:
            self._raise_peak("peak_cpu_memory_bytes", record.get(name), 1024**2)
        for name in _GPU_GB:
            self._raise_peak("peak_gpu_memory_bytes", record.get(name), 1024**3)
        for name, value in record.items():
            if name.startswith("gpu/") and (match := _GPU.fullmatch(name)) is not None:
                self._raise_peak(f"gpu_{int(match['index'])}_peak_memory_bytes", value, 1024**3)
                self._raise_peak("peak_gpu_memory_bytes", value, 1024**3)

    def _raise_peak(self, name: str, value: Any, unit: int) -> None:
        number = finite_in(value)
        if number is not None and number >= 0:
            self._peaks[name] = max(self._peaks.get(name, 0), round(number * unit))


def _rate(steps: int, seconds: float) -> float | None:
    return steps / seconds if steps > 0 and seconds > 0 else None


def _is_step(value: Any) -> bool:
    return type(value) is int and value >= 0


# ------------------------------------------------------------ errors without their messages

_SCRIPT: Final = "(script)"
"""Replaces a frame of private code: neither its file nor its function is sent."""
_OWN_TYPE: Final = "an_exception_of_the_script"


def public_type(name: Any, module: Any) -> str:
    """Return the name of an exception of Python or of a public package; a placeholder for any other."""
    if not isinstance(name, str):
        return _OWN_TYPE
    if module in (None, "builtins"):
        kind = getattr(builtins, name, None)
        return name if isinstance(kind, type) and issubclass(kind, BaseException) else _OWN_TYPE
    if module == "signal":
        return name if name in signal.Signals.__members__ else _OWN_TYPE
    package = module.partition(".")[0] if isinstance(module, str) else ""
    is_public = package in MODULES or (package in sys.stdlib_module_names and package != "__main__")
    return f"{package}.{name}" if is_public and name.isidentifier() else _OWN_TYPE


def public_stack(stack: Any, folders: Iterable[Path] = (Path(),)) -> list[str] | None:
    """Return the frames of a stack: those in public packages with module, line and function, others as `(script)`.

    A package in one of `folders`, where the script runs, is private, whatever its name.
    """
    if not isinstance(stack, list):
        return None
    return [_public_frame(line, tuple(folders)) for line in stack[:MOST_FRAMES]]


_LINE = re.compile(r"(?P<path>[^\n]{1,1000}):(?P<line>[0-9]{1,7}) in (?P<function>[^\n]{1,200})")
_LEFT_OUT = re.compile(r"(… [0-9]{1,7} frames) …")
_STANDARD_LIBRARY = re.compile(r".*/(?:lib/python3\.[0-9]{1,2}t?|Lib)/(?!site-packages/|dist-packages/)")
_MODULE = re.compile(r"[A-Za-z0-9_]+(?:/[A-Za-z0-9_]+)*\.py")
_FUNCTION = re.compile(r"[A-Za-z0-9_<>]{1,80}")


def _public_frame(line: Any, folders: tuple[Path, ...]) -> str:
    text = line if isinstance(line, str) else ""
    left_out = _LEFT_OUT.fullmatch(text)
    if left_out is not None:
        return left_out[1]
    match = _LINE.fullmatch(text)
    if match is None:
        return _SCRIPT
    path = match["path"].replace("\\", "/")
    standard = _STANDARD_LIBRARY.match(path)
    inner = path[standard.end() :] if standard is not None else path
    public = sys.stdlib_module_names if standard is not None else MODULES
    package = inner.partition("/")[0].removesuffix(".py")
    if _MODULE.fullmatch(inner) is None or package not in public:
        return _SCRIPT
    if standard is None and any((folder / package).exists() for folder in folders):
        return _SCRIPT
    module = inner.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    function = match["function"]
    return f"{module}:{match['line']}" + (f" in {function}" if _FUNCTION.fullmatch(function) else "")
