"""How often findings are right: on labelled real curves, and on made curves whose faults are known."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from evaluations.curves import (
    Evaluator,
    Prediction,
    Rows,
    Split,
    made_runs,
    made_split,
    splits_of,
)
from evaluations.figures import Options, say, share, table
from toolkit.telemetry.diagnostics.examiner import Examiner
from toolkit.telemetry.diagnostics.finding import SEVERITIES, Finding

PAGE: Final = "detectors.md"
INSTABILITY: Final = "instability"
"""Spikes and divergences together: where one ends and the other begins is a matter of taste."""
KINDS: Final = tuple(
    f"nan {INSTABILITY} spike divergence overfit plateau exploding_grad vanishing_grad val_spike throughput_drop "
    "data_starvation low_gpu_util mem_leak".split()
)
_JOBS: Final = 2
"""Processes: the usual cores of a small machine, and each holds the curves that it judges."""
_AS_LABELLED: Final = {"memory_growth": "mem_leak"}
"""Kinds that have another name in the corpus."""
QUICK: Final = 12
"""Runs of each part of the corpus in a short run."""

Counts = Counter[tuple[str, str]]
"""The evaluator's counts by kind: `labels`, found ones (`hit`), false ones (`fp`); of `clean` runs `n` and `fa`."""


def run(options: Options) -> str:
    """Return the figures."""
    evaluator, splits = Evaluator(options.corpus), splits_of(options.corpus, QUICK if options.quick else None)
    real = _scored(splits, evaluator, options)
    runs = made_runs()[: QUICK if options.quick else None]
    with made_split(runs) as split:
        made = _scored([split], evaluator, options)
    repositories = {split.repository(run) for split in splits for run in split.labels}
    return "\n\n".join(
        [
            (
                f"{sum(len(split.labels) for split in splits)} open curves of {len(repositories)} repositories, which "
                f"the rules were written with, and {len(runs)} made ones. Warnings and critical findings, by event."
            ),
            _kinds(real, made),
            _clean(real, made),
        ]
    )


def findings_of(rows: Rows) -> list[Finding]:
    """Return the findings of a live run, each with the highest severity it ever had.

    Whoever was alerted is not helped by a warning that is taken back later.
    """
    examiner = Examiner()
    highest: dict[str, str] = {}
    for row in rows:
        for finding in examiner.take([row]):
            before = highest.get(finding.id, finding.severity)
            highest[finding.id] = max(before, finding.severity, key=SEVERITIES.index)
    return [
        replace(finding, severity=highest.get(finding.id, finding.severity))
        for finding in examiner.findings()
    ]


def as_prediction(finding: Finding) -> Prediction:
    """Return a finding in the evaluator's format."""
    return {
        "kind": _AS_LABELLED.get(finding.kind, finding.kind),
        "start_step": finding.start_step,
        "end_step": finding.end_step,
        "detected_step": finding.noticed_step,
        "severity": finding.severity,
    }


def _predictions(job: tuple[str, Rows]) -> tuple[str, list[Prediction]]:
    run, rows = job
    return run, [as_prediction(finding) for finding in findings_of(rows)]


def _scored(splits: Iterable[Split], evaluator: Evaluator, options: Options) -> Counts:
    results = []
    for split in splits:
        say(f"{split.name}: {len(split.labels)} runs")
        jobs = ((run, split.rows(run)) for run in split.labels)
        with multiprocessing.Pool(_JOBS, os.nice, (5,)) as pool:
            said = dict(pool.imap_unordered(_predictions, jobs, chunksize=4))
        results.append(evaluator.score(split, said))
    if options.list_errors:
        for result in results:
            for error in result["errors"]:
                print(*error)
    return _counts_of(results)


def _counts_of(results: Iterable[Mapping[str, Any]]) -> Counts:
    """Return the counts of several evaluations together."""
    total: Counts = Counter()
    for result in results:
        for kind, counts in [*result["kinds"].items(), ("clean", result["clean"])]:
            total.update({(kind, name): count for name, count in counts.items() if isinstance(count, int)})
    return total


def _kinds(real: Counts, made: Counts) -> str:
    rows = []
    for kind in KINDS:
        if real[kind, "labels"] + made[kind, "labels"]:
            name = f"**{kind}**" if kind == INSTABILITY else f"`{kind}`"
            found = real[kind, "hit"]
            ratios = share(found, found + real[kind, "fp"]), share(found, real[kind, "labels"])
            rows.append([name, _counted(real, kind), *ratios, _counted(made, kind)])
    header = ["kind", "open: found, false", "precision", "recall", "made: found, false"]
    return table(header, rows)


def _counted(of: Counts, kind: str) -> str:
    labels, false = of[kind, "labels"], of[kind, "fp"]
    return f"{of[kind, 'hit']}/{labels}, {false}" if labels + false else "-"


def _clean(real: Counts, made: Counts) -> str:
    said = [
        f"{of['clean', 'fa']} on {of['clean', 'n']} {name} runs"
        for name, of in (("open", real), ("made", made))
    ]
    return f"False alarms on clean runs: {', '.join(said)}."
