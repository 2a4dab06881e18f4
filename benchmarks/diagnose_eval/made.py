"""Our detectors on the made curves, whose faults are known: what is found of each kind and of each cause.

`python -m benchmarks.diagnose_eval.made --corpus DIR` prints the tables, and each miss and false alarm.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.diagnose_eval.corpus import (
    DEFAULT,
    CorpusError,
    Evaluator,
    Prediction,
    Rows,
    Split,
    splits_of,
)
from benchmarks.diagnose_eval.markdown import table
from benchmarks.diagnose_eval.other_thresholds import other_thresholds
from benchmarks.diagnose_eval.ours import predictions
from benchmarks.diagnose_eval.scores import FAMILIES, INSTABILITY, counts_of, precision, recall
from benchmarks.made_curves.file import NONE, MadeFileError, MadeRun, made_runs

JOBS = 2
KINDS = (*FAMILIES, "vanishing_grad", "mem_leak")
_NOT_FALLING = ("gan", "policy")
_PARTS_OF_INSTABILITY = FAMILIES[INSTABILITY]

Said = Mapping[str, list[Prediction]]


@contextmanager
def made_split(runs: Sequence[MadeRun]) -> Iterator[Split]:
    """Write the made curves in the layout of the corpus, for as long as they are used."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "runs").mkdir()
        for run in runs:
            lines = "".join(json.dumps(row) + "\n" for row in run.records())
            (folder / "runs" / f"{run.id}.jsonl").write_text(lines, encoding="utf-8")
        yield Split(
            name="made",
            folder=folder,
            labels={run.id: run.labelled for run in runs},
            left_out=(),
            repositories={run.id: run.family for run in runs},
        )


def said_of(split: Split, values: dict[str, float] | None = None) -> dict[str, list[Prediction]]:
    """Return what the detectors report on each run, with these thresholds instead of the ones in use."""
    jobs = ((run, split.rows(run), values or {}) for run in split.labels)
    with multiprocessing.Pool(JOBS, os.nice, (5,)) as pool:
        return dict(pool.imap_unordered(_examined, jobs, chunksize=8))


def _examined(job: tuple[str, Rows, dict[str, float]]) -> tuple[str, list[Prediction]]:
    run, rows, values = job
    with other_thresholds(values):
        return run, predictions(rows)


def measure(_: Sequence[Split], evaluator: Evaluator, *, list_errors: bool = False) -> dict[str, Any]:
    """Return the counts of each kind, of each cause and of the clean runs of each family."""
    runs = made_runs()
    with made_split(runs) as split:
        said = said_of(split)
        scored = evaluator.score(split, said)
        whole = counts_of(scored)
        causes = {
            cause: _of_cause([run for run in runs if run.cause == cause], split, evaluator, said)
            for cause in sorted({run.cause for run in runs} - {NONE})
        }
        families = {}
        for family in sorted({run.family for run in runs}):
            clean = {run.id for run in runs if run.family == family and run.is_clean}
            found = evaluator.score(split, said, clean)["clean"] if clean else None
            if found:
                alarms = dict(found["by_kind"])
                families[family] = {"runs": found["n"], "alarms": found["fa"], "by_kind": alarms}
    if list_errors:
        for error in scored["errors"]:
            print(*error)
    return {
        "runs": len(runs),
        "records": sum(len(run.columns["step"]) for run in runs),
        "without_fault": sum(run.cause == NONE for run in runs),
        "without_effect": sum(not run.has_effect for run in runs),
        "ours": whole,
        "causes": causes,
        "families": families,
    }


def _of_cause(runs: Sequence[MadeRun], split: Split, evaluator: Evaluator, said: Said) -> dict[str, Any]:
    counts = counts_of(evaluator.score(split, said, {run.id for run in runs}))["kinds"]
    # A spike called a divergence was found: the family counts, and not its two parts as well.
    kinds = {
        kind: of for kind, of in counts.items() if kind not in _PARTS_OF_INSTABILITY and any(of.values())
    }
    return {"runs": len(runs), "without_effect": sum(not run.has_effect for run in runs), "kinds": kinds}


