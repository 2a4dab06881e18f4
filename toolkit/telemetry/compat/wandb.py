"""`import toolkit.telemetry.compat.wandb as wandb`: a script written for W&B logs into a local run folder.

Nothing is sent anywhere and no account is needed. What is not supported warns once, by name, and does nothing.
"""

# ruff: noqa: ARG001 - the parameters are W&B's, and some have no meaning here

from __future__ import annotations

import enum
import functools
import os
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from toolkit.telemetry.compat.null_object import NOT_SUPPORTED, NullObject, null_object, warn_once
from toolkit.telemetry.compat.wandb_config import Config, Settings, config_mapping, settings_in
from toolkit.telemetry.compat.wandb_media import (  # noqa: F401 - scripts use them from here
    Audio,
    Histogram,
    Html,
    Image,
    Table,
    Video,
)
from toolkit.telemetry.compat.wandb_run import Run
from toolkit.telemetry.compat.wandb_run_options import requested_settings, run_options
from toolkit.telemetry.compat.wandb_summary import Metric, Summary

__version__: Final = "0.31.0"
"""The version of W&B whose API this is; some scripts check it."""

_LEFT_OUT: Final = (
    *("config_exclude_keys", "config_include_keys", "resume_from", "fork_from"),
    *("monitor_gym", "sync_tensorboard", "tensorboard"),
)
_LETTERS: Final = string.digits + string.ascii_lowercase
run: Run | None = None
"""The run that `init` began, until it is finished."""
config: Config = Config()
"""That run's configuration."""
summary: Summary = Summary()
"""That run's summary."""


class Error(Exception):
    """The base of W&B's exceptions, for scripts that catch them; nothing here raises one."""


class AlertLevel(enum.Enum):
    """How urgent an alert is."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


def generate_id(length: int = 8) -> str:
    """Return a random id."""
    return "".join(secrets.choice(_LETTERS) for _ in range(length))


class _Module(NullObject):
    """A module of W&B's, such as `wandb.sdk.wandb_run`: it has some names, and placeholders for others."""

    def __init__(self, name: str, **names: Any) -> None:
        self.__dict__.update(names, _name=name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return null_object(f"{self._name}.{name}")


class _Errors(_Module):
    """`wandb.errors`: an exception class for every name, because `except` accepts nothing else."""

    def __getattr__(self, name: str) -> Any:
        self.__dict__[name] = made = type(name, (Error,), {})
        return made


errors = _Errors("wandb.errors", Error=Error)
CommError, UsageError = errors.CommError, errors.UsageError
util = _Module("wandb.util", generate_id=generate_id)
_OF_RUNS: Final = {"Run": Run, "Config": Config, "Summary": Summary, "Settings": Settings}
data_types = _Module("wandb.data_types", Image=Image, Table=Table, Histogram=Histogram, Video=Video)
sdk = wandb_sdk = _Module("wandb.sdk", lib=_Module("wandb.sdk.lib", runid=util), **_OF_RUNS)
sdk.__dict__.update(wandb_config=sdk, wandb_run=sdk, wandb_summary=sdk)


def init(
    entity: str | None = None,
    project: str | None = None,
    dir: str | os.PathLike[str] | None = None,  # noqa: A002 - W&B's name
    id: str | None = None,  # noqa: A002 - W&B's name
    name: str | None = None,
    notes: str | None = None,
    tags: Sequence[str] | None = None,
    config: Any = None,
    config_exclude_keys: Sequence[str] | None = None,
    config_include_keys: Sequence[str] | None = None,
    allow_val_change: bool | None = None,
    group: str | None = None,
    job_type: str | None = None,
    mode: str | None = None,
    force: bool | None = None,
    reinit: bool | str | None = None,
    resume: bool | str | None = None,
    resume_from: str | None = None,
    fork_from: str | None = None,
    save_code: bool | None = None,
    tensorboard: bool | None = None,
    sync_tensorboard: bool | None = None,
    monitor_gym: bool | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    anonymous: Any = None,
    *,
    telemetry: Mapping[str, Any] | None = None,
) -> Run:
    """Begin a run in `logs/` under `dir` or the working directory, and make it `wandb.run`.

    `telemetry` is ours: options of the `telemetry:` block, such as `{"log_dir": "runs", "tensorboard": True}`.

    Raises:
        OptionsError: one of those is invalid, or the folder cannot hold runs.
    """
    given = {**locals()}
    requested = requested_settings(given, settings_in(settings))
    for keyword in _LEFT_OUT:
        if given[keyword]:
            warn_once(f"wandb.init({keyword}=…)", NOT_SUPPORTED)
    current = run
    # A forked process has its parent's run, which it must not write.
    is_ours = current is not None and current.is_of_this_process
    if current is not None and is_ours:
        if requested["reinit"] in (True, "finish_previous"):
            current.finish()
        elif requested["reinit"] != "create_new":
            return current
    options, name = run_options(requested, telemetry or {})
    begun = Run({**requested, "name": name}, options, config_mapping(config), on_finish=_forget)
    if requested["resume"] == "must" and begun.telemetry.is_live and not begun.resumed:
        warn_once("wandb.init(resume='must')", f"found no earlier run {id or begun.name!r}: a new one begins")
    if run is None or not is_ours:
        _set_current(begun, begun.config, begun.summary)
    return begun


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:
    """End the current run."""
    if run is not None:
        run.finish(exit_code)


def _of_current_run(name: str, without_run: Callable[..., Any] = lambda *_, **__: None) -> Callable[..., Any]:
    """Return a method of `Run` as a function of this module; without a run it warns and returns `without_run(…)`."""

    @functools.wraps(getattr(Run, name))
    def call(*args: Any, **kwargs: Any) -> Any:
        if run is None:
            warn_once(f"wandb.{name}() without a run", "does nothing: call wandb.init() first")
            return without_run(*args, **kwargs)
        return getattr(run, name)(*args, **kwargs)

    return call


log = _of_current_run("log")
define_metric = _of_current_run("define_metric", lambda name, *_, **__: Metric(name=name))
alert = _of_current_run("alert")


teardown = finish


def login(*_: Any, **__: Any) -> bool:
    """Return True: no account is needed."""
    return True


def require(*_: Any, **__: Any) -> None:
    """Do nothing: there are no features to enable."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return null_object(f"wandb.{name}")


def _set_current(begun: Run | None, its_config: Config, its_summary: Summary) -> None:
    global run, config, summary
    run, config, summary = begun, its_config, its_summary


def _forget(finished: Run) -> None:
    if run is finished:
        _set_current(None, Config(), Summary())
