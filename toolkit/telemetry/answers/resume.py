"""Did each resume of a run continue the same training?"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from toolkit.telemetry.answers.evidence import RunEvidence, SessionEvidence, read_evidence
from toolkit.telemetry.answers.repeats import options_of
from toolkit.telemetry.diagnostics.metric_aliases import LOSS, LR
from toolkit.telemetry.diagnostics.resume import judge as resume_judge
from toolkit.telemetry.diagnostics.resume.judge import SAME, Judgement, Side
from toolkit.telemetry.runfolder.evidence.batches import Batches, read_batches
from toolkit.telemetry.runfolder.evidence.code_snapshot import CodeSnapshot, changed_files, read_code
from toolkit.telemetry.runfolder.records import STATE

_MOST_NAMESAKES: Final = 20


def answer_resumes(run: RunEvidence) -> list[Judgement]:
    """Judge each resume of a run, the newest first; none where it has one session only.

    Of a run of one session, a run of the same name whose steps go on where the other's end counts as its resume.
    """
    parts = [(run, session) for session in run.sessions if session.steps]
    if len(parts) == 1 and run.is_ours:
        parts = [(one, session) for one in _continuation(run) for session in one.sessions if session.steps]
    if len(parts) < 2:
        return []
    paths = dict.fromkeys(one.path for one, _ in parts if one.is_ours)
    batches = {path: read_batches(path) for path in paths}
    code = {path: read_code(path) for path in paths}
    found: list[Judgement] = []
    old = Side()
    for (one, before), (other, session) in pairwise(parts):
        is_same = not found or found[-1].answer == SAME
        old = _with_session(old, before, batches.get(one.path, Batches()), is_same=is_same)
        new = _with_session(Side(), session, batches.get(other.path, Batches()))
        kept = (code.get(one.path, {}).get(before.number), code.get(other.path, {}).get(session.number))
        new.changed_code = _changed(*kept)
        said = resume_judge.judge(old, new, session.number)
        found.append(said if one is other else replace(said, runs=(one.name, other.name)))
    return found[::-1]


def _continuation(run: RunEvidence) -> Sequence[RunEvidence]:
    """Return this run and the one that it looks like the continuation of, else the one that looks like its own."""
    # A second start without `resume=True` gets the next free name: name-2, name-3, …
    base = re.sub(r"-[0-9]+$", "", run.path.name)
    like = re.compile(rf"{re.escape(base)}(-[0-9]+)*")
    try:
        names = {name for name in os.listdir(run.path.parent) if like.fullmatch(name)} - {run.path.name}
    except OSError:
        return ()
    newest_first = sorted(names, key=lambda name: (len(name), name), reverse=True)[:_MOST_NAMESAKES]
    others = [read_evidence(run.path.parent / name) for name in newest_first]
    pairs = [*((other, run) for other in others), *((run, other) for other in reversed(others))]
    return next((pair for pair in pairs if _goes_on(*pair)), ())


def _goes_on(run: RunEvidence, later: RunEvidence) -> bool:
    """Return whether the steps of a later run of this name begin within the steps of this one, or right after them."""
    if not (run.sessions and later.sessions and later.sessions[0].steps):
        return False
    starts = [one.sessions[0].start for one in (run, later)]
    names = [start.get("run_name") for start in starts]
    times = [time for start in starts if isinstance(time := start.get("time"), (int, float))]
    steps = sorted({step for session in run.sessions for step in session.steps})
    is_later = len(times) == 2 and times[0] < times[1]
    if names[0] is None or names[0] != names[1] or not is_later or len(steps) < 2:
        return False
    return steps[1] < later.sessions[0].steps[0] <= 2 * steps[-1] - steps[-2]


def _with_session(side: Side, session: SessionEvidence, batches: Batches, *, is_same: bool = True) -> Side:
    """Return `side` with what a session did after it; steps that another training did later are left out."""
    last = math.inf if is_same else session.steps[-1]
    resumed = session.start.get("resumed_from_step")
    own = resume_judge.batches_of(batches, session.number)
    first = min((one.step for one in own), default=math.inf)
    return Side(
        loss=_joined(side.loss, session.values_of(LOSS), last),
        lr=_joined(side.lr, session.values_of(LR), last),
        epoch=_joined(side.epoch, session.column("epoch"), last),
        states=[*side.states, *session.events_of(STATE)],
        settings={**options_of(session.start.get("command_line")), **session.settings},
        data=resume_judge.data_of(session.start),
        batches=[*(one for one in side.batches if one.step < first), *own],
        resumed_from=resumed if type(resumed) is int else None,
    )


def _joined(old: Mapping[int, float], new: Mapping[int, float], last: float) -> dict[int, float]:
    return {step: value for step, value in {**old, **new}.items() if step <= last}


def _changed(before: CodeSnapshot | None, after: CodeSnapshot | None) -> list[str] | None:
    if before is None or after is None:
        return None
    return [change.path for change in changed_files(before, after) if change.only_in is None]
