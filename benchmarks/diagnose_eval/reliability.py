"""How sure a finding is: fit the confidence on labelled runs, and check it on repositories that the fit has not seen.

`python -m benchmarks.diagnose_eval.reliability --corpus DIR` prints the tables, and writes them into
docs/figures/detectors.md and the fitted numbers into the toolkit.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.child import ROOT
from benchmarks.command import say
from benchmarks.diagnose_eval import tables
from benchmarks.diagnose_eval.corpus import DEFAULT, CorpusError, Evaluator, Split, splits_of
from benchmarks.diagnose_eval.ours import as_predictions
from benchmarks.diagnose_eval.scores import FAMILIES, INSTABILITY
from benchmarks.figures import put_between_marks
from benchmarks.report import RESULTS
from toolkit.telemetry.diagnostics import thresholds
from toolkit.telemetry.diagnostics.confidence import CLEAR, DOUBTED, TAKEN_BACK, USUAL, strength_of
from toolkit.telemetry.diagnostics.examiner import Examiner
from toolkit.telemetry.diagnostics.finding import INFO, WARNING, Finding

RESULT = RESULTS / "confidence.json"
TABLE = ROOT / "toolkit" / "telemetry" / "diagnostics" / "confidence_table.py"
BEGIN = "<!-- how sure a finding is: written by make diagnose-eval -->"

NAN = "nan"
JUDGED = (*FAMILIES, "vanishing_grad", "mem_leak")
"""Kinds for which there can be labels."""
STRENGTHS = {
    CLEAR: "clear: a training loss at five times its level or more, or exactly constant",
    USUAL: "usual: any other warning",
    DOUBTED: "in doubt: `info` by its detector, or a plateau that has ended",
    TAKEN_BACK: "taken back: an `overfit` or an `info` plateau that has ended, a `val_spike` whose level stayed",
}
BINS = ((0.0, 0.5), (0.5, 0.7), (0.7, 0.85), (0.85, 0.95), (0.95, 1.0))
ABOUT_90 = (0.85, 0.95)
"""What counts as said to be 90 % sure, and the share of them that must be right."""
PRIOR = 2.0
"""Repositories that the overall share weighs besides those with such a finding."""
TIMES = {"first": "when first reported as a warning", "last": "as it was at the end, `info` included"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A finding on a labelled run, and whether it is right."""

    repository: str
    kind: str
    is_right: bool | None
    """None on a label that is unsure."""
    strengths: frozenset[int]
    """All that it had while the run went on."""
    first: int | None
    """The strength when it was first reported as a warning; None if it never was."""
    last: int


Rates = tuple[float, ...]
"""The confidence of each strength, the weakest first."""


def samples_of(split: Split, evaluator: Evaluator) -> list[Sample]:
    """Return every finding on the runs of `split`, with the evaluator's verdict on it alone."""
    found: list[Sample] = []
    kept = thresholds.CONFIDENCE_TO_WARN
    try:
        # Severities as the detectors choose them: otherwise the fit would depend on the last one.
        thresholds.CONFIDENCE_TO_WARN = 0.0  # type: ignore[misc]
        for run in split.labels:
            states: dict[str, list[Finding]] = {}
            examiner = Examiner()
            for row in split.rows(run):
                for finding in examiner.take([row]):
                    states.setdefault(finding.id, []).append(finding)
            for finding in examiner.findings():
                sample = _sample(split, evaluator, run, [*states[finding.id], finding])
                found += [] if sample is None else [sample]
    finally:
        thresholds.CONFIDENCE_TO_WARN = kept  # type: ignore[misc]
    return found


def _sample(split: Split, evaluator: Evaluator, run: str, states: Sequence[Finding]) -> Sample | None:
    last = states[-1]
    # What is `info` is judged, too.
    prediction = {**as_predictions([last])[0], "severity": WARNING}
    if prediction["kind"] not in JUDGED:
        return None
    row = INSTABILITY if last.kind in FAMILIES[INSTABILITY] else prediction["kind"]
    counts = evaluator.score(split, {run: [prediction]}, [run])["kinds"].get(row, {"hit": 0, "fp": 0})
    loud = next((strength_of(state) for state in states if state.severity != INFO), None)
    return Sample(
        repository=split.repositories.get(run, run),
        kind=last.kind,
        is_right=True if counts["hit"] else False if counts["fp"] else None,
        strengths=frozenset(strength_of(state) for state in states),
        first=loud,
        last=strength_of(last),
    )


