"""The answer of a sweep as a paragraph of plain English."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolkit.telemetry.runs.formatting import count, short_number
from toolkit.telemetry.runs.sweep.answer import HINT, MIN_RUNS, RELEVANT, Factor, Suggestion, SweepAnswer
from toolkit.telemetry.runs.sweep.runs import SweepRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """How what comes from runs is written, to escape it and to make it stand out."""

    name: Callable[[str], str] = str
    """Of settings."""
    run: Callable[[str], str] = str
    """Of runs."""
    value: Callable[[str], str] = str
    """Of metrics, and of values of settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerText:
    """The answer in sentences."""

    best: tuple[str, ...]
    """The best run and the next one."""
    why: tuple[str, ...]
    luck: tuple[str, ...]
    """How much is chance, and which runs do not count."""
    next: tuple[str, ...]

    def __str__(self) -> str:
        """Return all of it as one paragraph."""
        return " ".join((*self.best, *self.why, *self.luck, *self.next))


def answer_text(found: SweepAnswer, mark: Marks | None = None) -> AnswerText:
    """Return the answer in plain English."""
    mark = mark or Marks()
    return AnswerText(
        best=tuple(_best(found, mark)),
        why=tuple(_why(found, mark)),
        luck=(*_seeds(found, mark), *_not_counted(found, mark)),
        next=tuple(_next(found, mark)),
    )


def how_sure(p: float) -> str:
    """Return how often chance alone would show as much, in words."""
    if p < 0.001:
        return "chance alone would show this in fewer than 1 of 1,000 sweeps"
    if p <= 0.015:
        return f"chance alone would show this in about {max(1, round(1000 * p))} of 1,000 sweeps"
    return f"chance alone would show this in about {max(1, round(100 * p))} of 100 sweeps"


def percent(share: float) -> str:
    """Return a share as a whole percentage."""
    return f"{100 * share:.0f} %"


# ---------------------------------------------------------------- the best run


def _best(found: SweepAnswer, mark: Marks) -> list[str]:
    if found.best is None:
        what = f"None of the {_runs(found.total)} has" if found.total > 1 else "The run does not have"
        return [f"{what} a final {mark.value(found.metric)} yet." if found.total else "There are no runs."]
    value = short_number(found.best.value)
    if found.second is None:
        what = f"The only run with a final {mark.value(found.metric)}{_in_project(found, mark)}"
        return [f"{what} is {mark.run(found.best.name)}: {value}."]
    if not found.lead:
        tied = f"{mark.run(found.best.name)} and {mark.run(found.second.name)}"
        return [f"Best{_in_project(found, mark)}: {tied}, both with {mark.value(found.metric)} {value}."]
    best = (
        f"Best of {_runs(found.counted)}{_in_project(found, mark)}: {mark.run(found.best.name)}, "
        f"with {mark.value(found.metric)} {value}."
    )
    second = short_number(found.second.value)
    value_of_best, value_of_second = found.best.value or 0.0, found.second.value or 0.0
    relative = found.lead / abs(value_of_best) if value_of_best * value_of_second > 0 else math.inf
    if relative > 10:
        return [best, f"The next, {mark.run(found.second.name)}, has {second}."]
    side = "higher" if found.direction == "min" else "lower"
    amount = f"{100 * relative:.2g} %" if 0.001 <= relative < 0.995 else f"{100 * relative:.0f} %"
    amount = "less than 0.1 %" if relative < 0.001 else amount
    return [best, f"The next, {mark.run(found.second.name)}, is {amount} {side} ({second})."]


def _in_project(found: SweepAnswer, mark: Marks) -> str:
    if found.project is None:
        return ""
    return f" in project {mark.value(found.project)}" if found.project else " without a project"


# ---------------------------------------------------------------- why


def _why(found: SweepAnswer, mark: Marks) -> list[str]:
    if found.verdict == "no runs":
        return []
    if found.verdict == "too few runs":
        if found.counted < 2:
            return []
        return [
            f"That is too few to say why: below {MIN_RUNS} finished runs, chance explains almost any difference."
        ]
    if found.verdict == "nothing varied":
        reason = (
            "These runs have the same settings" if found.constant else "These runs have no recorded settings"
        )
        return [f"{reason}, so nothing but chance can explain the difference."]
    if found.verdict == "all equal":
        return [f"All runs have the same {mark.value(found.metric)}."]
    if found.verdict == "undecided":
        return _undecided(found, mark)
    return _decided(found, mark)


