"""Early warning: how many records before a NaN or a divergence the first warning comes.

Records are replayed one at a time, so a warning counts only from the record that caused it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.command import say
from benchmarks.diagnose_eval import peers
from benchmarks.diagnose_eval.corpus import Evaluator, Prediction, Rows, Split
from benchmarks.diagnose_eval.markdown import table
from benchmarks.diagnose_eval.other_thresholds import other_thresholds
from benchmarks.diagnose_eval.ours import predictions
from toolkit.telemetry.diagnostics import thresholds
from toolkit.telemetry.diagnostics.examiner import Examiner
from toolkit.telemetry.diagnostics.finding import INFO

BAD_ENDS = ("nan", "divergence")
"""Sure labels of these kinds are what a warning should come before; the first one of a run counts."""

KINDS = ("nan", "spike", "divergence", "exploding_grad", "val_spike", "loss_scale", "lr_problem", "underflow")
"""Findings that say that a run is getting unstable."""

LEADS = (500, 100, 50, 10, 1, 0, -10)
"""Records before the label's first one; negative ones are after it."""
SHARES = (0.25, 0.1)
"""The same as a share of the records of the run."""

FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0)
SWEPT = (
    "ENOUGH",
    "TOP_ENOUGH",
    "TOP_RISE",
    "ALONE_RISE",
    "ALONE_SIGMAS",
    "BLOW_UP",
    "CLIMB",
    "START_RISE",
    "NORM_RATIO",
    "NORM_RATIO_AT_ONCE",
    "VAL_RISE",
    "VAL_SIGMAS",
)
"""Thresholds of those kinds that one factor makes more or less sensitive; `RISES` goes with them."""

_PARTS = 100
"""Beginnings of a run that a tool is asked about, if it only judges whole runs; then the exact record is looked up."""

_RULES = ("instability", "exploding_grad")
_OTHER_RULES = ("SageMaker LossNotDecreasing",)
"""The only one of SageMaker's rules that reads the training loss alone; each of its alarms counts."""

Warns = Callable[[Rows], int | None]
"""Returns the place of the record at which the first warning came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadEnd:
    """A run that gets a NaN or diverges."""

    run: str
    kind: str
    rows: Rows
    place: int
    """The place of the first record of the label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """Something that warns."""

    title: str
    warns: Warns
    predict: peers.Tool


def measure(splits: Sequence[Split], evaluator: Evaluator, *, only_ours: bool = False) -> dict[str, Any]:
    """Return the leads of our detectors at several sensitivities, and those of the others."""
    ends = [end for split in splits for end in bad_ends(split)]
    found: dict[str, Any] = {
        "runs": {kind: sum(end.kind == kind for end in ends) for kind in BAD_ENDS},
        "records": [end.place for end in ends],
        "shares": [_share(end.place, end) for end in ends],
        "ours": [],
    }
    ours = Method(title="ours", warns=first_of_ours, predict=predictions)
    for factor in FACTORS:
        say(f"early warning: ours, thresholds times {factor:g}")
        values = {name: factor * getattr(thresholds, name) for name in SWEPT}
        rises = tuple(factor * rise for rise in thresholds.RISES)
        with other_thresholds({**values, "RISES": rises} if factor != 1.0 else {}):
            found["ours"].append({"factor": factor, **_measured(ours, ends, splits, evaluator)})
    if not only_ours:
        found["others"] = []
        for method in _others(splits[0]):
            say(f"early warning: {method.title}")
            found["others"].append(
                {"title": method.title, **_measured(method, ends, splits, evaluator)},
            )
    return found


def bad_ends(split: Split) -> Iterable[BadEnd]:
    """Return the runs that get a NaN or diverge, each with the first of these labels."""
    for run, about in split.labels.items():
        labels = [
            label for label in about["labels"] if label["certainty"] == "sure" and label["kind"] in BAD_ENDS
        ]
        if labels:
            first = min(labels, key=lambda label: label["start_step"])
            rows = split.rows(run)
            yield BadEnd(run=run, kind=first["kind"], rows=rows, place=place_of(first["start_step"], rows))


def place_of(step: float, rows: Rows) -> int:
    """Return the place of the first record at `step` or later."""
    return next((place for place, row in enumerate(rows) if row["global_step"] >= step), len(rows))


def first_of_ours(rows: Rows) -> int | None:
    """Return the place of the record with which our detectors first warned."""
    examiner = Examiner()
    for place, row in enumerate(rows):
        if any(finding.kind in KINDS and finding.severity != INFO for finding in examiner.take([row])):
            return place
    return None


def first_said(predict: peers.Tool, kinds: Sequence[str] = KINDS) -> Warns:
    """Return when a tool that goes record by record first warned, by what it says itself."""

    def warns(rows: Rows) -> int | None:
        said = [_said_at(event) for event in predict(rows) if _is_warning(event, kinds)]
        return place_of(min(said), rows) if said else None

    return warns


def first_beginning(predict: peers.Tool, kinds: Sequence[str] = KINDS) -> Warns:
    """Return when a tool that judges whole runs first warns, by asking about longer and longer beginnings."""

    def is_warned(rows: Rows) -> bool:
        return any(_is_warning(event, kinds) for event in predict(rows))

    def warns(rows: Rows) -> int | None:
        before = 0
        for part in range(1, _PARTS + 1):
            length = math.ceil(len(rows) * part / _PARTS)
            if length == before or not is_warned(rows[:length]):
                before = length
                continue
            while length - before > 1:
                middle = (before + length) // 2
                before, length = (before, middle) if is_warned(rows[:middle]) else (middle, length)
            return length - 1
        return None

    return warns


