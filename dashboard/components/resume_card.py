"""One line on whether a resumed run continued the same training, with its evidence on a click."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Final

import streamlit as st

from toolkit.telemetry.answers.evidence import read_evidence
from toolkit.telemetry.answers.resume import answer_resumes
from toolkit.telemetry.diagnostics.resume.judge import CAUSES, DIFFERENT, SAME, Judgement
from toolkit.telemetry.runs.formatting import count, md

from .frame import RunPage
from .run_table import fact_table

_FIRST_STEPS: Final = 200
"""So long the answer about a live session may change."""
_AT_ONCE: Final = 40
_MOST_BYTES: Final = 64 * 1024**2
"""The command takes the time that a larger file needs."""
_SIGNS: Final = {SAME: ":green[✓]", DIFFERENT: ":orange[▲]"}


def resume_card(page: RunPage) -> None:
    """Show the answer about each resume, the newest first; nothing for a run that was never resumed."""
    sessions, path = page.store.sessions(page.key), page.card.path
    if len(sessions) < 2 or path is None:
        return
    done = (page.card.step or 0) - int(sessions[-1].first_step)
    for answer in _answers(path, len(sessions), min(max(done, 0), _FIRST_STEPS) // _AT_ONCE):
        sign = _SIGNS.get(answer.answer, ":gray[?]")
        with st.expander(f"{sign} {md(_line(answer), 200)}", key=f"_resume {page.key} {answer.session}"):
            st.markdown(f"{md(answer.sentence, 1_000)} Sure: {answer.sure}.")
            rows = answer.evidence
            columns = {
                "compared": [row.what for row in rows],
                "before": [row.before for row in rows],
                "after": [row.after for row in rows],
                "answer": [row.said for row in rows],
            }
            if rows:
                fact_table(columns, "What was compared", key=f"_compared {page.key} {answer.session}")
            for needed in answer.needed:
                st.caption(f"To say more: {md(needed, 300)}")


def _line(answer: Judgement) -> str:
    begin = f"Resumed from step {count(answer.step)}"
    if answer.answer == SAME:
        return f"{begin}: the same training"
    if answer.answer == DIFFERENT:
        perhaps = "perhaps because " if answer.cause_probability < 0.5 else ""
        return f"{begin}: not the same training, {perhaps}{CAUSES[answer.cause]}"
    return f"{begin}: whether it is the same training cannot be said"


@lru_cache(maxsize=32)
def _answers(path: Path, sessions: int, done: int) -> list[Judgement]:  # noqa: ARG001 - they make it look again
    try:
        size = max((os.path.getsize(path / name) for name in os.listdir(path)), default=0)
    except OSError:
        return []
    return answer_resumes(read_evidence(path)) if size <= _MOST_BYTES else []
