"""Every option of the `telemetry:` block, checked once."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from toolkit.telemetry.core.checks import (
    Check,
    OptionsError,
    anything,
    boolean,
    boolean_or,
    called,
    empty_for_none,
    number,
    one_of,
    only_or_except,
    optional,
    path,
    shown,
    tags,
    text,
    texts,
    where,
    whole,
    wrong,
)
from toolkit.telemetry.core.fields import check_fields, option, options_of, require_known, toggle
from toolkit.telemetry.logger.options.blocks import (
    CompletionOptions,
    ErrorOptions,
    ProfilingOptions,
    SpanOptions,
)
from toolkit.telemetry.mirrors.registry import ExporterOptions, offline_changes, unsent_offline

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from toolkit.telemetry.logger.options.options_dict import OptionsDict
    from toolkit.telemetry.mirrors.messages.options import MessageOptions
    from toolkit.telemetry.mirrors.usage.options import UsageOptions


def _perf_tag(key: str, value: Any) -> str | tuple[str, ...]:
    found = texts(key, value)
    return value if isinstance(value, str) and value else found


_TAG_OR_TAGS: Check[str | tuple[str, ...]] = Check(
    _perf_tag, "a text that is not empty, or a list of such", "str | Sequence[str]"
)


_MODES: Final = ("local", "offline", "disabled")
"""Each sends less than the one before."""
_LOG_DIR: Final = "./logs"
_YES: Final = ("1", "true", "yes", "on")
_NO: Final = ("0", "false", "no", "off", "none")
_YES_OR_NO: Final = one_of(*_YES, *_NO)
_SHARE: Final = one_of("group", *_YES, *_NO)
_EVERY_NTH: Final = re.compile(r"every:[1-9][0-9]{0,8}")
_NAMED_RANKS: Final = ("zero", "all", "first_per_node")


def _mode(key: str, value: Any) -> str:
    # YAML reads `off` as false.
    given = str(value).strip().lower() if isinstance(value, (str, int)) else value
    known = "disabled" if given in (*_NO, "disable") else "local" if given in _YES else given
    return one_of(*_MODES)(key, known)


def _ranks(key: str, value: Any) -> str:
    if isinstance(value, str) and (value in _NAMED_RANKS or _EVERY_NTH.fullmatch(value)):
        return value
    raise wrong(key, value, _RANKS.allowed)


_RANKS: Final[Check[str]] = Check(
    _ranks, "'zero', 'all', 'first_per_node' or 'every:N' with a whole number of 1 or more"
)


# Imported only where the block is set: most runs send neither messages nor usage reports.


def _message_options() -> type[MessageOptions]:
    from toolkit.telemetry.mirrors.messages.options import MessageOptions

    return MessageOptions


def _usage_options() -> type[UsageOptions]:
    from toolkit.telemetry.mirrors.usage.options import UsageOptions

    return UsageOptions


def _messages(key: str, value: Any) -> Any:
    if value is not None and value != ():
        _message_options().from_block(key, value)
    return value


def _usage_reports(key: str, value: Any) -> Any:
    if value is not None and value is not False:
        _usage_options().from_block(key, value)
    return value


@dataclass(frozen=True, kw_only=True)
class TelemetryOptions(ExporterOptions):
    """How one run is logged."""

    enabled: bool = option(True, "Log the run at all.", boolean)
    mode: str = option(
        "local",
        "`local` writes files and whatever else is configured; `offline` lets nothing leave the machine; "
        "`disabled` is the same as `enabled: false`.",
        Check(_mode, f"{one_of(*_MODES).allowed}; 'off' is 'disabled'", "str | bool"),
    )
    log_dir: str = option(_LOG_DIR, "Folder that run folders are made in.", path)
    log_every: int = option(
        10, "Steps from one step record to the next; those between are folded into it.", whole(1, 1_000_000)
    )
    csv: bool | str = option(
        True,
        "Write metrics.csv: `true` for the logged metrics, `all` for every record and field.",
        boolean_or("all"),
    )
    control: bool = option(True, "Obey requests in control.json.", boolean)
    system: bool = option(True, "Sample processor, memory and GPU.", boolean)
    code: bool | str = option(
        True,
        "Keep the script and its own modules in `code/` of the run folder; `changes` also asks git what was changed "
        "since the commit.",
        boolean_or("changes"),
    )
    system_every: float = option(5.0, "Seconds from one system record to the next.", number(1.0, 3600.0))
    diagnostics: bool | Mapping[str, Any] = option(
        True,
        "Look for problems while the run is going; a mapping sets the severity of a kind, such as `{plateau: off}`.",
        Check(anything.read, "true, false, or finding kinds with info, warning, critical or off"),
    )
    alerts: Any = option(
        (),
        "Rules of your own, such as `[{name: too high, when: 'ema(loss, 0.98) > 3', for: 20, severity: critical}]`; "
        "docs/formulas.md has the language.",
        empty_for_none(
            where(
                lambda value: isinstance(value, (list, tuple)),
                "a list of rules, each with name, when, for, severity and message",
            ),
            tuple,
        ),
    )
    on_finding: Mapping[str, str] = option(
        {},
        "What the run does on a critical finding of a kind, such as `{nan: stop}`.",
        Check(
            empty_for_none(anything, dict).read,
            "finding kinds with save, stop or save_and_stop",
            "Mapping[str, str] | None",
        ),
    )
    spans: bool | str | Mapping[str, Any] = option(
        True, "Record spans; a mapping chooses by name, `all` writes each one.", toggle(SpanOptions)
    )
    perf_tag: str | tuple[str, ...] | None = option(
        None,
        "Names jobs that should be equally fast: same task, code and machine.",
        called(optional(_TAG_OR_TAGS)),
    )
    session_tag: str | None = option(
        None,
        "Names jobs that do one task together, such as a run and its continuation elsewhere; default: the run's id.",
        called(optional(text)),
    )
    export_spans: Mapping[str, Any] = option(
        {},
        "Spans that exporters get, by name; `*` matches any letters, as in `checkpoint_*`.",
        empty_for_none(only_or_except, dict),
    )
    errors: bool | Mapping[str, Any] = option(
        True, "Record errors; a mapping sets what a record contains.", toggle(ErrorOptions)
    )
    output: bool = option(
        True, "Keep what the process prints in output.log, without secrets, at most 50 MB.", boolean
    )
    messages: Any = option(
        (),
        "Who gets messages about the run, such as `[{to: slack, url_env: SLACK_WEBHOOK}]`.",
        Check(_messages, "a list of receivers", block=_message_options),
    )
    completions: bool | Mapping[str, Any] = option(
        True, "Keep completions; a mapping sets how many.", toggle(CompletionOptions)
    )
    batches: bool = option(
        True,
        "Keep which samples each step was trained on, where the loop or an integration gives them.",
        boolean,
    )
    profiling: bool | Mapping[str, Any] = option(
        True, "Time profiled functions; a mapping sets which calls are logged.", toggle(ProfilingOptions)
    )
    usage_reports: bool | Mapping[str, Any] = option(
        False,
        "Send anonymous figures about this run to the PostHog server of `host`.",
        Check(_usage_reports, "true, false or a mapping", "bool | Mapping[str, Any] | None", _usage_options),
    )
    strict: bool = option(
        False,
        "Raise on a wrong call, for tests; otherwise it is reported once, counted and recorded.",
        boolean,
    )
    quiet: bool = option(False, "Print nothing but failures and mistakes, each once.", boolean)
    resume: bool = option(
        False, "Continue in the folder of the newest run of this name, as a new session.", boolean
    )
    run_id: str | None = option(
        None, "Continue in the folder of the run with this id, if there is one.", optional(text)
    )
    project: str | None = option(None, "Project that the run belongs to.", optional(text))
    tags: tuple[str, ...] = option((), "Tags of the run.", tags)
    share: bool | str | None = option(
        None,
        "Let the `group` of the log directory, or with true everyone, read the run folder; default: what the variable "
        "`TELEMETRY_SHARE` says, else private.",
        optional(boolean_or("group")),
    )
    ranks: str = option(
        "zero",
        "Which processes of a distributed run write records, one file each.",
        _RANKS,
    )
    journal: str = option(
        "auto",
        "Where records survive a kill until they are in the file: shared memory, which waits for no disk, or the run "
        "folder, which outlives a container; `auto` is `folder` inside a container.",
        one_of("auto", "shm", "folder"),
    )
    flush_interval: float = option(
        0.1,
        "Seconds until a logged record is written to the file; a kill loses none before that.",
        number(0.01, 60.0),
    )
    sync_interval: float = option(
        5.0,
        "Seconds until written records are forced to the disk; 0 leaves that to the kernel.",
        number(0.0, 3600.0),
    )
    queue_max_mb: float = option(
        32.0,
        "Memory in MiB for records while the disk takes none; beyond it the newest metrics are dropped and counted.",
        number(1.0, 4096.0),
    )
    close_timeout: float = option(
        5.0,
        "Seconds that `close()`, or the end of the process for all its runs, waits for a disk or mirror.",
        number(0.1, 600.0),
    )

    mistake: str = field(default="", compare=False)
    """What is wrong with the place of the block, in a sentence; the run says it."""

    def __post_init__(self) -> None:
        check_fields(self, "telemetry")
        self._check_diagnostics()
        changes: Mapping[str, Any] = {}
        if self.mode == "disabled":
            changes = {"enabled": False}
        elif self.mode == "offline":
            changes = offline_changes(self)
        for name, value in changes.items():
            object.__setattr__(self, name, value)

    def _check_diagnostics(self) -> None:
        if self.strict and self.alert_problems:
            raise OptionsError(self.alert_problems[0])
        if isinstance(self.diagnostics, bool) and self.on_finding == {}:
            return
        # Imported only where one of them is set, so that other runs start faster.
        from toolkit.telemetry.diagnostics.policy import PolicyError, policy_from

        try:
            policy_from(self.diagnostics, self.on_finding, self.alerts)
        except PolicyError as error:
            raise OptionsError(f"telemetry.{error}") from error
        for needed in ("diagnostics", "control"):
            if self.on_finding and getattr(self, needed) is False:
                raise OptionsError(
                    f"telemetry.on_finding is {shown(dict(self.on_finding))} while telemetry.{needed} is false; "
                    f"it must be true for the run to act on a finding"
                )

    @property
    def alert_problems(self) -> Sequence[str]:
        """What is wrong with rules of one's own, a sentence each; such a rule is left out, and the run goes on."""
        if not self.alerts:
            return ()
        from toolkit.telemetry.diagnostics.rules import read_rules

        return read_rules(self.alerts, "telemetry.alerts")[1]

    @property
    def may_send(self) -> bool:
        """Whether anything may leave the machine."""
        return self.mode == "local"

    @property
    def not_sent(self) -> list[str]:
        """The options that would send something and, in offline mode, do not."""
        if self.may_send:
            return []
        configured = {"messages": bool(self.message_options), "usage_reports": self.sends_usage}
        return [*(name for name, is_set in configured.items() if is_set), *unsent_offline(self)]

    @property
    def span_options(self) -> SpanOptions:
        """The `spans` block."""
        return SpanOptions.from_block("telemetry.spans", self.spans)

    @property
    def error_options(self) -> ErrorOptions:
        """The `errors` block."""
        return ErrorOptions.from_block("telemetry.errors", self.errors)

    @property
    def message_options(self) -> tuple[MessageOptions, ...]:
        """The receivers of the `messages` block."""
        return _message_options().from_block("telemetry.messages", self.messages) if self.messages else ()

    @property
    def completion_options(self) -> CompletionOptions:
        """The `completions` block."""
        return CompletionOptions.from_block("telemetry.completions", self.completions)

    @property
    def profiling_options(self) -> ProfilingOptions:
        """The `profiling` block."""
        return ProfilingOptions.from_block("telemetry.profiling", self.profiling)

    @property
    def sends_usage(self) -> bool:
        """Whether usage reports are asked for."""
        return bool(self.usage_reports) and self.usage_options.enabled

    @property
    def usage_options(self) -> UsageOptions:
        """The `usage_reports` block."""
        return _usage_options().from_block("telemetry.usage_reports", self.usage_reports)

    @property
    def perf_tags(self) -> str | None:
        """The performance tag as one text."""
        return (",".join(self.perf_tag) if isinstance(self.perf_tag, tuple) else self.perf_tag) or None

    @classmethod
    def from_mapping(cls, block: Mapping[str, Any], **overrides: Unpack[OptionsDict]) -> TelemetryOptions:
        """Return the options that a `telemetry:` block states; `overrides` win.

        Raises:
            OptionsError: a key or value is wrong; the message names it and what is allowed.
        """
        given = {**block, **overrides}
        require_known(cls, given, "telemetry")
        return cls(**given)

    @classmethod
    def of_call(cls, given: Any, overrides: OptionsDict) -> TelemetryOptions:
        """Return the options of a call: `given` is None, the log directory, or options that `overrides` change.

        Raises:
            OptionsError: one of them is wrong, or the log directory is given twice.
        """
        if isinstance(given, cls):
            return given.changed(**overrides) if overrides else given
        if given is None:
            return cls.from_mapping({}, **overrides)
        if not isinstance(given, (str, os.PathLike)):
            raise OptionsError(
                f"the second argument is of the type {type(given).__name__}; it must be the log directory "
                "or TelemetryOptions, and single options are given by name"
            )
        if "log_dir" in overrides:
            raise OptionsError(
                f"telemetry.log_dir is given twice, as {os.fspath(given)!r} and {overrides['log_dir']!r}"
            )
        return cls.from_mapping({"log_dir": given}, **overrides)

    def in_environment(self, environ: Mapping[str, str]) -> TelemetryOptions:
        """Return the options with what the environment variables change.

        `TELEMETRY_MODE` can only restrict: `disabled` and `offline` win over what the script says, `local` does not.
        So can `TELEMETRY_CODE`.
        `TELEMETRY_LOG_DIR` is the log directory where the script leaves it at the default, and `TELEMETRY_SHARE` the
        value of `share` where the script leaves it out.

        Raises:
            OptionsError: a variable is wrong.
        """
        mode, log_dir, quiet, share, code = (
            environ.get(f"TELEMETRY_{name}", "") for name in ("MODE", "LOG_DIR", "QUIET", "SHARE", "CODE")
        )
        known = options_of(TelemetryOptions)
        changes: OptionsDict = {}
        mode = known["mode"].check("TELEMETRY_MODE", mode or self.mode)
        if _MODES.index(mode) > _MODES.index(self.mode):
            changes["mode"] = mode
        if log_dir and self.log_dir == _LOG_DIR:
            changes["log_dir"] = known["log_dir"].check("TELEMETRY_LOG_DIR", log_dir)
        if quiet and _YES_OR_NO("TELEMETRY_QUIET", quiet.lower()) in _YES:
            changes["quiet"] = True
        if code and _YES_OR_NO("TELEMETRY_CODE", code.lower()) in _NO:
            changes["code"] = False
        if share and self.share is None:
            said = _SHARE("TELEMETRY_SHARE", share.lower())
            changes["share"] = said if said == "group" else said in _YES
        return self.changed(**changes) if changes else self

    def changed(self, **changes: Unpack[OptionsDict]) -> TelemetryOptions:
        """Return the options with some of them changed, checked like the rest."""
        require_known(type(self), changes, "telemetry")
        return replace(self, **dict[str, Any](changes))
