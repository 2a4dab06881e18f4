"""How runs were made differently: settings, code, packages and machine, changed files, and why two of them differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import streamlit as st

from toolkit.telemetry.answers import differences
from toolkit.telemetry.answers.differences import Made, MadeRow, made_differently
from toolkit.telemetry.answers.evidence import read_evidence
from toolkit.telemetry.answers.why import Why, why
from toolkit.telemetry.reports.document import Block, Colour, Table
from toolkit.telemetry.runfolder.evidence.code_snapshot import CodeChange, changed_files, read_code
from toolkit.telemetry.runs.formatting import clean, count, md
from toolkit.telemetry.runs.listing.config_diff import flatten
from toolkit.telemetry.runs.listing.run_start import start_of
from toolkit.telemetry.runs.store import RunCard, RunStore

from .page_states import section
from .run_select import option_texts
from .run_table import fact_table

_MOST_ROWS: Final = 200
_MOST_FILES: Final = 20
_WIDE: Final = 6
"""With more runs than this, a run is a row and not a column."""
_NAMED: Final = (differences.CODE, differences.COMMAND, differences.PACKAGE, differences.MACHINE)
_WHY: Final = "_why"


def made_of(store: RunStore, card: RunCard) -> Made:
    """Return how a run was made, as it was recorded."""
    start = start_of(store, card.key)
    kept = read_code(card.path) if card.path is not None else {}
    config = start.get("config")
    settings = card.config or (flatten(config) if isinstance(config, dict) else {})
    return Made(settings=settings, start=start, code=kept[max(kept)] if kept else None)


def show_difference(made: Mapping[str, Made], cards: Mapping[str, RunCard], base: str) -> None:
    """Show in what the runs `made`, by key, differ, and the files that are not those of `base`."""
    head, rows, left_out = _table(made, {key: cards[key].name for key in made})
    many = len(made) > _WIDE
    about = "settings, code, command line, packages and machine that are not the same in all"
    if not many:
        section(f"Difference :gray[{about}]")
    with st.expander(f"Difference: {about}", key="_differences") if many else st.container():
        if rows:
            fact_table(dict(zip(head, zip(*rows, strict=True), strict=True)), "What differs, by run")
        elif any(one.settings for one in made.values()):
            st.caption("No differences in what these runs recorded.")
        else:
            st.caption("None of these runs logged a configuration.")
        if left_out:
            st.caption(left_out)
    _changed_code(made, cards, base)


def _changed_code(made: Mapping[str, Made], cards: Mapping[str, RunCard], base: str) -> None:
    """Show the files that are not those of `base`, once for all runs with the same ones."""
    code = made[base].code
    runs: dict[tuple[CodeChange, ...], list[str]] = {}
    for key, one in made.items():
        changes = changed_files(code, one.code) if code is not None and one.code is not None else []
        if changes:
            runs.setdefault(tuple(changes), []).append(cards[key].name)
    if not runs:
        return
    number = sum(map(len, runs.values()))
    label = (
        f"Code that is not that of {md(cards[base].name, 60)}: {count(number)} run{'s' if number > 1 else ''}"
    )
    with st.expander(label, key="_code", on_change="rerun") as opened:
        for changed, names in runs.items() if opened.open else ():
            st.markdown(
                f"**{', '.join(md(name, 60) for name in names[:5])}**" + (" and others" if names[5:] else "")
            )
            _show_code(changed)


def difference_blocks(
    made: Mapping[str, Made], names: Mapping[str, str], looks: Sequence[Colour]
) -> list[Block]:
    """Return the table of `show_difference` for a report."""
    head, rows, left_out = _table(made, names)
    colours = dict(enumerate(looks)) if len(made) > _WIDE else {}
    return [Table(title="", head=head, rows=rows, left_out=left_out, colours=colours)] if rows else []


def _table(made: Mapping[str, Made], names: Mapping[str, str]) -> tuple[list[str], list[list[str]], str]:
    found = made_differently(list(made.values()))
    shown = found[:_MOST_ROWS]
    texts = [[_name_of(row), *row.values] for row in shown]
    if len(made) > _WIDE:
        texts = [list(column) for column in zip(*texts, strict=True)]
        head, *values = texts or [[]]
        head, rows = (
            ["Run " if "Run" in head else "Run", *head],
            [[name, *row] for name, row in zip(names.values(), values, strict=False)],
        )
    else:
        # A run may be called like the first column.
        head, rows = ["What" if "What" not in names.values() else "What ", *names.values()], texts
    more = len(found) - len(shown)
    return head, rows if shown else [], f"{count(more)} more things differ." if more else ""


def _name_of(row: MadeRow) -> str:
    return f"{row.kind} {row.what}".strip() if row.kind in _NAMED else row.what


def _show_code(changes: Sequence[CodeChange]) -> None:
    for change in changes[:_MOST_FILES]:
        st.caption(md(change.path))
        st.code(clean(change.unified_diff) or "kept by one of the two only", language="diff")
    if len(changes) > _MOST_FILES:
        st.caption(f"{count(len(changes) - _MOST_FILES)} more files differ.")


# ---------------------------------------------------------------- why


def ask_why(base: str, keys: Sequence[str], cards: Mapping[str, RunCard]) -> None:
    """Offer to say why two runs differ; it is worked out on a click only, because it reads every record of both."""
    others = [key for key in keys if key != base and cards[key].path is not None]
    if cards[base].path is None or not others:
        return
    texts = option_texts(cards[key] for key in keys)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        is_asked = st.button("Why do they differ?", key="_why_asked", type="tertiary")
        other = others[0]
        if len(others) > 1:
            other = st.selectbox(
                "Compare the baseline with",
                others,
                key="_why_other",
                format_func=lambda key: texts.get(key, key),
                label_visibility="collapsed",
                width=260,
            )
    if is_asked:
        with st.spinner("Reading both runs …"):
            one, two = (read_evidence(cast("Path", cards[key].path)) for key in (base, other))
            found = why(one, two, lambda: list(cards.values()))
        st.session_state[_WHY] = (base, other), found
    pair, answer = st.session_state.get(_WHY, (None, None))
    if pair == (base, other):
        _show_why(answer)


def _show_why(answer: Why) -> None:
    st.markdown(f"**{answer.answer.capitalize()}**, {answer.sure}. {md(answer.sentence, 2_000)}")
    if answer.evidence:
        rows = [{"What": what, "Found": found} for what, found in answer.evidence]
        fact_table(rows, "What the answer rests on")
    differing = [(f"{cause.share:.2f}", cause.difference, cause.because) for cause in answer.causes]
    differing += [("no effect", one, because) for one, because in answer.apart]
    if differing:
        with st.expander(f"Every difference ({count(len(differing))}), the likely causes first"):
            rows = [
                {"Likely": share, "Kind": one.kind, "What": one.what}
                | {"a (baseline)": one.a, "b": one.b}
                | {"Why": "; ".join(part for part in (one.note, because) if part)}
                for share, one, because in differing
            ]
            fact_table(rows, "What differs, and what could act")
    if answer.code:
        with st.expander(f"Changed code, files: {count(len(answer.code))}"):
            _show_code(answer.code)
    if answer.needed:
        st.caption(f"Not recorded in both runs, and so not compared: {md(', '.join(answer.needed), 200)}.")
