from __future__ import annotations

import json

import pytest

from tests.exchange.commands import telemetry
from tests.made_runs import BEGAN, append, log_run
from tests.records import read_records
from toolkit.telemetry.cli.main import main


def write(folder, records):
    return append(folder, [{"time": BEGAN + record["elapsed"], "session": 1, **record} for record in records])


@pytest.fixture
def timed_run(tmp_path):
    """A folder with a run of an hour that records where its time went, twice."""
    first = [
        {"event": "start", "elapsed": 0.0, "perf_tag": "h200"},
        {"event": "system", "elapsed": 0.0, "gpu/0/power_w": 500.0},
        {"event": "step", "elapsed": 60.0, "global_step": 1, "ledger/startup": 50.0, "ledger/training": 10.0},
        {
            "event": "step",
            "elapsed": 90.5,
            "global_step": 2,
            "ledger/training": 20.0,
            "ledger/data_wait": 5.5,
        },
        {"event": "end", "elapsed": 90.5},
    ]
    again = {"session": 2, "time": BEGAN + 1000.0}
    second = [
        {"event": "start", "elapsed": 0.0, "resumed_from_step": 1, **again},
        {"event": "end", "elapsed": 7200.0, **again, "time": BEGAN + 8200.0},
    ]
    return write(tmp_path / "logs" / "greyjacket", [*first, *second])


def table(printed):
    rows = [
        line.split("  ")
        for line in printed.splitlines()
        if "%" in line and "odput" not in line and "(" not in line
    ]
    return {row[0]: [cell.strip() for cell in row[1:] if cell.strip()] for row in rows}


def test_the_ledger_is_a_table_that_adds_up(timed_run, capsys):
    code = main(["time", str(timed_run)])

    printed = capsys.readouterr().out
    assert code == 0
    assert printed.startswith("greyjacket: 2 h 1 m of wall time\n")
    assert table(printed) == {
        "training": ["10 s", "0.1 %", "0.00139"],
        "data wait": ["0 s", "0.0 %", "0"],
        "validation": ["0 s", "0.0 %", "0"],
        "checkpoint": ["0 s", "0.0 %", "0"],
        "sampling": ["0 s", "0.0 %", "0"],
        "startup": ["2 h", "99.4 %", "0.00694"],
        "control": ["0 s", "0.0 %", "0"],
        "other spans": ["0 s", "0.0 %", "0"],
        "stalled": ["0 s", "0.0 %", "0"],
        "redone": ["25 s", "0.3 %"],
        "unaccounted": ["5 s", "0.1 %"],
        "total": ["2 h 1 m", "100.0 %", "0.00833"],
    }
    assert "Goodput 0.1 %" in printed
    assert "session 1: 1 m 30 s, goodput 11.0 %, h200" in printed
    assert "15 m 9 s between sessions are not counted." in printed
    assert "(Power is known for 1 % of the time; kWh cover only that part.)" in printed
    assert "inferred" not in printed


def test_inferred_entries_are_marked(tmp_path, capsys):
    steps = [{"event": "step", "elapsed": 30.0 + number, "global_step": number} for number in range(1, 9)]
    code = main(["time", str(write(tmp_path / "plain", steps))])

    printed = capsys.readouterr().out
    assert code == 0
    assert "training *" in printed
    assert "startup *" in printed
    assert "* inferred: " in printed
    assert "kWh" not in printed


def test_scripts_get_all_of_it_as_json(timed_run, capsys):
    code = main(["time", str(timed_run), "--json"])

    answer = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert code == 0
    assert (answer["run"], answer["status"], answer["records"], answer["bad_lines"]) == (
        "greyjacket",
        None,
        7,
        0,
    )
    assert answer["wall_s"] == 7290.5
    assert sum(line["seconds"] for line in answer["lines"]) == pytest.approx(7290.5)
    assert answer["goodput"] == pytest.approx(10.0 / 7290.5)
    assert [session["perf_tag"] for session in answer["sessions"]] == ["h200", None]


def test_a_run_of_the_logger_is_read_with_its_status(tmp_path, capsys):
    folder = log_run(tmp_path, "greyjacket", [1.0, 0.5])
    answer = telemetry(capsys, "time", folder)
    end = read_records(folder)[-1]
    assert (answer["status"], end["event"]) == ("finished", "end")
    assert answer["wall_s"] == pytest.approx(end["elapsed"])


def test_lines_that_are_no_record_are_counted_and_a_run_without_records_is_no_fault(timed_run, capsys):
    with (timed_run / "metrics.jsonl").open("a") as file:
        file.write("no record\n[]\n")
    main(["time", str(timed_run)])
    assert "(2 unreadable lines)" in capsys.readouterr().out

    (timed_run / "metrics.jsonl").write_text("")
    assert main(["time", str(timed_run)]) == 0
    assert "No records yet." in capsys.readouterr().out
