"""Plays scripts of calls into the real OneLogger and prints what it exports; run as a program, in a folder of its own.

It is a program, and each script has a process, because OneLogger's provider can be configured once in a process. It
leaves files where it runs.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from types import SimpleNamespace

from nv_one_logger.api.config import OneLoggerConfig
from nv_one_logger.core import time as their_time
from nv_one_logger.core.exceptions import OneLoggerError
from nv_one_logger.exporter.exporter import Exporter
from nv_one_logger.recorder.default_recorder import ExportCustomizationMode
from nv_one_logger.training_telemetry.api import callbacks
from nv_one_logger.training_telemetry.api.config import TrainingTelemetryConfig
from nv_one_logger.training_telemetry.api.spans import StandardTrainingJobSpanName
from nv_one_logger.training_telemetry.api.training_telemetry_provider import TrainingTelemetryProvider
from overrides import override


class Kept(Exporter):
    """Keeps what is exported: spans with their parents, which OneLogger's own exporters lose, and events."""

    def __init__(self):
        self.spans = {}
        self.events = []

    @override
    def initialize(self):
        pass

    @override
    def close(self):
        pass

    @override
    def export_start(self, span):
        self.spans[span.id] = {
            "id": str(span.id),
            "name": span.name_str,
            "parent": str(span.parent_span.id) if span.parent_span is not None else None,
            "start_msec": span.start_event.timestamp.seconds_since_epoch * 1000,
            "attributes": _plain(span.attributes),
        }

    @override
    def export_stop(self, span):
        self.spans[span.id]["attributes"] |= _plain(span.attributes)

    @override
    def export_event(self, event, span):
        self._keep(str(span.id), event.name, _plain(event.attributes))

    @override
    def export_error(self, event, span):
        self._keep(str(span.id), event.name, _plain(event.attributes))

    @override
    def export_telemetry_data_error(self, error):
        self._keep(None, error.name, _plain(error.attributes))

    def _keep(self, span, name, attributes):
        self.events.append({"span": span, "name": str(name), "attributes": attributes})


def play(script):
    """Return the spans and the events that OneLogger makes of `script`, or why it refuses it."""
    try:
        return _play(script)
    except (OneLoggerError, AssertionError) as error:
        return {"refused": str(error)}


def _play(script):
    # Each time that it is given it converts to its other clock by reading both, one after the other: between the two a
    # busy machine may pause, and all lengths would be wrong by that.
    now, counter = time.time(), time.perf_counter()
    their_time.time = SimpleNamespace(time=lambda: now, perf_counter=lambda: counter)
    kept = Kept()
    provider = TrainingTelemetryProvider.instance()
    provider.with_base_config(OneLoggerConfig(**script["base"])).with_exporter(kept)
    # Exporting all spans cannot be asked for: the provider then puts a filter of its own next to it, and refuses both.
    everything = [*StandardTrainingJobSpanName, "application"]
    provider.with_export_customization(ExportCustomizationMode.WHITELIST_SPANS, everything)
    provider.configure_provider()
    for name, arguments in script["calls"]:
        if name == "configure":
            provider.set_training_telemetry_config(TrainingTelemetryConfig(**arguments))
        else:
            getattr(callbacks, name)(**arguments)
    return {"spans": list(kept.spans.values()), "events": kept.events}


def _plain(attributes):
    return {name: attribute.value for name, attribute in attributes.items()}


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as processes:
        print(json.dumps(processes.map(play, json.load(sys.stdin), chunksize=1)))
