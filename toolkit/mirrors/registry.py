"""The exporters. A new one is a folder beside this file and a line in the list of `ExporterOptions`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from toolkit.core.checks import empty_for_none, only_or_except
from toolkit.core.fields import option
from toolkit.core.guard import Guard
from toolkit.core.sink import Sink
from toolkit.mirrors.one_logger_file.options import OneLoggerFileOptions
from toolkit.mirrors.otlp.options import OtlpOptions
from toolkit.mirrors.shared.exporter import ExportedRun, Exporter
from toolkit.mirrors.tensorboard.options import TensorBoardOptions
from toolkit.mirrors.wandb.options import WandbOptions


@dataclass(frozen=True, kw_only=True)
class ExporterOptions(
    TensorBoardOptions,
    WandbOptions,
    OneLoggerFileOptions,
    OtlpOptions,
):
    """All exporters.

    Each base class is one of them, made in this order.
    """

    export_spans: Mapping[str, Any] = option(
        {},
        "Spans that exporters get, by name; `*` matches any letters, as in `checkpoint_*`.",
        empty_for_none(only_or_except, dict),
    )


EXPORTERS = cast("tuple[type[Exporter], ...]", ExporterOptions.__bases__)


def make_exporters(options: ExporterOptions, run: ExportedRun, *, may_send: bool, guard: Guard) -> list[Sink]:
    """Return the exporters that the options ask for; one that fails is reported and left out."""
    if options.export_spans:
        from toolkit.mirrors.shared.span_filter import span_filter_from

        run = replace(run, span_filter=span_filter_from(options.export_spans))
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
