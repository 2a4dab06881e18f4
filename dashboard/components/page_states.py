"""What a page shows if there is no data, if it is still being read, or if something failed."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal, TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from toolkit.telemetry.runfolder.labels import LabelsError
from toolkit.telemetry.runs.formatting import clean, clock, count, duration, md, size
from toolkit.telemetry.runs.store import Health, Refused, RunCard, RunList, StoreUnavailable, UnknownRun

_PASTE = """\
telemetry:
  enabled: true
  log_dir: {folder}
"""
_IN_CODE = """\
from toolkit.telemetry import TelemetryLogger

log = TelemetryLogger("my-run", log_dir={folder})
for step, batch in enumerate(loader):
    loss = train_step(batch)
    log.log_step(step, train_loss=loss, lr=scheduler.get_last_lr()[0])
log.close()
"""

_Item = TypeVar("_Item")

_LAG_SHOWN_S: Final = 15.0
"""A copy is usually a few seconds behind."""


def grid(items: Sequence[_Item], columns: int) -> Iterator[tuple[DeltaGenerator, _Item]]:
    """Yield each of `items` with the place where it is drawn, in rows of so many."""
    for start in range(0, len(items), columns):
        yield from zip(st.columns(columns, gap="medium"), items[start : start + columns], strict=False)


def say_if_cut(runs: RunList) -> None:
    """Say that only some of the runs found are looked at."""
    if runs.matching > len(runs.cards):
        st.caption(
            f"Only the {count(len(runs.cards))} runs that were updated last, of {count(runs.matching)}; "
            "any other run opens from the Runs page."
        )


def no_runs(places: Sequence[str], problems: Sequence[str] = ()) -> None:
    """Show how to log a first run, and what could not be listed."""
    for problem in problems[:5]:
        st.warning(md(problem))
    with st.container(border=True):
        section("No runs yet")
        st.text("Looking in " + ", ".join(clean(place) for place in places))
        local = [clean(place) for place in places if "://" not in place]
        # Where this page looks, whatever the folder is that the training is started in.
        folder = json.dumps(local[0] if local else "./logs", ensure_ascii=False)
        st.markdown("Add this block to a training YAML, and the run appears here within five seconds:")
        st.code(_PASTE.format(folder=folder), language="yaml")
        st.markdown("or log from any training loop:")
        st.code(_IN_CODE.format(folder=folder), language="python")
        if find_spec("toolkit.telemetry.trainer") is not None:
            # In a checkout only.
            st.markdown("To try it now, train the small example (no GPU, no download):")
            st.code(
                f"python run.py --log-dir {shlex.quote(local[0] if local else './logs')}", language="bash"
            )
        if len(local) < len(places):
            st.caption("Runs on another machine? They appear once `telemetry ship` there has sent them.")
        else:
            st.caption("Runs in another folder? Start the dashboard with `--log-dir /path/to/logs`.")


def still_looking(places: Sequence[str]) -> None:
    """Show that a large folder is being searched for runs of other tools."""
    with st.container(border=True):
        section("Looking for runs.")
        st.text("Searching " + ", ".join(clean(place) for place in places))


def unknown_run(error: UnknownRun, link: Callable[[str], None]) -> None:
    """Show that the run in the URL does not exist, and runs with similar names."""
    if isinstance(error, StoreUnavailable):
        st.warning(md(error.why))
        return
    with st.container(border=True):
        several = bool(error.near) and all(near.endswith(f"~{error.key}") for near in error.near)
        name = repr(clean(error.key)[:200])
        page_title("Which run?" if several else "No such run")
        st.text(
            f"{len(error.near)} places have a run called {name}."
            if several
            else f"There is no run called {name}."
        )
        if error.near:
            st.markdown("Open:" if several else "Did you mean:")
            for key in error.near:
                link(key)
        else:
            st.markdown("It may have been deleted or renamed, or it may be in another log directory.")


def no_records(why: str) -> None:
    """Show that a run has not logged anything yet."""
    with st.container(border=True):
        st.markdown("**Waiting for the first record.**")
        st.caption(md(why))


def no_metrics(card: RunCard, health: Health) -> None:
    """Show that a run has no metrics, and why if another tool logged it."""
    if card.logged_by is None or not health.complete:
        no_records(card.status.why)
        return
    yet = " yet" if card.live else ""
    with st.container(border=True):
        st.markdown(f"**No metrics in this {md(card.logged_by, 40)} log{yet}.**")
        st.caption(md(health.problem or card.status.why))


def reading(health: Health) -> None:
    """Show how far a large log has been read."""
    st.progress(
        health.fraction_read,
        text=f"Reading the log: {health.fraction_read:.0%}, {count(health.records)} records so far",
    )


def health_strip(health: Health) -> None:
    """Show what could not be read or was lost; nothing if all is well."""
    if health.problem is not None:
        st.warning(md(health.problem))
    if health.replaced_at is not None:
        st.info(
            f"The log file was replaced at {clock(health.replaced_at)}; showing the new one.",
        )
    if health.bad_count:
        first = health.bad_lines[0] if health.bad_lines else None
        where = f" The first one starts at byte {count(first.offset)}: {md(first.reason)}." if first else ""
        st.warning(
            f"{count(health.bad_count)} lines could not be read.{where} The file itself is unchanged.",
        )
    _lag(health)
    if health.lost_records:
        reasons = "; ".join(md(reason) for reason in health.lost_reasons)
        st.warning(f"The run lost {count(health.lost_records)} records: {reasons}.")


def _lag(health: Health) -> None:
    """Show how far the copy that was read is behind the run's own file."""
    if health.gaps:
        places = "one place" if health.gaps == 1 else f"{count(health.gaps)} places"
        st.warning(
            f"Lines are missing at {places}. Everything up to there is shown; the rest follows when they arrive.",
        )
    if health.lag_s is not None and health.lag_s > _LAG_SHOWN_S:
        lag = f", {size(health.behind_bytes)} behind" if health.behind_bytes else ""
        st.warning(
            f"The records are as of {duration(health.lag_s)} ago{lag}. The run itself is not affected.",
        )


