"""Tables of the saved results, for docs/figures/detectors.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.child import ROOT
from benchmarks.diagnose_eval import (
    cross_validation,
    early_warning,
    frozen,
    goals,
    made,
    perturbed,
    second_reading,
)
from benchmarks.diagnose_eval.markdown import table
from benchmarks.diagnose_eval.scores import INSTABILITY, precision, recall
from benchmarks.report import RESULTS, Claim

RESULT = RESULTS / "detectors.json"
DOCUMENT = ROOT / "docs" / "figures" / "detectors.md"
BEGIN = "<!-- figures: written by make diagnose-eval -->"

ALL = "all"
"""The row of delays over all events."""

_COMPARED = ("nan", INSTABILITY, "overfit", "plateau", "exploding_grad", "val_spike")
_WITHIN_RECORDS = 5
_WITHIN_SHARE = 0.02


def document(results: Mapping[str, Any]) -> str:
    """Return the text between the document's markers."""
    parts: list[str] = []
    if "cross_validation" in results:
        parts += goals.section(results)
    for name, split in results["splits"].items():
        parts += _split(name, split)
    if "cross_validation" in results:
        parts += cross_validation.section(results["cross_validation"])
    if "early_warning" in results:
        parts += early_warning.section(results["early_warning"])
    if "made" in results:
        parts += made.section(results["made"])
    if "frozen" in results:
        parts += frozen.section(results["frozen"])
    if "perturbed" in results:
        parts += perturbed.section(results["perturbed"])
    if "second_reading" in results:
        parts += second_reading.section(results["second_reading"])
    if "injected" in results:
        parts += _injected(results["injected"])
    return "\n\n".join(parts)


def claims_of(split: Mapping[str, Any]) -> list[Claim]:
    """Return the project's targets on real curves, and the results."""
    kinds, clean, unsure = (split["ours"][name] for name in ("kinds", "clean", "unsure"))
    claims = []
    for kind, what, of, least in (
        ("nan", "precision", "", 1.0),
        ("nan", "recall", "", 1.0),
        (INSTABILITY, "precision", "", 0.95),
        (INSTABILITY, "recall", "", 0.88),
        ("divergence", "recall", "", 0.8),
        ("overfit", "precision", "runs_", 0.88),
        ("overfit", "recall", "runs_", 0.88),
        ("exploding_grad", "precision", "", 0.9),
        ("exploding_grad", "recall", "", 0.9),
        ("val_spike", "precision", "", 0.8),
        ("val_spike", "recall", "", 0.8),
        ("plateau", "precision", "runs_", 0.75),
        ("plateau", "recall", "runs_", 0.7),
    ):
        measured = (precision if what == "precision" else recall)(kinds[kind], of) if kind in kinds else None
        if measured is not None:
            text = f"{kind}, {what} of {'runs' if of else 'events'}"
            claims.append(Claim(text=text, measured=measured, limit=least, unit="", at_least=True))
    if clean["runs"]:
        for text, value in (
            ("false alarms per clean run", clean["alarms"]),
            ("share of clean runs with one", clean["hit"]),
        ):
            claims.append(Claim(text=text, measured=value / clean["runs"], limit=0.02, unit=""))
    if unsure["runs"]:
        louder = unsure["alarms"] / unsure["runs"]
        claims.append(Claim(text="alarms per run without a sure label", measured=louder, limit=0.5, unit=""))
    delays = split["delays"][ALL]
    if delays["records"] is not None:
        soon = delays["soon"] / (delays["found"] - delays["unmeasured"])
        text = "share of found events reported within 5 records or 2 % of the run"
        claims.append(Claim(text=text, measured=soon, limit=0.5, unit="", at_least=True))
    return claims


