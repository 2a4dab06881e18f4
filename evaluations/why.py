"""How often `telemetry why` names the right cause: pairs of real, tiny trainings that differ in one known thing."""

from __future__ import annotations

import json
import math
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evaluations.figures import Options, say, table
from evaluations.figures import share as share_text
from evaluations.why_runs import CAUSES, NO_CAUSE, Pair, make, plan
from toolkit.telemetry.answers import differences as kinds
from toolkit.telemetry.answers.evidence import read_evidence
from toolkit.telemetry.answers.repeats import Result
from toolkit.telemetry.answers.siblings import SEEDS, explain
from toolkit.telemetry.answers.why import Why, why

PAGE: Final = "answers.md"
_FIRST: Final = 10_000
"""The number of the first pair that is published; thresholds and weights were chosen with pairs below 1,000."""
_MOST_S: Final = 960
"""How long pairs are trained: on a slow or busy machine these are fewer, and the figures say how many."""
_KIND_OF: Final = {
    "lr": kinds.LR,
    "warm-up": kinds.SCHEDULE,
    "seed": kinds.SEED,
    "order of data": kinds.DATA,
    "batch size": kinds.BATCH,
    "dtype": kinds.DTYPE,
    "a line of code": kinds.CODE,
    "a package": kinds.PACKAGE,
    "a resume": kinds.RESUME,
    "world size": kinds.WORLD,
}
_COMPARED: Final = ("train_loss", "grad_norm", "lr", "val_loss")


@dataclass(frozen=True, slots=True)
class Asked:
    """A pair and what was answered."""

    pair: Pair
    answer: Why
    bare: Why
    """The answer from steps and settings alone, as another tool's log has them."""
    first_step: int | None
    """The first step at which a digit of a record differs."""

    def has_cause(self, most: int, answer: Why | None = None) -> bool:
        """Return whether the injected cause is among the first `most`."""
        named = [cause.difference for cause in (answer or self.answer).causes[:most]]
        return any(
            one.kind == _KIND_OF[self.pair.cause] and (one.kind != kinds.PACKAGE or one.what == "steady")
            for one in named
        )

    @property
    def is_step_right(self) -> bool:
        """Whether the first step that differs is the one said."""
        return self.answer.step == self.first_step


def run(options: Options) -> str:
    """Train the pairs, ask about each, and return the figures."""
    with_cause, without = (20, 10) if options.quick else (200, 50)
    with tempfile.TemporaryDirectory(prefix="why-") as folder:
        pairs = plan(Path(folder), first=_FIRST, with_cause=with_cause, without=without)
        asked = []
        for pair in make(pairs, seconds=_MOST_S):
            asked.append(ask(pair))
            if len(asked) % 25 == 0:
                say(f"{len(asked)} of {len(pairs)} pairs trained and asked about")
    return f"{figures(asked)}\n\n{of_sweeps(40 if options.quick else 1000)}"


def ask(pair: Pair) -> Asked:
    """Return what is answered about a pair, and the truth about its first step."""
    one, two = (read_evidence(folder) for folder in pair.runs)
    bare = [_bare(folder) for folder in pair.runs]
    answers = why(one, two), why(read_evidence(bare[0]), read_evidence(bare[1]))
    same = _same_by_step(pair)
    first_step = min((step for step, is_same in same.items() if not is_same), default=None)
    return Asked(pair, *answers, first_step)


def figures(asked: Sequence[Asked]) -> str:
    """Return the figures as Markdown."""
    caused = [one for one in asked if one.pair.cause != NO_CAUSE]
    equal = [one for one in asked if one.pair.cause == NO_CAUSE]
    exact = [one for one in caused if not one.pair.is_noisy]
    noisy = sum(one.pair.is_noisy for one in asked)
    about = (
        f"{len(caused)} pairs of real trainings with one injected cause of ten, {len(equal)} pairs without; in {noisy} "
        "of them gradients carry unseeded noise, so that digits soon differ also where nothing else does. Half of the "
        "pairs also differ in notes, evaluation intervals and packages that are not used, a third in how often they "
        "log, a third in comments. Thresholds were chosen with other pairs."
    )
    claims = {
        "injected cause named first": ([one.has_cause(1) for one in caused], "0.90"),
        "injected cause among the first three": ([one.has_cause(3) for one in caused], "0.97"),
        "first step right, of pairs without noise": ([one.is_step_right for one in exact], "1.00"),
        "named first from steps and settings alone": ([one.has_cause(1, one.bare) for one in caused], ""),
        "*differ* said of pairs without a cause": ([_differs(one) for one in equal], "at most 0.02"),
    }
    rows = [[what, share_text(sum(found), len(found)), goal] for what, (found, goal) in claims.items()]
    by_cause = []
    for cause in CAUSES:
        these = [one for one in caused if one.pair.cause == cause]
        said = [sum(map(_differs, these)), *(sum(one.has_cause(most) for one in these) for most in (1, 3))]
        by_cause.append([cause, str(len(these)), *map(str, said)])
    wrong = [one for one in caused if not one.has_cause(1)]
    return "\n\n".join(
        [
            about,
            table(["", "share, 95 % interval", "goal"], rows),
            table(["injected cause", "pairs", "*differ* said", "named first", "among three"], by_cause),
            f"Wrong: {'; '.join(map(_missed, wrong)) or 'none'}.",
        ]
    )


