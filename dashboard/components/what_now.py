"""The card that says what to do about a run that failed, was lost or has stalled."""

from __future__ import annotations

import time
from typing import Final

import streamlit as st

from dashboard.components.frame import RunPage
from dashboard.components.headings import section
from toolkit.runfolder.status import FAILED, LOST, STALLED
from toolkit.runs.findings.what_now import Checkpoint, WhatNow, what_now
from toolkit.runs.formatting import ago, clean, count, md, size

_TITLES: Final = {
    FAILED: ("The run failed", ":material/error:"),
    LOST: ("The run was lost", ":material/help:"),
    STALLED: ("The run has stalled", ":material/hourglass_top:"),
}


def what_now_card(page: RunPage) -> None:
    """Show the card; nothing for a run that is all right."""
    known = what_now(page.store, page.key)
    if known is None:
        return
    title, icon = _TITLES[known.status]
    with st.container(border=True):
        section(f"{icon} {title}: what now?")
        left, right = st.columns(2, gap="medium")
        with left:
            st.markdown("\n".join(f"- {line}" for line in _happened(known)))
        with right:
            _checkpoint(known)
            _command(known)


def _happened(known: WhatNow) -> list[str]:
    """Return what is known about the end, as Markdown."""
    ending = known.ending
    lines = []
    step = known.step if ending is None or ending.step is None else ending.step
    where = f"at step {count(step)}" if step is not None else "before its first step"
    if known.status == STALLED:
        lines.append(f"No new step since step {count(step)}." if step is not None else "No step so far.")
    elif known.status == LOST:
        lines.append(f"It was last seen {where}.")
    else:
        lines.append(f"It ended {where}.")
    if known.why != known.status:
        guess = "" if known.sure else " (estimated from the time of its last record)"
        lines.append(f"{md(known.why[:1].upper() + known.why[1:])}{guess}.")
    if ending is not None and ending.error is not None:
        error = ending.error
        lines.append(f"Error: **{md(_error_text(error.type, error.message), 200)}**")
        if error.where:
            lines.append(f"In {md(error.where, 160)}")
        if error.out_of_memory:
            lines.append("It ran out of memory: lower the batch size, or free the device.")
    inside = _inside(known)
    if inside:
        lines.append(f"It was inside: {' › '.join(f'**{md(name, 60)}**' for name in inside)}.")  # noqa: RUF001
    if ending is not None and ending.hang:
        lines.append(md(ending.hang))
    if known.status == STALLED and known.pid is not None:
        host = f" on {md(known.host)}" if known.host else ""
        lines.append(
            f"Its process is {known.pid}{host}. `py-spy dump --pid {known.pid}` shows where it is stuck."
        )
    return lines


def _error_text(kind: str, message: str) -> str:
    # The message usually starts with the type.
    return message if message.startswith(kind) else f"{kind}: {message}" if message else kind


def _inside(known: WhatNow) -> tuple[str, ...]:
    if known.ending is None:
        return ()
    return known.ending.inside or (known.ending.error.spans if known.ending.error is not None else ())


def _checkpoint(known: WhatNow) -> None:
    good, since = known.checkpoint, known.spoiled_since
    if good is not None:
        before = f", the last one before the loss went wrong at step {count(since)}" if known.newer else ""
        st.markdown(f"**Last good checkpoint**: {_about(good)}{before}")
        st.code(clean(good.path), language=None)
    elif known.newer is not None and since is not None:
        st.markdown(
            f"**No good checkpoint**: the loss went wrong at step {count(since)}, before the first one was saved."
        )
    elif known.save_folder is not None:
        st.markdown("**No checkpoint was recorded.** By its configuration the run saves to:")
        st.code(clean(known.save_folder), language=None)
    else:
        st.markdown("**No checkpoint was recorded**, and the configuration names no folder for them.")
    if good is not None and known.newer is not None:
        st.caption(f"A newer one, {_about(known.newer)}, has the bad weights.")


def _about(checkpoint: Checkpoint) -> str:
    parts = [f"step {count(checkpoint.step)}" if checkpoint.step is not None else "unknown step"]
    if checkpoint.bytes is not None:
        parts.append(size(checkpoint.bytes))
    if checkpoint.time is not None:
        parts.append(ago(time.time() - checkpoint.time))
    return " · ".join(parts)


def _command(known: WhatNow) -> None:
    resume, good = known.resume, known.checkpoint
    if resume is None:
        st.markdown("**Its command line was not recorded**, so how to resume it is not known here.")
        return
    if resume.resumes and known.newer is not None and good is None:
        st.markdown(
            "**Start over**, with other settings and another name; resuming would load the bad weights."
        )
    elif resume.resumes:
        st.markdown(
            "**Resume it**" if known.status != STALLED else "**Resume it** (after stopping the process)"
        )
    else:
        st.markdown("**It was started with** this command; whether that resumes is up to the script.")
    st.code(clean(resume.command), language="bash", wrap_lines=True)
    notes = list(resume.notes)
    if resume.resumes and known.newer is not None and good is not None:
        notes.append("Move the newer checkpoint away first, or the run continues from it.")
    for note in notes:
        st.caption(md(note))
