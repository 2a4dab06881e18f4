"""Copy the figures of full runs from build/bench into the documents: `python -m benchmarks.figures`.

Each place in a document is between two marks that name the benchmark. What was not measured here stays as it is.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Mapping
from typing import Any, Final

from benchmarks.child import ROOT
from benchmarks.contenders import BARE, NOT_DUE, NOTHING, OURS, PEERS, SPANS
from benchmarks.report import RESULTS
from evaluations.figures import table

DOCUMENTS: Final = ("README.md", "docs/benchmarks.md", "docs/figures/fleet.md")
_PLACE: Final = re.compile(r"(<!-- figures: (\w+) -->\n\n).*?(\n\n<!-- end of the figures -->)", re.DOTALL)
_COMPARED: Final = ("log_cost", "process_cost", "paced", "lost_records")
_KINDS: Final = ("big", "small")

Results = Mapping[str, Mapping[str, Any]]
"""What each benchmark found."""


def with_figures(document: str, results: Results) -> str:
    """Return the document with the newest figures, where there are any."""

    def newest(place: re.Match[str]) -> str:
        name = place[2]
        if name in ("loggers", "in_short"):
            known = all(part in results for part in _COMPARED)
            text = (_loggers if name == "loggers" else _in_short)(results) if known else None
        else:
            part = "log_cost" if name == "spans" else name
            alone = _spans if name == "spans" else _alone
            text = alone(results[part]) if part in results else None
        return place[0] if text is None else f"{place[1]}{text}{place[3]}"

    return _PLACE.sub(newest, document)


def _in_short(results: Results) -> str:
    """Return two sentences: what a call and a step cost, next to the peers."""
    log, paced = (results[name]["figures"] for name in ("log_cost", "paced"))

    def listed(costs: Mapping[str, str]) -> str:
        ours, *others = (costs[one.name] for one in (OURS, *PEERS) if one.name in costs)
        titles = [one.title for one in PEERS if one.name in costs]
        return f"{ours} ({', '.join(map(' '.join, zip(titles, others, strict=True)))})"

    calls = listed({name: f"{found['p50_us']:.1f} µs" for name, found in log.items()})
    slower = listed({name: _slowdowns(found) for name, found in paced.items()})
    return (
        f"A call costs {calls}.\n"
        f"A step of 5.5 ms (matrix products / small operations) becomes slower by {slower}."
    )


def _loggers(results: Results) -> str:
    """Return one table of what a logger costs, next to the peers."""
    log, process, paced, lost = (results[name]["figures"] for name in _COMPARED)
    rows = []
    for contender in (BARE, OURS, *PEERS):
        name = contender.name
        if name not in log:
            continue
        memory, helpers = process[name]["added_mb"], process[name]["helpers_mb"]
        rows.append(
            [
                f"**{contender.title}**" if contender is OURS else contender.title,
                f"{log[name]['p50_us']:.1f} / {log[name]['p99_us']:.0f}",
                f"{process[name]['cpu_us']:.0f}",
                _slowdowns(paced[name]),
                f"{process[name]['import_ms']:.0f}" if "import_ms" in process[name] else "-",
                f"{memory:.1f}" + (f" + {helpers:.0f} in helpers" if helpers else ""),
                f"{statistics.fmean(lost['killed'][name]):.0f}",
            ]
        )
    header = [
        *("logger", "one call, µs (p50 / p99)", "CPU µs per record", "slowdown of a 5.5 ms step"),
        *("import, ms", "memory, MB", "lost of 5000 by SIGKILL"),
    ]
    noise = paced[NOTHING.name]
    quartiles = " and ".join(
        f"{noise[kind]['slowdown_q1']:+.1%} to {noise[kind]['slowdown_q3']:+.1%}" for kind in _KINDS
    )
    packages = results["log_cost"]["machine"]["packages"]
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    return (
        f"{table(header, rows)}\n\n"
        f"Ten scalars per step, every step logged. {_measured(results['log_cost'])} With {versions}. "
        "Slowdown: matrix products / many small operations; two loops without logging differ by "
        f"{quartiles} (quartiles). A step between two records costs {log[NOT_DUE.name]['p50_us']:.1f} µs."
    )


def _spans(found: Mapping[str, Any]) -> str:
    """Return a table of what an empty span costs."""
    costs = [(one.title, found["figures"][one.name]) for one in SPANS if one.name in found["figures"]]
    rows = [[title, f"{cost['p50_us']:.2f}", f"{cost['p99_us']:.1f}"] for title, cost in costs]
    return f"{_measured(found)}\n\n{table(['one empty span', 'p50 µs', 'p99 µs'], rows)}"


def _alone(found: Mapping[str, Any]) -> str:
    """Return the table of one benchmark as it printed it, with its notes."""
    notes = "".join(f"\n- {note}" for note in found["notes"])
    return f"{found['title']}. {_measured(found)}\n\n{table(found['columns'], found['rows'])}" + (
        f"\n{notes}" if notes else ""
    )


def _slowdowns(found: Mapping[str, Any]) -> str:
    return " / ".join(f"{found[kind]['slowdown']:+.1%}" for kind in _KINDS)


def _measured(found: Mapping[str, Any]) -> str:
    machine = found["machine"]
    return (
        f"Measured on {found['measured']}: {machine['cores']} cores, {machine['cpu']}, {machine['system']}, "
        f"Python {machine['python']}."
    )


def main() -> int:
    """Write the figures into the documents."""
    results = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")}
    results = {name: found for name, found in results.items() if found["quotable"]}
    for name in DOCUMENTS:
        path = ROOT / name
        path.write_text(with_figures(path.read_text(encoding="utf-8"), results), encoding="utf-8")
    print(f"Full runs in {RESULTS.relative_to(ROOT)}: {', '.join(sorted(results)) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
