"""Sends the numbers of a run to an OpenTelemetry collector, as OTLP metrics.

Names and units of the hardware are those of OpenTelemetry's semantic conventions (1.44, in development). The training's
own numbers are below `training.`. `gen_ai.*` describes calls of a served model, which a training does not make.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from toolkit.telemetry.mirrors.otlp.transport import METRICS, CollectorSink, about_the_run, key_values
from toolkit.telemetry.mirrors.shared.scalars import scalars_of
from toolkit.telemetry.runfolder.records import Record

_NAMESPACE: Final = "training."
_RECORDS_A_REQUEST: Final = 200
_TIMEOUT_S: Final = 5.0
_CUMULATIVE: Final = 2
"""OpenTelemetry's number of a sum since the start."""
_GPU: Final = re.compile(r"(?:system/)?gpu/(\d+)/(\w+)")
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_./-]+")
_LONGEST_NAME: Final = 255

# Name, unit, factor, and whether it is a sum, as OpenTelemetry calls an amount of bytes, or a gauge.
_OF_A_GPU: Final = {
    "util": ("hw.gpu.utilization", "1", 0.01, False),
    "mem_used_gb": ("hw.gpu.memory.usage", "By", 1024.0**3, True),
    "mem_total_gb": ("hw.gpu.memory.limit", "By", 1024.0**3, True),
    "power_w": ("hw.power", "W", 1.0, False),
    "temp_c": ("hw.temperature", "Cel", 1.0, False),
}
_OF_THE_MACHINE: Final = {
    "cpu_mem_rss_mb": ("process.memory.usage", "By", 1024.0**2, True),
    "system/ram_used_mb": ("system.memory.usage", "By", 1024.0**2, True),
}
_UNITS: Final = {
    "sec_per_step": "s",
    "samples_per_sec": "{sample}/s",
    "_mb_s": "MiBy/s",
    "_mb": "MiBy",
    "_gb": "GiBy",
    "_percent": "%",
    "_mhz": "MHz",
    "_w": "W",
}
"""By the end of a name."""


class OtlpMetricsExporter(CollectorSink):
    """Sends the metrics of step, evaluation, epoch and system records to `endpoint`; what failed is sent again."""

    name = "otlp_metrics"
    what = "records"

    def __init__(self, endpoint: str, *, service_name: str, run_id: str, started: float) -> None:
        """Make an exporter; nothing is sent yet. Raises OptionsError if `endpoint` is no http or https address."""
        super().__init__(endpoint, METRICS, timeout_s=_TIMEOUT_S, most_items=_RECORDS_A_REQUEST)
        about = {"service.name": service_name, "run.id": run_id, "run.name": service_name}
        self._resource = {**about, "host.name": socket.gethostname()}
        self._started = round(started * 1e9)
        self._last_seq = -1

    def write(self, batch: Sequence[Record]) -> None:
        """Send what is new in `batch`. Raises OtlpError if the collector does not take it."""
        for record in batch:
            values = scalars_of(record)
            seq = record.get("seq")
            if not values or not isinstance(seq, int) or seq <= self._last_seq:
                continue
            if isinstance(step := record.get("global_step"), int):
                values["global_step"] = step
            self._last_seq = seq
            self._put(seq, (values, record))
        self._send()

    def close(self) -> None:
        """Close the connection."""
        self.give_up()

    def is_undelivered(self, record: Record) -> bool:
        """Return whether a record has numbers that are not delivered yet; may be called on another thread."""
        seq = record.get("seq")
        return isinstance(seq, int) and seq > self._delivered and bool(scalars_of(record))

    def _content(self, items: Sequence[tuple[dict[str, float], Record]]) -> Mapping[str, Any]:
        found: dict[tuple[str, str, bool], list[Any]] = {}
        for values, record in items:
            stamps = {
                "start_time_unix_nano": self._started,
                "time_unix_nano": round(float(record.get("time") or 0.0) * 1e9),
            }
            about = {"rank": record.get("rank") or 0, "run.session": record.get("session")}
            for given, value in values.items():
                name, unit, factor, is_sum, more = _described(given)
                point = {"attributes": key_values({**about, **more}), "as_double": value * factor, **stamps}
                found.setdefault((name, unit, is_sum), []).append(point)
        metrics = []
        for (name, unit, is_sum), points in found.items():
            data = {"aggregation_temporality": _CUMULATIVE} if is_sum else {}
            kind = "sum" if is_sum else "gauge"
            metrics.append({"name": name, "unit": unit, kind: {"data_points": points, **data}})
        return {"resource_metrics": [about_the_run(self._resource, metrics=metrics)]}


def _described(given: str) -> tuple[str, str, float, bool, Mapping[str, str]]:
    """Return the name, unit and factor of a metric, whether it is a sum, and its attributes."""
    gpu = _GPU.fullmatch(given)
    if gpu is not None and gpu[2] in _OF_A_GPU:
        more = {"hw.id": f"gpu{gpu[1]}", "hw.type": "gpu", "gpu.index": gpu[1]}
        if gpu[2] == "util":
            more["hw.gpu.task"] = "general"
        if gpu[2] == "temp_c":
            # The component is the sensor, whose parent is the GPU.
            more |= {
                "hw.id": f"gpu{gpu[1]}.temperature",
                "hw.type": "temperature",
                "hw.parent": f"gpu{gpu[1]}",
            }
        return (*_OF_A_GPU[gpu[2]], more)
    known = _OF_THE_MACHINE.get(given) or _OF_THE_MACHINE.get(given.removeprefix("system/"))
    if known is not None:
        return (*known, {"system.memory.state": "used"} if known[0].startswith("system.") else {})
    unit = "s" if given.startswith(("time/", "ledger/")) else ""
    unit = next((found for end, found in _UNITS.items() if given.endswith(end)), unit)
    name = _NAMESPACE + _NOT_IN_A_NAME.sub("_", given)
    return name[:_LONGEST_NAME], unit, 1.0, False, {}
