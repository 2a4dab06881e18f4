"""The exporters. A new one is a folder next to this file and a line in the list of `ExporterOptions`, or a plug-in."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from toolkit.telemetry.core import plugins
from toolkit.telemetry.core.checks import Check, empty_for_none, where
from toolkit.telemetry.core.fields import option
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.mirrors.one_logger_file.options import OneLoggerFileOptions
from toolkit.telemetry.mirrors.otlp.options import OtlpMetricsOptions, OtlpOptions
from toolkit.telemetry.mirrors.shared.exporter import Exporter
from toolkit.telemetry.mirrors.tensorboard.options import TensorBoardOptions
from toolkit.telemetry.mirrors.wandb.options import WandbOptions

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
class PluginOptions(Exporter):
    """Mirrors of other packages."""

    mirrors: Mapping[str, Any] = option(
        {},
        "Mirrors of installed plug-ins that get the records, by name, such as `{my_store: {bucket: runs}}`.",
        Check(empty_for_none(_SETTINGS, dict).read, _SETTINGS.allowed, "Mapping[str, Any] | None"),
    )

    def make_sink(self, run: ExportedRun) -> Sink | None:  # noqa: ARG002 - `make_exporters` makes several
        """Return None."""
        return None

    def sends(self) -> Sequence[str]:
        """Return `mirrors`: where a plug-in sends records is not known here."""
        return ["mirrors"] if self.mirrors else ()


class ExporterOptions(
    TensorBoardOptions,
    WandbOptions,
    OneLoggerFileOptions,
    OtlpOptions,
    OtlpMetricsOptions,
    PluginOptions,
):
    """The options of all exporters: each base class is one of them, made in this order."""


EXPORTERS = cast("tuple[type[Exporter], ...]", ExporterOptions.__bases__)


def missing_packages(options: ExporterOptions, *, may_send: bool) -> dict[type[Exporter], str]:
    """Return the exporters that the options ask for and that lack a package, each with a sentence about it."""
    wanted = [exporter for exporter in EXPORTERS if may_send or not exporter.sends(options)]
    return {
        exporter: f"telemetry.{name} is on and needs {module.partition('.')[0]}, which is not installed; it is left "
        f"out: {install_extra(name.partition('_')[0])}"
        for exporter, (name, module) in [(exporter, exporter.NEEDS) for exporter in wanted]
        if getattr(options, name, None) and not _is_installed(module)
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
    for exporter in EXPORTERS:
        if exporter in missing:
            continue
        with guard.catch("setting up the exporters"):
            if may_send or not exporter.sends(options):
                sink = exporter.make_sink(options, run)
                found += [] if sink is None else [sink]
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
    """Return the options that offline mode keeps from sending."""
    return [name for exporter in EXPORTERS for name in exporter.sends(options)]


def offline_changes(options: ExporterOptions) -> dict[str, Any]:
    """Return the options that offline mode changes, with their values."""
    changes: dict[str, Any] = {}
    for exporter in EXPORTERS:
        changes.update(exporter.offline_changes(options))
    return changes
