"""Run our detectors and others on a corpus of labelled curves; write the figures of docs/figures/detectors.md.

`make diagnose-eval CORPUS=DIR`.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import say
from benchmarks.diagnose_eval import (
    cross_validation,
    early_warning,
    frozen,
    injected,
    made,
    peers,
    perturbed,
    reliability,
    second_reading,
    tables,
)
from benchmarks.diagnose_eval.corpus import DEFAULT, CorpusError, Evaluator, Prediction, Split, splits_of
from benchmarks.diagnose_eval.delay import Delay, delays
from benchmarks.diagnose_eval.ours import Examined, follow
from benchmarks.diagnose_eval.scores import FAMILIES, counts_of, worse
from benchmarks.figures import put_between_marks
from toolkit.telemetry.diagnostics.finding import INFO

_PARTS: dict[str, Callable[[Sequence[Split], Evaluator], Any]] = {
    "made": made.measure,
    "frozen": frozen.measure,
    "perturbed": perturbed.measure,
    "second_reading": second_reading.measure,
}
"""Parts that need nothing of the others, by the name of their results."""


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate; exit 2 if there is no corpus."""
    parser = argparse.ArgumentParser(description="Evaluate the detectors on labelled training curves.")
    parser.add_argument("--corpus", type=Path, default=DEFAULT, help="folder with evaluate.py and the curves")
    parser.add_argument(
        "--ours", action="store_true", help="measure only ours; others keep their last figures"
    )
    parser.add_argument("--list-errors", action="store_true", help="print each miss and each false alarm")
    parser.add_argument("--only-print", action="store_true", help="do not write the document and the results")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=sorted(_PARTS),
        help="measure these parts; the others keep their last figures",
    )
    args = parser.parse_args(argv)
    before = json.loads(tables.RESULT.read_text(encoding="utf-8")) if tables.RESULT.exists() else {}
    try:
        splits = splits_of(args.corpus)
        evaluator = Evaluator(args.corpus)
    except CorpusError as error:
        print(f"diagnose-eval: {error}", file=sys.stderr)
        return 2
    results: dict[str, Any] = {"splits": {}}
    if args.only:
        results = before
    else:
        for split in splits:
            last = before.get("splits", {}).get(split.name)
            results["splits"][split.name] = _measure(split, evaluator, args, last)
        results["cross_validation"] = cross_validation.measure(splits, evaluator)
        results["early_warning"] = _early_warning(splits, evaluator, args, before.get("early_warning"))
        say("synthetic runs with an injected fault")
        results["injected"] = injected.measure()
    for name in args.only or _PARTS:
        say(name)
        results[name] = _PARTS[name](splits, evaluator)
    print(tables.document(results))
    for name, found in results["splits"].items():
        last = before.get("splits", {}).get(name)
        if last and last["left_out"] == found["left_out"]:
            for sentence in worse(found["ours"], last["ours"]):
                print(f"WORSE than in docs/figures/detectors.md: {sentence}")
    if not args.only_print:
        text = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False)
        tables.RESULT.write_text(text + "\n", encoding="utf-8")
        document = tables.DOCUMENT.read_text(encoding="utf-8")
        written = put_between_marks(document, tables.document(results), tables.BEGIN)
        tables.DOCUMENT.write_text(written, encoding="utf-8")
    if not args.only:
        reliability.report(splits, evaluator, only_print=args.only_print)
    return 0


def _measure(
    split: Split, evaluator: Evaluator, args: argparse.Namespace, last: Mapping[str, Any] | None
) -> dict[str, Any]:
    say(
        f"{split.name}: {len(split.labels)} of {len(split.labels) + len(split.left_out)} labelled runs are available"
    )
    said: dict[str, list[Prediction]] = {}
    found: dict[str, list[Delay | None]] = {}
    live = {"same": 0, "reported": 0, "on_time": 0}
    records = 0
    for run, about in split.labels.items():
        rows = split.rows(run)
        records += len(rows)
        examined = follow(rows)
        said[run] = examined.predictions()
        _add_live(live, examined)
        for kind, waited in delays(about["labels"], rows, examined).items():
            found.setdefault(kind, []).extend(waited)
    result = evaluator.score(split, said)
    if args.list_errors:
        for error in result["errors"]:
            print(*error)
    return {
        "runs": len(split.labels),
        "of": len(split.labels) + len(split.left_out),
        "left_out": list(split.left_out),
        "repositories": len({split.repositories.get(run, run) for run in split.labels}),
        "records": records,
        "ours": counts_of(result),
        "delays": _summaries(found),
        "live": live,
        "folds": _folds(split, evaluator, said),
        **(_others(split, evaluator) if not (args.ours and last) else _kept(last)),
    }