def _split(name: str, split: Mapping[str, Any]) -> Iterable[str]:
    ours = split["ours"]
    yield f"### On real curves: `{name}`"
    yield "\n".join(
        [
            (
                f"{split['runs']} of {split['of']} labelled runs were available, "
                f"from {split['repositories']} repositories, with {split['records']:,} records."
            ),
            "Findings of severity warning and above; counts first, because a single event changes a ratio a lot.",
        ]
    )
    yield _kinds(ours["kinds"])
    yield _quiet_runs(ours)
    yield "Targets:"
    yield "\n".join(_claim(claim) for claim in claims_of(split))
    yield "### Detection delay"
    yield _delays(split["delays"])
    yield (
        f"Record by record, as in a live run, {split['live']['same']} of {split['runs']} runs have the same "
        f"findings with the same `noticed_step` as all at once; of {split['live']['reported']} findings, "
        f"{split['live']['on_time']} were first reported at exactly that step."
    )
    if split["folds"]:
        yield "### Sensitivity to the choice of runs"
        yield (
            "The same findings on two halves of the repositories, with about equal numbers of events "
            "and no repository in both."
        )
        yield _folds(split["folds"])
    if split["tools"]:
        yield "### Compared with others, on the same curves"
        yield _tools(ours, split["tools"])
    if split["absent"]:
        yield "\n".join(f"- {sentence}" for sentence in split["absent"])
    if split["rules"]:
        yield "Rules of well-known tools with their own defaults, from the corpus's `baselines`:"
        yield _rules(split["rules"])


def _kinds(kinds: Mapping[str, Any]) -> str:
    header = ["kind", "events", "found", "false", "precision", "recall", "runs", "precision", "recall"]
    rows = [
        [
            f"`{kind}`" if kind != INSTABILITY else f"**{kind}**",
            *(str(counts[name]) for name in ("labels", "found", "false")),
            *(_ratio(of_them(counts)) for of_them in (precision, recall)),
            str(counts["runs"]),
            *(_ratio(of_them(counts, "runs_")) for of_them in (precision, recall)),
        ]
        for kind, counts in kinds.items()
    ]
    return table(header, rows)


def _quiet_runs(counts: Mapping[str, Any]) -> str:
    clean, unsure = counts["clean"], counts["unsure"]
    which = ", ".join(f"{number} {kind}" for kind, number in clean["by_kind"].items()) or "none"
    return "\n".join(
        [
            (
                f"- Clean runs ({clean['runs']}, without a label of any certainty): {clean['alarms']} false alarms "
                f"on {clean['hit']} runs ({which})."
            ),
            (
                f"- Runs without a sure label ({unsure['runs']}, including the clean ones): "
                f"{unsure['alarms']} alarms on {unsure['hit']} runs, "
                f"{unsure['alarms'] / max(1, unsure['runs']):.2f} per run."
            ),
        ]
    )


def _delays(delays: Mapping[str, Any]) -> str:
    titles = {INSTABILITY: f"**{INSTABILITY}**", "divergence": "`divergence`, named as such", ALL: "**all**"}
    header = [
        "kind",
        "found",
        "median, records",
        "median, % of the run",
        "within 5 records or 2 %",
        "not measurable",
    ]
    rows = [
        [
            titles.get(kind, f"`{kind}`"),
            str(of["found"]),
            *(["-", "-", "-"] if of["records"] is None else _delay(of)),
            str(of["unmeasured"]),
        ]
        for kind, of in delays.items()
    ]
    return table(header, rows)


def _delay(of: Mapping[str, Any]) -> list[str]:
    return [
        f"{of['records']:g}",
        f"{100 * of['share']:.1f}",
        f"{of['soon']} of {of['found'] - of['unmeasured']}",
    ]


def summary_of_delays(found: Sequence[Any]) -> dict[str, Any]:
    """Summarise the delays of one kind."""
    measured = [delay for delay in found if delay is not None]
    return {
        "found": len(found),
        "unmeasured": len(found) - len(measured),
        "records": statistics.median(delay.records for delay in measured) if measured else None,
        "share": round(statistics.median(delay.share for delay in measured), 4) if measured else None,
        "soon": sum(delay.records <= _WITHIN_RECORDS or delay.share <= _WITHIN_SHARE for delay in measured),
    }


