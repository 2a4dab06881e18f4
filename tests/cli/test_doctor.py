from __future__ import annotations

import contextlib
import json
import math
import re
import signal
import subprocess
import sys
from dataclasses import asdict
from functools import partial

import pytest

from tests.cli.pseudo_terminal import PseudoTerminal
from tests.dashboard.troubled_runs import steps, with_findings
from tests.fork_server import run_python
from tests.lengths import in_make_faults
from tests.made_runs import write_run
from tests.records import read_records
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.agents.runs import Runs
from toolkit.telemetry.agents.server import READING, call
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.cli.notebook import view_of
from toolkit.telemetry.diagnostics.catalogue import CATALOGUE
from toolkit.telemetry.runfolder.records import MAX_LINE_BYTES
from toolkit.telemetry.runs.findings.health import health
from toolkit.telemetry.runs.sources.local_store import LocalStore


def log_run(folder, name, losses, **declared):
    """Write a run with these losses with the real logger and return its folder."""
    with TelemetryLogger(name, log_dir=folder, log_every=1, system=False) as log:
        for action in declared.get("actions", ()):
            log.declare_action(action)
        for knob in declared.get("knobs", ()):
            log.declare_knob(knob, float, low=0.1, high=2.0, value=1.0)
        for step, loss in enumerate(losses, start=1):
            log.log_step(step, train_loss=loss)
    return folder / name


def falling(count=80):
    return [1.0 / step for step in range(1, count + 1)]


def with_nan(count=80):
    return [math.nan if step in (40, 41) else loss for step, loss in enumerate(falling(count), start=1)]


def with_spike(count=80):
    return [2.0 if step in (50, 51, 52) else loss for step, loss in enumerate(falling(count), start=1)]


REPORTED = with_findings(steps("divergence"))
LOST = {"event": "lost", "session": 1, "time": 1.7e9, "records": 5, "reason": "queue full"}


@pytest.fixture
def bad(tmp_path):
    return log_run(tmp_path / "logs", "bad", with_nan())


@pytest.fixture
def good(tmp_path):
    return log_run(tmp_path / "logs", "good", falling())


@pytest.fixture
def doctor(telemetry):
    return partial(telemetry, "doctor")


def records_in(run):
    return len((run / "metrics.jsonl").read_bytes().splitlines())


# ------------------------------------------------------------ for people


def test_a_run_in_which_nothing_is_wrong_takes_one_line(good, doctor):
    code, out, err = doctor(good)

    assert (code, err) == (0, "")
    assert out == f"good: finished, nothing wrong in {records_in(good)} records\n"


def test_a_finding_is_printed_with_its_steps_causes_and_advice(bad, doctor):
    code, out, _ = doctor(bad)

    assert code == 1
    lines = out.splitlines()
    assert lines[0] == f"bad: finished, 1 critical in {records_in(bad)} records"
    assert lines[2] == "  CRITICAL  Not a number (nan), steps 40 to 41, resolved at 44, certain"
    assert lines[3].startswith("    train_loss is NaN or infinite from step 40 on (2 records)")
    about = CATALOGUE["nan"]
    assert f"    Causes: {about.causes[0]}" in lines
    assert f"            {about.causes[1]}" in lines
    assert about.causes[2] not in out
    assert "    Try:    Go back to the last checkpoint before step 40;" in out


def test_an_open_finding_has_no_end(tmp_path, doctor):
    run = log_run(tmp_path, "r", [*falling(20), math.nan, math.nan])
    _, out, _ = doctor(run)

    assert "(nan), since step 21, certain\n" in out


@pytest.mark.parametrize(
    ("losses", "declared", "asked"),
    [
        (with_nan, {"actions": ["save", "stop"]}, "the run accepts the action 'stop'"),
        (
            with_spike,
            {"actions": ["save"], "knobs": ["lr_scale"]},
            "the run has the knob 'lr_scale', 0.1 to 2.0, 1.0 now",
        ),
        (with_nan, {}, None),
    ],
)
def test_what_would_help_is_offered_where_the_run_declares_it(tmp_path, doctor, losses, declared, asked):
    _, out, _ = doctor(log_run(tmp_path, "r", losses(), **declared))

    assert [line.strip() for line in out.splitlines() if "Ask:" in line] == (
        [f"Ask:    {asked}"] if asked else []
    )


def test_each_run_of_a_folder_has_its_block(bad, good, doctor):
    code, out, _ = doctor(bad.parent)

    assert code == 1
    assert [line.split(":")[0] for line in out.splitlines() if line and line[0] != " "] == ["bad", "good"]
    assert "\n\ngood: finished, nothing wrong" in out


