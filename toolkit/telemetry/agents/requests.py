"""Requests of an agent to a live run: sent as a page sends them, and answered when the run has acknowledged."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

from pydantic import Field

from toolkit.telemetry.agents.answer import Answer, AskError
from toolkit.telemetry.agents.runs import WAIT_S, Runs
from toolkit.telemetry.agents.tools import Run
from toolkit.telemetry.runs.store import Refused

Wait = Annotated[int, Field(ge=0, le=600, description="seconds to wait for the run's answer")]
_LOOK_EVERY_S: Final = 0.2


def save(known: Runs, *, run: Run, wait_s: Wait = 60) -> Answer:
    """Ask a live run to save a checkpoint now, and wait until it has acknowledged."""
    return _ask(known, run, {"actions": ("save",)}, wait_s)


def stop(known: Runs, *, run: Run, wait_s: Wait = 60) -> Answer:
    """Ask a live run to stop after this step, and wait until it has acknowledged."""
    return _ask(known, run, {"actions": ("stop",)}, wait_s)


def log_every(
    known: Runs, *, run: Run, n: Annotated[int, Field(ge=1, le=1_000_000)], wait_s: Wait = 60
) -> Answer:
    """Ask a live run to write a step record every n steps, and wait until it has acknowledged."""
    return _ask(known, run, {"log_every": n}, wait_s)


def _ask(known: Runs, name: str, request: dict[str, Any], wait_s: float) -> Answer:
    card = known.card(name)
    try:
        number = known.store.ask(card.key, request)
    except Refused as error:
        raise AskError("The request was not sent.", run=card.key, problem=str(error)) from error
    facts = {"run": card.key, "request": number, "asked": request, "files": known.files(card)}
    until = time.monotonic() + wait_s
    while True:
        # Looked at before the records: a run that ends writes its last answers first.
        is_live = known.store.card(card.key).live
        known.store.refresh(card.key, wait_s=WAIT_S)
        answer = next((one for one in known.requests(card) if one.get("id") == number), None)
        if answer is not None:
            said = "The run has acknowledged the request; its status says whether it was done."
            return Answer(facts={**facts, "answer": answer}, words=said)
        if not is_live or time.monotonic() > until:
            why = "it may still do so within ten minutes; see `describe`" if is_live else "it has ended"
            return Answer(facts=facts, words=f"The run has not acknowledged the request: {why}.")
        time.sleep(_LOOK_EVERY_S)