def _folds(folds: Sequence[Mapping[str, Any]]) -> str:
    header = ["kind", *(f"half {number}: found of events, false" for number in range(1, len(folds) + 1))]
    kinds = [kind for kind in folds[0]["kinds"] if any(kind in fold["kinds"] for fold in folds[1:])]
    rows = [[f"`{kind}`", *(_cell(fold["kinds"], kind) for fold in folds)] for kind in kinds]
    for text, group in (("clean runs", "clean"), ("runs without a sure label", "unsure")):
        rows.append(
            [
                f"alarms on {text}",
                *(f"{fold[group]['alarms']} on {fold[group]['runs']} runs" for fold in folds),
            ]
        )
    rows.append(["repositories, runs", *(f"{fold['repositories']}, {fold['runs']}" for fold in folds)])
    return table(header, rows)


def _tools(ours: Mapping[str, Any], tools: Mapping[str, Any]) -> str:
    header = ["found of events, false", *(f"`{kind}`" for kind in _COMPARED)]
    header += ["alarms per clean run", "clean runs hit", "alarms per run without a sure label"]
    rows = []
    for title, counts in (("**ours**", ours), *((tool["title"], tool) for tool in tools.values())):
        clean, unsure = counts["clean"], counts["unsure"]
        rows.append(
            [
                title,
                *(_cell(counts["kinds"], kind) for kind in _COMPARED),
                f"{clean['alarms'] / max(1, clean['runs']):.2f}",
                f"{clean['hit']} of {clean['runs']}",
                f"{unsure['alarms'] / max(1, unsure['runs']):.2f}",
            ]
        )
    return table(header, rows)


def _rules(rules: Sequence[Mapping[str, Any]]) -> str:
    header = ["rule", "kind", "found of events, false", "precision", "recall", "alarms per clean run"]
    rows = [
        [
            rule["title"],
            f"`{rule['kind']}`",
            _cell({rule["kind"]: rule["counts"]}, rule["kind"]),
            _ratio(precision(rule["counts"])),
            _ratio(recall(rule["counts"])),
            f"{rule['clean']['alarms'] / max(1, rule['clean']['runs']):.2f}",
        ]
        for rule in rules
    ]
    return table(header, rows)


def _injected(injected: Mapping[str, Any]) -> Iterable[str]:
    yield "### On synthetic runs with an injected fault"
    yield "\n".join(
        [
            "Kinds with at most one labelled real curve: several strengths, places and noise levels, ten seeds each.",
            f"False alarms are those on {injected['clean_runs']} synthetic runs without a fault.",
            (
                "Look-alikes have the metrics of a kind and nothing wrong with them: an entropy that falls to a fifth, "
                "shuffled epochs, a reward that falls while the KL divergence explodes."
            ),
        ]
    )
    alarms = injected["false_alarms"]
    rows = [
        [
            f"`{kind}`",
            str(of["injected"]),
            str(of["found"]),
            str(of["info"]),
            str(alarms.get(kind, 0)),
            _look_alikes(of),
        ]
        for kind, of in injected["kinds"].items()
    ]
    rows += [
        [f"`{kind}`", "-", "-", "-", str(number), "-"]
        for kind, number in sorted(alarms.items())
        if kind not in injected["kinds"]
    ]
    yield table(
        ["kind", "injected", "found", "as `info`", "false alarms", "look-alikes reported, as `info`"], rows
    )


def _look_alikes(of: Mapping[str, int]) -> str:
    if "look_alikes" not in of:
        return "-"
    return f"{of['look_alikes_hit']} of {of['look_alikes']}, {of['look_alikes_info']}"


def _cell(kinds: Mapping[str, Any], kind: str) -> str:
    counts = kinds.get(kind)
    return f"{counts['found']} of {counts['labels']}, {counts['false']}" if counts else "-"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _claim(claim: Claim) -> str:
    wanted = f"{'at least' if claim.at_least else 'at most'} {claim.limit:g}"
    verdict = "held" if claim.verdict == "held" else "**missed**"
    # Three digits: 22 of 26 would be shown as 0.85, the limit that it misses.
    return f"- {claim.text}: {claim.measured:.3g} ({wanted}: {verdict})"
