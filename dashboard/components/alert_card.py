"""Equal alerts as one card: when each occurred, a chart, causes, advice, and a button that acts on it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final, Literal

import streamlit as st

from toolkit.telemetry.diagnostics.catalogue import OF_RANKS, title_of
from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.reports.finding_text import (
    basis_text,
    message_of,
    numbers_of,
    sure_text,
    value_of,
    when_text,
)
from toolkit.telemetry.reports.svg import text_html
from toolkit.telemetry.runfolder.labels import Labels
from toolkit.telemetry.runfolder.records import CONTROL_CHANGE, ERROR, FINDING
from toolkit.telemetry.runfolder.status import FAILED, LOST, STALLED
from toolkit.telemetry.runs.findings.alerts import NOT_FINITE, AlertGroup
from toolkit.telemetry.runs.findings.remedies import (
    RECORDS_COMPARED,
    Effect,
    effects_on,
    is_knob_change_after,
    own_answer,
    remedy_for,
)
from toolkit.telemetry.runs.findings.what_now import Checkpoint, WhatNow, what_now
from toolkit.telemetry.runs.formatting import ago, clean, clock, count, md, short_number, size
from toolkit.telemetry.runs.listing.run_start import start_of, training_settings

from .. import session
from . import page_states
from .control_box import (
    STOPS,
    control_unavailable_reason,
    declared_control,
    describe,
    is_confirmed,
    is_pending,
    send_request,
    show_answers,
    subject,
)
from .curve_chart import Mark
from .curve_panel import Around, Panel, change_mark, curve_panel
from .evidence import Evidence, around, metric_of
from .frame import RunPage
from .page_states import section
from .step_evidence import step_evidence

Tone = Literal["red", "orange", "blue"]

SEVERITIES: Final[dict[str, tuple[str, str, Tone]]] = {
    "critical": ("Critical", "✕", "red"),
    "warning": ("Warning", "▲", "orange"),
    "info": ("Info", "●", "blue"),
}
_MAX_LABELS: Final = 500
_MAX_COMMAND: Final = 4_000
_MAX_CHANGES: Final = 3
_SET_BY_LR: Final = frozenset(
    {"nan", "spike", "divergence", "plateau", "exploding_grad", "val_spike", "lr_problem", "loss_scale"}
)
"""Kinds whose usual cause is the learning rate, its warm-up or missing clipping."""
_VERDICTS: Final = {
    "better": ":green[✓ it helped]",
    "worse": ":red[✕ it got worse]",
    "same": ":gray[no clear change]",
}


def alert_card(page: RunPage, group: AlertGroup, labels: Labels, *, expanded: bool) -> None:
    """Show equal alerts as one card; `expanded` with chart, causes and advice of the chosen one visible."""
    with st.container(border=True):
        # The choice is made below the head, which describes it.
        head = st.container()
        alert = _choose(page, group)
        with head:
            _head(group, alert, labels)
        st.markdown(md(alert.message, 600))
        # With a key of its own, a card stays open or closed when it moves.
        title = "Stack and output" if alert.event == ERROR else "Evidence and what to try"
        with st.expander(title, expanded=expanded, key=f"_about {page.key} {group.key}"):
            page_states.guarded("The evidence", lambda: _details(page, alert))
        _buttons(page, group, alert, labels)


def choice_key(page: RunPage, group: AlertGroup) -> str:
    """Return the key under which the session keeps which alert of a group is shown."""
    return f"_which {page.key} {group.key}"


def _choose(page: RunPage, group: AlertGroup) -> Finding:
    """Show when the alerts of a group occurred, and return the chosen one."""
    alerts = {alert.id: alert for alert in group.alerts}
    if len(alerts) == 1:
        return group.alerts[0]
    chosen = st.selectbox(
        "Occurrence",
        list(alerts),
        key=choice_key(page, group),
        format_func=lambda alert_id: _occurrence(alerts[alert_id]) if alert_id in alerts else "",
        help="Step, value and time; a tick marks those that are over.",
        width=380,
    )
    return alerts.get(str(chosen), group.alerts[0])


def _occurrence(alert: Finding) -> str:
    """Return one occurrence in a few words: whether it is over, where, how much, when."""
    where = f"step {alert.start_step:,}" if alert.start_step is not None else ""
    parts = [where, clean(value_of(alert))[:40]]
    if alert.kind == NOT_FINITE:
        parts.insert(0, clean(alert.metric)[:30])
    if alert.time is not None:
        parts.append(clock(alert.time, now=time.time())[:-3])
    return ("" if alert.is_open else "✓ ") + " · ".join(part for part in parts if part)


def _head(group: AlertGroup, alert: Finding, labels: Labels) -> None:
    word, sign, tone = SEVERITIES[alert.severity]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(f"{sign} {word}", color=tone)
        section(md(title_of(alert), 60), width="content")
        if len(group.alerts) > 1:
            still = sum(item.is_open for item in group.alerts)
            some = f", {count(still)} open" if still else ""
            st.badge(f"{count(len(group.alerts))} times{some}", color="gray")
        if not alert.is_open:
            st.badge("✓ resolved", color="green")
        if alert.acknowledged_key in labels.acknowledged:
            st.badge("seen", color="gray")
        if alert.kind in labels.muted:
            st.badge("muted", color="gray")
        sure = sure_text(alert.kind, alert.confidence) if alert.event == FINDING else ""
        if sure:
            st.caption(sure, help=basis_text(alert.kind, alert.confidence), width="content")
        st.caption(" · ".join(_where(alert)), width="content")


def _where(alert: Finding) -> list[str]:
    parts = []
    if alert.event == FINDING:
        parts.append(when_text(alert))
    elif alert.start_step is not None:
        parts.append(f"step {alert.start_step:,}")
    if alert.count > 1:
        parts.append(f"{count(alert.count)} {'times' if alert.event == ERROR else 'records'}")
    if alert.time is not None:
        parts.append(clock(alert.time))
    return parts


# ---------------------------------------------------------------- evidence


def _details(page: RunPage, alert: Finding) -> None:
    metrics = {info.name: info for info in page.store.metrics(page.key)}
    # The curves are rank 0's and do not show another rank.
    info = metric_of(alert, metrics) if alert.kind not in OF_RANKS else None
    evidence = around(alert, info, _changes(page, alert)) if info is not None else None
    if info is not None and evidence is not None:
        left, right = st.columns([3, 2], gap="medium")
        with left:
            _chart(page, alert, info.name, evidence)
        with right:
            _advice(alert)
    else:
        _advice(alert)
    _settings(page, alert)
    if alert.kind in OF_RANKS:
        st.caption("See *Time and machine* for a comparison of the ranks.")
    _numbers(alert)
    for detail in alert.details:
        st.markdown(f"**{md(detail.title, 100)}**")
        st.code(clean(detail.text), language=None)
    step_evidence(page, alert, None if info is None else info.name)


def _chart(page: RunPage, alert: Finding, metric: str, evidence: Evidence) -> None:
    curve_panel(
        page,
        Panel.of(metric),
        Around(
            marks=evidence.marks,
            bands=evidence.bands,
            levels=evidence.levels,
            window=evidence.window,
            axis="step",
        ),
        height=290,
        smooth=False,
        key=f"chart alert {page.key} {alert.id}",
    )


def _changes(page: RunPage, alert: Finding) -> list[Mark]:
    if alert.noticed_step is None:
        return []
    marks = [
        change_mark(record)
        for record in page.store.events(page.key, (CONTROL_CHANGE,), limit=50)
        if is_knob_change_after(record, alert.noticed_step)
    ]
    return [mark for mark in marks if mark is not None][:_MAX_CHANGES]


def _advice(alert: Finding) -> None:
    for title, items in (("Likely causes", alert.causes), ("What to try", alert.advice)):
        if items:
            lines = "\n".join(f"1. {md(item, 300)}" for item in items[:10])
            st.markdown(f"**{title}**\n\n{lines}")


def _numbers(alert: Finding) -> None:
    shown = numbers_of(alert)
    if shown:
        st.caption(" · ".join(md(part, 300) for part in shown))


def _settings(page: RunPage, alert: Finding) -> None:
    """Show the settings that decide whether a training is stable."""
    if alert.kind not in _SET_BY_LR:
        return
    found = training_settings(start_of(page.store, page.key))
    if found:
        st.markdown(f"**Configured**: {md(' · '.join(found), 400)}")


# ---------------------------------------------------------------- actions


def _buttons(page: RunPage, group: AlertGroup, alert: Finding, labels: Labels) -> None:
    requests = [item for item in session.sent_requests(page.key) if item.get("about") == alert.id]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        _remedy(page, alert, is_pending=is_pending(page.store, page.key, requests))
        can_edit = session.read_only_reason() is None
        unseen = [
            item.acknowledged_key for item in group.alerts if item.acknowledged_key not in labels.acknowledged
        ]
        word = "Mark as seen" if len(group.alerts) == 1 else f"Mark all {count(len(group.alerts))} as seen"
        if can_edit and unseen and st.button(word, key=f"_seen {page.key} {group.key}"):
            save_labels(page, replace(labels, acknowledged=(*labels.acknowledged, *unseen)[-_MAX_LABELS:]))
        if (
            can_edit
            and alert.event == FINDING
            and alert.kind not in labels.muted
            and st.button(
                f"Mute “{md(title_of(alert), 40)}” for this run",
                type="tertiary",
                key=f"_mute {page.key} {group.key}",
            )
        ):
            save_labels(page, replace(labels, muted=(*labels.muted, alert.kind)[-_MAX_LABELS:]))
    show_answers(page.store, page.key, requests)
    own = own_answer(page.store, page.key, alert)
    if own is not None:
        st.markdown(f":small[requested by the run itself: {md(subject(own))} {describe(own)}]")
    for effect in effects_on(page.store, page.key, alert):
        st.markdown(f":small[{_effect_text(effect)}]")


def _remedy(page: RunPage, alert: Finding, *, is_pending: bool) -> None:
    if (
        not alert.is_open
        or not alert.remedies
        or control_unavailable_reason(page.store, page.key) is not None
    ):
        return
    lr = next((info.last for info in page.store.metrics(page.key) if info.name == "lr"), None)
    remedy = remedy_for(alert, declared_control(page.store, page.key), lr)
    if remedy is None:
        return
    label, key = md(remedy.label, 80), f"remedy {page.key} {alert.id}"
    look: dict[str, Any] = {"type": "primary", "disabled": is_pending}
    if remedy.stops:
        how = STOPS["save_and_stop" if remedy.saves else "stop"]
        is_asked = is_confirmed(label, f"The run {how}", key, **look)
    else:
        is_asked = st.button(label, key=f"_{key}", **look)
    if is_asked and send_request(page.store, page.key, remedy.request, remedy.label, about=alert.id):
        st.rerun()


def save_labels(page: RunPage, labels: Labels) -> None:
    """Save which alerts are seen or muted, and redraw the page; show an error if that is refused."""
    if page_states.is_done(lambda: page.store.label(page.key, labels)):
        # The alert line above every page has to be updated.
        st.rerun()


def _effect_text(effect: Effect) -> str:
    where = f" at step {effect.step:,}" if effect.step is not None else ""
    prefix = f"{md(effect.what, 80)}{where}: "
    if effect.before is None:
        return prefix + f"{md(effect.metric)} was not logged before."
    if effect.records_after < RECORDS_COMPARED:
        return prefix + f"too early to say: {effect.records_after} of {RECORDS_COMPARED} records."
    return (
        prefix + f"median of {md(effect.metric)} {short_number(effect.before)} before, "
        f"{short_number(effect.after)} after · {_VERDICTS[effect.verdict]}"
    )


# ---------------------------------------------------------------- what to do after a run failed


ENDINGS: Final = {
    FAILED: "The run failed",
    LOST: "The run was lost",
    STALLED: "The run has stalled",
}


def what_now_html(page: RunPage) -> str:
    """Return how a run ended or stalled, and what helps, as HTML made from escaped text; empty if it is all right."""
    known = what_now(page.store, page.key)
    if known is None:
        return ""
    happened = "".join(f"<li>{line}</li>" for line in _happened(known))
    return (
        f'<div class="telemetry-now"><h2>{ENDINGS[known.status]}: what now?</h2><ul>{happened}</ul>'
        f"<div>{_checkpoint(known)}{_command(known)}</div></div>"
    )


def _happened(known: WhatNow) -> list[str]:
    """Return what is known about the end, as HTML."""
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
        lines.append(f"{text_html(known.why[:1].upper() + known.why[1:])}{guess}.")
    if ending is not None and ending.error is not None:
        error = ending.error
        lines.append(f"Error: <b>{text_html(message_of(error), 200)}</b>")
        if error.where:
            lines.append(f"In {text_html(error.where, 160)}")
        if error.out_of_memory:
            lines.append("It ran out of memory: lower the batch size, or free the device.")
    inside = _inside(known)
    if inside:
        lines.append(f"It was inside: {' › '.join(f'<b>{text_html(name, 60)}</b>' for name in inside)}.")  # noqa: RUF001
    if ending is not None and ending.hang:
        lines.append(text_html(ending.hang))
    if known.status == STALLED and known.pid is not None:
        host = f" on {text_html(known.host)}" if known.host else ""
        dump = f"<code>py-spy dump --pid {known.pid}</code>"
        lines.append(f"Its process is {known.pid}{host}. {dump} shows where it is stuck.")
    return lines


def _inside(known: WhatNow) -> tuple[str, ...]:
    if known.ending is None:
        return ()
    return known.ending.inside or (known.ending.error.spans if known.ending.error is not None else ())


def _checkpoint(known: WhatNow) -> str:
    good, since = known.checkpoint, known.spoiled_since
    if good is not None:
        before = f", the last one before the loss went wrong at step {count(since)}" if known.newer else ""
        bad = f"<p>A newer one, {_about(known.newer)}, has the bad weights.</p>" if known.newer else ""
        return f"<p><b>Last good checkpoint</b>: {_about(good)}{before}</p>{_code(good.path)}{bad}"
    if known.newer is not None and since is not None:
        at = f"at step {count(since)}, before the first one was saved"
        return f"<p><b>No good checkpoint</b>: the loss went wrong {at}.</p>"
    if known.save_folder is not None:
        saves = "By its configuration the run saves to:"
        return f"<p><b>No checkpoint was recorded.</b> {saves}</p>{_code(known.save_folder)}"
    return "<p><b>No checkpoint was recorded</b>, and the configuration names no folder for them.</p>"


def _about(checkpoint: Checkpoint) -> str:
    parts = [f"step {count(checkpoint.step)}" if checkpoint.step is not None else "unknown step"]
    if checkpoint.bytes is not None:
        parts.append(size(checkpoint.bytes))
    if checkpoint.time is not None:
        parts.append(ago(time.time() - checkpoint.time))
    return " · ".join(parts)


def _command(known: WhatNow) -> str:
    resume, good = known.resume, known.checkpoint
    if resume is None:
        return "<p><b>Its command line was not recorded</b>, so how to resume it is not known here.</p>"
    if resume.resumes and known.newer is not None and good is None:
        how = "<b>Start over</b>, with other settings and another name; resuming would load the bad weights."
    elif resume.resumes:
        how = "<b>Resume it</b>" + (" (after stopping the process)" if known.status == STALLED else "")
    else:
        how = "<b>It was started with</b> this command; whether that resumes is up to the script."
    notes = list(resume.notes)
    if resume.resumes and known.newer is not None and good is not None:
        notes.append("Move the newer checkpoint away first, or the run continues from it.")
    said = "".join(f"<p>{text_html(note)}</p>" for note in notes)
    return f"<p>{how}</p>{_code(resume.command)}{said}"


def _code(text: str) -> str:
    return f"<pre>{text_html(text, _MAX_COMMAND)}</pre>"
