"""Load: many writers, runs, records, hours and tabs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import load_day, load_records, load_runs, load_sessions, load_writers
from benchmarks.browser import missing
from benchmarks.child import measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.report import Claim, Report

_PATIENCE_S = 3000.0
_PARTS_A_SESSION = 6


def build(options: Options) -> Report:
    """Measure each kind of load in its own process."""
    quick = options.quick
    figures: dict[str, Any] = {}

    def take(name: str, function: Callable[..., Any], *args: int) -> None:
        say(f"load: {name}")
        figures[name] = measure_in_child(function, *args, timeout_s=_PATIENCE_S)

    take("writers", load_writers.measure, 8 if quick else 64, 100 if quick else 2_000)
    for runs in (100,) if quick else (1_000, 10_000):
        take(f"runs_{runs}", load_runs.measure, runs, 20 if quick else 200)
    take("day", load_day.measure, 1 if quick else 24)
    take("records", load_records.measure, 5_000 if quick else 1_000_000)
    if "streamlit" not in missing():
        take("tabs", load_sessions.measure, 1 if quick else 5, 2 if quick else 24)
    return report_of(figures)


def report_of(figures: dict[str, Any]) -> Report:
    """Return the report."""
    rows: list[list[str]] = []
    claims: list[Claim] = []
    notes = ["processor seconds, unless marked as wall time"]
    if "writers" in figures:
        writers = figures["writers"]
        rows += _of_writers(writers)
        text = f"records lost or mixed up by {writers['processes']} processes"
        lost = writers["found"]["lost"] + writers["found"]["foreign"]
        claims.append(Claim(text=text, measured=lost, limit=0.0, unit=""))
    for name, found in figures.items():
        if name.startswith("runs_"):
            rows += _of_runs(found)
            claims += _flat(
                f"{found['looks']} refreshes of {found['runs']:,} runs", found["points"], limit_mb=8.0
            )
    if "day" in figures:
        day = figures["day"]
        rows += _of_day(day)
        claims += _flat("the last session of a day", day["points"][-_PARTS_A_SESSION:], limit_mb=4.0)
    if "records" in figures:
        records = figures["records"]
        rows += _of_records(records)
        points = records["logging"]["points"]
        text = f"{records['steps']:,} steps, from a quarter on"
        claims += _flat(text, points[len(points) // 4 :], limit_mb=32.0)
    if "tabs" in figures:
        rows += _of_tabs(figures["tabs"])
    else:
        notes.append("tabs were not measured: streamlit was not installed")
    return Report(
        name="load",
        title="Very many processes, runs, records, hours and tabs",
        columns=["what", "figure"],
        rows=rows,
        figures=figures,
        claims=claims,
        notes=notes,
    )


def _of_runs(found: dict[str, Any]) -> list[list[str]]:
    name = f"the list of {found['runs']:,} runs"
    return [
        [f"{name}: first time, including the trends of a page", f"{found['first_s']:.2f} s"],
        [f"{name}: again, nothing changed", f"{found['again_s']:.3f} s"],
        [f"{name}: again, one run changed", f"{found['changed_s']:.3f} s"],
        [f"{name}: searched", f"{found['search_s']:.3f} s"],
        [f"{name}: sorted differently", f"{found['sort_s']:.3f} s"],
        [f"{name}: requesting a deleted run", f"{found['unknown_s']:.3f} s"],
        [f"{name}: memory used", f"{found['held_mb']:.1f} MB"],
        [f"{name}: {found['looks']} refreshes, growth", _growth(found["points"])],
    ]


def _of_day(day: dict[str, Any]) -> list[list[str]]:
    points = day["points"]
    after = min(2, len(points) - 1)
    name = f"{day['lived_s'] / 3600:.0f} hours at two steps per second"
    counts = day["counts"]
    return [
        [f"{name}: steps, sessions", f"{day['steps']:,}, {day['sessions']}"],
        [
            f"{name}: records",
            ", ".join(f"{counts[kind]:,} {kind}" for kind in ("step", "system", "span", "finding")),
        ],
        [f"{name}: on disk", ", ".join(f"{size / 1e6:.1f} MB {file}" for file, size in _largest(day))],
        [f"{name}: growth of the trainer in its last session", _growth(points[-_PARTS_A_SESSION:])],
        [
            f"{name}: growth with new sessions in the same process, from hour {after + 1} on",
            _growth(points[after:]),
        ],
        [
            f"{name}: growth of a watching dashboard",
            _growth([point["dashboard"] for point in points[after:]]),
        ],
        [f"{name}: CPU time of telemetry, all threads", f"{day['cpu_s']:.0f} s"],
    ]


def _largest(day: dict[str, Any]) -> list[tuple[str, int]]:
    return sorted(day["bytes"].items(), key=lambda item: -item[1])[:3]


def _of_records(found: dict[str, Any]) -> list[list[str]]:
    name = f"{found['steps']:,} steps"
    used, points = found["use"], found["logging"]["points"]
    took = dict(used["took"])
    took["load_cpu_s"] += took["first_look_cpu_s"]
    lost = found["steps"] - used["counted"]["steps"]
    return [
        [f"{name}: logged, all threads", f"{found['logging']['cpu_s']:.1f} s"],
        [f"{name}: growth of the trainer from a quarter on", _growth(points[len(points) // 4 :])],
        [f"{name}: lost in the kill", str(lost)],
        [f"{name}: files", f"{used['bytes'] / 1e6:.0f} MB JSONL, {used['csv_bytes'] / 1e6:.0f} MB CSV"],
        *(
            [f"{name}: {words}", f"{took[f'{key}_cpu_s']:.2f} s"]
            for key, words in (
                ("repair", "repaired after the kill, table rebuilt"),
                ("read", "read record by record"),
                ("load", "read into the dashboard's columns"),
                ("load_again", "opened again from cached columns"),
                ("doctor", "examined by every detector"),
                ("ledger", "time ledger computed"),
                ("resume", "resumed and ended again"),
            )
        ),
        [
            f"{name}: memory of the dashboard's columns",
            f"{used['held']['load_mb'] - used['held']['read_mb']:.0f} MB",
        ],
    ]


def _of_writers(found: dict[str, Any]) -> list[list[str]]:
    name = f"{found['processes']} processes with {found['steps']:,} steps each"
    there, watched = found["found"], found["watched"]
    return [
        [
            f"{name}: records, lost, mixed up, leftover files",
            f"{there['records']:,}, {there['lost']}, {there['foreign']}, {there['left_over']}",
        ],
        [f"{name}: slowest start", f"{max(found['start_s']):.1f} s wall time"],
        [f"{name}: total", f"{found['cpu_s']:.0f} s"],
        [
            f"{name}: dashboard refreshes meanwhile, bad lines seen",
            f"{watched['looks']}, {watched['bad_lines']}",
        ],
    ]


def _of_tabs(found: dict[str, Any]) -> list[list[str]]:
    name = f"{found['tabs'] * found['rounds']} tabs opened and closed, four pages each"
    return [[f"{name}: growth of the server", _growth(found["points"])]]


def _growth(points: list[dict[str, Any]]) -> str:
    first, last = points[0], points[-1]
    return (
        f"{last['rss_mb'] - first['rss_mb']:+.1f} MB, {last['files'] - first['files']:+.0f} files, "
        f"{last['threads'] - first['threads']:+.0f} threads"
    )


def _flat(text: str, points: list[dict[str, Any]], *, limit_mb: float) -> list[Claim]:
    first, last = points[0], points[-1]
    return [
        Claim(
            text=f"memory after {text}", measured=last["rss_mb"] - first["rss_mb"], limit=limit_mb, unit=" MB"
        ),
        Claim(text=f"open files after {text}", measured=last["files"] - first["files"], limit=0.0, unit=""),
    ]


if __name__ == "__main__":
    run_alone(build)
