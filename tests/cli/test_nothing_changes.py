"""Whatever command is pointed at another tool's folder: nothing in it changes, not even a time."""

from __future__ import annotations

import pytest

from tests.importers import samples
from tests.lengths import in_make_faults
from toolkit.telemetry.cli.main import SUBCOMMANDS, main

COMMANDS = {
    "ask": [["{run}", "--log-every", "5", "--timeout", "1"]],
    "compare": [["{run}", "{run}"], ["{run}", "--json"]],
    "doctor": [["{run}"], ["{run}", "--json"]],
    "export": [
        ["{run}", "--to", "csv", "--out", "{out}.csv"],
        ["{run}", "--to", "tensorboard", "--out", "{out}-tensorboard"],
        ["{run}", "--to", "run-folder", "--out", "{out}-logs"],
        ["{run}", "--to", "trace", "--out", "{out}.trace.json"],
        ["{run}", "--to", "zip", "--out", "{out}.zip"],
    ],
    "forecast": [["{run}"], ["{run}", "--json"], ["{run}", "--stopping"], ["{run}", "--stopping", "--json"]],
    "gc": [["{run}", "--yes", "--empty-runs", "--keep-cache"]],
    "ls": [["{run}"], ["{run}", "--json", "--deleted"]],
    "repair": [["{run}"]],
    "logs": [["{run}"], ["{run}", "--grep", "x"]],
    "report": [["{run}", "--html", "{out}.html", "--markdown", "{out}.md"], ["{run}", "--view", "compare"]],
    "rm": [["{run}", "--yes"]],
    "setup": [["ai-toolkit", "status", "{run}"], ["ai-toolkit", "detach", "{run}"]],
    "show": [
        ["{run}", *form, *json] for form in ([], ["--errors"], ["--completions"]) for json in ([], ["--json"])
    ],
    "sql": [["from steps", "{run}"], ["from findings", "{run}", "--json"]],
    "status": [["{run}"]],
    "tail": [["{run}"], ["{run}", "--json"]],
    "time": [["{run}"], ["{run}", "--json"]],
    "verdict": [["{run}", "--against", "{run}"], ["{run}", "--against", "{run}", "--json"]],
    "why": [["{run}", *other, *json] for other in ([], ["{run}"]) for json in ([], ["--json"])],
}
OTHERS = {
    "dashboard": "tests/dashboard/views/test_other_tools.py",
    "mcp": "serves until it is stopped: evaluations/agents.py looks for changes",
    "metrics": "serves until it is stopped",
    "copy": "takes run folders of ours only: tests/fleet",
    "ship": "takes run folders of ours only: tests/fleet",
    "top": "draws until it is stopped",
}
FEW = ("ai_toolkit/killed_wal", "wandb/offline_0_31")


def run_every_command(folder, out):
    """Run each command on a folder; return how many times one was run."""
    before = samples.fingerprint(folder)
    number = 0
    for name, variants in COMMANDS.items():
        for words in variants:
            number += 1
            arguments = [word.format(run=folder, out=out / f"{name}{number}") for word in words]
            try:
                code = main([name, *arguments])
            except SystemExit as stop:
                raise AssertionError(f"{name} does not take {arguments}") from stop
            assert code in (0, 1, 2, 3), name
            assert samples.fingerprint(folder) == before, (name, words)
    return number


@pytest.fixture(autouse=True)
def _no_journals_of_other_tests(monkeypatch, tmp_path):
    monkeypatch.setattr("toolkit.telemetry.cli.leftovers.shared_memory_folders", list)
    monkeypatch.chdir(tmp_path)


def test_every_command_is_tried():
    assert {*COMMANDS, *OTHERS} == {*SUBCOMMANDS}


@pytest.mark.parametrize("name", FEW)
def test_no_command_changes_another_tools_folder(name, tmp_path):
    assert run_every_command(samples.ours() / name, tmp_path) > len(COMMANDS)


@in_make_faults
@pytest.mark.parametrize("root", [samples.ours(), samples.OTHERS], ids=["ours", "public"])
def test_no_command_changes_any_sample(root, tmp_path, record_property):
    names = samples.names(root) if root.is_dir() else []
    if not names:
        pytest.skip("needs ../shared/foreign, logs from public repositories")
    times = sum(run_every_command(root / name, tmp_path / str(at)) for at, name in enumerate(names))
    record_property("measured", f"{times:,} commands on {len(names)} folders, 0 changed")