# ---------------------------------------------------------------- the fit


def fit(samples: Iterable[Sample]) -> Rates:
    """Return the confidence of each strength; it never falls from one to the next.

    It is at most what so many repositories without a wrong finding show (Jeffreys).
    """
    judged = [sample for sample in samples if sample.is_right is not None]
    overall = _share([sample for sample in judged if sample.first is not None], 0.5, prior=0.0)[0]
    shares = []
    for strength in sorted(STRENGTHS):
        share, weight = _share([sample for sample in judged if strength in sample.strengths], overall)
        repositories = weight - PRIOR
        most = 1.0 - 0.5 / (repositories + 1.0) if repositories else overall
        shares.append((min(share, most), weight))
    return tuple(round(rate, 2) for rate in _rising(shares))


def _share(samples: Iterable[Sample], overall: float, *, prior: float = PRIOR) -> tuple[float, float]:
    """Return the share that is right, and its weight: each repository counts once, however many findings it has."""
    by_repository: dict[str, list[bool]] = {}
    for sample in samples:
        by_repository.setdefault(sample.repository, []).append(bool(sample.is_right))
    weight = len(by_repository) + prior
    right = sum(sum(verdicts) / len(verdicts) for verdicts in by_repository.values())
    return ((right + prior * overall) / weight if weight else overall), weight