def test_every_run_that_ls_lists_is_judged_also_those_of_other_tools(good, capsys, doctor):
    rows = [f"{step},{'nan' if step == 30 else 1 / step}\n" for step in range(1, 60)]
    for place in ("table", "deep/below"):
        (good.parent / place).mkdir(parents=True)
        (good.parent / place / "curve.csv").write_text("".join(["step,loss\n", *rows]))
    main(["ls", str(good.parent), "--json"])
    listed = {run["label"] for run in json.loads(capsys.readouterr().out)["runs"]}

    code, out, _ = doctor(good.parent, "--json")
    found = {run["run"]: [finding["kind"] for finding in run["findings"]] for run in json.loads(out)["runs"]}

    assert code == 1
    assert found.keys() == listed
    assert sorted(found.values()) == [[], ["nan"], ["nan"]]


def test_a_run_that_has_no_records_yet_is_no_fault(tmp_path, doctor):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "metrics.jsonl").touch()

    assert doctor(tmp_path / "r") == (0, "r: no records yet\n  (there is no run.json)\n", "")


def test_lines_that_are_no_record_are_counted(bad, doctor):
    with (bad / "metrics.jsonl").open("ab") as file:
        file.write(b'nonsense\n[]\n\x00\xff\n{"x":"' + b"x" * MAX_LINE_BYTES + b'"}\n')
    _, out, _ = doctor(bad)

    assert "  (4 unreadable lines)\n" in out


def in_a_terminal(*arguments, **environ):
    """Return what the doctor writes to a terminal, stdout and stderr together."""
    command = [sys.executable, "-m", "toolkit.telemetry.cli", "doctor", *map(str, arguments)]
    terminal = PseudoTerminal(command, env=environ)
    try:
        terminal.wait_for_end()
        return terminal.seen.decode()
    finally:
        terminal.close()


def test_colours_are_for_terminals_that_want_them(bad):
    assert "\x1b[1;31mCRITICAL\x1b[0m" in in_a_terminal(bad)
    # On a slow machine there is a line of progress first.
    assert "\x1b[1;31m" not in in_a_terminal(bad, TERM="dumb")


