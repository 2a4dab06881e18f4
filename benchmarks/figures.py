"""Tables of the last full run, for the documents.

`python -m benchmarks.figures` writes them between the markers in README.md and the documents about them.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import gpu_loop
from benchmarks.child import ROOT
from benchmarks.contenders import BARE, NOT_DUE, NOT_DUE_LOSS, NOT_DUE_THREE, NOTHING, OURS, PEERS
from benchmarks.report import LATEST, RESULTS

GPU = RESULTS / "gpu_loop.json"
"""The GPU loop is usually measured on another machine, so it has its own file."""

DASHBOARD = RESULTS / "dashboard.json"
"""So does the dashboard: it needs a browser and a quiet machine for 15 minutes."""

FLEET = RESULTS / "fleet.json"
"""And so does a fleet, on engines that not every machine has."""


APPENDICES = ROOT / "docs" / "figures"
"""Long tables, each for a page of docs."""

BEGIN = "<!-- figures: written by python -m benchmarks.figures -->"
END = "<!-- end of the figures -->"


def documents() -> dict[Path, str]:
    """Return the text between the markers of each document, from the results on disk."""
    latest = json.loads(LATEST.read_text(encoding="utf-8"))
    gpu, dashboard = (
        json.loads(path.read_text(encoding="utf-8")) if path.exists() else None for path in (GPU, DASHBOARD)
    )
    return {
        ROOT / "README.md": in_short(latest, gpu),
        ROOT / "docs" / "benchmarks.md": overview(latest, gpu, dashboard),
        **{
            APPENDICES / name: alone(json.loads(path.read_text(encoding="utf-8")))
            for name, path in (("fleet.md", FLEET),)
            if path.exists()
        },
    }


def in_short(latest: Mapping[str, Any], gpu: Mapping[str, Any] | None) -> str:
    """Return three lines for the README: what a call and a step cost, next to the peers, and where the rest is."""
    log, paced = (latest[name]["figures"] for name in ("log_cost", "paced"))
    measured = [contender for contender in (OURS, *PEERS) if contender.name in log]

    def listed(costs: Mapping[str, str]) -> str:
        ours, *others = (costs[contender.name] for contender in measured)
        peers = ", ".join(
            f"{contender.title} {cost}" for contender, cost in zip(measured[1:], others, strict=True)
        )
        return f"{ours} ({peers})"

    calls = {contender.name: f"{log[contender.name]['p50_us']:.1f} µs" for contender in measured}
    slower = {
        contender.name: " / ".join(
            f"{paced[contender.name][kind]['slowdown']:+.1%}" for kind in ("big", "small")
        )
        for contender in measured
    }
    lines = [
        f"A call costs {listed(calls)}.",
        f"A step of 5.5 ms (matrix products / small operations) becomes slower by {listed(slower)}.",
    ]
    if gpu is not None:
        lines.append(_gpu_sentence(gpu).splitlines()[0])
    lines.append(
        "Memory, kills, faults, and how it was measured: [benchmarks](docs/benchmarks.md); `make bench` measures yours."
    )
    return "\n".join(lines)


def overview(
    latest: Mapping[str, Any], gpu: Mapping[str, Any] | None, dashboard: Mapping[str, Any] | None = None
) -> str:
    """Return one table of everything, and a paragraph each on the GPU and on the dashboard."""
    log, paced, cpu, imports, memory, kill = (
        latest[name]["figures"]
        for name in ("log_cost", "paced", "cpu_per_record", "import_cost", "memory", "kill_loss")
    )
    rows = []
    for contender in (BARE, OURS, *PEERS):
        name = contender.name
        title = f"**{contender.title}**" if contender is OURS else contender.title
        if name not in log:
            rows.append([title, "not measured", *[""] * 5])
            continue
        rows.append(
            [
                title,
                f"{log[name]['p50_us']:.1f} / {log[name]['p99_us']:.0f}",
                f"{cpu[name]['burst_us']:.0f}",
                " / ".join(f"{paced[name][kind]['slowdown']:+.1%}" for kind in ("big", "small")),
                f"{imports[name]['ms']:.0f}" if name in imports else "-",
                _megabytes(**{key: memory[name][key] for key in ("added_mb", "helpers_mb")}),
                f"{sum(kill[name]) / len(kill[name]):.0f}" if name in kill else "-",
            ]
        )
    noise = " and ".join(
        f"{paced[NOTHING.name][kind]['slowdown_q1']:+.1%} to {paced[NOTHING.name][kind]['slowdown_q3']:+.1%}"
        for kind in ("big", "small")
    )
    header = [
        "logger",
        "one call, µs (p50 / p99)",
        "CPU µs per record",
        "slowdown of a 5.5 ms step",
        "import, ms",
        "memory, MB",
        "lost of 5000 by SIGKILL",
    ]
    lines = [
        _table(header, rows),
        "",
        f"Ten scalars per step, every step logged; each column was measured in one session ({_machine(latest)}).",
        f"Slowdown: matrix products / many small operations; two loops without logging differ by {noise} (quartiles).",
    ]
    between = [
        f"{log[contender.name]['p50_us']:.2f} µs with {what}"
        for contender, what in (
            (NOT_DUE, "ten scalars"),
            (NOT_DUE_THREE, "three"),
            (NOT_DUE_LOSS, "the loss alone"),
        )
        if contender.name in log
    ]
    if between:
        lines.append(f"A step between two records costs {', '.join(between)}.")
    if "span_cost" in latest:
        lines += ["", _span_sentence(latest["span_cost"]["figures"])]
    if "under_fault" in latest:
        lines += ["", _fault_sentence(latest["under_fault"]["figures"])]
    if gpu is not None:
        lines += ["", _gpu_sentence(gpu)]
    if dashboard is not None:
        lines += ["", _dashboard_sentence(dashboard)]
    return "\n".join(lines)


def alone(report: Mapping[str, Any]) -> str:
    """Return the table of a report that has its own document."""
    found = report["machine"]
    parts = [
        f"Measured on {report['measured']}: {found['cores']} cores, {found['cpu']}, Python {found['python']}.",
        _table(report["columns"], report["rows"]),
        "\n".join(f"- {note}" for note in report["notes"]),
    ]
    return "\n\n".join(parts)


def put_between_marks(text: str, figures: str, begin: str = BEGIN) -> str:
    """Return the document `text` with `figures` between its markers, of which `begin` is the first.

    Raises:
        ValueError: the document has no markers.
    """
    before, marker, rest = text.partition(begin)
    _, end, after = rest.partition(END)
    if not marker or not end:
        raise ValueError(f"the document has no place for figures: {begin} … {END}")
    return f"{before}{begin}\n\n{figures}\n\n{END}{after}"


def _megabytes(added_mb: float, helpers_mb: float) -> str:
    return f"{added_mb:.1f}" + (f" + {helpers_mb:.0f} in helpers" if helpers_mb else "")


def _span_sentence(spans: Mapping[str, Any]) -> str:
    took = {name: figure["p50_us"] for name, figure in spans.items()}
    sentence = (
        f"A summed span costs {took['ours_added_up']:.1f} µs, one with its own record "
        f"{took['ours_kept']:.1f} µs, and one that is switched off {took['ours_off']:.1f} µs."
    )
    if "one_logger" not in took:
        return sentence
    return (
        f"{sentence}\n"
        f"A `training_iteration`, windows and totals included, costs {took['ours_iteration']:.1f} µs; "
        f"OneLogger's costs {took['one_logger']:.0f} µs, {took['one_logger_exported']:.0f} µs when exported, "
        f"and {took['one_logger_off']:.0f} µs when off."
    )


def _fault_sentence(faults: Mapping[str, Any]) -> str:
    hung, full = faults["hung"], faults["full"]
    others = [contender for contender in PEERS if contender.name in hung]
    blocked = ", ".join(
        f"{contender.title} {hung[contender.name]['longest_ms'] / 1e3:.1f} s" for contender in others
    )
    lost = ", ".join(
        f"{contender.title} {full[contender.name]['lost'] + full[contender.name]['raised']}"
        f"{' and raises' if full[contender.name]['raised'] else ''}"
        for contender in others
    )
    ours = OURS.name
    return (
        f"While a disk hangs for {hung[ours]['seconds']:g} s, our longest call takes "
        f"{hung[ours]['longest_ms']:.1f} ms (others: {blocked}), and {hung[ours]['lost']} records are lost.\n"
        f"After {full[ours]['seconds']:g} s of a full disk, we have lost {full[ours]['lost']} "
        f"of {full[ours]['returned']:,} records and raised nothing (others: {lost})."
    )


def _gpu_sentence(gpu: Mapping[str, Any]) -> str:
    loops = gpu["figures"]["loops"]
    variants, small = loops[gpu_loop.BUSY], loops[gpu_loop.LAUNCHES]
    ours, again = variants[gpu_loop.OURS], variants["no logging, again"]
    low, high = again["slowdown_quartiles"]
    step_ms = variants["no logging"]["step_ms"]
    others = "; ".join(
        f"{name} {variants[name]['slowdown']:+.2%} / {small[name]['slowdown']:+.2%}"
        for name in variants
        if not name.startswith(("no logging", "TelemetryLogger"))
    )
    low_small, high_small = small["no logging, again"]["slowdown_quartiles"]
    return (
        f"On a GPU ({gpu['figures']['device']}), logging loss and gradient norm as GPU tensors every step changes a "
        f"LoRA-like loop of {step_ms:.1f} ms per step by {ours['slowdown']:+.2%}, and a loop of many small kernels "
        f"({small['no logging']['step_ms']:.1f} ms) by {small[gpu_loop.OURS]['slowdown']:+.2%}.\n"
        f"The others in the same two loops: {others}.\n"
        f"Two equal loops without logging differ by {low:+.2%} to {high:+.2%} and by {low_small:+.2%} to "
        f"{high_small:+.2%} (quartiles)."
    )


def _dashboard_sentence(dashboard: Mapping[str, Any]) -> str:
    figures = dashboard["figures"]
    opening, refresh, zoom = figures["open"], figures["refresh"], figures.get("zoom")
    empty = opening["empty_s"]

    def times(name: str) -> str:
        found = opening.get(f"{name}_s")
        if not found:
            return "not measured"
        return f"{statistics.median(one / base for one, base in zip(found, empty, strict=True)):.1f}x"

    refreshing = (
        f"A refresh costs {statistics.median(one['cpu_ms'] for one in refresh['each']):.0f} ms of server CPU time and "
        f"{statistics.median(one['received_kb'] for one in refresh['each']):.0f} kB."
    )
    if "small_s" not in opening:
        # Results of before the curves were drawn in the browser from tiles.
        cold, warm = (statistics.median(opening[f"{name}_s"]) for name in ("cold", "warm"))
        return (
            f"The dashboard draws the loss of {figures['records']:,} records in {cold:.1f} s, and in {warm:.1f} s the "
            f"second time; an empty Streamlit page takes {statistics.median(empty):.1f} s.\n{refreshing}"
        )
    seen = f", which is seen after {times('painted')}" if "painted_s" in opening else ""
    text = (
        f"An empty Streamlit page takes {statistics.median(empty):.1f} s. The dashboard takes {times('small')} of that "
        f"up to the first curve of a small run{seen} (TensorBoard {times('tensorboard')}, Trackio {times('trackio')}), "
        f"{times('compare')} for 20 runs on Compare, {times('warm')} for all of {figures['records']:,} records, and "
        f"{times('cold')} the first time, with a first curve after {times('cold_first')}.\n"
        f"{refreshing}"
    )
    if zoom is not None:
        text += f" A frame of four charts that zoom takes {zoom['frame_ms']:.0f} ms (p95 {zoom['frame_p95_ms']:.0f})."
    return text


def _machine(latest: Mapping[str, Any]) -> str:
    found = latest["log_cost"]["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    return f"{found['cores']} cores, {found['cpu']}, {found['system']}, Python {found['python']}, {packages}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(line)} |" for line in (columns, *rows))
    return "\n".join([head, "|" + "---|" * len(columns), *body])


def main() -> int:
    """Write the figures into the documents."""
    for path, figures in documents().items():
        path.write_text(put_between_marks(path.read_text(encoding="utf-8"), figures), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: figures written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