def guarded(name: str, draw: Callable[[], None]) -> None:
    """Run `draw`; if it fails, show the error in its place and keep the rest of the page."""
    try:
        draw()
    except Exception as error:
        with st.container(border=True):
            st.error(f"{md(name)} could not be drawn. The rest of the page still works.")
            with st.expander("Error details"):
                st.code(clean(trace_of(error)), language=None)


def is_done(change: Callable[[], object]) -> bool:
    """Make a change and return whether it was allowed; if not, show why."""
    try:
        change()
    except (Refused, LabelsError) as error:
        st.error(md(str(error)))
        return False
    return True


def trace_of(error: Exception) -> str:
    """Return the traceback of `error` with the ends of paths alone, not where they are on this machine."""
    text = "".join(traceback.format_exception(error))
    text = _FILE.sub(lambda found: f'File "{"/".join(Path(found[1]).parts[-3:])}"', text)
    # A message may contain a path too, such as that of a missing module.
    for folder in (_CODE, sys.prefix, sys.base_prefix):
        text = text.replace(f"{folder}/", "")
    text = text.replace(f"{os.path.expanduser('~')}/", "~/")
    return text if len(text) <= _MAX_TRACE else f"{text[: _MAX_TRACE // 2]}\n…\n{text[-_MAX_TRACE // 2 :]}"


_CODE: Final = str(Path(__file__).parents[2])
_FILE: Final = re.compile(r'File "([^"\n]+)"')
_MAX_TRACE: Final = 20_000


# ---------------------------------------------------------------- headings


Width = Literal["stretch", "content"]


def page_title(text: str, *, width: Width = "stretch") -> None:
    """Show the one title of a page; `text` is Markdown."""
    st.title(text, anchor=False, width=width)


def section(text: str, *, level: Literal[2, 3] = 2, width: Width = "stretch") -> None:
    """Show the title of a part of a page, or of a chart; `text` is Markdown, 3 is for a part of a part."""
    (st.header if level == 2 else st.subheader)(text, anchor=False, width=width)