def _early_warning(
    splits: Sequence[Split], evaluator: Evaluator, args: argparse.Namespace, last: Mapping[str, Any] | None
) -> dict[str, Any]:
    only_ours = args.ours and last is not None
    found = early_warning.measure(splits, evaluator, only_ours=only_ours)
    return {**found, "others": last["others"]} if only_ours and last else found


def _summaries(found: Mapping[str, list[Delay | None]]) -> dict[str, Any]:
    summaries = {
        kind: tables.summary_of_delays(found[kind]) for kind in FAMILIES if kind in found and kind != "spike"
    }
    # Count each event once.
    apart = [waited for kind in found if kind not in ("spike", "divergence") for waited in found[kind]]
    return {**summaries, tables.ALL: tables.summary_of_delays(apart)}


def _add_live(live: dict[str, int], examined: Examined) -> None:
    live["same"] += examined.agrees
    first: dict[str, int] = {}
    for telling in examined.tellings:
        if telling.finding.severity != INFO:
            first.setdefault(telling.finding.id, telling.step)
    for finding in examined.findings:
        if finding.severity != INFO:
            live["reported"] += 1
            live["on_time"] += first.get(finding.id) == finding.noticed_step


def _folds(split: Split, evaluator: Evaluator, said: Mapping[str, list[Prediction]]) -> list[dict[str, Any]]:
    """Return the figures of each half of the repositories; empty without a manifest."""
    if not split.repositories:
        return []
    events: dict[str, int] = {}
    for run, about in split.labels.items():
        repository = split.repositories[run]
        sure = sum(label["certainty"] == "sure" for label in about["labels"])
        events[repository] = events.get(repository, 0) + sure
    # Most events first, alternating between the halves; a checksum breaks ties.
    order = sorted(events, key=lambda name: (-events[name], zlib.crc32(name.encode())))
    side = {name: (0, 1, 1, 0)[place % 4] for place, name in enumerate(order)}
    halves: list[dict[str, str]] = [{}, {}]
    for run in split.labels:
        halves[side[split.repositories[run]]][run] = split.repositories[run]
    return [
        {
            **counts_of(evaluator.score(split, said, runs)),
            "repositories": len(set(runs.values())),
            "runs": len(runs),
        }
        for runs in halves
    ]


def _others(split: Split, evaluator: Evaluator) -> dict[str, Any]:
    installed, absent = peers.packages()
    baselines, rules, none = peers.baselines(split.folder.parent)
    tools = {tool.name: tool for tool in (*installed, *baselines)}
    said: dict[str, dict[str, list[Prediction]]] = {name: {} for name in tools}
    by_rule: list[dict[str, list[Prediction]]] = [{} for _ in rules]
    for number, run in enumerate(split.labels, 1):
        rows = split.rows(run)
        if number % 10 == 0:
            say(f"{split.name}: others, run {number} of {len(split.labels)}")
        for name, tool in tools.items():
            said[name][run] = tool.predict(rows)
        for rule, predictions in zip(rules, by_rule, strict=True):
            predictions[run] = rule.predict(rows)
    kept = []
    for rule, predictions in zip(rules, by_rule, strict=True):
        counts = counts_of(evaluator.score(split, predictions))
        if rule.kind in counts["kinds"]:
            about = {"title": rule.title, "kind": rule.kind, "counts": counts["kinds"][rule.kind]}
            kept.append({**about, "clean": counts["clean"]})
    return {
        "tools": {
            name: {"title": tool.title, **counts_of(evaluator.score(split, said[name]))}
            for name, tool in tools.items()
        },
        "rules": kept,
        "absent": [*absent, *none],
    }


def _kept(last: Mapping[str, Any]) -> dict[str, Any]:
    return {name: last[name] for name in ("tools", "rules", "absent")}


if __name__ == "__main__":
    sys.exit(main())
