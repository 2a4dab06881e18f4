"""Where things are changed: `python -m tests.project.places` writes the table of docs/architecture.md from this."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- places: written by `make docs` -->", "<!-- end of places -->"
PLACES = {
    "what a script can call": "toolkit.telemetry.logger.logger:TelemetryLogger",
    "a well-known field of a step": "toolkit.telemetry.logger.records.folded_metrics:COLUMNS",
    "the folder name of a second run": "toolkit.telemetry.runfolder.layout:candidate_names",
    "the folders of a run on several nodes": "toolkit.telemetry.runfolder.node_folders",
    "how often run.json is written": "toolkit.telemetry.logger.session.live_run:_HEARTBEAT_EVERY_S",
    "which records and fields are in metrics.csv": "toolkit.telemetry.runfolder.table.columns:WITHOUT_ROWS",
    "which numbers of a record are curves": "toolkit.telemetry.runfolder.metrics:metrics_of",
    "when a run is lost, stalled or running": "toolkit.telemetry.runfolder.status:work_out_status",
    "limits of a request to a run": "toolkit.telemetry.runfolder.control:LOG_EVERY_PAUSE_S",
    "a span's name and ledger entry": "toolkit.telemetry.timing.names:ENTRY_OF",
    "a detector's threshold": "toolkit.telemetry.diagnostics.thresholds",
    "the words of a finding": "toolkit.telemetry.diagnostics.catalogue:CATALOGUE",
    "the names of the loss, learning rate, …": "toolkit.telemetry.diagnostics.metric_aliases:signal_of",
    "a run's name in a list": "toolkit.telemetry.runs.labels:labels_of",
    "search and sort of a list": "toolkit.telemetry.runs.listing.search:sort_cards",
    "a column of a list": "toolkit.telemetry.runs.listing.run_table:columns_of",
    "which points of a curve are drawn": "toolkit.telemetry.runs.columns.thinning:first_lowest_highest_last",
    "what a sweep answers": "toolkit.telemetry.runs.sweep.answer:answer",
    "what a report contains": "toolkit.telemetry.reports.stored_run:content_of_run",
    "a table in ClickHouse": "toolkit.telemetry.fleet.schema",
    "how often a page refreshes": "dashboard.session:refresh_seconds",
    "where the cache and other files of a user are": "toolkit.telemetry.core.user_folders:user_folder",
    "how a curve is drawn": "dashboard.components.curve_chart",
}
"""What someone may want to change, and the module, or the name in it, where that is."""


def places():
    """Return the table of places; each is looked up in the code."""
    lines = ["| to change | go to (below `toolkit/telemetry`, or `dashboard`) |", "|---|---|"]
    for what, place in PLACES.items():
        module, _, name = place.partition(":")
        path = ROOT / module.replace(".", "/")
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        assert file.exists(), f"{what}: {file} does not exist"
        assert not name or name in _defined(file), f"{what}: {module} does not define {name}"
        shown = path.relative_to(ROOT).as_posix().removeprefix("toolkit/telemetry/")
        shown += "/" if path.is_dir() else ".py"
        lines.append(f"| {what} | `{shown}" + (f":{name}` |" if name else "` |"))
    return "\n".join(lines)


def _defined(file):
    names = set()
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def written():
    """Return the document with its part that is made from the code as it should be."""
    before, begin, rest = DOCUMENT.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n{places()}\n{end}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(written(), "utf-8")
