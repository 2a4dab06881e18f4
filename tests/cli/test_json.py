"""Every command with `--json` prints one JSON value with the fields that its help lists, and nothing else."""

from __future__ import annotations

import json

import pytest

from tests.cli.runs import write_run
from toolkit.telemetry.cli.main import SUBCOMMANDS, main, parser_of, subcommand_of

MESSAGES = """
job: extension
config:
  name: x
  process:
  - type: x
    telemetry:
      messages:
      - {to: webhook, url_env: NO_SUCH_HOOK}
      - {to: slack, url_env: HOOK}
"""

COMMANDS = {
    "ask": (["RUN"], 0),
    "compare": (["RUN", "OTHER"], 0),
    "doctor": (["RUN"], 0),
    "export": (["RUN", "--to", "csv", "--out", "TABLE"], 0),
    "export --to trace": (["RUN", "--out", "TRACE"], 0),
    "export --to zip": (["RUN", "--out", "ZIP"], 0),
    "forecast": (["RUN"], 3),
    "forecast --stopping": (["LOGS"], 3),
    "gc": (["LOGS", "--keep-cache"], 0),
    "logs": (["RUN"], 0),
    "ls": (["LOGS"], 0),
    "repair": (["RUN", "OTHER"], 0),
    "report": (["RUN"], 0),
    "rm": (["RUN"], 0),
    "setup ai-toolkit": (["attach", "CHECKOUT"], 0),
    "setup message": (["YAML", "--show"], 1),
    "setup usage": (["RUN"], 0),
    "show": (["RUN"], 0),
    "show --completions": (["RUN"], 0),
    "show --errors": (["RUN"], 0),
    "sql": (["select count(*) as rows from runs", "LOGS"], 0),
    "status": (["RUN"], 0),
    "tail": (["RUN", "-n", "1"], 0),
    "time": (["RUN"], 0),
    "verdict": (["RUN", "--against", "OTHER"], 3),
    "why": (["RUN", "OTHER"], 3),
    "why of one": (["RUN"], 0),
}
LS = (
    "name label path format id status why step loss loss_metric started last_sign age_s project tags deleted problem"
).split()
"""The fields of a run, which compare has too."""

ELSEWHERE = {"copy", "ship"}
"""Those are in tests/fleet. The JSON of plug-ins: tests/core/test_plugins.py."""


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    place = tmp_path_factory.mktemp("json")
    logs = place / "logs"
    run = write_run(logs, "run", [0.5, 0.25])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"event": "completion", "time": 1.0, "seq": 99, "session": 1, "completion": "a"}\n')
    (run / "output.log").write_text("one line\n")
    checkout = place / "checkout"
    (checkout / "extensions").mkdir(parents=True)
    (checkout / "toolkit").mkdir()
    (checkout / "jobs").mkdir()
    (checkout / "toolkit" / "job.py").write_text("")
    (checkout / "run.py").write_text("")
    (place / "job.yaml").write_text(MESSAGES)
    foreign = place / "foreign"
    foreign.mkdir()
    (foreign / "metrics.csv").write_text("step,train_loss\n0,0.5\n1,0.25\n")
    return {
        "RUN": run,
        "OTHER": write_run(logs, "other", [0.5]),
        "LOGS": logs,
        "CHECKOUT": checkout,
        "YAML": place / "job.yaml",
        "ZIP": place / "run.zip",
        "TRACE": place / "trace.json",
        "TABLE": place / "table.csv",
        "FOREIGN": foreign,
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_the_fields_are_the_documented_ones(name, places, capsys, monkeypatch):
    monkeypatch.setenv("HOOK", "https://hooks.example.com/T0/s3cr3t")
    arguments, code = COMMANDS[name]
    capsys.readouterr()

    words = [*name.removesuffix(" of one").split(), *(str(places.get(word, word)) for word in arguments)]
    assert main([*words, "--json"]) == code, capsys.readouterr()
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "s3cr3t" not in out
    found = json.loads(out)
    form = subcommand_of(words[0]).JSON_FORM
    if words[0] not in ("doctor", "show", "tail"):
        for value in (
            found,
            *(item for items in found.values() if isinstance(items, list) for item in items),
        ):
            for field in value if isinstance(value, dict) else ():
                assert f"`{field}`" in form or f'"{field}"' in form or (name == "compare" and field in LS), (
                    field
                )


def test_no_command_is_left_out():
    with_json = {name for name in SUBCOMMANDS if hasattr(subcommand_of(name), "JSON_FORM")}
    assert with_json == {name.split()[0] for name in COMMANDS} | ELSEWHERE
    assert with_json - {"setup"} == {
        name for name in SUBCOMMANDS if "--json" in parser_of(name).format_usage()
    }
    assert set(SUBCOMMANDS) - with_json == {"dashboard", "mcp", "metrics", "top"}
