"""The exporters: their options, and what makes each.

A new one is a folder next to this file, and here its option, its function and its line in `EXPORTERS`; or a plug-in.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from toolkit.telemetry.core import plugins
from toolkit.telemetry.core.checks import (
    Check,
    address,
    boolean,
    boolean_or_path,
    empty_for_none,
    is_this_machine,
    one_of,
    optional,
    path,
    text,
    where,
)
from toolkit.telemetry.core.fields import option
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.runfolder.layout import ONE_LOGGER_FILE, TENSORBOARD

if TYPE_CHECKING:
    from toolkit.telemetry.core.guard import Guard
    from toolkit.telemetry.core.sink import Sink
    from toolkit.telemetry.mirrors.shared.exporter import ExportedRun


_SETTINGS: Final = where(
    lambda value: (
        isinstance(value, Mapping)
        and all(
            isinstance(name, str) and isinstance(settings, (bool, Mapping))
            for name, settings in value.items()
        )
    ),
    "names of plug-ins, each with true, false or its settings",
)


@dataclass(frozen=True, kw_only=True)
class ExporterOptions:
    """The options of all exporters."""

    tensorboard: bool = option(False, "Write TensorBoard event files.", boolean)
    tensorboard_dir: str | None = option(
        None, "Folder for event files; default: `tensorboard` in the run folder.", optional(path)
    )
    wandb: bool = option(False, "Send the run to Weights & Biases.", boolean)
    wandb_project: str | None = option(
        None, "W&B project; default: `project`, else `ai-toolkit`.", optional(text)
    )
    wandb_run_name: str | None = option(None, "W&B run name; default: the run's name.", optional(text))
    wandb_mode: str | None = option(
        None,
        "W&B mode; default: `WANDB_MODE`, else `online` with an API key and `offline` without one.",
        optional(one_of("online", "offline", "disabled")),
    )
    one_logger_file: bool | str = option(
        False,
        "Write spans and events in OneLogger's file format: `true` for a file in the run folder, or a path.",
        boolean_or_path,
    )
    otlp: str | None = option(
        None,
        "Collector that spans are sent to over HTTP, such as `http://localhost:4318`.",
        optional(address),
    )
    otlp_metrics: str | None = option(
        None,
        "Collector that numbers are sent to as OTLP metrics, such as `http://localhost:4318`.",
        optional(address),
    )
    mirrors: Mapping[str, Any] = option(
        {},
        "Mirrors of installed plug-ins that get the records, by name, such as `{my_store: {bucket: runs}}`.",
        Check(empty_for_none(_SETTINGS, dict).read, _SETTINGS.allowed, "Mapping[str, Any] | None"),
    )


# Each is imported where it is asked for.


def _tensorboard(options: ExporterOptions, run: ExportedRun) -> Sink:
    from toolkit.telemetry.mirrors.tensorboard.exporter import TensorBoardExporter

    folder = run.folder / TENSORBOARD
    if options.tensorboard_dir:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(run.started))
        folder = Path(options.tensorboard_dir).expanduser().absolute() / f"{run.folder.name}_{stamp}"
    return TensorBoardExporter(folder, run_folder=run.folder)


def _wandb(options: ExporterOptions, run: ExportedRun) -> Sink:
    from toolkit.telemetry.mirrors.wandb.exporter import WandbExporter

    return WandbExporter(
        run.folder,
        project=options.wandb_project or run.project or "ai-toolkit",
        run_name=options.wandb_run_name or run.display_name,
        run_id=run.run_id,
        mode=options.wandb_mode,
        span_filter=run.span_filter,
    )


def _one_logger_file(options: ExporterOptions, run: ExportedRun) -> Sink:
    from toolkit.telemetry.mirrors.one_logger_file.exporter import OneLoggerFileExporter

    file = run.folder / ONE_LOGGER_FILE
    if isinstance(options.one_logger_file, str):
        file = Path(options.one_logger_file).expanduser()
    return OneLoggerFileExporter(file, run_id=run.run_id, span_filter=run.span_filter, mode=run.file_mode)


def _otlp(options: ExporterOptions, run: ExportedRun) -> Sink:
    from toolkit.telemetry.mirrors.otlp.exporter import OtlpExporter

    return OtlpExporter(
        options.otlp or "",
        service_name=run.display_name,
        run_id=run.run_id,
        resource={"run.session": run.session, "perf_tag": run.perf_tag, "session_tag": run.session_tag},
        span_filter=run.span_filter,
    )


def _otlp_metrics(options: ExporterOptions, run: ExportedRun) -> Sink:
    from toolkit.telemetry.mirrors.otlp.metrics import OtlpMetricsExporter

    return OtlpMetricsExporter(
        options.otlp_metrics or "",
        service_name=run.display_name,
        run_id=run.run_id,
        started=run.started,
    )


class Exporter(NamedTuple):
    """One exporter."""

    option: str
    """The option that switches it on; its first word is the name of its extra."""
    make: Callable[[ExporterOptions, ExportedRun], Sink]
    needs: str = ""
    """A module that it needs."""
    sends: Callable[[str], bool] = lambda _: False
    """Whether something leaves the machine with this value of the option; offline mode leaves it out then."""


def _is_elsewhere(collector: str) -> bool:
    return not is_this_machine(urlsplit(collector).hostname or "")


EXPORTERS: Final = (
    Exporter("tensorboard", _tensorboard, "tensorboard"),
    Exporter("wandb", _wandb, "wandb"),
    Exporter("one_logger_file", _one_logger_file),
    # Not `opentelemetry.proto`: a folder without a file of its own.
    Exporter("otlp", _otlp, "opentelemetry.proto.trace.v1.trace_pb2", _is_elsewhere),
    Exporter("otlp_metrics", _otlp_metrics, "opentelemetry.proto.metrics.v1.metrics_pb2", _is_elsewhere),
)


def _wanted(options: ExporterOptions, *, may_send: bool) -> list[Exporter]:
    values = [(exporter, getattr(options, exporter.option)) for exporter in EXPORTERS]
    return [exporter for exporter, value in values if value and (may_send or not exporter.sends(value))]


def are_wanted(options: ExporterOptions, *, may_send: bool) -> bool:
    """Return whether the options ask for any exporter."""
    return bool(_wanted(options, may_send=may_send) or (may_send and options.mirrors))


def missing_packages(options: ExporterOptions, *, may_send: bool) -> dict[str, str]:
    """Return the exporters that the options ask for and that lack a package, each with a sentence about it."""
    return {
        name: f"telemetry.{name} is on and needs {module.partition('.')[0]}, which is not installed; it is left "
        f"out: {install_extra(name.partition('_')[0])}"
        for name, _, module, _ in _wanted(options, may_send=may_send)
        if module and not _is_installed(module)
    }


def _is_installed(module: str) -> bool:
    try:
        found = sys.modules.get(module) or importlib.util.find_spec(module)
    except ImportError:
        return False
    # A folder called wandb, such as W&B's own output, counts as a package without an origin.
    return found is not None and getattr(found, "origin", module) is not None


def make_exporters(options: ExporterOptions, run: ExportedRun, *, may_send: bool, guard: Guard) -> list[Sink]:
    """Return the exporters that the options ask for; one that fails is reported and left out."""
    found: list[Sink] = []
    missing = missing_packages(options, may_send=may_send)
    for exporter in _wanted(options, may_send=may_send):
        with guard.catch("setting up the exporters"):
            if exporter.option not in missing:
                found.append(exporter.make(options, run))
    if may_send and options.mirrors:
        found += _make_plugins(options.mirrors, run, guard)
    return found


def load_plugins(
    only: Collection[str] | None = None, guard: Guard | None = None
) -> dict[str, plugins.Plugin]:
    """Return the mirrors of plug-ins by name: each is a function of its settings and the run that returns a sink."""
    found = plugins.load(
        "mirrors", lambda value: "" if callable(value) else "it cannot be called", only=only, guard=guard
    )
    return {plugin.name: plugin for plugin in found}


def _make_plugins(wanted: Mapping[str, Any], run: ExportedRun, guard: Guard) -> list[Sink]:
    # No others: the script waits for the import.
    known, sinks = load_plugins([name for name in wanted if wanted[name] is not False], guard), []
    for name, settings in wanted.items():
        with guard.catch(f"setting up the mirror {name!r}"):
            if settings is False:
                continue
            if name not in known:
                names = [plugin.name for plugin in plugins.installed("mirrors") if not plugin.problem]
                named = f"{', '.join(names)} can" if names else "none can"
                raise LookupError(f"no installed plug-in that works has this name; {named} be used")
            sink = known[name].call(known[name].value, {} if settings is True else dict(settings), run)
            if not callable(getattr(sink, "write", None)) or not callable(getattr(sink, "close", None)):
                raise TypeError(f"{known[name]} returned no sink: it needs a name, write and close")
            sinks.append(sink)
    return sinks


def unsent_offline(options: ExporterOptions) -> list[str]:
    """Return the options that offline mode keeps from sending; where a plug-in sends records is not known here."""
    kept = _wanted(options, may_send=False)
    unsent = [exporter.option for exporter in _wanted(options, may_send=True) if exporter not in kept]
    return [*unsent, "mirrors"] if options.mirrors else unsent


def offline_changes(options: ExporterOptions) -> dict[str, Any]:
    """Return the options that offline mode changes, with their values: W&B keeps the run for `wandb sync`."""
    return {"wandb_mode": "offline"} if options.wandb_mode in (None, "online") else {}
