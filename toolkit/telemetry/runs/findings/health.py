"""What is wrong with a run of a store, from the records read so far: for pages, reports, notebooks and SQL."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from toolkit.telemetry.diagnostics.diagnosis import Diagnosis, notes_about
from toolkit.telemetry.diagnostics.ending import Endings
from toolkit.telemetry.diagnostics.finding import Finding, latest_findings, problem_from
from toolkit.telemetry.runfolder import records as kinds
from toolkit.telemetry.runs.store import RunStore

_ENDING_KINDS: Final = (kinds.ERROR, kinds.SPAN_START, kinds.SPAN, kinds.FINDING, kinds.LOST, kinds.END)
_MOST_EVENTS: Final = 2_000
_MOST_FINDINGS: Final = 1_000


def health(store: RunStore, key: str) -> Diagnosis:
    """Return how a run ended and what is wrong with it."""
    card, manifest, endings = store.card(key), store.meta(key).manifest, Endings()
    endings.take(store.events(key, _ENDING_KINDS, limit=_MOST_EVENTS)[::-1])
    ending = endings.ending(manifest, time.time())
    if ending is not None:
        cause, last = ending.error, card.step
        # A run that went on has caught it.
        is_cause = cause is not None and (cause.step is None or last is None or cause.step >= last)
        ending = replace(ending, step=card.step, error=cause if is_cause else None)
    return Diagnosis(
        name=card.name,
        findings=findings_of(store, key),
        ending=ending,
        errors=endings.errors(but=ending),
        is_cut=card.is_cut,
        manifest=manifest,
        notes=[*([card.problem] if card.problem else []), *notes_about(endings, manifest)],
    )


def findings_of(store: RunStore, key: str, *, most: int = _MOST_FINDINGS) -> list[Finding]:
    """Return each finding once, as `latest_findings` does."""
    records = store.events(key, (kinds.FINDING,), limit=most)
    return latest_findings(map(problem_from, records), store.findings(key))
