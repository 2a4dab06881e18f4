"""Did each resume of a run continue the same training?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from toolkit.telemetry.answers.evidence import RunEvidence, SessionEvidence
from toolkit.telemetry.diagnostics.metric_aliases import LOSS, LR
from toolkit.telemetry.diagnostics.resume import judge as resume_judge
from toolkit.telemetry.diagnostics.resume.judge import SAME, Judgement, Side
from toolkit.telemetry.runfolder.evidence.batches import Batches, read_batches
from toolkit.telemetry.runfolder.evidence.code_snapshot import CodeSnapshot, changed_files, read_code
from toolkit.telemetry.runfolder.records import STATE


def answer_resumes(run: RunEvidence) -> list[Judgement]:
    """Judge each resume of a run, the newest first; none where it has one session only."""
    sessions = [session for session in run.sessions if session.steps]
    batches = read_batches(run.path) if run.is_ours and len(sessions) > 1 else Batches()
    code = read_code(run.path) if run.is_ours and len(sessions) > 1 else {}
    found: list[Judgement] = []
    old = Side()
    for before, session in pairwise(sessions):
        old = _with_session(old, before, batches, is_same=not found or found[-1].answer == SAME)
        new = _with_session(Side(), session, batches)
        new.changed_code = _changed(code, before.number, session.number)
        found.append(resume_judge.judge(old, new, session.number))
    return found[::-1]


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
        settings=session.settings,
        batches=[*(one for one in side.batches if one.step < first), *own],
        resumed_from=resumed if type(resumed) is int else None,
    )


def _joined(old: Mapping[int, float], new: Mapping[int, float], last: float) -> dict[int, float]:
    return {step: value for step, value in {**old, **new}.items() if step <= last}


def _changed(code: Mapping[int, CodeSnapshot], before: int, after: int) -> list[str] | None:
    if before not in code or after not in code:
        return None
    return [change.path for change in changed_files(code[before], code[after]) if change.only_in is None]
