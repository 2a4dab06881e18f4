"""How one run is logged: the `telemetry:` block, checked once, at the door."""

from __future__ import annotations

import datetime
import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any


class OptionsError(ValueError):
    """The caller's configuration is wrong: the message names the key, its value and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanOptions:
    """What is done with spans."""

    enabled: bool = True
    all: bool = False
    """Whether every span is written one by one."""
    keep: tuple[str, ...] = ()
    """Names that are written one by one although they are short and frequent."""
    fold: tuple[str, ...] = ()
    """Names that are only added up."""
    drop: tuple[str, ...] = ()
    """Names that nothing is kept of."""
    device: tuple[str, ...] = ()
    """Names that are timed by the GPU's clock as well."""
    around: int = 5
    """Steps whose short spans are written one by one: at the start, at the end, around an incident, when asked."""


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
    diagnostics: bool | Mapping[str, Any] = True
    """Whether the run watches itself and writes what it finds wrong; or a severity a kind, such as {plateau: off}."""
    on_finding: Mapping[str, str] = field(default_factory=dict)
    """What a critical finding of a kind asks of the run: `save`, `stop` or `save_and_stop`, such as {nan: stop}."""
    spans: bool | str | Mapping[str, Any] = True
    """Whether spans are kept; "all" for one by one, or a mapping such as {keep: [forward], around: 5}."""
    perf_tag: str | tuple[str, ...] | None = None
    """Names jobs that should be equally fast: same task, code and machine."""
    session_tag: str | None = None
    """Names jobs that do one task together, such as a run and its continuation elsewhere; the run's id if not set."""
    export_spans: Mapping[str, Any] = field(default_factory=dict)
    """Which spans exporters get: {only: [...]} or {except: [...]}; patterns such as "checkpoint_*" will do."""
    one_logger_file: bool | str = False
    """Whether spans and events also go to a file of OneLogger's form, or to which one."""
    otlp: str | None = None
    """Where spans are sent by OTLP over HTTP, such as http://localhost:4318/v1/traces."""
    strict: bool = False
    """Whether a call that makes no sense raises, for tests; else it is said once and counted."""
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
        # What a script has at hand: a path is a text here, a YAML's list a tuple, and an empty key of a YAML is None.
        for name in (
            "log_dir",
            "tensorboard_dir",
            "one_logger_file",
            "tags",
            "perf_tag",
            "on_finding",
            "export_spans",
        ):
            given: Any = getattr(self, name)
            if name in ("on_finding", "export_spans"):
                object.__setattr__(self, name, {} if given is None else given)
            elif isinstance(given, os.PathLike):
                object.__setattr__(self, name, os.fspath(given))
            elif isinstance(given, list) and name in ("tags", "perf_tag"):
                object.__setattr__(self, name, tuple(given))
        for name in ("perf_tag", "session_tag"):
            given = getattr(self, name)
            if callable(given):
                # Known only once it is asked for, such as the job's number on a cluster.
                object.__setattr__(self, name, given())
        for option in fields(self):
            _CHECKS[option.name](f"telemetry.{option.name}", getattr(self, option.name))
        self._check_diagnostics()

    def _check_diagnostics(self) -> None:
        if isinstance(self.diagnostics, bool) and self.on_finding == {}:
            return
        # Imported only for whoever sets them: the rest do not pay for it.
        from toolkit.diagnostics.policy import PolicyError, policy_from

        try:
            policy_from(self.diagnostics, self.on_finding)
        except PolicyError as error:
            raise OptionsError(f"telemetry.{error}") from error
        for needed in ("diagnostics", "control"):
            if self.on_finding and getattr(self, needed) is False:
                raise OptionsError(
                    f"telemetry.on_finding is {_shown(dict(self.on_finding))} while telemetry.{needed} is false; "
                    f"it must be true for the run to act on a finding"
                )

    @property
    def span_options(self) -> SpanOptions:
        """What is done with spans."""
        return _span_options("telemetry.spans", self.spans)

    @property
    def perf_tags(self) -> str | None:
        """The performance tag as one text."""
        return (",".join(self.perf_tag) if isinstance(self.perf_tag, tuple) else self.perf_tag) or None

    @classmethod
    def from_mapping(cls, block: Mapping[str, Any], **overrides: Any) -> TelemetryOptions:
        """Return the options that a `telemetry:` block states.

        Raises:
            OptionsError: a key or value is wrong; the message names it and what is allowed.
        """
        given = {**block, **overrides}
        _require_known(given)
        return cls(**given)

    def changed(self, **changes: Any) -> TelemetryOptions:
        """Return the options with some of them changed, checked like the rest."""
        _require_known(changes)
        return replace(self, **changes)


