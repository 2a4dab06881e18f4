"""What a run answered to a request, in words."""

from __future__ import annotations

from typing import Any, Final

from toolkit.telemetry.cli.chosen_run import printable
from toolkit.telemetry.runfolder.records import Record

GOOD: Final = ("applied", "clamped")


def answer_text(answer: Record) -> tuple[str, str]:
    """Return the status of an answer, and what was done or why it was not, to be written right after it."""
    status = str(answer.get("status"))
    step = answer.get("global_step")
    where = f" at step {step:,}" if status in GOOD and isinstance(step, int) else ""
    done = [str(action) for action in answer.get("actions") or () if isinstance(action, str)]
    if answer.get("setting") is not None:
        done.append(f"{answer['setting']} {answer.get('old')} -> {answer.get('new')}")
    for name, change in knobs_in(answer).items():
        old, new = change.get("old"), change.get("new")
        done.append(f"{name} {old} -> {new}" if old is not None else f"{name} = {new}")
    reason = f" ({answer['reason']})" if answer.get("reason") else ""
    return printable(status), printable(where + (f": {', '.join(done)}" if done else "") + reason)


def knobs_in(answer: Record) -> dict[str, dict[str, Any]]:
    """Return the knobs that were changed: records have them in one level, as `knobs/lr_scale/new`."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in answer.items():
        parts = key.split("/")
        if len(parts) == 3 and parts[0] == "knobs":
            found.setdefault(parts[1], {})[parts[2]] = value
    return found