# ---------------------------------------------------------------- the section of the document


def section(found: Mapping[str, Any]) -> list[str]:
    """Return the figures as text and tables in Markdown."""
    clean = found["ours"]["clean"]
    return [
        "### On made curves",
        "\n".join(
            [
                (
                    f"{found['runs']} real small trainings of {len(found['families'])} families with "
                    f"{found['records']:,} records ([benchmarks/made_curves](../../benchmarks/made_curves)): "
                    f"{found['without_fault']} without a fault, the others with one of {len(found['causes'])} causes."
                ),
                (
                    "Each of those was trained twice from one seed, with and without the fault. A label is where the "
                    "two depart, by the definitions of the corpus, so it is measured and not an opinion."
                ),
                (
                    f"In {found['without_effect']} runs nothing of the fault can be seen; "
                    "they are neither a miss nor a false alarm."
                ),
            ]
        ),
        table(
            ["kind", "events", "found", "false", "precision", "recall", "runs, precision / recall"],
            [
                _kind_row(kind, found["ours"]["kinds"][kind])
                for kind in KINDS
                if kind in found["ours"]["kinds"]
            ],
        ),
        (
            f"Clean runs ({clean['runs']}, among them small batches, restarts of the schedule, policies and GANs): "
            f"{clean['alarms']} false alarms on {clean['hit']} runs, "
            f"{clean['alarms'] / max(1, clean['runs']):.3f} per run. Without the families whose loss is not meant to "
            f"fall ({', '.join(f'`{name}`' for name in _NOT_FALLING)}): {_of_the_rest(found['families'])}."
        ),
        table(
            ["family", "clean runs", "false alarms", "kinds"],
            [
                [f"`{name}`", str(of["runs"]), str(of["alarms"]), _named(of["by_kind"])]
                for name, of in found["families"].items()
            ],
        ),
        "By cause, found of events of each kind that follows from it:",
        table(
            ["cause", "runs", "no effect", "found of events", "false"],
            [_cause_row(name, of) for name, of in found["causes"].items()],
        ),
    ]


def _of_the_rest(families: Mapping[str, Any]) -> str:
    rest = [of for name, of in families.items() if name not in _NOT_FALLING]
    return f"{sum(of['alarms'] for of in rest)} on {sum(of['runs'] for of in rest)} runs"


def _kind_row(kind: str, of: Mapping[str, int]) -> list[str]:
    ratios = [_ratio(measured(of)) for measured in (precision, recall)]
    runs = " / ".join(_ratio(measured(of, "runs_")) for measured in (precision, recall))
    name = f"**{kind}**" if kind == INSTABILITY else f"`{kind}`"
    return [name, *(str(of[one]) for one in ("labels", "found", "false")), *ratios, runs]


def _cause_row(name: str, of: Mapping[str, Any]) -> list[str]:
    found = [
        f"{kind} {one['found']} of {one['labels']}" for kind, one in of["kinds"].items() if one["labels"]
    ]
    false = Counter({kind: one["false"] for kind, one in of["kinds"].items() if one["false"]})
    return [f"`{name}`", str(of["runs"]), str(of["without_effect"]), ", ".join(found) or "-", _named(false)]


def _named(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {number}" for kind, number in counts.items()) or "-"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; exit 2 if there is no corpus, whose evaluator is used, or no made curves."""
    parser = argparse.ArgumentParser(description="Evaluate the detectors on the made curves.")
    parser.add_argument("--corpus", type=Path, default=DEFAULT, help="folder with evaluate.py")
    args = parser.parse_args(argv)
    try:
        found = measure(splits_of(args.corpus), Evaluator(args.corpus), list_errors=True)
        print("\n\n".join(section(found)))
    except (CorpusError, MadeFileError) as error:
        print(f"made curves: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