def find_block(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the `telemetry:` block of a training YAML: a process's, else the config's, else the top level's."""
    inner = _mapping(config.get("config"))
    places = [(f"config.process[{i}]", process) for i, process in enumerate(_processes(config))]
    for where, place in [*places, ("config", inner), ("the top level", config)]:
        if "telemetry" in place:
            block = place["telemetry"]
            if block is None:
                return {}
            if isinstance(block, bool):
                return {"enabled": block}
            if not isinstance(block, Mapping):
                raise OptionsError(
                    f"telemetry at {where} is {_shown(block)}; it must be a mapping such as {{enabled: true}}"
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
    process = _process_that_is_logged(config)
    inherited: dict[str, Any] = {}
    if process.get("log_dir"):
        _text("log_dir", process["log_dir"])
        inherited["tensorboard"] = True
        inherited["tensorboard_dir"] = process["log_dir"]
    logging = _mapping(process.get("logging"))
    if logging.get("use_wandb") is True:
        inherited["wandb"] = True
    for theirs, ours in (
        ("project_name", "wandb_project"),
        ("run_name", "wandb_run_name"),
        ("log_every", "log_every"),
    ):
        if logging.get(theirs) is not None:
            _CHECKS[ours](f"logging.{theirs}", logging[theirs])
            inherited[ours] = logging[theirs]
    block = block or {}
    # `tensorboard: false` in the block is its default, not a wish to silence a log_dir that the YAML asks for.
    stated = {
        key: value for key, value in block.items() if not (value is False and inherited.get(key) is True)
    }
    return TelemetryOptions.from_mapping({**inherited, **stated}, **overrides)


def run_name_from_config(config: Mapping[str, Any]) -> str | None:
    """Return the job's name, as the YAML gives it."""
    for place in (_mapping(config.get("config")), config):
        name = place.get("name")
        # A name such as 2024-01-01 or 7 is no text to YAML, and a name to its owner.
        if isinstance(name, (str, int, float, datetime.date)) and not isinstance(name, bool) and str(name):
            return str(name)
    return None


def _processes(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    listed = _mapping(config.get("config")).get("process")
    if isinstance(listed, Mapping):
        return [listed]
    return [_mapping(process) for process in listed] if isinstance(listed, (list, tuple)) else []


def _process_that_is_logged(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the process with a `telemetry` block of its own, else the first one."""
    processes = _processes(config)
    return next(
        (process for process in processes if "telemetry" in process), processes[0] if processes else {}
    )


def _require_known(given: Mapping[Any, Any]) -> None:
    known = [option.name for option in fields(TelemetryOptions)]
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else "."
            raise OptionsError(
                f"telemetry.{str(key)[:100]} (with the value {_shown(given[key])}) is not an option{hint} "
                f"Known: {', '.join(sorted(known))}"
            )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _shown(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 1000:
        # Python itself refuses to write out the longest of them.
        return f"an integer of {value.bit_length()} bits"
    return repr(value)[:200]


def _wrong(name: str, value: Any, allowed: str) -> OptionsError:
    return OptionsError(f"{name} is {_shown(value)}; it must be {allowed}")


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
        raise _wrong(name, list(value) if isinstance(value, tuple) else value, "a list of texts")


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)) or not all(isinstance(text, str) and text for text in value):
        raise _wrong(name, list(value) if isinstance(value, tuple) else value, "a list of texts")
    return tuple(value)


def _perf_tag(name: str, value: Any) -> None:
    if value is not None and not (isinstance(value, tuple) and not value):
        _texts(name, value)


def _file_or_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        _text(name, value)


def _address(name: str, value: Any) -> None:
    if value is not None:
        _text(name, value)
        if not value.startswith(("http://", "https://")):
            raise _wrong(name, value, "an address such as http://localhost:4318/v1/traces")


def _filter(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise _wrong(name, value, "{only: [names]} or {except: [names]}")
    for key in value:
        if key not in ("only", "except"):
            raise _wrong(f"{name}.{str(key)[:100]}", value[key], "under one of the keys only, except")
        _texts(f"{name}.{key}", value[key])
    if len(value) > 1:
        raise _wrong(name, dict(value), "either {only: [names]} or {except: [names]}, not both")


def _spans(name: str, value: Any) -> None:
    _span_options(name, value)


def _span_options(name: str, value: Any) -> SpanOptions:
    if value is None or isinstance(value, bool):
        return SpanOptions(enabled=value is not False)
    if value == "all":
        return SpanOptions(all=True)
    if not isinstance(value, Mapping):
        raise _wrong(name, value, 'true, false, "all" or a mapping such as {keep: [forward]}')
    given: dict[str, Any] = {}
    for key, part in value.items():
        if key == "around":
            _whole(0, 1000)(f"{name}.around", part)
            given[key] = part
        elif key in ("keep", "fold", "drop", "device"):
            given[key] = _texts(f"{name}.{key}", part)
        else:
            raise _wrong(
                f"{name}.{str(key)[:100]}", part, "under one of the keys keep, fold, drop, device, around"
            )
    return SpanOptions(**given)


def _anything(name: str, value: Any) -> None:
    """Checked together with others."""


def _one_of(*allowed: str | None) -> Any:
    def check(name: str, value: Any) -> None:
        if not (value is None or isinstance(value, str)) or value not in allowed:
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
        # A comparison with NaN is never true, and one with a huge integer needs no float of it.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
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
    "diagnostics": _anything,
    "on_finding": _anything,
    "spans": _spans,
    "perf_tag": _perf_tag,
    "session_tag": _text_or_none,
    "export_spans": _filter,
    "one_logger_file": _file_or_flag,
    "otlp": _address,
    "strict": _boolean,
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
