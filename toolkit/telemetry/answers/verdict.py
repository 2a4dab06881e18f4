"""Is it really better: a run or a group of repeated runs against the best one so far."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any, Final, Literal

from toolkit.telemetry.answers.order import alternate, depends_on_order
from toolkit.telemetry.answers.repeats import Result, differing, groups_of, result_of
from toolkit.telemetry.answers.sequential_test import (
    ALPHA,
    FEWEST,
    chance,
    forecast,
    judge,
    pooled,
)
from toolkit.telemetry.runfolder.metrics import Direction, is_evaluation
from toolkit.telemetry.runs.formatting import count, short_number
from toolkit.telemetry.runs.labels import RunName, labels_of
from toolkit.telemetry.runs.settings import differing_settings, setting_text
from toolkit.telemetry.runs.store import RunCard

Answer = Literal["better", "worse", "not better", "not decided"]
EXIT_CODES: Final[Mapping[Answer, int]] = {"better": 0, "worse": 1, "not better": 1, "not decided": 3}
SURE: Final = 0.8
"""So likely must a decision be for its number of runs to be named first."""
MORE: Final = 3
"""How many more runs a comparison is worth, unless asked for otherwise."""
HOPELESS: Final = 0.05
_WHOLE: Final = 0.95
"""The share of its steps from which on a run that did not finish has a result."""
_HEADS: Final[Mapping[Answer, str]] = {
    "better": "{} is better than {}",
    "worse": "{} is worse than {}",
    "not better": "{} is not shown to be better than {}",
    "not decided": "Not decided whether {} is better than {}",
}
_DATA: Final = re.compile(r"(^|[^a-z])(data|datasets?|splits?)($|[^a-z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer, and what it rests on."""

    answer: Answer
    sentence: str
    needed: str
    """What to do next."""
    sure: str
    metric: str
    goal: Direction
    evidence: Sequence[Mapping[str, Any]] = ()
    """A row for each run: `group`, `run`, `place`, `value`, `counted`, and `why` not."""
    rests_on: Sequence[str] = ()
    """Sentences: the noise and where it is from, how much better is enough, how many tries there were; warnings."""
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0 keep, 1 discard, 3 run again."""
        return EXIT_CODES[self.answer]

    def as_json(self) -> dict[str, Any]:
        """Return it for `--json`."""
        fields = ("answer", "exit_code", "sentence", "needed", "sure", "metric", "goal", "rests_on")
        return {**{name: getattr(self, name) for name in fields}, "runs": self.evidence, **self.numbers}


def pick_groups(
    new: Sequence[Result],
    best: Sequence[Result],
    nearby: Sequence[Result],
    goal: Direction,
    folders: Sequence[bool],
) -> tuple[list[Result], list[Result]]:
    """Return the runs to compare, of those that were named and those in the same folders.

    One run comes with its repeats. Of a folder of runs, the best group is taken, without the new runs.
    """
    group_of = groups_of(list({run.key: run for run in (*nearby, *best, *new)}.values()))
    mine = {group_of[run.key] for run in new}
    if folders[1] and len(best) > 1:
        rest = [run for run in best if run not in new and group_of[run.key] not in mine]
        best = next(iter(_ranked(rest, group_of, goal)), [])
    free = [run for run in nearby if run.key not in {one.key for one in (*new, *best)}]
    theirs = {group_of[run.key] for run in best}
    if mine & theirs:
        # Whoever names both means two groups, whatever was recorded; the repeats may be of either.
        return list(new), list(best)
    if folders[0] and len(new) == 1:
        new = [*new, *(run for run in free if group_of[run.key] in mine)]
    if len(best) == 1:
        best = [*best, *(run for run in free if group_of[run.key] in theirs)]
    return list(new), list(best)


def verdict_on(
    lists: Sequence[Sequence[RunCard]],
    nearby: Sequence[RunCard],
    *,
    metric: str,
    goal: Direction,
    last_of: Callable[[RunCard], float | None],
    are_single: Sequence[bool],
    places: Sequence[str],
    **how: Any,
) -> Verdict | str:
    """Return the verdict on the new runs against the best ones, which are the two `lists`, or why there is none.

    `nearby` are the runs of their folders, `places` what the lists are called, and `are_single` whether each was asked
    for by one name: then it comes with its repeats. `last_of` reads the last value of a metric that a list of runs
    does not have.
    """

    def results(cards: Sequence[RunCard]) -> list[Result]:
        return [
            result_of(card, metric, value=None if metric in card.evaluations else last_of(card))
            for card in cards
        ]

    others, new, best = map(results, (nearby, *lists))
    new, best = pick_groups(new, best, others, goal, are_single)
    for group, place in zip((new, best), places, strict=True):
        if not group:
            return f"{place} has no other run to compare with: all are those of the new one"
        if all(result.value is None for result in group):
            names = {name for cards in lists for card in cards for name in card.evaluations}
            known = ", ".join(sorted(names)[:10]) or "none"
            return f"{place} has no run with {metric} to compare; its kind of metric here: {known}"
    return verdict(new, best, others, metric=metric, goal=goal, **how)


def best_against(
    runs: Sequence[Result],
    others: Sequence[Result] = (),
    *,
    metric: str,
    goal: Direction,
    base: str | None = None,
    head: str | None = None,
) -> Verdict | None:
    """Say whether the best group is better than that of the run with the key `base`, else than the second best.

    With `head` the group of that run counts as the best one, whatever its mean is: it is the one that a page names.

    None if fewer than two groups have a result. Without `base` every other group counts as a try.
    A run comes with its repeats among the `others`.
    """
    if base is None:
        # A group has the name of its best run, as in a list.
        runs = sorted(runs, key=lambda run: run.value or 0.0, reverse=goal == "max")
    group_of = groups_of([*runs, *others])
    mine = {group_of[run.key] for run in runs}
    runs = [*runs, *(run for run in others if group_of[run.key] in mine)]
    others = [run for run in others if group_of[run.key] not in mine]
    ranked = _ranked(runs, group_of, goal)
    ranked.sort(key=lambda group: head is None or group_of[group[0].key] != group_of.get(head))
    based = [group for group in ranked if base is not None and group_of[group[0].key] == group_of[base]]
    new = next((group for group in ranked if group not in based), None)
    best = based[0] if based else ranked[1] if base is None and len(ranked) > 1 else None
    if new is None or best is None:
        return None
    tries = len(ranked) - 1 if base is None else None
    return verdict(new, best, [*runs, *others], metric=metric, goal=goal, tries=tries)


def _ranked(runs: Sequence[Result], group_of: Mapping[str, str], goal: Direction) -> list[list[Result]]:
    """Return the groups with a result, the best one first."""
    groups: dict[str, list[Result]] = {}
    usual = _usual_step(runs)
    for run in runs:
        if _why_not(run, "", usual, ()) is None:
            groups.setdefault(group_of[run.key], []).append(run)
    sign = 1.0 if goal == "max" else -1.0
    return sorted(groups.values(), key=lambda group: -sign * fmean(run.value or 0.0 for run in group))


def verdict(
    new: Sequence[Result],
    best: Sequence[Result],
    others: Sequence[Result] = (),
    *,
    metric: str,
    goal: Direction,
    tries: int | None = None,
    more: int = MORE,
) -> Verdict:
    """Say whether `new` is better than `best`, neither empty; `others` are runs of the same folder.

    They count as tries, and those that repeat each other show the noise. *Better* is never said of a run that is not
    whole or has diverged.
    """
    new, best = _distinctly_named(new, best)
    taken = {run.key for run in (*new, *best)}
    others = list({run.key: run for run in reversed(others) if run.key not in taken}.values())
    group_of = groups_of((*new, *best, *others))
    usual = _usual_step((*new, *best, *others))
    rows, counted = [], []
    for group, runs in (("new", new), ("best", best)):
        found = [(run, _why_not(run, metric, usual, runs[:at])) for at, run in enumerate(runs)]
        counted.append([run for run, why in found if why is None])
        rows += [
            {
                "group": group,
                "run": run.name,
                "place": run.place,
                "value": _finite(run.value),
                "counted": why is None,
                "why": why,
            }
            for run, why in found
        ]
    names = [_named(group or runs) for group, runs in zip(counted, (new, best), strict=True)]
    diverged = [run for run in new if run.value is not None and _finite(run.value) is None]

    def said(
        answer: Answer, sentence: str, needed: str, sure: str = "cannot be said", **rest: Any
    ) -> Verdict:
        rest.update(metric=metric, goal=goal, evidence=rows)
        return Verdict(answer=answer, sentence=sentence, needed=needed, sure=sure, **rest)

    if diverged and not counted[0] and counted[1]:
        return said("worse", f"{names[0]} is worse than {names[1]}: it diverged.", f"Discard {names[0]}.")
    for side, name, results in zip(("new", "best"), names, counted, strict=True):
        if not results:
            why = next(row["why"] for row in rows if row["group"] == side)
            return said("not decided", f"Not decided: no result of {name}: {why}.", f"Run {name} to its end.")
    if {run.key for run in new} & {run.key for run in best}:
        both = f"{names[0]} and {names[1]} share a run: there is nothing to compare."
        return said("not better", both, "Name each run on one side only.", "by their records")
    sign = 1.0 if goal == "max" else -1.0
    tries = max(tries or _number_of_try(new, best, others, group_of), 1)
    whole = [run for run in others if _why_not(run, metric, usual, ()) is None]
    repeated = _repeated(counted, whole, group_of)
    noise = pooled(repeated)
    made = differing(new, best)
    warnings = [
        f"They differ in {', '.join(made[:5])}{' …' if len(made) > 5 else ''}."
        if made
        else "Nothing that was recorded differs between the two but the seed: no setting, no option of the command "
        "line, no logged constant, no code.",
        *_warnings(new, best, counted, tries),
    ]
    for runs in (new, best):
        if len({group_of[run.key] for run in runs}) > 1:
            warnings.append(f"The runs of {_named(runs)} may differ in more than the seed.")
    values = [[sign * (run.value or 0.0) for run in group] for group in counted]
    means = " against ".join(short_number(sign * fmean(group)) for group in values)
    more_seeds = f"Run 2 more seeds of {names[1]} and of {names[0]}."
    if noise is None:
        unknown = "how much repeated runs differ is not known: none differs from another in the seed alone"
        sentence = f"{_HEADS['not decided'].format(*names)}: {metric} {means}, but {unknown}."
        return said("not decided", sentence, more_seeds, rests_on=warnings)
    judged = judge(values[0], values[1], noise, tries=tries)
    answer: Answer = judged.outcome
    chances: dict[int, tuple[float, float]] = {}
    end, needed = "", {"better": f"Keep {names[0]}.", "worse": f"Discard {names[0]}."}.get(answer, more_seeds)
    if answer == "not decided":
        chances = dict(enumerate(forecast(values[0], values[1], noise, more=more, tries=tries), 1))
        answer, end, needed = _what_next(chances, counted, names)
    order = _order(counted, whole, group_of) if answer in ("better", "worse") else ""
    if order:
        answer, end, needed = "not decided", f", but {order}", "Run both again, in turns."
    if answer == "better" and diverged:
        answer = "not decided"
        needed = f"{_plural(len(diverged), 'run')} of {names[0]} diverged: find out why first."
    size = judged.improvement / noise.deviation
    many = _plural(sum(map(len, repeated)), "repeated run"), _plural(len(repeated), "group")
    p = chance(judged.improvement / judged.error, len(values[0]), len(values[1]), noise.freedom)
    return said(
        answer,
        f"{_HEADS[answer].format(*names)}: {metric} {means}, {abs(size):.1f} standard deviations of the noise "
        f"{'better' if size > 0 else 'worse'}{end}.",
        needed,
        f"a change without effect ever looks this good in {_rate(p)} comparisons, whenever one looks",
        rests_on=(
            f"Noise: a standard deviation of {short_number(noise.deviation)}, from {' in '.join(many)}.",
            f"Better from {short_number(judged.needed)} on; it is {short_number(judged.improvement)}."
            if len(values[0]) >= FEWEST
            else f"Better is said from {FEWEST} runs of the new one on: fewer may all be lucky.",
            f"Try {tries}: {_rate(judged.level)} changes without effect may be called better here, whenever one looks.",
            f"In all, at most {100 * ALPHA:.0f} % of loops of such changes have a false *better*.",
            *warnings,
        ),
        numbers={
            "improvement": judged.improvement,
            "improvement_needed": _finite(judged.needed),
            "noise": noise.deviation,
            "p": p,
            "level": judged.level,
            "tries": tries,
            "chances": [{"more": n, "better": one[0], "worse": one[1]} for n, one in chances.items()],
        },
    )


def _what_next(
    chances: Mapping[int, tuple[float, float]], counted: Sequence[Sequence[Result]], names: Sequence[str]
) -> tuple[Answer, str, str]:
    """Return whether more runs are worth it, what to say of them, and how many of what."""
    last = max(chances)
    if chances[last][0] < HOPELESS:
        end = f", within the noise; {_plural(last, 'more run')} would hardly show it ({100 * chances[last][0]:.0f} %)"
        return "not better", end, f"Discard {names[0]}."
    number = next((n for n, chance in chances.items() if sum(chance) >= SURE), last)
    runs = "one more seed decides" if number == 1 else f"{number} more seeds decide"
    sizes = [len(group) for group in counted]
    for _ in range(number):
        sizes[0 if sizes[0] <= sizes[1] else 1] += 1
    parts = [
        f"{_plural(size - len(group), 'more seed')} of {name}"
        for size, group, name in zip(sizes, counted, names, strict=True)
        if size > len(group)
    ]
    return "not decided", f"; {runs} with {100 * sum(chances[number]):.0f} %", f"Run {' and '.join(parts)}."


# ---------------------------------------------------------------- which runs count


def _usual_step(runs: Sequence[Result]) -> float:
    steps = [run.step for run in runs if run.is_finished and run.step]
    return median(steps) if steps else max((run.step or 0 for run in runs), default=0)


def _why_not(run: Result, metric: str, usual: float, before: Sequence[Result]) -> str | None:
    """Return why a run does not count; None if it does."""
    if run.value is None:
        return f"it has no {metric}"
    if not math.isfinite(run.value):
        return "it diverged, its last value is not a number"
    if run.is_cut:
        return "records of it are missing"
    part = run.step / usual if run.progress is None and run.step is not None and usual else run.progress
    if not run.is_finished and (run.is_live if part is None else part < _WHOLE):
        reached = "" if part is None else f" at {100 * part:.0f} % of the steps"
        return f"{'it still runs' if run.is_live else 'it ended'}{reached}"
    same = [one.name for one in before if (one.seed, one.value) == (run.seed, run.value)]
    return (
        f"it has {'the seed' if run.seed else 'no other seed'} and the value of {same[0]}" if same else None
    )


def _number_of_try(
    new: Sequence[Result], best: Sequence[Result], others: Sequence[Result], group_of: Mapping[str, str]
) -> int:
    """Return which try of the folder the new one is: the groups that began before it, and itself."""
    began: dict[str, float] = {}
    compared = {group_of[run.key] for run in (*new, *best)}
    for run in others:
        start = math.inf if run.created is None else run.created
        began[group_of[run.key]] = min(began.get(group_of[run.key], math.inf), start)
    mine = min((run.created for run in new if run.created is not None), default=math.inf)
    return 1 + sum(start <= mine for group, start in began.items() if group not in compared)


# ---------------------------------------------------------------- the noise


def _repeated(
    counted: Sequence[Sequence[Result]], others: Sequence[Result], group_of: Mapping[str, str]
) -> list[list[float]]:
    """Return the values of each group of repeated runs."""
    groups: dict[str, dict[Any, float]] = {}
    for run in others:
        # The same seed and value again is the same result again, and shows no noise.
        groups.setdefault(group_of[run.key], {})[run.seed, run.value] = run.value or 0.0
    own = [[run.value or 0.0 for run in group] for group in counted]
    return [
        values for values in (*own, *(list(group.values()) for group in groups.values())) if len(values) > 1
    ]


def _order(counted: Sequence[Sequence[Result]], others: Sequence[Result], group_of: Mapping[str, str]) -> str:
    """Return how the repeats depend on when they were started; nothing if the two groups were run in turns."""
    starts = [[run.created for run in group if run.created is not None] for group in counted]
    if alternate(*starts):
        return ""
    groups: dict[str, list[tuple[float, float]]] = {}
    for run in (*counted[0], *counted[1], *others):
        if run.created is not None:
            groups.setdefault(group_of[run.key], []).append((run.created, run.value or 0.0))
    return depends_on_order(list(groups.values()))


# ---------------------------------------------------------------- words


def _warnings(
    new: Sequence[Result], best: Sequence[Result], counted: Sequence[Sequence[Result]], tries: int
) -> list[str]:
    found = []
    a, b = new[0].settings, best[0].settings
    keys = [key for key in differing_settings([a, b]) if is_evaluation(key) or _DATA.search(key.lower())]
    if keys and a and b:
        texts = [f"{key} {setting_text(a.get(key))} against {setting_text(b.get(key))}" for key in keys[:3]]
        found.append(f"Evaluated differently: {', '.join(texts)}. The values may not compare.")
    steps = [median(run.step or 0 for run in group) for group in counted]
    if all(steps) and not 0.9 < steps[0] / steps[1] < 1.1:
        found.append(f"Trained for {count(int(steps[0]))} steps against {count(int(steps[1]))}.")
    if tries > 1 and len(counted[1]) == 1:
        found.append(f"{best[0].name} may be the best of {tries} tries by luck: more seeds would show that.")
    return found


def _distinctly_named(*groups: Sequence[Result]) -> list[list[Result]]:
    """Return the groups with runs of the same name called by what tells them apart."""
    runs = list({run.key: run for group in groups for run in group}.values())
    names = [RunName(run.name, run.place or run.key, run.key, lambda run=run: run.settings) for run in runs]  # type: ignore[misc]
    called = {run.key: label.text for run, label in zip(runs, labels_of(names), strict=True)}
    return [[replace(run, name=called[run.key]) for run in group] for group in groups]


def _named(group: Sequence[Result]) -> str:
    return group[0].name if len(group) < 2 else f"{group[0].name} ({len(group)} runs)"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _rate(chance: float) -> str:
    if chance > 0.01:
        return f"{100 * chance:.0f} of 100"
    return f"1 of {count(round(1 / chance))}" if chance > 1e-9 else "fewer than 1 of a billion"


def _plural(number: int, what: str) -> str:
    return f"{count(number)} {what}{'' if number == 1 else 's'}"
