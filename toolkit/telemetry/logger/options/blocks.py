"""The blocks inside the `telemetry:` block: spans, errors, completions, profiling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from toolkit.telemetry.core.checks import boolean, number, texts, whole
from toolkit.telemetry.core.fields import Block, option


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanOptions(Block):
    """What is done with spans."""

    WORD: ClassVar[str] = "all"

    enabled: bool = option(True, "Record spans.", boolean)
    all: bool = option(False, "Write every span one by one; `spans: all` for short.", boolean)
    keep: tuple[str, ...] = option(
        (), "Names written one by one although they are short and frequent.", texts
    )
    fold: tuple[str, ...] = option((), "Names that are only added up.", texts)
    drop: tuple[str, ...] = option((), "Names that are not recorded at all.", texts)
    device: tuple[str, ...] = option((), "Names that are also timed by the GPU's clock.", texts)
    around: int = option(
        5,
        "Steps whose short spans are written one by one: at the start and end, around an incident, and on request.",
        whole(0, 1000),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorOptions(Block):
    """What an error record contains, and which errors are recorded."""

    enabled: bool = option(True, "Record errors.", boolean)
    signals: bool = option(
        True, "End the run when SIGTERM or SIGHUP ends the process, unless the script handles them.", boolean
    )
    exit_code: bool = option(
        True, "Count a script that calls `sys.exit` with a code other than 0 as failed.", boolean
    )
    output_lines: int = option(20, "Last lines of output in an error record; 0 keeps none.", whole(0, 1000))
    hang: bool = option(
        True, "Record the stacks of all threads when no step has come for far too long.", boolean
    )
    hang_after: float = option(
        60.0, "Shortest time without a step that counts as a hang, in seconds.", number(1.0, 86400.0)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOptions(Block):
    """How many completions are kept, and how often a trainer's are collected."""

    enabled: bool = option(True, "Keep completions.", boolean)
    interval: int = option(
        100,
        "Steps between two collections from a trainer; `buffer` counts per interval.",
        whole(1, 1_000_000),
    )
    buffer: int = option(
        128,
        "Completions written per `interval`; more are counted and only the newest kept.",
        whole(1, 100_000),
    )
    collect: bool = option(
        True, "Collect them from supported trainers without a call in the script.", boolean
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingOptions(Block):
    """Which calls of a profiled function are logged."""

    enabled: bool = option(True, "Time profiled functions.", boolean)
    min_duration_ms: float = option(
        0.1, "Calls shorter than this many milliseconds are not logged.", number(0.0, 3_600_000.0)
    )
    log_interval: int = option(1, "Log every n-th call of a name.", whole(1, 1_000_000))
