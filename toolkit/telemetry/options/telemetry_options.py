"""How one run is logged: the `telemetry:` block, checked once, at the door."""

from __future__ import annotations

import datetime
import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import urlsplit

from toolkit.core import checks
from toolkit.core.checks import OptionsError
from toolkit.core.hosts import is_this_machine
from toolkit.mirrors.messages.options import MessageOptions
from toolkit.mirrors.usage.options import UsageOptions
from toolkit.telemetry.options.completions import CompletionOptions
from toolkit.telemetry.options.errors import ErrorOptions
from toolkit.telemetry.options.profiling import ProfilingOptions

__all__ = [
    "OptionsError",
    "SpanOptions",
    "TelemetryOptions",
    "find_block",
    "options_from_config",
    "run_name_from_config",
]


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
    mode: str = "local"
    """`local` writes files and whatever else is configured; `offline` lets nothing leave the machine; or `disabled`."""
    log_dir: str = "./logs"
    log_every: int = 10
    """Steps from one step record to the next; those between are folded into it."""
    csv: bool | str = True
    """Whether the run has a metrics.csv: of what a person logs, or of every record with every field, for `all`."""
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
    """Where spans are sent by OTLP, such as http://localhost:4318, or http://localhost:4317 for gRPC."""
    otlp_protocol: str | None = None
    """"http" or "grpc"; what OTEL_EXPORTER_OTLP_PROTOCOL says if not set, else "http"."""
    errors: bool | Mapping[str, Any] = True
    """What an error record holds and what is watched for one, such as {excepthook: true, source: true}."""
    messages: Any = ()
    """Whom to tell of the run's start, end and troubles, such as [{to: slack, url_env: SLACK_WEBHOOK}]."""
    completions: bool | Mapping[str, Any] = True
    """Whether completions are kept, and how many: {interval: 100, buffer: 128}."""
    profiling: bool | Mapping[str, Any] = True
    """Whether profiled functions are timed: {min_duration_ms: 0.1, log_interval: 1}."""
    usage_reports: bool | Mapping[str, Any] = False
    """Whether anonymous figures about this run are sent to the people who maintain a fork or a cluster."""
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
    journal: str = "auto"
    """Where records are kept safe from a kill until they are in the file: in shared memory (`shm`), which waits for no
    disk, or in the run folder (`folder`), which outlives a container; `auto` takes the folder inside of a container."""
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
        if self.mode == "disabled":
            object.__setattr__(self, "enabled", False)
        elif self.mode == "offline" and self.wandb_mode in (None, "online"):
            object.__setattr__(self, "wandb_mode", "offline")

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
                    f"telemetry.on_finding is {checks.shown(dict(self.on_finding))} while telemetry.{needed} is false; "
                    f"it must be true for the run to act on a finding"
                )

    @property
    def may_send(self) -> bool:
        """Whether anything may leave the machine."""
        return self.mode == "local"

    @property
    def not_sent(self) -> list[str]:
        """What is configured to be sent and, in offline mode, is not."""
        if self.may_send:
            return []
        configured = {
            "messages": bool(self.message_options),
            "usage_reports": self.usage_options.enabled,
            "otlp": self.otlp is not None and not is_this_machine(urlsplit(self.otlp).hostname or ""),
        }
        return [name for name, is_configured in configured.items() if is_configured]

    @property
    def span_options(self) -> SpanOptions:
        """What is done with spans."""
        return _span_options("telemetry.spans", self.spans)

    @property
    def error_options(self) -> ErrorOptions:
        """What is told of errors."""
        return ErrorOptions.from_block("telemetry.errors", self.errors)

    @property
    def message_options(self) -> tuple[MessageOptions, ...]:
        """Whom to send messages."""
        return MessageOptions.from_block("telemetry.messages", self.messages)

    @property
    def completion_options(self) -> CompletionOptions:
        """What is kept of completions."""
        return CompletionOptions.from_block("telemetry.completions", self.completions)

    @property
    def profiling_options(self) -> ProfilingOptions:
        """What is timed by profiling."""
        return ProfilingOptions.from_block("telemetry.profiling", self.profiling)

    @property
    def usage_options(self) -> UsageOptions:
        """What is sent of anonymous figures, and where."""
        return UsageOptions.from_block("telemetry.usage_reports", self.usage_reports)

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
                    f"telemetry at {where} is {checks.shown(block)}; it must be a mapping such as {{enabled: true}}"
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
        checks.text("log_dir", process["log_dir"])
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
                f"telemetry.{str(key)[:100]} (with the value {checks.shown(given[key])}) is not an option{hint} "
                f"Known: {', '.join(sorted(known))}"
            )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _spans(name: str, value: Any) -> None:
    _span_options(name, value)


def _span_options(name: str, value: Any) -> SpanOptions:
    if value is None or isinstance(value, bool):
        return SpanOptions(enabled=value is not False)
    if value == "all":
        return SpanOptions(all=True)
    if not isinstance(value, Mapping):
        raise checks.wrong(name, value, 'true, false, "all" or a mapping such as {keep: [forward]}')
    given: dict[str, Any] = {}
    for key, part in value.items():
        if key == "around":
            checks.whole(0, 1000)(f"{name}.around", part)
            given[key] = part
        elif key in ("keep", "fold", "drop", "device"):
            given[key] = checks.texts(f"{name}.{key}", part)
        else:
            raise checks.wrong(
                f"{name}.{str(key)[:100]}", part, "under one of the keys keep, fold, drop, device, around"
            )
    return SpanOptions(**given)


_CHECKS: dict[str, checks.Check] = {
    "enabled": checks.boolean,
    "mode": checks.one_of("local", "offline", "disabled"),
    "log_dir": checks.text,
    "log_every": checks.whole(1, 1_000_000),
    "csv": checks.boolean_or("all"),
    "tensorboard": checks.boolean,
    "wandb": checks.boolean,
    "control": checks.boolean,
    "system": checks.boolean,
    "system_every": checks.number(1.0, 3600.0),
    "diagnostics": checks.anything,
    "on_finding": checks.anything,
    "spans": _spans,
    "perf_tag": checks.perf_tag,
    "session_tag": checks.text_or_none,
    "export_spans": checks.only_or_except,
    "one_logger_file": checks.file_or_flag,
    "otlp": checks.address,
    "otlp_protocol": checks.one_of(None, "http", "grpc"),
    "errors": ErrorOptions.check,
    "messages": MessageOptions.check,
    "completions": CompletionOptions.check,
    "profiling": ProfilingOptions.check,
    "usage_reports": UsageOptions.check,
    "strict": checks.boolean,
    "resume": checks.boolean,
    "run_id": checks.text_or_none,
    "project": checks.text_or_none,
    "tags": checks.tags,
    "share": checks.boolean,
    "ranks": checks.one_of("zero", "all"),
    "tensorboard_dir": checks.text_or_none,
    "wandb_project": checks.text_or_none,
    "wandb_run_name": checks.text_or_none,
    "wandb_mode": checks.one_of(None, "online", "offline", "disabled"),
    "journal": checks.one_of("auto", "shm", "folder"),
    "flush_interval": checks.number(0.01, 60.0),
    "sync_interval": checks.number(0.0, 3600.0),
    "queue_max_mb": checks.number(1.0, 4096.0),
    "close_timeout": checks.number(0.1, 600.0),
}