def _others(split: Split) -> Iterable[Method]:
    installed, _ = peers.packages()
    baselines, rules, _ = peers.baselines(split.folder.parent)
    for tool in (*installed, *baselines):
        # These two name the first record of an event as the time they reported it.
        in_hindsight = tool.name in ("runmedic", "robust")
        warns = (first_beginning if in_hindsight else first_said)(tool.predict)
        yield Method(title=tool.title, warns=warns, predict=tool.predict)
    for rule in rules:
        if rule.kind in _RULES:
            yield Method(title=rule.title, warns=first_said(rule.predict), predict=rule.predict)
        elif rule.title in _OTHER_RULES:
            kinds = (*KINDS, rule.kind)
            yield Method(
                title=rule.title, warns=first_said(rule.predict, kinds), predict=_as_spikes(rule.predict)
            )


def _as_spikes(predict: peers.Tool) -> peers.Tool:
    return lambda rows: [{**event, "kind": "spike"} for event in predict(rows)]


def _is_warning(event: Prediction, kinds: Sequence[str]) -> bool:
    return event["kind"] in kinds and event.get("severity", "warning") != INFO


def _said_at(event: Prediction) -> float:
    reported = event.get("detected_step")
    return float(event["start_step"] if reported is None else reported)


def _share(records: int, end: BadEnd) -> float:
    return round(records / max(1, len(end.rows)), 4)


def _measured(
    method: Method, ends: Sequence[BadEnd], splits: Sequence[Split], evaluator: Evaluator
) -> dict[str, Any]:
    leads: dict[str, Any] = {}
    for end in ends:
        warned = method.warns(end.rows)
        lead = None if warned is None else end.place - warned
        share = None if lead is None else _share(lead, end)
        leads[end.run] = {"kind": end.kind, "lead": lead, "share": share}
    alarms = hit = runs = 0
    for split in splits:
        clean = [run for run, about in split.labels.items() if about.get("clean")]
        said = {
            run: [event for event in method.predict(split.rows(run)) if event["kind"] in KINDS]
            for run in clean
        }
        if clean:
            counts = evaluator.score(split, said, clean)["clean"]
            alarms, hit, runs = alarms + counts["fa"], hit + counts["hit"], runs + counts["n"]
    return {"leads": leads, "clean": {"runs": runs, "alarms": alarms, "hit": hit}}


# ---------------------------------------------------------------- the section of the document


def section(found: Mapping[str, Any]) -> list[str]:
    """Return the curve as tables in Markdown."""
    runs = len(found["records"])
    ours = next(one for one in found["ours"] if one["factor"] == 1.0)
    possible = [
        "possible: that many records came before it",
        *(str(sum(place >= lead for place in found["records"])) for lead in LEADS[:-1]),
        str(runs),
        str(runs),
        *(str(sum(share >= least for share in found["shares"])) for least in SHARES),
        "-",
        "-",
    ]
    methods = [("**ours**", ours), *((one["title"], one) for one in found["others"])]
    header = [
        f"of {runs} runs, warned",
        *(f"≥ {lead} before" for lead in LEADS[:-2]),
        "at it or before",
        f"at most {-LEADS[-1]} after",
        "ever",
        *(f"≥ {share:.0%} of the run before".replace("%", " %") for share in SHARES),
        "alarms per clean run",
        "clean runs hit",
    ]
    swept = [
        [
            f"{one['factor']:g}",
            *_counts(one["leads"].values()),
            *(f"{_at_least(one['leads'], 1, kind)} of {found['runs'][kind]}" for kind in BAD_ENDS),
            *_clean(one["clean"]),
        ]
        for one in found["ours"]
    ]
    return [
        "### Early warning",
        "\n".join(
            [
                (
                    f"{found['runs']['nan']} runs get a NaN and {found['runs']['divergence']} diverge, "
                    "by the first sure label of either kind."
                ),
                (
                    "The table counts the runs whose first warning came so many records before the label's first "
                    "record, replayed one record at a time."
                ),
                (
                    "A warning is any finding of " + ", ".join(f"`{kind}`" for kind in KINDS) + "; "
                    "the clean runs count the same kinds only, so an early warning of a tool that hits most clean "
                    "runs may be chance."
                ),
            ]
        ),
        table(
            header,
            [
                possible,
                *([title, *_counts(one["leads"].values()), *_clean(one["clean"])] for title, one in methods),
            ],
        ),
        "Ours with the thresholds of these kinds multiplied by a factor: below 1 is more sensitive.",
        table(
            ["factor", *header[1:-2], "before a NaN", "before a divergence", *header[-2:]],
            swept,
        ),
    ]


def _counts(leads: Iterable[Mapping[str, Any]]) -> list[str]:
    warned = [one for one in leads if one["lead"] is not None]
    return [
        *(str(sum(one["lead"] >= lead for one in warned)) for lead in LEADS),
        str(len(warned)),
        *(str(sum(one["share"] >= share for one in warned)) for share in SHARES),
    ]


def _at_least(leads: Mapping[str, Any], records: int, kind: str) -> int:
    return sum(
        one["kind"] == kind and one["lead"] is not None and one["lead"] >= records for one in leads.values()
    )


def _clean(clean: Mapping[str, int]) -> list[str]:
    return [f"{clean['alarms'] / max(1, clean['runs']):.2f}", f"{clean['hit']} of {clean['runs']}"]
