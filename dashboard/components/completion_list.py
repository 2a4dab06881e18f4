"""A list of completions to pick from, which keeps its selection while new ones arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import streamlit as st

from dashboard.components.script import component_key, loader
from toolkit.runs.completions import Completion
from toolkit.runs.formatting import clean, count, short_number

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
    """Show `rows` and mark the one at offset `chosen`; `picked_in(key)` returns the one clicked last."""
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
    """Return the offset of the completion clicked last in this list, and when; None before that."""
    state = st.session_state.get(component_key(key))
    sent = state.get("picked") if state else None
    if not isinstance(sent, Mapping):
        return None
    place, at = sent.get("place"), sent.get("at")
    if not isinstance(place, (int, float)) or not isinstance(at, (int, float)):
        return None
    return int(place), float(at)


def step_label(step: int | None) -> str:
    """Return the label of a step."""
    return f"step {count(step)}" if step is not None else "no step"


def kind_label(completion: Completion) -> str:
    """Return the kind of a completion, and whether it is from an evaluation."""
    return f"{clean(completion.kind)} · eval" if completion.split == "eval" else clean(completion.kind)


def reward_label(completion: Completion) -> str:
    """Return the reward of a completion, with its name if that is not simply `reward`."""
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
        "step": step_label(completion.step),
        "kind": kind_label(completion),
        "reward": reward_label(completion),
        "prompt": _start(_question(completion.prompt)) or "(no prompt)",
        "answer": _start(answer) or "(empty)",
    }


def _question(prompt: str) -> str:
    """Return the last question of a chat prompt: it usually starts with the same system prompt."""
    _, asked, question = prompt.rpartition("\n\nuser: ")
    return question if asked else prompt


def _start(text: str) -> str:
    """Return the start of a text in one line."""
    return " ".join(clean(text[: 4 * _START]).split())[:_START]


def _nothing() -> None:
    """A click redraws the list, which then reads the state."""
