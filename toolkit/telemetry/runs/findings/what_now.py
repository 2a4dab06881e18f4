"""What a run that failed, was lost or has stalled was doing, its last good checkpoint, and how to resume it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, Final

from toolkit.telemetry.diagnostics.ending import Ending
from toolkit.telemetry.diagnostics.finding import CRITICAL, Finding
from toolkit.telemetry.diagnostics.metric_aliases import LOSS, signal_of
from toolkit.telemetry.runfolder.records import CHECKPOINT, Record
from toolkit.telemetry.runfolder.status import FAILED, LOST, STALLED
from toolkit.telemetry.runs.findings.health import health
from toolkit.telemetry.runs.listing.run_start import config_value, start_of
from toolkit.telemetry.runs.store import RunStore

NEEDS_HELP: Final = frozenset({FAILED, LOST, STALLED})
"""Statuses for which there is something to do."""

_MAX_CHECKPOINTS: Final = 500
_MAX_COMMAND: Final = 2_000
_OWN_TRAINER: Final = "tiny_lora_trainer"
_AI_TOOLKIT: Final = "ai-toolkit"
_SPOILS: Final = frozenset({"nan", "divergence"})
"""Kinds after which the weights are not worth keeping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that the run recorded."""

    path: str
    step: int | None
    time: float | None
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """A command line, and what is known about it."""

    command: str
    resumes: bool
    """Whether it is known to continue from a checkpoint; else it is only what started the run."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatNow:
    """What is known about a run that needs help."""

    status: str
    why: str
    sure: bool
    step: int | None
    ending: Ending | None
    pid: int | None
    host: str
    spoiled_since: int | None
    """The step from which the loss was NaN or diverged, to the end."""
    checkpoint: Checkpoint | None
    """The newest one from before that."""
    newer: Checkpoint | None
    """The newest one of all, if it is from after that."""
    save_folder: str | None
    """Where the configuration says that checkpoints go."""
    resume: Resume | None


def what_now(store: RunStore, key: str) -> WhatNow | None:
    """Return what is known about a run that failed, was lost or has stalled; None for others."""
    card = store.card(key)
    if card.status.name not in NEEDS_HELP:
        return None
    meta = store.meta(key)
    start = start_of(store, key)
    found = health(store, key)
    spoiled = _spoiled_since(found.findings)
    saved = [
        checkpoint
        for record in store.events(key, (CHECKPOINT,), limit=_MAX_CHECKPOINTS)
        if (checkpoint := _checkpoint(record)) is not None
    ]
    good = [one for one in saved if spoiled is None or (one.step is not None and one.step < spoiled)]
    latest = meta.manifest.latest if meta.manifest is not None else None
    return WhatNow(
        status=card.status.name,
        why=card.status.why,
        sure=card.status.sure,
        step=card.step,
        ending=found.ending,
        pid=latest.pid if latest is not None else None,
        host=card.host,
        spoiled_since=spoiled,
        checkpoint=good[0] if good else None,
        newer=saved[0] if saved and saved[0] not in good else None,
        save_folder=_save_folder(start),
        resume=_resume(start),
    )


def _spoiled_since(findings: Iterable[Finding]) -> int | None:
    steps = [
        finding.start_step
        for finding in findings
        if finding.is_open
        and finding.severity == CRITICAL
        and finding.kind in _SPOILS
        and signal_of(finding.metric) == LOSS
        and finding.start_step is not None
    ]
    return min(steps, default=None)


def _checkpoint(record: Record) -> Checkpoint | None:
    path = record.get("checkpoint_path")
    step, time, size = (record.get(name) for name in ("global_step", "time", "bytes"))
    if not isinstance(path, str) or not path:
        return None
    return Checkpoint(
        path=path[:_MAX_COMMAND],
        step=step if type(step) is int else None,
        time=float(time) if isinstance(time, (int, float)) else None,
        bytes=size if type(size) is int else None,
    )


def _save_folder(start: Mapping[str, Any]) -> str | None:
    root = start.get("save_root")
    if isinstance(root, str) and root:
        return root[:_MAX_COMMAND]
    folder, name = config_value(start, "training_folder"), config_value(start, "name")
    if isinstance(folder, str) and folder:
        return f"{folder}/{name}"[:_MAX_COMMAND] if isinstance(name, str) else folder[:_MAX_COMMAND]
    other = config_value(start, "output_dir", "save_dir", "checkpoint_dir", "default_root_dir")
    return other[:_MAX_COMMAND] if isinstance(other, str) and other else None


def _resume(start: Mapping[str, Any]) -> Resume | None:
    line = start.get("command_line")
    if not isinstance(line, list) or not line or not all(isinstance(part, str) for part in line):
        return None
    command = shlex.join(line)
    if line[0].endswith(".py"):
        command = f"python {command}"
    notes = []
    if any("***" in part for part in line):
        notes.append("Secrets in it were replaced by *** when it was recorded.")
    if any(_is_relative(part) for part in line):
        notes.append("Run it in the folder in which the training was started; that folder is not recorded.")
    wanted = config_value(start, "resume")
    resumes = False
    if start.get("trainer") == _AI_TOOLKIT:
        resumes = True
        notes.insert(0, "ai-toolkit continues from the newest weights in its save folder.")
    elif config_value(start, "type") == _OWN_TRAINER:
        resumes = wanted != "never"
        notes.insert(
            0,
            "The trainer resumes from the latest checkpoint in its save folder."
            if wanted in (None, "auto")
            else f"Its configuration has train.resume: {str(wanted)[:200]}.",
        )
    return Resume(command=command[:_MAX_COMMAND], resumes=resumes, notes=tuple(notes))


def _is_relative(part: str) -> bool:
    looks_like_file = "/" in part or part.endswith((".py", ".yaml", ".yml", ".json", ".toml"))
    is_option = part.startswith("-")
    return (
        looks_like_file
        and not is_option
        and not PurePosixPath(part).is_absolute()
        and not PureWindowsPath(part).is_absolute()
        and "://" not in part
    )