def _undecided(found: SweepAnswer, mark: Marks) -> list[str]:
    tested = len(found.factors)
    settings = (
        "the setting that was varied" if tested == 1 else f"any of the {tested} settings that were varied"
    )
    verdict = (
        f"Undecided: with {_runs(found.counted)}, the differences are no larger than chance alone would make them, "
        f"so no claim can be made for {settings}."
    )
    if found.seeds is not None and found.groups_differ:
        low, high = map(short_number, found.seeds.means)
        verdict = (
            f"The settings matter: the mean {mark.value(found.metric)} of equal settings goes from {low} to {high} "
            f"({how_sure(found.seeds.p)}). Which of them does it is undecided: with "
            f"{count(found.configurations)} different settings in {_runs(found.counted)}, no claim can be made for "
            f"{settings}."
        )
    first = min(found.factors, key=lambda factor: (factor.p, -factor.share), default=None)
    if first is None or first.p > HINT:
        return [verdict]
    return [verdict, f"The most likely candidate is {_name(first, mark)}, but {how_sure(first.p)}."]


def _decided(found: SweepAnswer, mark: Marks) -> list[str]:
    first, *rest = found.named
    others = [factor for factor in rest if factor.share >= RELEVANT]
    if found.joint is not None:
        one, other = (mark.name(key) for key in found.joint.keys)
        together = (
            f"{one} and {other} together explain about {percent(found.joint.share)} of the differences between runs "
            f"({how_sure(found.joint.p)}), although neither is beyond chance on its own."
        )
        others = [factor for factor in others if factor.keys[0] not in found.joint.keys]
        return [together, *_also(others, mark), *_interaction(found, mark)]
    sentences = [
        f"{_name(first, mark)} explain{'' if len(first.keys) > 1 else 's'} the most: "
        f"about {percent(first.share)} of the differences between runs "
        f"(90 % interval {100 * first.low:.0f} to {percent(first.high)}; {how_sure(first.p)})."
        + _shape(first, found, mark)
    ]
    if len(first.keys) > 1:
        sentences.append("These were always changed together, so their effects cannot be separated.")
    sentences += _also(others, mark)
    for factor in found.named[:3]:
        if factor.runs < found.counted:
            sentences.append(
                f"{mark.name(factor.keys[0])} is recorded in {count(factor.runs)} of {_runs(found.counted)}."
            )
    alike = [factor for factor in found.factors if factor.like is not None]
    if alike:
        factor = alike[0]
        sentences.append(
            f"{mark.name(factor.keys[0])} mostly changed together with {mark.name(str(factor.like))}, "
            "so its own effect cannot be separated."
        )
    return [*sentences, *_interaction(found, mark)]


def _also(others: Sequence[Factor], mark: Marks) -> list[str]:
    """Return a sentence about the settings that are named after the first ones."""
    parts = [
        f"{_name(factor, mark)} ({percent(factor.share)}, best {mark.value(factor.best)})"
        for factor in others[:3]
    ]
    verb = "matters" if len(others) == 1 and len(others[0].keys) == 1 else "matter"
    return [f"{listed(parts)} also {verb}."] if parts else []


def beyond_chance(found: SweepAnswer, coloured: str) -> str:
    """Return what coloured bars mean."""
    if not found.named:
        return "No bar is beyond chance."
    together = "" if found.joint is None else ", the first two only together"
    return f"{coloured} bars are beyond chance{together}."


def _interaction(found: SweepAnswer, mark: Marks) -> list[str]:
    if found.interaction is None:
        return []
    one, other = (mark.name(key) for key in found.interaction.keys)
    best = [f"{mark.value(value)} with {mark.value(at)}" for at, value in found.interaction.best[:4]]
    if found.interaction.moves is not None:
        return [f"Use a {found.interaction.moves} {one} for a higher {other}: about {listed(best)}."]
    if best:
        return [f"The best {one} depends on {other}: about {listed(best)}."]
    return [f"The effect of {one} depends on {other}: choose them together."]


def _shape(factor: Factor, found: SweepAnswer, mark: Marks) -> str:
    levels = {level.label: level for level in factor.levels}
    best = levels.get(factor.best)
    if best is None:
        return ""
    others = [level for level in factor.levels if level is not best]
    rest = max if found.direction == "min" else min
    worst = rest(others, key=lambda level: level.median, default=None)
    if worst is None:
        return ""
    if factor.optimum is not None:
        here, low, high = map(mark.value, factor.optimum)
        return f" The best {mark.name(factor.keys[0])} is about {here} (90 % interval {low} to {high})."
    return (
        f" The median {mark.value(found.metric)} is {short_number(best.median)} with {mark.value(factor.keys[0])} "
        f"{mark.value(best.label)} and {short_number(worst.median)} with {mark.value(worst.label)}."
    )


