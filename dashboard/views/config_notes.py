"""Config & output page: configuration, what the run printed, notes, code, environment and sessions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import streamlit as st

from toolkit.telemetry.runfolder.evidence.code_snapshot import CodeSnapshot, changed_files, read_code
from toolkit.telemetry.runfolder.labels import LabelsError
from toolkit.telemetry.runfolder.records import ENVELOPE, OF_THE_JOB, well_known
from toolkit.telemetry.runfolder.untrusted import finite_in, mapping_in
from toolkit.telemetry.runs.formatting import clean, clock, count, duration, md, size
from toolkit.telemetry.runs.listing import config_summary
from toolkit.telemetry.runs.listing.config_diff import flatten, to_yaml
from toolkit.telemetry.runs.listing.notes import notes_markdown
from toolkit.telemetry.runs.settings import setting_text
from toolkit.telemetry.runs.store import Refused, RunMeta, RunQuery

from .. import session
from ..components import page_states
from ..components.cards import Card, draw_cards
from ..components.frame import RunPage, open_run, read
from ..components.notes import notes_field, notes_in
from ..components.output import draw_output
from ..components.page_states import section
from ..components.run_table import fact_table

_MACHINE: Final = (
    *"host os python cpu memory_gb accelerators packages packages_left_out cuda cudnn driver determinism".split(),
    *"seeds git command_line pid boot_id process_started".split(),
    *OF_THE_JOB,
)
_OUTPUT: Final = "Output"
_PROBLEM: Final = "_label_problem"
_CODE_HEIGHT: Final = 400
_MANY_LINES: Final = 16
_TIMES: Final = ("process_started", "job_start_time", "job_end_time")


def main() -> None:
    """Draw the page."""
    page = open_run()
    if page is None:
        return
    read(page)
    meta = page.store.meta(page.key)
    code = read_code(meta.card.path) if meta.card.path is not None else {}
    titles = ["Configuration", _OUTPUT, "Notes", "Environment", "Sessions", *(["Code"] if code else [])]
    config, output, notes, machine, sessions, *of_code = st.tabs(
        titles, key="tab", on_change="rerun", bind="query-params"
    )
    if output.open:
        # It reads and refreshes, so only while it is looked at.
        with output:
            draw_output(page)
    with config:
        page_states.guarded("The configuration", lambda: _configuration(page, meta))
    with notes:
        page_states.guarded("The notes", lambda: _notes(page, meta))
    with machine:
        page_states.guarded("The environment", lambda: _environment(meta))
    with sessions:
        page_states.guarded("The sessions", lambda: _sessions(page, meta))
    for tab in of_code:
        with tab:
            page_states.guarded("The code", lambda: _code(page, code))


def _notes(page: RunPage, meta: RunMeta) -> None:
    if session.is_viewer():
        st.caption(f"Notes and tags cannot be changed: {session.read_only_reason() or ''}")
    elif not meta.writable:
        st.caption(
            "Notes and tags cannot be changed: the folder is not writable, or the dashboard is read-only."
        )
    known = page.store.list_runs(RunQuery(per_page=0)).tags
    name, tags = st.columns(2, gap="medium")
    with name:
        st.text_input(
            "Name",
            meta.card.name,
            max_chars=200,
            disabled=not meta.writable,
            key=f"_name {page.key}",
            on_change=lambda: _save(page, name=str(st.session_state[f"_name {page.key}"])),
        )
    with tags:
        st.multiselect(
            "Tags",
            known,
            list(meta.card.tags),
            accept_new_options=True,
            disabled=not meta.writable,
            key=f"_tags {page.key}",
            on_change=lambda: _save(page, tags=tuple(st.session_state[f"_tags {page.key}"])),
        )
    key, problem = f"_notes {page.key}", str(st.session_state.get(f"{_PROBLEM} {page.key}", ""))
    left, right = st.columns(2, gap="medium")
    with left:
        notes_field(
            meta.labels.notes,
            run=page.key,
            key=key,
            disabled=not meta.writable,
            problem=problem,
            on_change=lambda: _save(page, notes=notes_in(key)),
        )
    with right:
        st.caption("As Markdown")
        with st.container(border=True, key="notes_as_markdown"):
            if meta.labels.notes.strip():
                st.markdown(notes_markdown(meta.labels.notes))
            else:
                st.caption("Nothing written yet.")
    if problem:
        st.error(md(problem, 500))
    where = (
        "in labels.json next to the records."
        if meta.card.logged_by is None
        else "in your own data folder; nothing in the run's folder is changed."
    )
    st.caption(
        f"Saved as you type, {where} Images, links and HTML stay text." if meta.writable else f"Saved {where}"
    )


def _save(
    page: RunPage, *, name: str | None = None, tags: tuple[str, ...] | None = None, notes: str | None = None
) -> None:
    """Save what was changed; what else the labels have may have changed elsewhere meanwhile."""
    labels, problem = page.store.meta(page.key).labels, ""
    try:
        if name is not None:
            labels = replace(labels, display_name=name.strip() or None)
        if tags is not None:
            labels = replace(labels, tags=tags)
        if notes is not None:
            labels = replace(labels, notes=notes)
        page.store.label(page.key, labels)
    except (Refused, LabelsError) as error:
        problem = f"Not saved: {error}"
    st.session_state[f"{_PROBLEM} {page.key}"] = problem


def _configuration(page: RunPage, meta: RunMeta) -> None:
    if not meta.start:
        st.info(
            "No configuration: the run has not logged a start record."
            if meta.card.logged_by is None
            else f"{md(meta.card.logged_by)} logged no configuration for this run.",
        )
        return
    config = _config(meta.start)
    important = dict(config_summary.summary(config))
    # A path is too long for a card.
    model = important.pop("Model", "")
    if important:
        draw_cards(
            [Card(label=label, value=value, help=value) for label, value in important.items()],
            key=f"_summary {page.key}",
        )
    table, made = st.columns([0.62, 0.38], gap="medium")
    with made:
        _made_with(page, meta, model)
    with table:
        _settings(config, meta)


def _made_with(page: RunPage, meta: RunMeta, model: str) -> None:
    """Show the command, and model, code and machine in a line each; the other tabs have the rest."""
    every = {**meta.environment, **meta.start}
    if command := every.get("command_line"):
        words = shlex.join(map(str, command)) if isinstance(command, list) else str(command)
        st.code(clean(words), language="bash", wrap_lines=True)
    git, packages = mapping_in(every.get("git")), mapping_in(every.get("packages"))
    listed = every.get("accelerators")
    gpus = (
        [str(one.get("name", "")) for one in listed if isinstance(one, dict)]
        if isinstance(listed, list)
        else []
    )
    facts = {
        "Model": model,
        "Code": f"{str(git.get('commit') or '')[:12]}{', with changes' if git.get('dirty') is True else ''}",
        "Branch": git.get("branch"),
        "Host": every.get("host") or meta.card.host,
        "System": every.get("os"),
        "Python": every.get("python"),
        "torch": packages.get("torch"),
        "CUDA": every.get("cuda"),
        "GPU": ", ".join(f"{gpus.count(name)} {name}" for name in dict.fromkeys(gpus)),
    }
    rows = [{"name": name, "value": str(value)} for name, value in facts.items() if value]
    if rows:
        fact_table(rows, "How it was made", key=f"_made {page.key}")


def _settings(config: Mapping[str, Any], meta: RunMeta) -> None:
    search = st.text_input(
        "Search",
        key="_config_search",
        placeholder="search keys and values",
        label_visibility="collapsed",
    )
    flat = config_summary.rows(config)
    needle = search.strip().lower()
    rows = [
        {"key": clean(key), "value": clean(setting_text(value, exact=True))}
        for key, value in flat.items()
        if needle in key.lower() or needle in str(value).lower()
    ]
    fact_table(rows or [{"key": "", "value": "no match"}], "Configuration")
    st.caption(
        f"{count(len(rows))} of {count(len(flat))} values; secrets "
        + ("were masked when it was logged." if meta.card.logged_by is None else "are masked.")
    )
    with st.expander("As YAML, to copy"):
        st.code(clean(to_yaml(config)), language="yaml")


def _config(start: Mapping[str, Any]) -> dict[str, Any]:
    config = {key: value for key, value in start.items() if key not in ENVELOPE and key not in _MACHINE}
    whole = config.pop("config", None)
    return {**config, **({"config": whole} if whole else {})}


def _environment(meta: RunMeta) -> None:
    found = {
        key: value
        for source, names in ((meta.start, _MACHINE), (meta.environment, (*_MACHINE, "data")))
        for key, value in source.items()
        if key in names
    }
    if not found:
        st.info("The run has not logged its environment.")
        return
    found |= {key: clock(time_s) for key in _TIMES if (time_s := finite_in(found.get(key))) is not None}
    packages = mapping_in(found.get("packages"))
    # Hundreds of packages would push everything else out of sight.
    known = well_known(packages)
    found |= {"packages": known} if packages else {}
    rows = [{"name": clean(key), "value": clean(str(value))} for key, value in flatten(found).items()]
    fact_table(rows, "Environment")
    if len(packages) > len(known):
        with st.expander(f"All {count(len(packages))} packages"):
            listed = [{"package": clean(name), "version": clean(str(packages[name]))} for name in packages]
            fact_table(listed, "Packages")


def _code(page: RunPage, code: Mapping[int, CodeSnapshot]) -> None:
    newest = max(code)
    chosen = newest
    if len(code) > 1:
        names = {f"Session {number}": number for number in sorted(code, reverse=True)}
        chosen = names[st.selectbox("Session", list(names), key=f"_code session {page.key}")]
    snapshot = code[chosen]
    if snapshot.problem:
        st.warning(md(f"Not all of it could be read: {snapshot.problem}", 500))
    if snapshot.commit:
        state = {True: "with changes", False: "unchanged", None: "not known whether changed"}[snapshot.dirty]
        branch = f"branch {md(snapshot.branch)}, " if snapshot.branch else ""
        st.markdown(f"Commit `{clean(snapshot.commit)[:40]}`, {branch}{state}")
    else:
        st.markdown("No git repository: the script and the modules that it imported from its own folder.")
    before = code.get(max((number for number in code if number < chosen), default=0))
    if before is not None:
        changes = changed_files(before, snapshot)
        with st.expander(
            f"Changed since session {before.session}: {count(len(changes))} files", expanded=bool(changes)
        ):
            for change in changes:
                st.caption(md(change.path) + (" (kept by one of them only)" if change.only_in else ""))
                if change.unified_diff:
                    _show_code(change.unified_diff, "diff")
    if snapshot.diff:
        with st.expander("Changes since the commit"):
            _show_code(snapshot.diff, "diff")
    if snapshot.files:
        files = sorted(snapshot.files, key=lambda name: (name != snapshot.script, name))
        name = st.selectbox(f"{count(len(files))} files", files, key=f"_code file {page.key} {chosen}")
        text = snapshot.text(name)
        if text is None:
            st.warning(md(f"{name} cannot be read", 300))
        else:
            _show_code(text, "python" if name.endswith(".py") else None)
            st.download_button("Download", text, name.rpartition("/")[2], key=f"_code down {page.key}")
    if snapshot.left_out:
        with st.expander(f"Not kept: {count(len(snapshot.left_out))}"):
            left_out = [{"file": name, "why": why} for name, why in snapshot.left_out.items()]
            fact_table(left_out, "Code that was not kept")
    st.caption("Secrets were masked when it was kept.")


def _show_code(text: str, language: str | None) -> None:
    """Show a text, which scrolls if it is long."""
    st.code(text, language=language, height=_CODE_HEIGHT if text.count("\n") > _MANY_LINES else "content")


def _sessions(page: RunPage, meta: RunMeta) -> None:
    if meta.manifest is not None:
        rows = [
            {
                # As text: no numeric column holds every integer that JSON can contain.
                "session": str(session.session),
                "status": clean(session.status),
                "reason": clean(session.reason or ""),
                "started": clock(session.started),
                "duration": duration(session.ended - session.started) if session.ended is not None else "",
                "host": clean(session.host),
                "pid": str(session.pid),
            }
            for session in meta.manifest.sessions
        ]
        fact_table(rows, "Sessions of the run")
    health = page.store.refresh(page.key, wait_s=0.0)
    section("Files")
    st.code(clean(meta.card.place), language=None)
    if meta.origin:
        origin = [{"name": name, "value": value} for name, value in meta.origin.items()]
        fact_table(origin, "Where the run comes from")
        st.caption(f"{count(health.records)} rows, {size(health.bytes_read)} read")
        return
    st.caption(
        f"{count(health.records)} records, {size(health.bytes_read)}"
        + (", loaded from the cache" if health.from_cache else "")
        + f" · {count(health.bad_count)} lines could not be read"
    )
    if health.bad_lines:
        bad = [
            {"byte": line.offset, "length": line.length, "reason": clean(line.reason)}
            for line in health.bad_lines
        ]
        fact_table(bad, "Lines that could not be read")
