"""How one run is logged: the `telemetry:` block, checked once, at the door."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any


class OptionsError(ValueError):
    """The caller's configuration is wrong: the message names the key, its value and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryOptions:
    """How one run is logged."""

    enabled: bool = True
    log_dir: str = "./logs"
    log_every: int = 10
    """Steps from one step record to the next; those between are folded into it."""
    csv: bool = True
    tensorboard: bool = False
    wandb: bool = False
    control: bool = True
    """Whether the run obeys its control.json."""
    system: bool = True
    """Whether the machine is sampled: processor, memory, GPU."""
    system_every: float = 5.0
    """Seconds from one system record to the next."""
    resume: bool = False
    """Whether to go on in the folder of the newest run of this name, as a new session."""
    run_id: str | None = None
    """Go on in the folder of the run with this id, where there is one."""
    project: str | None = None
    tags: tuple[str, ...] = ()
    share: bool = False
    """Whether other users of the machine may read the folder."""
    ranks: str = "zero"
    """Which processes of a distributed run write records: "zero", or "all" for one file a rank."""
    tensorboard_dir: str | None = None
    """Where event files go, if not into the run folder."""
    wandb_project: str | None = None
    wandb_run_name: str | None = None
    wandb_mode: str | None = None
    flush_interval: float = 0.1
    """Seconds until a record that was logged is handed to the kernel; a kill loses none of them in between."""
    sync_interval: float = 5.0
    """Seconds until what the kernel has is forced to the disk, lest the power fails; 0 leaves it to the kernel."""
    queue_max_mb: float = 32.0
    """Memory for records while the disk takes none; beyond it the newest metrics are dropped and counted."""
    close_timeout: float = 5.0
    """Seconds that close() waits for a disk or a mirror that does not answer."""

    def __post_init__(self) -> None:
        for option in fields(self):
            _CHECKS[option.name](option.name, getattr(self, option.name))

    @classmethod
    def from_mapping(cls, block: Mapping[str, Any], **overrides: Any) -> TelemetryOptions:
        """Return the options that a `telemetry:` block states.

        Raises:
            OptionsError: a key or value is wrong; the message names it and what is allowed.
        """
        known = {option.name for option in fields(cls)}
        for key in block:
            if key not in known:
                close = difflib.get_close_matches(str(key), known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise OptionsError(
                    f"telemetry.{key} is not an option{hint} Known: {', '.join(sorted(known))}"
                )
        given = {**block, **overrides}
        if "tags" in given and isinstance(given["tags"], list):
            given["tags"] = tuple(given["tags"])
        if "log_dir" in given and isinstance(given["log_dir"], os.PathLike):
            given["log_dir"] = os.fspath(given["log_dir"])
        return cls(**given)

    def changed(self, **changes: Any) -> TelemetryOptions:
        """Return the options with some of them changed, checked like the rest."""
        return replace(self, **changes)


def find_block(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the `telemetry:` block of a training YAML: a process's, else the config's, else the top level's."""
    inner = config.get("config")
    inner = inner if isinstance(inner, Mapping) else {}
    places: list[tuple[str, Any]] = []
    processes = inner.get("process")
    if isinstance(processes, Mapping):
        processes = [processes]
    if isinstance(processes, Sequence) and not isinstance(processes, str):
        places += [(f"config.process[{i}]", process) for i, process in enumerate(processes)]
    places += [("config", inner), ("the top level", config)]
    for where, place in places:
        if isinstance(place, Mapping) and "telemetry" in place:
            block = place["telemetry"]
            if block is None:
                return {}
            if isinstance(block, bool):
                return {"enabled": block}
            if not isinstance(block, Mapping):
                raise OptionsError(
                    f"telemetry at {where} is {block!r}; it must be a mapping such as {{enabled: true}}"
                )
            return block
    return None


def options_from_config(config: Mapping[str, Any], **overrides: Any) -> TelemetryOptions:
    """Return the options of a whole training YAML; one without a `telemetry:` block is not logged.

    ai-toolkit's own keys keep their meaning: a process's `log_dir` asks for TensorBoard files there, and `logging`
    says whether to use W&B, under which project and name, and how often to log where the block does not say.

    Raises:
        OptionsError: a key or value is wrong.
    """
    if not isinstance(config, Mapping):
        raise OptionsError(f"the training config is a {type(config).__name__}; it must be a mapping")
    block = find_block(config)
    if block is None and "enabled" not in overrides:
        return TelemetryOptions.from_mapping({}, enabled=False, **overrides)
    inherited: dict[str, Any] = {}
    process = first_process(config)
    logging = process.get("logging")
    if isinstance(process.get("log_dir"), str):
        inherited["tensorboard"] = True
        inherited["tensorboard_dir"] = process["log_dir"]
    if isinstance(logging, Mapping):
        if logging.get("use_wandb") is True:
            inherited["wandb"] = True
        for theirs, ours in (
            ("project_name", "wandb_project"),
            ("run_name", "wandb_run_name"),
            ("log_every", "log_every"),
        ):
            if logging.get(theirs) is not None:
                inherited[ours] = logging[theirs]
    block = block or {}
    # `tensorboard: false` in the block is its default, not a wish to silence a log_dir that the YAML asks for.
    stated = {
        key: value for key, value in block.items() if not (value is False and inherited.get(key) is True)
    }
    return TelemetryOptions.from_mapping({**inherited, **stated}, **overrides)


def first_process(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first process of a training YAML, or an empty mapping."""
    inner = config.get("config")
    processes = inner.get("process") if isinstance(inner, Mapping) else None
    if isinstance(processes, Sequence) and not isinstance(processes, str) and processes:
        processes = processes[0]
    return processes if isinstance(processes, Mapping) else {}


def run_name_from_config(config: Mapping[str, Any]) -> str | None:
    """Return the job's name, as the YAML gives it."""
    for place in (config.get("config"), config):
        if isinstance(place, Mapping) and isinstance(place.get("name"), (str, int)) and str(place["name"]):
            return str(place["name"])
    return None


def _wrong(name: str, value: Any, allowed: str) -> OptionsError:
    return OptionsError(f"telemetry.{name} is {value!r}; it must be {allowed}")


def _boolean(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value or "\0" in value:
        raise _wrong(name, value, "a text that is not empty")


def _text_or_none(name: str, value: Any) -> None:
    if value is not None:
        _text(name, value)


def _tags(name: str, value: Any) -> None:
    if not isinstance(value, tuple) or not all(isinstance(tag, str) for tag in value):
        raise _wrong(name, value, "a list of texts")


def _one_of(*allowed: str | None) -> Any:
    def check(name: str, value: Any) -> None:
        if value not in allowed:
            raise _wrong(
                name, value, "one of " + ", ".join(repr(item) for item in allowed if item is not None)
            )

    return check


def _whole(low: int, high: int) -> Any:
    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _wrong(name, value, f"a whole number from {low} to {high}")

    return check


def _number(low: float, high: float) -> Any:
    def check(name: str, value: Any) -> None:
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not good or not low <= value <= high:
            raise _wrong(name, value, f"a number from {low:g} to {high:g}")

    return check


_CHECKS: dict[str, Any] = {
    "enabled": _boolean,
    "log_dir": _text,
    "log_every": _whole(1, 1_000_000),
    "csv": _boolean,
    "tensorboard": _boolean,
    "wandb": _boolean,
    "control": _boolean,
    "system": _boolean,
    "system_every": _number(1.0, 3600.0),
    "resume": _boolean,
    "run_id": _text_or_none,
    "project": _text_or_none,
    "tags": _tags,
    "share": _boolean,
    "ranks": _one_of("zero", "all"),
    "tensorboard_dir": _text_or_none,
    "wandb_project": _text_or_none,
    "wandb_run_name": _text_or_none,
    "wandb_mode": _one_of(None, "online", "offline", "disabled"),
    "flush_interval": _number(0.01, 60.0),
    "sync_interval": _number(0.0, 3600.0),
    "queue_max_mb": _number(1.0, 4096.0),
    "close_timeout": _number(0.1, 600.0),
}
