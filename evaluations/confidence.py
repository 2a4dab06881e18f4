"""How sure a finding is: the confidence, fitted on labelled runs and checked on repositories not in the fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from unittest import mock

from evaluations import diagnosis
from evaluations.curves import Evaluator, Split, splits_of
from evaluations.figures import ROOT, Options, say, share, table, write_constants
from toolkit.telemetry.diagnostics import thresholds
from toolkit.telemetry.diagnostics.confidence import CLEAR, DOUBTED, TAKEN_BACK, USUAL, strength_of
from toolkit.telemetry.diagnostics.examiner import Examiner
from toolkit.telemetry.diagnostics.finding import INFO, WARNING, Finding

PAGE: Final = "detectors.md"
CONSTANTS: Final = ROOT / "toolkit" / "telemetry" / "diagnostics" / "confidence_table.py"
STRENGTHS: Final = {
    CLEAR: "clear: a training loss at five times its level or more, or exactly constant",
    USUAL: "usual: any other warning",
    DOUBTED: "in doubt: `info` by its detector, or a plateau that has ended",
    TAKEN_BACK: "taken back: an ended `overfit` or `info` plateau, a `val_spike` whose level stayed",
}
ABOUT_90: Final = (0.85, 0.95)
"""What counts as said to be 90 % sure, and the share of them that must be right."""
PRIOR: Final = 2.0
"""Repositories that the overall share weighs besides those with such a finding."""


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


Rates = tuple[float, ...]
"""The confidence of each strength, the weakest first."""


def run(options: Options) -> str:
    """Return the figures; with `fit`, put the fitted numbers into the product."""
    evaluator = Evaluator(options.corpus)
    splits = splits_of(options.corpus, diagnosis.QUICK if options.quick else None)
    every = []
    for split in splits:
        say(f"{split.name}: {len(split.labels)} runs")
        every += samples_of(split, evaluator)
    # A NaN is certain.
    samples = [sample for sample in every if sample.kind != "nan"]
    rates = fit(samples)
    rows = []
    for strength, words in STRENGTHS.items():
        right, of, unsure = _counts(sample for sample in samples if strength in sample.strengths)
        rows.append([words, f"{rates[strength]:.2f}", share(right, of), f"{right} of {of}", str(unsure)])
    runs = sum(len(split.labels) for split in splits)
    if options.fit:
        lines = constants(runs, rates, samples, every)
        write_constants(CONSTANTS, "confidence", "How often findings were right on labelled runs.", lines)
    low, high = ABOUT_90
    said = [is_right for confidence, is_right in held_out(samples) if low <= confidence < high]
    return "\n\n".join(
        [
            f"Findings on {runs} labelled open curves; each counts in every row that it was in while its run went on.",
            table(["evidence", "confidence", "right", "findings", "on unsure labels"], rows),
            (
                f"Said to be 90 % sure when first reported, the finding's repository left out of the fit: {sum(said)} "
                f"of {len(said)} are right."
            ),
        ]
    )


def samples_of(split: Split, evaluator: Evaluator) -> list[Sample]:
    """Return every finding on the runs of `split`, with the evaluator's verdict on it alone."""
    found: list[Sample] = []
    # Severities as the detectors choose them: otherwise the fit would depend on the last one.
    with mock.patch.object(thresholds, "CONFIDENCE_TO_WARN", 0.0):
        for run in split.labels:
            states: dict[str, list[Finding]] = {}
            examiner = Examiner()
            for row in split.rows(run):
                for finding in examiner.take([row]):
                    states.setdefault(finding.id, []).append(finding)
            for finding in examiner.findings():
                sample = _sample(split, evaluator, run, [*states[finding.id], finding])
                found += [] if sample is None else [sample]
    return found


def _sample(split: Split, evaluator: Evaluator, run: str, states: Sequence[Finding]) -> Sample | None:
    last = states[-1]
    # What is `info` is judged, too.
    prediction = {**diagnosis.as_prediction(last), "severity": WARNING}
    if prediction["kind"] not in diagnosis.KINDS:
        return None
    row = diagnosis.INSTABILITY if last.kind in ("spike", "divergence") else prediction["kind"]
    counts = evaluator.score(split, {run: [prediction]}, [run])["kinds"].get(row, {"hit": 0, "fp": 0})
    return Sample(
        repository=split.repository(run),
        kind=last.kind,
        is_right=True if counts["hit"] else False if counts["fp"] else None,
        strengths=frozenset(strength_of(state) for state in states),
        first=next((strength_of(state) for state in states if state.severity != INFO), None),
    )


def fit(samples: Iterable[Sample]) -> Rates:
    """Return the confidence of each strength; it never falls from one to the next.

    It is at most what so many repositories without a wrong finding show (Jeffreys).
    """
    judged = [sample for sample in samples if sample.is_right is not None]
    overall = _share([sample for sample in judged if sample.first is not None], 0.5, prior=0.0)[0]
    shares = []
    for strength in sorted(STRENGTHS):
        right, weight = _share([sample for sample in judged if strength in sample.strengths], overall)
        repositories = weight - PRIOR
        most = 1.0 - 0.5 / (repositories + 1.0) if repositories else overall
        shares.append((min(right, most), weight))
    return tuple(round(rate, 2) for rate in _rising(shares))


def held_out(samples: Sequence[Sample]) -> list[tuple[float, bool]]:
    """Return what a fit without its repository says of each finding when it is first a warning, and if it is right."""
    judged = [sample for sample in samples if sample.is_right is not None and sample.first is not None]
    fits = {
        name: fit([sample for sample in samples if sample.repository != name])
        for name in {sample.repository for sample in judged}
    }
    return [(fits[sample.repository][sample.first or 0], bool(sample.is_right)) for sample in judged]


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
    for right, weight in shares:
        pools.append((right, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, low_weight, low_count), (high, high_weight, high_count) = pools.pop(-2), pools.pop()
            total = low_weight + high_weight
            mean = (low * low_weight + high * high_weight) / total
            pools.append((mean, total, low_count + high_count))
    return [right for right, _, count in pools for _ in range(count)]


def _counts(samples: Iterable[Sample]) -> tuple[int, int, int]:
    """Return the right, the judged and the unsure ones."""
    verdicts = [sample.is_right for sample in samples]
    return verdicts.count(True), len(verdicts) - verdicts.count(None), verdicts.count(None)


def constants(runs: int, rates: Rates, samples: Sequence[Sample], every: Sequence[Sample]) -> list[str]:
    """Return the lines of the product with the fitted numbers."""
    strengths = tuple(
        (rate, *_counts(sample for sample in samples if strength in sample.strengths))
        for strength, rate in enumerate(rates)
    )
    kinds = {
        kind: counts
        for kind in sorted({sample.kind for sample in every})
        if (counts := _counts(sample for sample in every if sample.kind == kind)[:2])[1]
    }
    about = "For each strength of the evidence, weakest first: confidence, right, judged and unsure findings."
    judged = (
        "For each kind with a judged finding: right and judged ones. Those on unsure labels are not judged."
    )
    return [
        f"RUNS: Final = {runs}",
        f'STRENGTHS: Final = {strengths}\n"""{about}"""',
        f'KINDS: Final = {kinds}\n"""{judged}"""',
    ]
