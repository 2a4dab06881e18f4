"""The exporters. A new one is a folder beside this file and a line in the list of `ExporterOptions`."""

from __future__ import annotations

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


def make_exporters(options: ExporterOptions, run: ExportedRun, *, may_send: bool, guard: Guard) -> list[Sink]:
    """Return the exporters that the options ask for; one that fails is reported and left out."""
    found: list[Sink] = []
    for exporter in EXPORTERS:
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