def _name(factor: Factor, mark: Marks) -> str:
    return listed([mark.name(key) for key in factor.keys[:3]])


# ---------------------------------------------------------------- seeds, and what is not counted


def _seeds(found: SweepAnswer, mark: Marks) -> list[str]:
    if found.second is None:
        return []
    if found.seeds is None:
        if found.verdict in ("decided", "undecided"):
            return [
                "No two runs have the same settings, so it is unknown how much the seed alone changes the result."
            ]
        return []
    seeds = found.seeds
    what = "The seed alone moves" if seeds.by_seed else "Equal settings differ in"
    spread = f"{what} {mark.value(found.metric)} by about ±{short_number(seeds.deviation)}"
    groups = "one group" if seeds.groups == 1 else f"{count(seeds.groups)} groups"
    basis = f"{_runs(seeds.runs)} in {groups} of equal settings"
    if not found.lead or seeds.deviation == 0:
        return [f"{spread} ({basis})."]
    verdict = (
        "so the lead of the best run may be luck"
        if found.lead_is_noise
        else "less than the lead of the best run"
    )
    return [f"{spread} ({basis}), {verdict}."]


def _not_counted(found: SweepAnswer, mark: Marks) -> list[str]:
    parts = []
    for names, what in (
        (found.running, "still running"),
        (found.failed, "failed"),
        (found.without_value, "without a finite value"),
        (found.not_logged, f"without {mark.value(found.metric)}"),
    ):
        if names:
            parts.append(f"{count(len(names))} {what}")
    sentences = []
    if parts and found.best is not None:
        sentences.append(f"Not counted: {listed(parts)}.")
    if found.stopped:
        sentences.append(_stopped(found.stopped))
    if found.ahead is not None:
        states = {"running": "is still running but", "stopped": "was stopped early but"}
        state = states.get(found.ahead.state, "failed but")
        sentences.append(
            f"{mark.run(found.ahead.name)} {state} has reached {short_number(found.ahead.value)}, "
            "better than any finished run."
        )
    if found.failures is not None:
        label, bad, all_runs = found.failures.levels[0]
        sentences.append(
            f"Failures depend on {mark.name(found.failures.key)}: {count(bad)} of {count(all_runs)} runs at "
            f"{mark.value(label)} failed ({how_sure(found.failures.p)})."
        )
    return sentences


def _stopped(runs: Sequence[SweepRun]) -> str:
    if len(runs) == 1:
        return (
            f"1 run stopped at step {count(runs[0].steps or 0)} of {count(runs[0].planned or 0)} is left out."
        )
    shares = sorted((run.steps or 0) / (run.planned or 1) for run in runs)
    between = percent(shares[0])
    if percent(shares[-1]) != between:
        between = f"{100 * shares[0]:.0f} to {percent(shares[-1])}"
    return f"{_runs(len(runs))} stopped at {between} of their steps are left out."


# ---------------------------------------------------------------- what next


def _next(found: SweepAnswer, mark: Marks) -> list[str]:
    if not found.suggestions:
        return []
    beyond = [one for one in found.suggestions if one.kind == "beyond"]
    parts = [_suggestion(one, found, mark) for one in found.suggestions if one not in beyond]
    if beyond:
        edges = listed([_edge(one, mark) for one in beyond])
        parts.insert(0, f"{edges}, because the best runs are at the edge of what was tried")
    return [f"Try next: {'; '.join(parts)}."]


def _edge(one: Suggestion, mark: Marks) -> str:
    key, edge = one.settings[0]
    return f"{mark.name(key)} {'below' if one.below else 'above'} {mark.value(edge)}"


def _suggestion(one: Suggestion, found: SweepAnswer, mark: Marks) -> str:
    if one.kind == "at":
        (key, here), *_ = one.settings
        return f"{mark.name(key)} about {mark.value(here)}"
    if one.kind == "vary":
        return "runs that change one setting at a time from those of the best run"
    if one.kind == "between":
        (key, low), (_, high) = one.settings
        return f"more values of {mark.name(key)} between {mark.value(low)} and {mark.value(high)}"
    if one.kind == "combine":
        parts = [f"{mark.name(key)} {mark.value(value)}" for key, value in one.settings]
        return f"{listed(parts)} together, which no run has tried"
    if one.kind == "repeat":
        name = mark.run(found.best.name) if found.best is not None else "the best run"
        return f"{name} again with two or three other seeds"
    return f"more runs, at least {MIN_RUNS} in all"


def listed(parts: Sequence[str]) -> str:
    """Return words as a list in a sentence: a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _runs(number: int) -> str:
    return f"{count(number)} {'run' if number == 1 else 'runs'}"
