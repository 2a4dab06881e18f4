"""A list of completions to pick one from, which keeps its choice while new ones arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import streamlit as st

from dashboard.components.script import component_key, loader
from dashboard.data.completions import Completion
from dashboard.data.formatting import clean, count, short_number

_START: Final = 160
_STYLE: Final = """
.telemetry-completions {
  display: flex; flex-direction: column; max-height: 38rem; overflow-y: auto; overflow-x: hidden;
  border: 1px solid var(--st-border-color); border-radius: var(--st-base-radius);
}
@media (max-width: 640px) { .telemetry-completions { max-height: 20rem; } }
.telemetry-completion {
  display: flex; flex-direction: column; gap: 0.1rem; flex: none; width: 100%; min-width: 0; text-align: left;
  padding: 0.5rem 0.75rem; margin: 0; border: 0; border-left: 3px solid transparent;
  border-bottom: 1px solid var(--st-border-color); background: transparent; color: var(--st-text-color);
  font: inherit; font-size: 0.9rem; line-height: 1.35; cursor: pointer;
}
.telemetry-completion:last-child { border-bottom: 0; }
.telemetry-completion:hover { background: var(--st-secondary-background-color); }
.telemetry-completion:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: -2px; }
.telemetry-completion-chosen {
  background: var(--st-secondary-background-color); border-left-color: var(--st-primary-color);
}
.telemetry-completion-top { display: flex; gap: 0.6rem; font-size: 0.8rem; font-variant-numeric: tabular-nums; }
.telemetry-completion-step { font-weight: 600; white-space: nowrap; }
.telemetry-completion-kind {
  opacity: 0.75; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; min-width: 0;
}
.telemetry-completion-reward { margin-left: auto; font-weight: 600; white-space: nowrap; }
.telemetry-completion-prompt, .telemetry-completion-answer {
  overflow: hidden; text-overflow: ellipsis; white-space: nowrap; min-width: 0; unicode-bidi: isolate;
}
.telemetry-completion-answer { opacity: 0.75; }
"""


def completion_list(rows: Sequence[Completion], chosen: int | None, *, key: str) -> None:
    """Show `rows` and mark the one at the place `chosen`; `picked_in(key)` then tells which one was clicked last."""
    component = st.components.v2.component(
        "telemetry_completions",
        html='<div class="telemetry-completions" role="group"></div>',
        css=_STYLE,
        js=loader("completion_list"),
        isolate_styles=False,
    )
    component(
        data={
            "rows": [_row(row) for row in rows],
            "chosen": chosen,
            "label": f"{count(len(rows))} completions",
        },
        key=component_key(key),
        on_picked_change=_nothing,
        default={"picked": None},
    )


def picked_in(key: str) -> tuple[int, float] | None:
    """Return the place of the completion that was clicked last in the list with this key, and when; None before."""
    state = st.session_state.get(component_key(key))
    told = state.get("picked") if state else None
    if not isinstance(told, Mapping):
        return None
    place, at = told.get("place"), told.get("at")
    if not isinstance(place, (int, float)) or not isinstance(at, (int, float)):
        return None
    return int(place), float(at)


def step_words(step: int | None) -> str:
    """Return a step as a list has it."""
    return f"step {count(step)}" if step is not None else "no step"


def kind_words(completion: Completion) -> str:
    """Return what a completion is of, and whether it is from an evaluation."""
    return f"{clean(completion.kind)} · eval" if completion.split == "eval" else clean(completion.kind)


def reward_words(completion: Completion) -> str:
    """Return the number that a completion is judged by, with its name where that is not simply the reward."""
    if completion.reward is None:
        return ""
    name = "" if completion.reward_name == "reward" else f"{completion.reward_name} "
    return f"{name}{short_number(completion.reward)}"


def _row(completion: Completion) -> dict[str, object]:
    answer = completion.answer
    if completion.is_pair:
        answer = " | ".join(_start(text) for text in completion.answers.values())
    return {
        "place": completion.place,
        "step": step_words(completion.step),
        "kind": kind_words(completion),
        "reward": reward_words(completion),
        "prompt": _start(_question(completion.prompt)) or "(no prompt)",
        "answer": _start(answer) or "(empty)",
    }


def _question(prompt: str) -> str:
    """Return what a chat's prompt asks last: it begins with the same words for the system every time."""
    _, asked, question = prompt.rpartition("\n\nuser: ")
    return question if asked else prompt


def _start(text: str) -> str:
    """Return the beginning of a text in one line."""
    return " ".join(clean(text[: 4 * _START]).split())[:_START]


def _nothing() -> None:
    """A click is looked at when the list is drawn again, which it causes."""
