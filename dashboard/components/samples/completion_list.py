"""A list of completions to pick from, which keeps its selection while new ones arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

from toolkit.telemetry.runs.completions import Completion
from toolkit.telemetry.runs.files.word_diff import DiffPart
from toolkit.telemetry.runs.formatting import clean, count, short_number

from ..script import redraw_only, sent_by, show_component, show_markup

_START: Final = 160


def completion_list(rows: Sequence[Completion], chosen: int | None, *, key: str) -> None:
    """Show `rows` and mark the one at offset `chosen`; `picked_in(key)` returns the one clicked last."""
    show_component(
        "completion_list",
        '<div class="telemetry-completions" role="group"></div>',
        data={
            "rows": [_row(row) for row in rows],
            "chosen": chosen,
            "label": f"{count(len(rows))} completions",
        },
        key=key,
        on_picked_change=redraw_only,
        default={"picked": None},
    )


def picked_in(key: str) -> tuple[int, float] | None:
    """Return the offset of the completion clicked last in this list, and when; None before that."""
    sent = sent_by(key, "picked")
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


# ---------------------------------------------------------------- texts side by side


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the texts; `mark` says how words that only it has are marked: as deleted or inserted."""

    title: str
    about: str
    parts: Sequence[DiffPart]
    mark: Literal["del", "ins"]


def side_by_side(sides: Sequence[Side], *, key: str) -> None:
    """Show texts side by side, never interpreted as markup."""
    show_markup(f'<div class="telemetry-sides">{"".join(map(_side_html, sides))}</div>', key=key)


def _side_html(side: Side) -> str:
    words = "".join(
        f"<{side.mark}>{escape(clean(part.text))}</{side.mark}>"
        if part.only_here
        else escape(clean(part.text))
        for part in side.parts
    )
    return (
        '<section class="telemetry-side"><div class="telemetry-side-head">'
        f'<span class="telemetry-side-title">{escape(clean(side.title))}</span>'
        f'<span class="telemetry-side-about">{escape(clean(side.about))}</span></div>'
        f'<div class="telemetry-side-text" dir="auto" tabindex="0">{words}</div></section>'
    )
