"""Sends records to a W&B run."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolkit.mirrors.shared.scalars import plain_attributes, scalars_of, without_envelope
from toolkit.mirrors.shared.span_filter import SpanFilter
from toolkit.mirrors.wandb.client import Client
from toolkit.privacy.masking import Masker
from toolkit.runfolder.records import END, SPAN, SPAN_EVENT, START, TAGS, Record
from toolkit.runfolder.untrusted import is_number

_log = logging.getLogger("toolkit.telemetry")

_ROWS_A_MESSAGE = 500


class WandbExporter:
    """Sends the metrics, spans and events of a run to W&B, or keeps them for `wandb sync` in `<folder>/wandb`.

    W&B runs in a process of its own. Inside the training process it would replace `sys.exit` and `sys.excepthook`,
    write environment variables, hook imports, wait for the network at exit, and compete for the GIL.
    Only masked records are sent; W&B's own collection of code, git state, console, packages and machine is off.

    `mode` is `online`, `offline` or `disabled`; None means `WANDB_MODE`, else `online` if W&B has an API key and
    `offline` if not. A run with the same `run_id` resumes the run in W&B.
    """

    name = "wandb"
    longest_pause_s = 300.0
    """Each attempt starts a process, which takes some seconds of CPU."""

    def __init__(
        self,
        folder: Path,
        project: str,
        run_name: str,
        run_id: str,
        mode: str | None = None,
        *,
        span_filter: SpanFilter | None = None,
    ) -> None:
        # The training script may change its working folder later.
        self._folder = Path(os.path.abspath(folder))
        self._settings = {"project": project, "run_name": run_name, "run_id": run_id}
        self._mode = mode
        self._span_filter = span_filter or SpanFilter()
        self._client: Client | None = None
        self._ended_well = True

    def write(self, batch: Sequence[Record]) -> None:
        """Hand `batch` to W&B; returns when W&B has accepted it."""
        mode = self._mode or os.environ.get("WANDB_MODE") or None
        if mode == "disabled":
            return
        masker = Masker()
        config: dict[str, Any] = {}
        rows: list[dict[str, Any]] = []
        for record in batch:
            event = record.get("event")
            if event in (START, TAGS):
                config.update(masker.mask(without_envelope(record)))
            elif event == END:
                self._ended_well = record.get("status") in ("finished", "stopped")
            elif scalars := scalars_of(record) or numbers_of(record, self._span_filter):
                rows.append(_row(record, masker.mask(scalars)))
        if not config and not rows:
            return
        if self._client is None:
            self._client = self._start(mode)
        try:
            if config:
                self._client.ask({"config": config})
            for begin in range(0, len(rows), _ROWS_A_MESSAGE):
                self._client.ask({"rows": rows[begin : begin + _ROWS_A_MESSAGE]})
        except OSError:
            client, self._client = self._client, None
            client.abandon()
            raise

    def close(self) -> None:
        """Finish the W&B run and wait for its process; it may finish sending after that."""
        if self._client is not None:
            client, self._client = self._client, None
            client.finish(exit_code=0 if self._ended_well else 1)

    def _start(self, mode: str | None) -> Client:
        client = Client(self._folder)
        try:
            answer = client.ask({**self._settings, "mode": mode, "folder": str(self._folder)})
        except OSError:
            client.abandon()
            raise
        if answer.get("without_key"):
            _log.warning(
                "[telemetry] W&B has no API key here, so the run is kept offline; upload it later with: wandb sync %s",
                answer.get("folder"),
            )
        return client


def _row(record: Record, scalars: dict[str, Any]) -> dict[str, Any]:
    row = {**scalars, "_timestamp": record["time"]}
    step = record.get("global_step")
    if step is not None:
        row["global_step"] = step
    # W&B requires a number that only grows. The run's own steps go back when it resumes from a checkpoint.
    return {"step": record["seq"], "row": row}


def numbers_of(record: Record, span_filter: SpanFilter) -> dict[str, float]:
    """Return a span's duration or an event's numeric attributes; nothing for other records: W&B plots numbers only."""
    event = record.get("event")
    name = record.get("name")
    if event == SPAN and isinstance(name, str) and span_filter.takes(name):
        duration = record.get("duration")
        if isinstance(duration, int | float):
            return {f"span/{name}/duration_s": float(duration)}
    if event == SPAN_EVENT and isinstance(name, str) and span_filter.takes(str(record.get("span", ""))):
        return {
            f"event/{name}/{attribute}": float(value)
            for attribute, value in plain_attributes(record.get("attributes")).items()
            if is_number(value)
        }
    return {}
