"""The exporters. A new one is a folder beside this file and a line in the list of `ExporterOptions`."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any, cast

from toolkit.mirrors.one_logger_file.options import OneLoggerFileOptions
from toolkit.mirrors.otlp.options import OtlpOptions
from toolkit.mirrors.shared.exporter import Exporter
from toolkit.mirrors.tensorboard.options import TensorBoardOptions
from toolkit.mirrors.wandb.options import WandbOptions

if TYPE_CHECKING:
    from toolkit.core.guard import Guard
    from toolkit.core.sink import Sink
    from toolkit.mirrors.shared.exported_run import ExportedRun


class ExporterOptions(
    TensorBoardOptions,
    WandbOptions,
    OneLoggerFileOptions,
    OtlpOptions,
):
    """The options of all exporters: each base class is one of them, made in this order."""


EXPORTERS = cast("tuple[type[Exporter], ...]", ExporterOptions.__bases__)


def missing_packages(options: ExporterOptions, *, may_send: bool) -> dict[type[Exporter], str]:
    """Return the exporters that the options ask for and that lack a package, each with a sentence about it."""
    wanted = [exporter for exporter in EXPORTERS if may_send or not exporter.sends(options)]
    return {
        exporter: f"telemetry.{name} is on and needs {module.partition('.')[0]}, which is not installed; it is left "
        f'out: pip install "ai-toolkit-telemetry[{name}]"'
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
    return found


def unsent_offline(options: ExporterOptions) -> list[str]:
    """Return the options that offline mode keeps from sending."""
    return [name for exporter in EXPORTERS for name in exporter.sends(options)]


def offline_changes(options: ExporterOptions) -> dict[str, Any]:
    """Return the options that offline mode changes, with their values."""
    changes: dict[str, Any] = {}
    for exporter in EXPORTERS:
        changes.update(exporter.offline_changes(options))
    return changes
