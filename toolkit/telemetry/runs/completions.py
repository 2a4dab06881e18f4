"""Completions as pages show them, queries for them, and the protocol that finds them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from toolkit.telemetry.runfolder.codec import with_non_finite
from toolkit.telemetry.runfolder.metrics import as_float
from toolkit.telemetry.runfolder.records import CUT, ENVELOPE, NAN_INF_DETECTED, NON_FINITE, Record
from toolkit.telemetry.runfolder.untrusted import finite_in, is_number

SortBy = Literal["Newest", "Highest reward", "Lowest reward"]

ANSWERS: Final = ("completion", "chosen", "rejected")
"""Fields with answers of a model, or preferred and rejected ones."""

_REWARDS: Final = ("reward", "reward_diff", "score", "margin", "log_odds_ratio", "advantage")
"""The reward of a completion is the first of these fields that it has."""
_SUM: Final = "sum of rewards"
_OF_THE_RECORD: Final = frozenset({*ENVELOPE, NAN_INF_DETECTED, NON_FINITE, CUT})
_SHOWN_ELSEWHERE: Final = frozenset({"global_step", "prompt", "kind", "split", *ANSWERS})
_MAX_FIELDS: Final = 60
_MAX_STEP: Final = 2**53
_STEPS: Final = re.compile(r"\s*(\d{1,15})?\s*(?:(-|–|to|\.\.)\s*(\d{1,15})?)?\s*")  # noqa: RUF001 - people type it


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One completion."""

    place: int
    """Byte offset of its record in the file, which identifies it."""
    step: int | None
    time: float | None
    kind: str
    """grpo, dpo, kto, …, or by its form: pair, labelled, completion."""
    split: str = ""
    """`train` or `eval`, if it was collected from a trainer."""
    prompt: str = ""
    answers: Mapping[str, str] = field(default_factory=dict)
    """`completion`, or `chosen` and `rejected`."""
    reward: float | None = None
    reward_name: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)
    cut: tuple[str, ...] = ()
    """Fields that were truncated."""

    @property
    def is_pair(self) -> bool:
        """Whether it is a preference pair: one answer chosen over another."""
        return "completion" not in self.answers and len(self.answers) > 1

    @property
    def answer(self) -> str:
        """The answer shown in a list."""
        return next(iter(self.answers.values()), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionQuery:
    """Which completions, in which order."""

    text: str = ""
    """In the prompt or an answer, ignoring case."""
    steps: tuple[int, int] | None = None
    """First and last step."""
    sort: SortBy = "Newest"

    def finds(self, one: Completion) -> bool:
        """Return whether `one` matches."""
        if self.steps is not None and (one.step is None or not self.steps[0] <= one.step <= self.steps[1]):
            return False
        text = self.text.strip().casefold()
        return any(text in found.casefold() for found in (one.prompt, *one.answers.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCompletions:
    """A page of what a query finds in the records read so far."""

    rows: tuple[Completion, ...] = ()
    matching: int = 0
    known: int = 0
    """Completions read so far."""
    fraction_read: float = 1.0
    fraction_searched: float = 1.0
    """How much of what was read has been searched."""
    dropped: int = 0
    """Completions that the run counted but did not record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sibling:
    """Another completion of the same prompt."""

    place: int
    step: int | None
    reward: float | None


class Completions(Protocol):
    """The completions of one run. Thread-safe."""

    def find(
        self, query: CompletionQuery, *, first: int = 0, count: int = 50, wait_s: float = 0.3
    ) -> FoundCompletions:
        """Return what `query` finds, starting at `first`; read for at most about `wait_s`, newest records first."""

    def at(self, place: int) -> Completion | None:
        """Return the completion whose record starts there; None if there is none."""

    def siblings(self, completion: Completion, *, limit: int = 200) -> Sequence[Sibling]:
        """Return the other completions of the same prompt read so far, newest first."""


def completion_of(record: Record, place: int) -> Completion:
    """Return a record as a page shows it, whatever it contains."""
    record = with_non_finite(record)
    answers = {name: text_in(record[name]) for name in ANSWERS if record.get(name) is not None}
    if not answers and record.get("text") is not None:
        answers = {"completion": text_in(record["text"])}
    numbers: dict[str, float] = {}
    others: dict[str, str] = {}
    for name, value in record.items():
        if name in _OF_THE_RECORD or name in _SHOWN_ELSEWHERE:
            continue
        if len(numbers) + len(others) >= _MAX_FIELDS:
            break
        if is_number(value):
            numbers[name] = as_float(value)
        elif value is not None:
            others[name] = text_in(value)
    name, reward = reward_of(record)
    cut = record.get(CUT)
    time = record.get("time")
    return Completion(
        place=place,
        step=step_of(record),
        time=float(time) if isinstance(time, (int, float)) else None,
        kind=_kind_of(record, answers),
        split=text_in(record.get("split"))[:20],
        prompt=text_in(record.get("prompt")),
        answers=answers,
        reward=reward,
        reward_name=name,
        numbers=numbers,
        others=others,
        cut=tuple(str(one) for one in cut) if isinstance(cut, list) else (),
    )


def reward_of(record: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return the name and value of a completion's reward: of several `rewards/…` their sum, None if it has none."""
    for name in _REWARDS:
        value = record.get(name)
        if is_number(value):
            return name, as_float(value)
    several = [
        as_float(value) for name, value in record.items() if name.startswith("rewards/") and is_number(value)
    ]
    return (_SUM, sum(several)) if several else ("", None)


def step_of(record: Mapping[str, Any]) -> int | None:
    """Return the step of a record, if it has one."""
    step = finite_in(record.get("global_step"))
    return int(step) if step is not None and abs(step) < _MAX_STEP else None


def text_in(value: Any) -> str:
    """Return a field as text."""
    if isinstance(value, str):
        return value
    return "" if value is None else str(value)[:2_000]


def parse_steps(text: str) -> tuple[int, int] | None:
    """Parse `300`, `100-200`, `100-` or `-200`; None for an empty text. Raises ValueError for anything else."""
    if not text.strip():
        return None
    found = _STEPS.fullmatch(text.replace(",", ""))
    if found is None or (found[1] is None and found[3] is None):
        raise ValueError(f"{text.strip()[:40]!r} is not a step or range; write 300, 100-200, 100- or -200")
    if found[2] is None:
        return int(found[1]), int(found[1])
    low = int(found[1]) if found[1] else 0
    high = int(found[3]) if found[3] else 10**15
    return (low, high) if low <= high else (high, low)


def _kind_of(record: Mapping[str, Any], answers: Mapping[str, str]) -> str:
    kind = record.get("kind")
    if isinstance(kind, str) and kind:
        return kind[:20]
    if "chosen" in answers or "rejected" in answers:
        return "pair"
    return "labelled" if isinstance(record.get("label"), bool) else "completion"
