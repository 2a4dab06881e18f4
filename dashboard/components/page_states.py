"""What a page shows when there is nothing, not yet, or something wrong: every state has a face."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import streamlit as st

from dashboard.data.run_store import Health, UnknownRun
from dashboard.data.formatting import clean, clock, count, md

PASTE = """\
telemetry:
  enabled: true
  log_dir: "./logs"
"""
IN_CODE = """\
from toolkit.telemetry import TelemetryLogger

log = TelemetryLogger("my-run", log_dir="./logs")
for step, batch in enumerate(loader):
    loss = train_step(batch)
    log.log_step(step, train_loss=loss, lr=scheduler.get_last_lr()[0])
log.close()
"""


def no_runs(roots: Sequence[Path]) -> None:
    """Nothing logged yet: show what to paste."""
    with st.container(border=True):
        st.subheader("No runs yet", anchor=False)
        st.text("Looking in " + ", ".join(clean(str(root)) for root in roots))
        st.markdown("Add this block to a training YAML, and the run appears here within five seconds:")
        st.code(PASTE, language="yaml")
        st.markdown("or log from any training loop:")
        st.code(IN_CODE, language="python")
        st.markdown("To see one now, train the small example, which needs no GPU and no download:")
        st.code("make run", language="bash")
        st.caption("Runs lie somewhere else? Start with `python run_dashboard.py --log-dir /path/to/logs`.")


def unknown_run(error: UnknownRun, link: Callable[[str], None]) -> None:
    """Show that the URL names no run, and those that look like it."""
    with st.container(border=True):
        st.subheader("No such run", anchor=False)
        st.text(f"Nothing here is called {clean(error.key)[:200]!r}.")
        if error.near:
            st.markdown("Did you mean")
            for key in error.near:
                link(key)
        else:
            st.markdown("It may have been deleted, renamed on disk, or lie in another log directory.")


def no_records(why: str) -> None:
    """Show that a run has begun and logged nothing yet."""
    with st.container(border=True):
        st.markdown("**Waiting for the first record.**")
        st.caption(md(why))


def reading(health: Health) -> None:
    """Show how far a large log has been read."""
    st.progress(
        health.part_read,
        text=f"Reading the log: {health.part_read:.0%}, {count(health.records)} records so far",
    )


def health_strip(health: Health) -> None:
    """Say what could not be read or was lost; silent when all is well."""
    if health.problem is not None:
        st.warning(md(health.problem), icon=":material/warning:")
    if health.replaced_at is not None:
        st.info(
            f"The log was replaced at {clock(health.replaced_at)}; this is the new one.",
            icon=":material/sync:",
        )
    if health.bad_count:
        first = health.bad_lines[0] if health.bad_lines else None
        where = f" The first begins at byte {count(first.offset)}: {md(first.reason)}." if first else ""
        st.warning(
            f"{count(health.bad_count)} lines could not be read.{where} Nothing was dropped from the file.",
            icon=":material/warning:",
        )
    if health.lost_records:
        reasons = "; ".join(md(reason) for reason in health.lost_reasons)
        st.warning(
            f"The run itself lost {count(health.lost_records)} records: {reasons}.", icon=":material/warning:"
        )


def guarded(name: str, draw: Callable[[], None]) -> None:
    """Run `draw`; when it fails, show that in its place and let the rest of the page live on."""
    # One region's fault must not take the page along, whatever it is.
    try:
        draw()
    except Exception as error:
        with st.container(border=True):
            st.error(f"{md(name)} could not be drawn; the rest of the page goes on.", icon=":material/error:")
            with st.expander("What happened"):
                st.code(clean(trace_of(error)), language=None)


def trace_of(error: Exception) -> str:
    """Return the traceback of `error` for a page: files by their place in their package, not on this machine."""
    text = "".join(traceback.format_exception(error))
    text = _FILE.sub(lambda found: f'File "{_place(found[1])}"', text)
    # A message may name one too, such as that of a module which is not there.
    for folder in (_CODE, sys.prefix, sys.base_prefix):
        text = text.replace(f"{folder}/", "")
    text = text.replace(f"{os.path.expanduser('~')}/", "~/")
    return (
        text
        if len(text) <= _LONGEST_TRACE
        else f"{text[: _LONGEST_TRACE // 2]}\n…\n{text[-_LONGEST_TRACE // 2 :]}"
    )


_CODE: Final = str(Path(__file__).parents[2])
_FILE: Final = re.compile(r'File "([^"\n]+)"')
_LONGEST_TRACE: Final = 20_000


def _place(file: str) -> str:
    parts = Path(file).parts
    for name in ("site-packages", "dist-packages"):
        if name in parts:
            return "/".join(parts[parts.index(name) + 1 :])
    for root in (_CODE, *sysconfig.get_paths().values()):
        if file.startswith(f"{root}/"):
            return file.removeprefix(f"{root}/")
    return parts[-1] if parts else file