def of_sweeps(count: int) -> str:
    """Return how often the interval of what a setting explains holds what it did, in sweeps made with known effects."""
    rows = []
    for title, curve, seeds in (("lines", 0.0, 3), ("a parabola", 0.15, 3), ("lines, no repeats", 0.0, 1)):
        held: list[bool] = []
        unsaid = total = seeds_held = 0
        for number in range(count):
            chance = random.Random(number)
            runs, done = _sweep(chance, curve, seeds)
            a, b = chance.sample(runs, 2)
            found = explain(a, b, runs, "val_loss")
            for share in found.shares if found is not None else ():
                if share.what == SEEDS:
                    alone = b.value - a.value - sum(done[b.key].values()) + sum(done[a.key].values())  # type: ignore[operator]
                    total, seeds_held = total + 1, seeds_held + (abs(alone) <= (share.high or 0.0))
                elif share.low is None or share.high is None:
                    unsaid += 1
                else:
                    held.append(share.low <= done[b.key][share.what] - done[a.key][share.what] <= share.high)
        rows.append([title, share_text(sum(held), len(held)), str(unsaid), share_text(seeds_held, total)])
    header = [
        "a loss is made of",
        "interval of 95 % of a setting held",
        "not separable",
        "that of seeds alone",
    ]
    about = (
        f"What settings and seeds explain of two runs of a sweep: {count} made ones each, of three settings."
    )
    return f"{about}\n\n{table(header, rows)}"


def _sweep(
    chance: random.Random, curve: float, seeds: int
) -> tuple[list[Result], dict[str, dict[str, float]]]:
    """Return the runs of a sweep, and what each setting adds to the loss of each."""
    runs: list[Result] = []
    done: dict[str, dict[str, float]] = {}
    for group in range(10):
        rate, width = 10 ** chance.uniform(-4, -2), chance.choice((64, 128, 256))
        dropout, decades = chance.choice((0.0, 0.1, 0.2)), math.log10(rate) + 3
        for seed in range(seeds):
            name = f"{group}-{seed}"
            settings = {"learning_rate": rate, "width": width, "dropout": dropout, "seed": seed}
            parts = {"learning_rate": 0.15 * decades + curve * decades**2}
            done[name] = {**parts, "width": -0.1 * math.log2(width / 128), "dropout": 0.3 * dropout}
            value = 0.7 + sum(done[name].values()) + chance.gauss(0, 0.022)
            runs.append(Result(key=name, name=name, value=value, settings=settings, created=len(runs)))
    return runs, done


def _differs(one: Asked) -> bool:
    return one.answer.answer == "differ"


def _missed(one: Asked) -> str:
    pair, answer = one.pair, one.answer
    named = answer.causes[0].difference.what if answer.causes else "nothing"
    noise = f", {pair.sides[0].config['dtype']} with noise" if pair.is_noisy else ""
    return (
        f"{pair.cause}{f' ({pair.variant})' if pair.variant else ''}{noise}: {answer.answer}, {named} first"
    )


def _records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _bare(folder: Path) -> Path:
    """Return a copy of the run with its steps and settings alone."""
    kept = folder.with_name("bare")
    kept.mkdir()
    records = _records(folder)
    for record in records:
        for name in ("packages", "seeds", "determinism", "data"):
            record.pop(name, None)
    (kept / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return kept


def _same_by_step(pair: Pair) -> dict[int, bool]:
    """Return of each step that both recorded whether all its numbers are the same, by the text of the records."""
    sides: list[dict[tuple[int, str], str]] = []
    for folder in pair.runs:
        values: dict[tuple[int, str], str] = {}
        session = 1
        for record in _records(folder):
            if record["event"] not in ("step", "eval"):
                continue
            if record["session"] != session:
                session = record["session"]
                values = {key: text for key, text in values.items() if key[0] < record["global_step"]}
            values.update(
                {(record["global_step"], name): repr(record[name]) for name in _COMPARED if name in record}
            )
        sides.append(values)
    one, two = sides
    same: dict[int, bool] = {}
    for key in one.keys() & two.keys():
        same[key[0]] = same.get(key[0], True) and one[key] == two[key]
    return same