@in_make_faults
def test_who_waits_at_a_terminal_for_a_long_run_sees_how_far_it_is(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("step,x\n" + "1,1\n" * 200_000)

    assert "\x1b[Klong.csv: 200,000 records …\x1b[G\x1b[K" in in_a_terminal(path)


# ------------------------------------------------------------ how it ended


def fail(message="batch 3 is empty\nof 7"):
    raise ValueError(message)


def failing_run(folder, error=fail, **options):
    """Write a run that an exception ends, and return its folder."""
    with (
        contextlib.suppress(ValueError, MemoryError, SystemExit),
        TelemetryLogger("failing", log_dir=folder, log_every=1, system=False, **options) as log,
    ):
        for step in range(1, 6):
            log.log_step(step, train_loss=1.0 / step)
        with log.span("forward"):
            error()
    return folder / "failing"


def test_a_run_that_an_exception_ended_says_so_first_to_people_and_scripts(tmp_path, doctor):
    run = failing_run(tmp_path)
    code, out, _ = doctor(run)

    assert code == 1
    lines = out.splitlines()
    assert lines[0] == "failing: failed at step 5: ValueError: batch 3 is empty"
    assert re.fullmatch(r"    \S*test_doctor.py:\d+ in fail, in forward", lines[1])
    assert lines[2] == f"    `telemetry show {run} --errors` shows the stack."
    assert lines[3:] == [f"  nothing else wrong in {records_in(run)} records"]

    code, out, _ = doctor(run, "--json")
    found = json.loads(out)
    assert (code, found["status"], found["errors"]) == (1, "failed", [])
    ending = found["ending"]
    assert (ending["status"], ending["is_bad"], ending["step"]) == ("failed", True, 5)
    error = ending["error"]
    assert (error["type"], error["message"]) == ("ValueError", "ValueError: batch 3 is empty\nof 7")
    assert error["where"].endswith(" in fail")
    assert (error["spans"], error["rank"], error["out_of_memory"]) == (["forward"], 0, False)


def test_memory_that_ran_out_is_named(tmp_path, doctor):
    def run_out():
        raise MemoryError("no room for 2 GiB")

    code, out, _ = doctor(failing_run(tmp_path, run_out), "--json")

    assert code == 1
    error = json.loads(out)["ending"]["error"]
    assert (error["type"], error["out_of_memory"]) == ("MemoryError", True)


def test_an_error_that_the_run_survived_is_no_end_and_counts_all_the_same(tmp_path, doctor):
    with TelemetryLogger("r", log_dir=tmp_path, log_every=1, system=False) as log:
        for step in range(3):
            log.log_step(step, train_loss=1.0)
            with contextlib.suppress(ValueError), log.capture_errors():
                fail(f"batch {step}")
    code, out, _ = doctor(tmp_path / "r")

    assert code == 1
    assert out.startswith(f"r: finished, 1 error in {records_in(tmp_path / 'r')} records\n")
    assert "  CRITICAL  Error (ValueError), step 0, 3 times\n    ValueError: batch 0\n" in out
    assert doctor(tmp_path / "r", "--kinds", "nan")[0] == 0


def in_another_process(code, *arguments):
    return run_python(["-c", code, *map(str, arguments)], capture_output=True, text=True, check=False)


KILLED = """
import os, signal, sys
from toolkit.telemetry import TelemetryLogger
log = TelemetryLogger("killed", log_dir=sys.argv[1], log_every=1, system=False)
for step in range(1, 6):
    log.log_step(step, train_loss=1.0 / step)
log.training.checkpoint_save(5).__enter__()
log.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_that_was_killed_is_lost_and_says_what_it_was_in(tmp_path, doctor):
    killed = in_another_process(KILLED, tmp_path)
    code, out, _ = doctor(tmp_path / "killed")

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert code == 1
    lines = out.splitlines()
    assert re.fullmatch(r"killed: lost at step 5: process \d+ is gone and left no end record", lines[0])
    assert lines[1] == "    Open spans: checkpoint_save_sync."
    assert lines[2].startswith("  nothing else wrong in ")


def test_a_run_that_was_asked_to_stop_ended_well(tmp_path, doctor):
    with TelemetryLogger("r", log_dir=tmp_path, log_every=1, system=False) as log:
        log.log_step(1, train_loss=1.0)
        log.close("interrupted")
    code, out, _ = doctor(tmp_path / "r")

    assert code == 0
    assert (
        out == f"r: stopped at step 1 (interrupted), nothing wrong in {records_in(tmp_path / 'r')} records\n"
    )


def test_the_rank_that_failed_first_is_the_one_to_look_at(tmp_path, doctor):
    run = log_run(tmp_path, "r", falling(10))
    records = read_records(run)
    error = {
        "event": "error",
        "session": 1,
        "rank": 2,
        "type": "OSError",
        "message": "OSError: disk",
        "seq": 1,
    }
    end = {"event": "end", "session": 1, "rank": 2, "seq": 2, "status": "failed", "reason": "failed"}
    (run / "ranks").mkdir()
    lines = [{**each, "time": records[-1]["time"] - 1.0} for each in (error, end)]
    (run / "ranks" / "00002.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, out, _ = doctor(run)

    assert code == 1
    assert out.startswith("r: finished at step 10; rank 2 failed: OSError: disk\n")


def test_failures_of_telemetry_are_a_note_and_do_not_make_a_run_unhealthy(tmp_path, doctor):
    with TelemetryLogger("r", log_dir=tmp_path, log_every=1, system=False) as log:
        log.log_step(1, train_loss=1.0)
        log.guard.report("testing", OSError("made up"))
    code, out, _ = doctor(tmp_path / "r")

    assert code == 0
    assert out.startswith("r: finished, nothing wrong")
    assert "  (telemetry itself failed once: testing: OSError: made up)\n" in out


def test_metrics_that_the_table_has_no_column_for_are_said(tmp_path, doctor, caplog):
    with TelemetryLogger("r", log_dir=tmp_path, log_every=1, system=False, close_timeout=60) as log:
        for first in range(0, 2_100, 700):
            log.log({f"m{number}": 1.0 for number in range(first, first + 700)})
    _, out, _ = doctor(tmp_path / "r")

    assert caplog.text.count("metrics.csv has its limit of 2,000 columns") == 1
    assert "metrics.csv has its limit of 2,000 columns" in out


# ------------------------------------------------------------ for scripts


def test_the_json_of_a_run_has_every_field(tmp_path, doctor):
    run = log_run(tmp_path, "r", with_nan(), actions=["stop"])
    code, out, _ = doctor(run, "--json")
    found = json.loads(out, parse_constant=pytest.fail)

    assert code == 1
    (finding,) = found.pop("findings")
    assert found == {
        "run": "r",
        "path": str(run),
        "status": "finished",
        "ending": {
            "status": "finished",
            "why": "finished",
            "sure": True,
            "is_bad": False,
            "step": 80,
            "error": None,
            "inside": [],
            "hang": None,
        },
        "records": records_in(run),
        "bad_lines": 0,
        "notes": [],
        "errors": [],
    }
    assert {name: finding[name] for name in ("kind", "severity", "metric", "start_step", "end_step")} == {
        "kind": "nan",
        "severity": "critical",
        "metric": "train_loss",
        "start_step": 40,
        "end_step": 41,
    }
    assert (finding["noticed_step"], finding["resolved_step"], finding["state"]) == (40, 44, "resolved")
    assert finding["message"].startswith("train_loss is NaN")
    assert len(finding["causes"]) == len(CATALOGUE["nan"].causes)
    assert len(finding["advice"]) == len(CATALOGUE["nan"].advice)
    assert finding["evidence"]["last_good"] == pytest.approx(1 / 39)
    assert finding["remedy"] == "stop"
    assert finding["confidence"] == 1.0


# ------------------------------------------------------------ files of other programs


@pytest.mark.parametrize("name", ["curve.jsonl", "curve.csv"])
def test_a_table_of_another_program_is_judged_by_its_rows(tmp_path, doctor, name):
    path, losses = tmp_path / name, with_nan()
    rows = [json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(losses, start=1)]
    if name.endswith(".csv"):
        rows = ["step, loss ,note", *(f"{step},{loss},x" for step, loss in enumerate(losses, start=1))]
    path.write_text("\n".join([*rows, ""]))
    code, out, _ = doctor(path, "--json")
    found = json.loads(out, parse_constant=pytest.fail)

    assert code == 1
    assert (found["run"], found["records"], found["bad_lines"], found["status"]) == ("curve", 80, 0, None)
    assert [(one["metric"], one["start_step"], one["end_step"]) for one in found["findings"]] == [
        ("loss", 40, 41)
    ]


def test_lines_of_another_program_that_are_no_rows_are_counted(tmp_path, doctor):
    path = tmp_path / "x.jsonl"
    path.write_text('{"step": 1, "loss": 1.0}\n\n[1]\n17\n{\n{"step": 2, "loss": 0.5}\n{"step": 3, "lo')

    assert doctor(path)[1] == "x: nothing wrong in 2 records\n  (3 unreadable lines)\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", ""),
        ("x.jsonl", "\n"),
        ("x.csv", "1,2\n3,4\n"),
        ("x.jsonl", "x\n"),
        ("x.txt", "Notes\nmore of them\n"),
    ],
)
def test_a_file_in_which_nothing_can_be_read_is_reported(tmp_path, doctor, name, content):
    (tmp_path / name).write_text(content)

    for options in ([], ["--json"]):
        code, out, err = doctor(tmp_path / name, *options)
        assert (code, out) == (2, "")
        assert str(tmp_path / name) in err


# ------------------------------------------------------------ what is asked for


def test_other_kinds_than_those_asked_for_count_for_nothing(bad, doctor):
    code, out, _ = doctor(bad, "--kinds", "spike,overfit")

    assert code == 0
    assert out == f"bad: finished, nothing that was asked for, 1 left out, in {records_in(bad)} records\n"
    assert json.loads(doctor(bad, "--kinds", "spike", "--json")[1])["findings"] == []
    assert doctor(bad, "--kinds", "spike, nan")[0] == 1


def test_milder_findings_can_be_left_out(tmp_path, doctor):
    run = log_run(tmp_path, "r", with_spike())

    for severity, kinds in (("info", ["spike"]), ("warning", ["spike"]), ("critical", [])):
        code, out, _ = doctor(run, "--json", "--min-severity", severity)
        assert code == 0
        assert [finding["kind"] for finding in json.loads(out)["findings"]] == kinds


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ("spike,nann", "'nann' is not a kind of finding; did you mean 'nan'? Known: nan, spike,"),
        ("xyzzy", "'xyzzy' is not a kind of finding. Known: nan, spike,"),
        (",", "'' is not a kind of finding. Known: nan, spike,"),
    ],
)
def test_a_kind_that_does_not_exist_is_refused_with_those_that_do(bad, capsys, kinds, said):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", str(bad), "--kinds", kinds])

    assert ended.value.code == 2
    assert said in capsys.readouterr().err


# ------------------------------------------------------------ nothing to read


def test_a_run_that_cannot_be_read_is_reported_and_does_not_hide_the_others(bad, good, doctor):
    (good / "metrics.jsonl").unlink()
    assert doctor(good) == (2, "", f"{good / 'metrics.jsonl'} does not exist\n")
    (good / "metrics.jsonl").symlink_to(bad / "metrics.jsonl")
    code, out, err = doctor(bad.parent, "--json")
    found = json.loads(out)

    assert code == 1
    assert [run["run"] for run in found["runs"]] == ["bad"]
    assert [each["path"] for each in found["unreadable"]] == [str(good)]
    assert err == f"{good}: metrics.jsonl is a symbolic link, not a regular file\n"


def test_it_brings_no_numpy_and_no_logger_along():
    code = (
        "import sys; from toolkit.telemetry.cli.main import main\n"
        "main(['doctor', 'nowhere'])\n"
        "print([name for name in sys.modules if name in ('numpy', 'pandas', 'torch', 'toolkit.telemetry.logger')])"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert finished.stdout == "[]\n"


def test_pages_tables_and_agents_say_what_the_doctor_says(tmp_path, bad, doctor, capsys):
    logs = bad.parent
    own = {"event": "finding", "id": "own", "kind": "mine", "severity": "warning", "message": "Mine."}
    milder = [
        record | {"severity": "info"} if record["event"] == "finding" else record for record in REPORTED
    ]
    write_run(logs, "reported", milder, extra=[own | {"evidence": {"a": "b"}}, LOST])
    store = LocalStore([logs], cache_dir=None)
    agents = Runs([logs])

    for name, kinds in (("bad", ["nan"]), ("reported", ["mine", "divergence"])):
        found = json.loads(doctor(logs / name, "--json")[1])
        store.refresh(name, wait_s=60.0)
        store.examine(name, wait_s=60.0)
        on_page = health(store, name)
        main(["sql", f"select kind, severity from findings where run = '{name}'", str(logs), "--json"])
        table = json.loads(capsys.readouterr().out)["rows"]

        assert [one["kind"] for one in found["findings"]] == kinds
        assert [one.to_fields() | {"remedy": None} for one in on_page.findings] == found["findings"]
        assert json.loads(json.dumps(asdict(on_page.ending))) == found["ending"]
        assert list(on_page.notes) == found["notes"]
        said = [(one["kind"], one["severity"]) for one in found["findings"]]
        assert [tuple(row) if isinstance(row, list) else tuple(row.values()) for row in table] == said
        answer = READING["doctor"](agents, run=name).facts["findings"]
        assert sorted((one["kind"], one["severity"]) for one in answer) == sorted(said)


@pytest.mark.parametrize("is_known", [True, False], ids=["with its size", "without"])
def test_a_copy_that_was_cut_is_said_to_be_cut_everywhere(tmp_path, good, capsys, is_known):
    log, about = good / "metrics.jsonl", good / "run.json"
    lines = log.read_bytes().splitlines(keepends=True)
    if not is_known:
        about.write_text(re.sub('"record_bytes": [0-9]+', '"record_bytes": null', about.read_text()))
    commands = {
        "doctor": ["doctor", good],
        "doctor --json": ["doctor", good, "--json"],
        "ls": ["ls", good],
        "status": ["status", good],
        "show": ["show", good],
        "show --json": ["show", good, "--json"],
        "report": ["report", good],
        "sql": ["sql", "select count(*) from steps", good],
        **{
            f"export {to}": ["export", good, "--to", to, "--force", "--out", tmp_path / f"out-{to}"]
            for to in ("csv", "trace", "zip")
        },
        **{name: [name, good] for name in ("tail", "time", "why")},
        "compare": ["compare", good, good],
        "errors": ["show", good, "--errors"],
    }

    def said():
        codes, cut = {}, set()
        for name, command in commands.items():
            codes[name] = main([*map(str, command)])
            printed = "".join(capsys.readouterr())
            cut |= {name} if "records are missing" in printed else set()
        for name, answer in (
            *((name, call(Runs([good]), READING, name, {"run": "good"})) for name in ("doctor", "forecast")),
            ("why", call(Runs([good]), READING, "why", {"a": "good", "b": "good"})),
            ("notebook", view_of(good, "")),
        ):
            cut |= {f"{name} elsewhere"} if "records are missing" in str(answer) else set()
        return codes, cut

    assert said() == (dict.fromkeys(commands, 0), set())
    log.write_bytes(b"".join(lines[:15]))
    assert said() == (
        {name: int("doctor" in name) for name in commands},
        {*commands, *(f"{name} elsewhere" for name in ("doctor", "forecast", "why", "notebook"))},
    )
    log.unlink()
    assert main(["ls", str(good)]) == 0
    assert f"{len(lines)} of {len(lines)} records are missing" in capsys.readouterr().out