def _rising(shares: Iterable[tuple[float, float]]) -> list[float]:
    """Return the nearest shares that do not fall: neighbours in the wrong order get their mean."""
    pools: list[tuple[float, float, int]] = []
    for share, weight in shares:
        pools.append((share, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, low_weight, low_count), (high, high_weight, high_count) = pools.pop(-2), pools.pop()
            total = low_weight + high_weight
            mean = (low * low_weight + high * high_weight) / total
            pools.append((mean, total, low_count + high_count))
    return [share for share, _, count in pools for _ in range(count)]


# ---------------------------------------------------------------- the check

Model = Callable[[Sequence[Sample]], Callable[[Sample, int], float]]
"""Fits samples, and returns what gives a sample of some strength its confidence."""


def _by_strength(samples: Sequence[Sample]) -> Callable[[Sample, int], float]:
    rates = fit(samples)
    return lambda _sample, strength: rates[strength]


def _one_for_all(samples: Sequence[Sample]) -> Callable[[Sample, int], float]:
    rate = _share([sample for sample in samples if sample.first is not None], 0.5, prior=0.0)[0]
    return lambda _sample, _strength: rate


def _by_kind(samples: Sequence[Sample]) -> Callable[[Sample, int], float]:
    loud = [sample for sample in samples if sample.first is not None]
    overall = _share(loud, 0.5, prior=0.0)[0]
    rates = {
        kind: _share([sample for sample in loud if sample.kind == kind], overall)[0]
        for kind in {sample.kind for sample in loud}
    }
    return lambda sample, _strength: rates.get(sample.kind, overall)


Said = tuple[float, bool]
"""The confidence of a finding, and whether it is right."""


def said_of(samples: Sequence[Sample], when: str, model: Model, *, held_out: bool) -> list[Said]:
    """Return what `model` says of each judged sample; `held_out`: fitted without the repository of the sample."""
    judged = [sample for sample in samples if sample.is_right is not None]
    fits = {}
    for repository in {sample.repository for sample in judged} if held_out else {""}:
        fits[repository] = model([sample for sample in judged if sample.repository != repository])
    said = []
    for sample in judged:
        strength = sample.first if when == "first" else sample.last
        if strength is not None:
            confidence = fits[sample.repository if held_out else ""](sample, strength)
            said.append((confidence, bool(sample.is_right)))
    return said


def _binned(said: Sequence[Said]) -> list[dict[str, Any]]:
    rows = []
    for low, high in BINS:
        inside = [one for one in said if low <= one[0] < high or (high == 1.0 and one[0] == 1.0)]
        if inside:
            mean = round(sum(confidence for confidence, _ in inside) / len(inside), 3)
            right = sum(is_right for _, is_right in inside)
            rows.append({"from": low, "to": high, "said": mean, "right": right, "of": len(inside)})
    return rows


def _log_loss(said: Sequence[Said]) -> float:
    given = [confidence if is_right else 1.0 - confidence for confidence, is_right in said]
    lost = sum(-math.log(max(share, 1e-9)) for share in given)
    return round(lost / len(said), 3)


def interval(right: int, of: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson)."""
    z = 1.96
    share, scale = right / of, 1.0 + z * z / of
    middle = (share + z * z / (2 * of)) / scale
    half = z * math.sqrt(share * (1.0 - share) / of + z * z / (4 * of * of)) / scale
    return max(0.0, middle - half), min(1.0, middle + half)


# ---------------------------------------------------------------- what is written


def measure(splits: Sequence[Split], evaluator: Evaluator) -> dict[str, Any] | None:
    """Fit and check the confidence; None if no finding can be judged."""
    everything = [sample for split in splits for sample in samples_of(split, evaluator)]
    samples = [sample for sample in everything if sample.kind != NAN]
    if not any(sample.is_right is not None for sample in samples):
        return None
    repositories = {split.repositories.get(run, run) for split in splits for run in split.labels}
    return {
        "runs": sum(len(split.labels) for split in splits),
        "repositories": len(repositories),
        "strengths": [
            {"confidence": rate, **_counts([one for one in samples if strength in one.strengths])}
            for strength, rate in enumerate(fit(samples))
        ],
        "kinds": {
            kind: _counts([sample for sample in everything if sample.kind == kind])
            for kind in sorted({sample.kind for sample in everything})
        },
        "reliability": {
            when: {
                "held_out": _binned(said_of(samples, when, _by_strength, held_out=True)),
                "in_sample": _binned(said_of(samples, when, _by_strength, held_out=False)),
            }
            for when in TIMES
        },
        "log_loss": {
            when: {
                name: _log_loss(said_of(samples, when, model, held_out=True))
                for name, model in (("ours", _by_strength), ("one", _one_for_all), ("kind", _by_kind))
            }
            for when in TIMES
        },
    }


def _counts(samples: Sequence[Sample]) -> dict[str, int]:
    judged = [sample for sample in samples if sample.is_right is not None]
    return {
        "right": sum(bool(sample.is_right) for sample in judged),
        "of": len(judged),
        "unsure": len(samples) - len(judged),
        "repositories": len({sample.repository for sample in judged}),
    }


def document(result: Mapping[str, Any]) -> str:
    """Return the section of docs/figures/detectors.md."""
    strengths = result["strengths"]
    lines = [
        f"Fitted on {result['runs']} labelled runs of {result['repositories']} repositories.",
        "A finding counts in each row that it was in while its run went on.",
        "",
        "| evidence | confidence | right | repositories | on unsure labels |",
        "| --- | --- | --- | --- | --- |",
    ]
    for strength, words in STRENGTHS.items():
        row = strengths[strength]
        lines.append(
            f"| {words} | {row['confidence']:.2f} | {row['right']} of {row['of']} "
            f"| {row['repositories']} | {row['unsure']} |"
        )
    lines += [
        "",
        "Reliability, with the repository of each finding left out of the fit; the last column is with it:",
        "",
        "| findings | said | mean | right | share, 95 % interval | in the fit: mean, right |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for when, words in TIMES.items():
        fitted = {row["from"]: row for row in result["reliability"][when]["in_sample"]}
        for row in result["reliability"][when]["held_out"]:
            low, high = interval(row["right"], row["of"])
            same = fitted.get(row["from"])
            in_sample = f"{same['said']:.2f}, {same['right']} of {same['of']}" if same else "-"
            lines.append(
                f"| {words} | {row['from']:.2f} to {row['to']:.2f} | {row['said']:.2f} | {row['right']} of {row['of']} "
                f"| {row['right'] / row['of']:.2f} ({low:.2f} to {high:.2f}) | {in_sample} |"
            )
    lines += ["", *(f"- {_goal(result, when)}" for when in TIMES)]
    for when, words in TIMES.items():
        lost = result["log_loss"][when]
        lines.append(
            f"- Log loss, {words}: {lost['ours']:.3f}; {lost['one']:.3f} with one share for all warnings, "
            f"{lost['kind']:.3f} with one for each kind."
        )
    lines += [
        "",
        "| kind | right | repositories | on unsure labels |",
        "| --- | --- | --- | --- |",
    ]
    for kind, row in result["kinds"].items():
        lines.append(
            f"| `{kind}` | {row['right']} of {row['of']} | {row['repositories']} | {row['unsure']} |"
        )
    return "\n".join(lines)


def _goal(result: Mapping[str, Any], when: str) -> str:
    low, high = ABOUT_90
    rows = [row for row in result["reliability"][when]["held_out"] if (row["from"], row["to"]) == ABOUT_90]
    if not rows:
        return f"Said to be 90 % sure, {TIMES[when]}: none."
    right, of = rows[0]["right"], rows[0]["of"]
    verdict = "held" if low <= right / of <= high else "**missed**"
    return (
        f"Said to be 90 % sure ({low:.2f} to {high:.2f}), {TIMES[when]}: {right} of {of} are right, "
        f"{100 * right / of:.0f} % ({100 * low:.0f} to {100 * high:.0f} %: {verdict})."
    )


def source(result: Mapping[str, Any]) -> str:
    """Return the file of the toolkit with the fitted numbers."""
    strengths = [
        f"    ({row['confidence']}, {row['right']}, {row['of']}, {row['unsure']}),"
        for row in result["strengths"]
    ]
    kinds = [
        f'    "{kind}": ({row["right"]}, {row["of"]}),' for kind, row in result["kinds"].items() if row["of"]
    ]
    return "\n".join(
        [
            '"""How often findings were right on labelled runs; written by `make diagnose-eval`."""',
            "",
            "from __future__ import annotations",
            "",
            "from typing import Final",
            "",
            f"RUNS: Final = {result['runs']}",
            "",
            "STRENGTHS: Final = (",
            *strengths,
            ")",
            '"""For each strength of the evidence, weakest first: confidence, right, judged and unsure findings."""',
            "",
            "KINDS: Final = {",
            *kinds,
            "}",
            '"""For each kind with a judged finding: right and judged ones. Those on unsure labels are not judged."""',
            "",
        ]
    )


def report(splits: Sequence[Split], evaluator: Evaluator, *, only_print: bool) -> None:
    """Print the tables, and write them and the fitted numbers unless `only_print`."""
    say("how sure a finding is")
    result = measure(splits, evaluator)
    if result is None:
        print("No finding is on a label that is sure: there is no confidence to fit.")
        return
    print(document(result))
    if only_print:
        return
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    text = tables.DOCUMENT.read_text(encoding="utf-8")
    tables.DOCUMENT.write_text(put_between_marks(text, document(result), BEGIN), encoding="utf-8")
    if TABLE.read_text(encoding="utf-8") != source(result):
        TABLE.write_text(source(result), encoding="utf-8")
        print(f"{TABLE.relative_to(ROOT)} has changed; severities may depend on it: evaluate again.")


def main(argv: Sequence[str] | None = None) -> int:
    """Fit and check; exit 2 if there is no corpus."""
    parser = argparse.ArgumentParser(description="Calibrate the confidence of findings on labelled runs.")
    parser.add_argument("--corpus", type=Path, default=DEFAULT, help="folder with evaluate.py and the curves")
    parser.add_argument("--only-print", action="store_true", help="write nothing")
    args = parser.parse_args(argv)
    try:
        report(splits_of(args.corpus), Evaluator(args.corpus), only_print=args.only_print)
    except CorpusError as error:
        print(f"reliability: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
