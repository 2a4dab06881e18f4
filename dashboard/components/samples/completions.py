"""What the model answered, its rewards, and the same prompt at other steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

import streamlit as st

from toolkit.telemetry.runs.completions import (
    Completion,
    CompletionQuery,
    Completions,
    FoundCompletions,
    Sibling,
    SortBy,
    parse_steps,
)
from toolkit.telemetry.runs.files.word_diff import WordDiff, word_diff
from toolkit.telemetry.runs.formatting import clean, clock, count, md, short_number

from ... import session
from ..frame import RunPage, live
from .completion_list import (
    Side,
    completion_list,
    kind_label,
    picked_in,
    reward_label,
    side_by_side,
    step_label,
)

_PER_PAGE: Final = 50
_SORTS: Final[tuple[SortBy, ...]] = get_args(SortBy)
_CHOSEN: Final = "i"
_SEEN: Final = "_completion_picked_at"
_IN_PART: Final = "_completions_in_part"
_WAIT_S: Final = 0.3
_LONG: Final = 3_000
_MAX_SIBLINGS: Final = 200


def draw_completions(page: RunPage) -> None:
    """Draw the search, the list, and the completion that is selected in it."""
    query = _ask()
    in_part = bool(st.session_state.get(f"{_IN_PART} {page.key}"))
    # A finished run needs a timer only while its completions are being read.
    live(page, "The completions", lambda: _completions(page, query, in_part), idle_s=1.0 if in_part else None)


def _ask() -> CompletionQuery:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        text = st.text_input(
            "Search",
            key="find",
            bind="query-params",
            placeholder="search prompts and answers",
            label_visibility="collapsed",
        )
        steps = st.text_input(
            "Steps",
            key="step",
            bind="query-params",
            placeholder="steps: 300 or 100-200",
            label_visibility="collapsed",
            width=190,
        )
        sort = session.kept_in_url(
            st.selectbox, "Sort", _SORTS, key="order", label_visibility="collapsed", width=170
        )
    try:
        wanted = parse_steps(steps)
    except ValueError as error:
        st.warning(md(str(error)))
        wanted = None
    return CompletionQuery(text=text, steps=wanted, sort=sort)


def _completions(page: RunPage, query: CompletionQuery, in_part: bool) -> None:
    completions = page.store.completions(page.key)
    # Another query starts on its first page.
    pages_key = f"_completions_page {page.key} {query}"
    first = (int(st.session_state.get(pages_key, 1)) - 1) * _PER_PAGE
    found = completions.find(query, first=first, count=_PER_PAGE, wait_s=_WAIT_S)
    if first >= found.matching > 0:
        # The file was replaced by one with fewer records.
        st.session_state[pages_key] = 1
        found = completions.find(query, count=_PER_PAGE, wait_s=0.0)
    is_in_part = found.fraction_read < 1.0 or found.fraction_searched < 1.0
    if is_in_part != in_part:
        st.session_state[f"{_IN_PART} {page.key}"] = is_in_part
        if not page.card.live:
            # The timer depends on it.
            st.rerun()
    list_side, text_side = st.columns([0.4, 0.6], gap="medium")
    with list_side:
        one = _list(page, completions, query, found, pages_key)
    if one is not None:
        with text_side:
            _one(page, completions, one)


# ---------------------------------------------------------------- list


def _list(
    page: RunPage, completions: Completions, query: CompletionQuery, found: FoundCompletions, pages_key: str
) -> Completion | None:
    """Show the list, and return the selected completion."""
    key = f"completions {page.key}"
    chosen = _chosen(key, completions)
    if chosen is None or not query.finds(chosen):
        # Show a completion that matches the query; when the query is cleared, the selection is back.
        chosen = found.rows[0] if found.rows else None
    if found.rows:
        completion_list(found.rows, chosen.place if chosen is not None else None, key=key)
    elif found.fraction_searched == 1.0 and found.fraction_read == 1.0:
        st.info("No completions match.")
    pages = -(-found.matching // _PER_PAGE)
    if pages > 1:
        st.pagination(pages, max_visible_pages=5, key=pages_key)
    st.caption(_summary(query, found))
    return chosen


def _chosen(key: str, completions: Completions) -> Completion | None:
    """Return the completion that was clicked, else the one in the URL."""
    picked = picked_in(key)
    if picked is not None and picked[1] != st.session_state.get(_SEEN):
        st.session_state[_SEEN] = picked[1]
        st.query_params[_CHOSEN] = str(picked[0])
    named = st.query_params.get(_CHOSEN)
    if named is None or not named.isdecimal() or not named.isascii() or len(named) > 18:
        return None
    return completions.at(int(named))


def _summary(query: CompletionQuery, found: FoundCompletions) -> str:
    words = [f"{count(found.known)} completions"]
    if query.text.strip() or query.steps is not None:
        words = [f"{count(found.matching)} of {count(found.known)} completions"]
    if found.fraction_read < 1.0:
        words.append(f"newest {found.fraction_read:.0%} of the records read")
    if found.fraction_searched < 1.0:
        words.append(f"{found.fraction_searched:.0%} of them searched")
    if found.dropped:
        words.append(f"{count(found.dropped)} more were not recorded")
    return " · ".join(words)


# ---------------------------------------------------------------- one completion


def _one(page: RunPage, completions: Completions, one: Completion) -> None:
    st.markdown(
        f"**{step_label(one.step)}** · {md(kind_label(one))}" + (f" · {clock(one.time)}" if one.time else "")
    )
    about = [f"{name} {short_number(value)}" for name, value in one.numbers.items()]
    about += [_other(name, value) for name, value in one.others.items()]
    if about:
        st.caption(md(" · ".join(about), 600))
    if one.cut:
        st.caption(f"{md(', '.join(one.cut))} was too long for a record and is truncated.")
    if one.prompt:
        st.caption("Prompt")
        _text(one.prompt)
    if one.is_pair:
        _pair(page, one)
    else:
        for name, text in one.answers.items():
            st.caption(name.capitalize())
            _text(text)
    _same_prompt(page, completions, one)


def _other(name: str, value: str) -> str:
    if name == "label":
        value = {"True": "desirable", "False": "undesirable"}.get(value, value)
    return f"{name} {value}"


def _text(text: str) -> None:
    st.code(
        clean(text) or " ", language=None, wrap_lines=True, height=360 if len(text) > _LONG else "content"
    )


def _pair(page: RunPage, one: Completion) -> None:
    names = list(one.answers)
    diff = word_diff(*(one.answers[name] for name in names[:2]))
    rewards = [one.numbers.get(f"rewards/{name}") for name in names]
    abouts = [f"reward {short_number(reward)}" if reward is not None else "" for reward in rewards]
    # The chosen answer is the wanted one, in either order.
    marks = ["ins" if name == "chosen" else "del" for name in names]
    side_by_side(
        [
            Side(title=name, about=about, parts=parts, mark="ins" if mark == "ins" else "del")
            for name, about, parts, mark in zip(names, abouts, (diff.before, diff.after), marks, strict=True)
        ],
        key=f"pair {page.key}",
    )
    st.caption(_about_diff(diff))


def _same_prompt(page: RunPage, completions: Completions, one: Completion) -> None:
    """Show the same prompt's answer at another step next to this one."""
    if one.is_pair:
        return
    others = completions.siblings(one, limit=_MAX_SIBLINGS)
    if not others:
        return
    at_least = "at least " if len(others) >= _MAX_SIBLINGS else ""
    st.caption(
        f"The same prompt occurs {at_least}{count(len(others))} more {'time' if len(others) == 1 else 'times'}."
    )
    by_place = {sibling.place: sibling for sibling in others}
    chosen = st.selectbox(
        "Compare with",
        list(by_place),
        index=_another_step(one, others),
        format_func=lambda place: _sibling_label(by_place[place]) if place in by_place else "",
        key=f"_other {page.key} {one.place}",
        width=320,
    )
    other = completions.at(chosen) if chosen is not None else None
    if other is None:
        return
    if other.prompt != one.prompt:
        st.caption("The prompts are not the same.")
        return
    older, newer = sorted((one, other), key=lambda found: (found.step or 0, found.place))
    diff = word_diff(older.answer, newer.answer)
    side_by_side(
        [
            Side(title=step_label(older.step), about=_reward(older), parts=diff.before, mark="del"),
            Side(title=step_label(newer.step), about=_reward(newer), parts=diff.after, mark="ins"),
        ],
        key=f"compared {page.key}",
    )
    st.caption(_about_diff(diff))


def _reward(one: Completion) -> str:
    """Return the reward of a completion, always with its name."""
    return f"reward {reward_label(one)}" if one.reward_name == "reward" else reward_label(one)


def _another_step(one: Completion, others: Sequence[Sibling]) -> int:
    """Return the index of the newest one of an earlier step, else of another step, else the first."""
    steps = [sibling.step for sibling in others]
    for number, step in enumerate(steps):
        if step is not None and one.step is not None and step < one.step:
            return number
    return next((number for number, step in enumerate(steps) if step != one.step), 0)


def _sibling_label(sibling: Sibling) -> str:
    reward = f"  ·  {short_number(sibling.reward)}" if sibling.reward is not None else ""
    return f"{step_label(sibling.step)}{reward}"


def _about_diff(diff: WordDiff) -> str:
    if diff.too_different:
        return "The texts differ too much to highlight single words."
    return (
        "The texts are identical."
        if diff.is_same
        else "Words that only one of the texts has are highlighted."
    )
