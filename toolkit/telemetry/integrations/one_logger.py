"""An exporter for NVIDIA's OneLogger that writes a job's spans into a run folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final
from uuid import UUID

from nv_one_logger.api.one_logger_provider import OneLoggerProvider
from nv_one_logger.core.event import ErrorEvent, Event, TelemetryDataError
from nv_one_logger.core.span import Span
from nv_one_logger.exporter.exporter import BaseExporter
from overrides import override

from toolkit.telemetry.core.guard import Guard, guarded
from toolkit.telemetry.core.ranks import Rank, find_rank
from toolkit.telemetry.integrations.metric_names import ONE_LOGGER_LOSS
from toolkit.telemetry.logger.control.rank_claim import RankClaim, may_record
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.logger.spans.span import NO_SPAN, AnySpan
from toolkit.telemetry.runfolder.records import ERROR
from toolkit.telemetry.timing.names import FROM_ONE_LOGGER

# OneLogger writes these into the attributes; a record has its own field for each.
_OWN_FIELDS: Final = frozenset({"timestamp_msec", "duration_msec"})
_SHOWN: Final = ("train_throughput_per_gpu", "avg_tflops", "avg_tokens_per_second", "train_tokens")
_TAGS_IN: Final = {
    "one_logger_initialization": "session_tag",
    "update_training_telemetry_config": "perf_tag",
}


class RunFolderExporter(BaseExporter):  # type: ignore[misc]  # OneLogger has no types
    """An exporter for OneLogger that writes its spans and events as records of a run.

    Give it a logger, which you close yourself, or options: then it opens a run with the first span and closes it with
    OneLogger. That run is named after OneLogger's application, unless `run_name` is given. With `log_steps`, each
    update of the training's metrics also becomes a step record, so that there are curves.

    In a job of several ranks, rank 0 or the last rank records: the one of the two that begins first. In Megatron
    OneLogger is enabled on the last one alone.

    Nothing it does raises into OneLogger, except invalid options when it is created.
    """

    def __init__(
        self,
        log: TelemetryLogger | None = None,
        *,
        run_name: str | None = None,
        log_steps: bool = True,
        **options: Any,
    ) -> None:
        """Make an exporter; no folder is created yet. Raises OptionsError if an option is unknown or invalid."""
        super().__init__()
        self._log = log
        self._is_ours = log is None
        self.guard = Guard() if log is None else log.guard
        self.is_live = True
        # OneLogger's updates already come only every so many iterations.
        self._options = TelemetryOptions.from_mapping({}, **{"log_every": 1, **options})
        self._run_name = run_name
        self._log_steps = log_steps
        self._open: dict[UUID, tuple[AnySpan, int]] = {}
        """The open spans, and which exception was being handled when each began."""
        self._totals = (0, 0, 0.0)
        """Iterations, samples and seconds as of the last update."""
        self._claim: RankClaim | None = None

    @property
    def log(self) -> TelemetryLogger | None:
        """The logger of the run; None before the first span."""
        return self._log

    @guarded
    @override
    def export_start(self, span: Span) -> None:
        """Begin a span."""
        if (log := self._ready_log()) is not None:
            began = span.start_event
            ours = log.start_span(
                _our_name(span),
                attributes={**_plain(span.attributes), **_plain(began.attributes)},
                start_time=began.timestamp.seconds_since_epoch,
                parent=self._parent_of(span),
            )
            self._open[span.id] = ours, id(sys.exc_info()[1])

    @guarded
    @override
    def export_stop(self, span: Span) -> None:
        """End the span."""
        ours, exception_before = self._open.pop(span.id, (NO_SPAN, 0))
        if span.stop_event is not None:
            began, ended = span.start_event.timestamp, span.stop_event.timestamp
            ours.set_all({**_plain(span.updated_attributes), **_plain(span.stop_event.attributes)})
            # OneLogger does not report an exception that leaves most of its spans.
            error = sys.exc_info()[1]
            # The wall clock may have been set in the meantime; the performance counter cannot be.
            duration = ended.perf_counter_seconds - began.perf_counter_seconds
            ours.stop(
                began.seconds_since_epoch + max(0.0, duration),
                error if id(error) != exception_before else None,
            )

    @guarded
    @override
    def export_event(self, event: Event, span: Span) -> None:
        """Write an event of a span."""
        if (log := self._ready_log()) is not None:
            name, attributes = event.name_str, _plain(event.attributes)
            self._ours(span).event_with(name, attributes, event.timestamp.seconds_since_epoch)
            if name == "training_metrics_update" and self._log_steps:
                self._log_update(log, attributes)
            elif tag := attributes.get(_TAGS_IN.get(name, "")):
                tag = ",".join(map(str, tag)) if isinstance(tag, list | tuple) else str(tag)
                internals(log).set_tags(**{_TAGS_IN[name]: tag})

    @guarded
    @override
    def export_error(self, event: ErrorEvent, span: Span) -> None:
        """Write an error of a span, and mark the span as failed."""
        attributes, ours = _plain(event.attributes), self._ours(span)
        ours.event_with(event.name_str, attributes, event.timestamp.seconds_since_epoch)
        message = str(attributes.get("exception_message") or attributes.get("error_message") or "")
        kind = attributes.get("exception_type")
        # A class of that name, which the span records as its type.
        ours.fail(type(str(kind), (Exception,), {})(message) if kind else message)

    @guarded
    @override
    def export_telemetry_data_error(self, error: TelemetryDataError) -> None:
        """Write that OneLogger's own data is incomplete."""
        if (log := self._ready_log()) is not None:
            attributes = _plain(error.attributes)
            fields = {
                "source": "telemetry",
                "doing": "collecting OneLogger's data",
                "type": attributes.get("telemetry_data_error_type"),
                "message": attributes.get("error_message"),
            }
            internals(log).put(ERROR, fields)

    @guarded
    @override
    def close(self) -> None:
        """Close the run if it was opened here: as failed if an exception is being raised."""
        super().close()
        if self._is_ours and self._log is not None:
            self._log.__exit__(*sys.exc_info())
        if self._claim is not None:
            self._claim.close()

    def _ready_log(self) -> TelemetryLogger | None:
        """Return the logger, opened if needed; None before OneLogger has begun, after its end, and on another rank."""
        if self.ready and self._log is None and self._claim is None:
            provider = OneLoggerProvider.instance()
            application = provider.config.application_name if provider.one_logger_ready else None
            name, rank = self._run_name or str(application or "one-logger"), find_rank()
            if self._options.enabled and self._options.ranks == "zero" and may_record(rank):
                self._claim = RankClaim(self._options, name)
                if rank.rank == 0 and not self._claim.is_ours:
                    return None
                if rank.rank and self._claim.is_ours:
                    # Rank 0 has no run, so there is nothing to agree on with it.
                    rank = Rank()
            self._log = TelemetryLogger(name, self._options, rank=rank)
            self.guard = self._log.guard
        return self._log if self.ready else None

    def _ours(self, span: Span) -> AnySpan:
        return self._open.get(span.id, (NO_SPAN, 0))[0]

    def _parent_of(self, span: Span) -> str | None:
        """Return the id of the nearest open span with a record: OneLogger may not export the direct parent."""
        parent = span.parent_span
        while parent is not None and not self._ours(parent).id:
            parent = parent.parent_span
        return None if parent is None else self._ours(parent).id

    def _log_update(self, log: TelemetryLogger, update: Mapping[str, Any]) -> None:
        """Write a step record with the times since the last one; OneLogger's are totals of the whole job."""
        totals = (
            int(update["num_iterations"]),
            int(update["num_train_samples"]),
            float(update["total_iteration_time_sec"]),
        )
        iterations, samples, seconds = (
            now - before for now, before in zip(totals, self._totals, strict=True)
        )
        self._totals = totals
        others = {name: update[name] for name in _SHOWN if update.get(name) is not None}
        log.log_step(
            int(update["current_iteration"]),
            train_loss=update.get(ONE_LOGGER_LOSS),
            sec_per_step=seconds / iterations if iterations > 0 else None,
            samples_per_sec=samples / seconds if seconds > 0 else None,
            **others,
        )


def _our_name(span: Span) -> str:
    name = str(span.name.value if isinstance(span.name, Enum) else span.name)
    return FROM_ONE_LOGGER.get(name, name)


def _plain(attributes: Any) -> dict[str, Any]:
    """Return attributes as a plain mapping, without those that a record has its own fields for."""
    return {
        str(name): value.value if isinstance(value, Enum) else value
        for name, value in attributes.to_json().items()
        if name not in _OWN_FIELDS
    }
