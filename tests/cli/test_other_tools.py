"""`ls`, `compare`, `tail` and `gc` on logs that other tools wrote: every run is listed, and nothing is changed."""

from __future__ import annotations

import json
import os
import sqlite3

import pytest

from tests.exchange.commands import telemetry
from tests.importers.samples import fingerprint, ours
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.importers.detect import find_sources
from toolkit.telemetry.runfolder.folder_list import is_run_folder, run_folders
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runs.sources.local_store import LocalStore


def test_every_run_of_every_tool_is_listed_and_no_file_is_changed(capsys, monkeypatch):
    samples = ours()
    before = fingerprint(samples)

    listed = telemetry(capsys, "ls", samples, "--deleted")["runs"]
    assert len(listed) == len(find_sources(samples).runs)
    assert all(run["status"] != "unreadable" for run in listed), listed
    assert [run for run in listed if run["step"] is not None and run["loss"] is not None]

    inside = [run for run in listed if not os.path.lexists(run["path"])]
    assert inside, "some are one of several in a file"
    for run in inside:
        assert telemetry(capsys, "show", run["path"])["runs"][0]["name"] == run["name"]

    assert len(telemetry(capsys, "compare", samples)["runs"]) == min(
        50, len(listed) - sum(r["deleted"] for r in listed)
    )
    for place in sorted(path for path in samples.iterdir() if path.is_dir()):
        capsys.readouterr()
        code = main(["tail", str(place), "-n", "3", "--json"])
        out, err = capsys.readouterr()
        assert (code == 0 and all(map(json.loads, out.splitlines()))) or (code == 2 and " runs (" in err), (
            place,
            err,
        )
    monkeypatch.setattr("toolkit.telemetry.cli.leftovers.shared_memory_folders", list)
    assert main(["gc", str(samples), "--yes", "--keep-cache", "--older-than", "5200w"]) == 0

    assert fingerprint(samples) == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        # As Sacred 0.8 and ClearML 2.1 write them.
        ("run.json", {"command": "main", "experiment": {"name": "ex"}, "heartbeat": "2026-11-17T18:06:52"}),
        ("metrics.jsonl", [{"type": "training_stats_scalar", "metric": "loss", "value": 1.0, "iter": 0}]),
        ("metrics.jsonl", {"loss": 1.0}),
    ],
    ids=["Sacred", "ClearML", "no event"],
)
def test_a_file_with_a_name_of_ours_does_not_make_a_folder_ours(name, content, tmp_path, capsys):
    folder = tmp_path / "logs" / "1"
    folder.mkdir(parents=True)
    (folder / name).write_text(json.dumps(content) + "\n")
    before = fingerprint(tmp_path)

    assert main(["repair", str(folder)]) == 2
    assert f"its {name} is another program's; nothing was changed" in capsys.readouterr().err
    for command in ("ls", "doctor", "show"):
        main([command, str(folder.parent)])
        printed = "".join(capsys.readouterr())
        assert "unreadable" not in printed, command
        assert "repair" not in printed, command
    assert not is_run_folder(folder)
    assert run_folders([folder.parent]) == []
    assert (
        LocalStore([folder.parent], cache_dir=None, labels_dir=None, other_tools=True).list_runs().cards == ()
    )
    assert fingerprint(tmp_path) == before


def test_a_run_has_the_same_name_in_a_list_and_alone_from_any_folder(capsys, monkeypatch):
    for name in ("wandb/offline_0_31", "dvclive/live_3_49", "ai_toolkit/nan_values"):
        place = ours() / name
        monkeypatch.chdir(place)
        named = []
        for arguments in (["ls", str(place)], ["ls", "."], ["show", str(place)], ["show", "."]):
            named.append(sorted(run["name"] for run in telemetry(capsys, *arguments)["runs"]))
        assert named[0] == named[1] == named[2] == named[3]
        assert all(named[0])


def test_the_reason_why_there_is_no_run_is_the_right_one(tmp_path, capsys):
    database = tmp_path / "db" / "mlflow.db"
    database.parent.mkdir()
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE runs (run_uuid TEXT)")
    connection.close()
    store = tmp_path / "mlruns" / "0" / "0123456789abcdef0123456789abcdef"
    (store / "metrics").mkdir(parents=True)
    (store / "metrics" / "loss").write_text("1700000000000 0.5 1\n")
    (store.parent / "meta.yaml").write_text("experiment_id: '0'\nname: x\nlifecycle_stage: active\n")
    (store / "meta.yaml").write_text(
        f"run_id: {store.name}\nexperiment_id: '0'\nlifecycle_stage: deleted\nstatus: 3\nstart_time: 1\n"
    )
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.csv").write_text("")
    for path, reason in {
        "db": "no run in mlflow.db",
        "mlruns": "the run there is deleted",
        "empty": "the folder is empty",
        "empty.csv": "the file is empty",
        "gone": "it does not exist",
    }.items():
        assert main(["ls", str(tmp_path / path)]) == 2
        assert reason in capsys.readouterr().err, path


def test_the_json_of_our_own_run_has_its_id_and_its_configuration(tmp_path, capsys):
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False) as log:
        log.log_start(config={"lr": 0.1})
        log.log_step(1, train_loss=1.0)
    [run] = telemetry(capsys, "show", tmp_path / "run")["runs"]
    assert run["run_id"] == read_manifest(tmp_path / "run").run_id
    assert run["config"]["lr"] == 0.1
    assert not {"event", "time", "seq", "pid", "config"} & set(run["config"])


@pytest.mark.parametrize(
    "command",
    [
        *(["ls"], ["ls", "--json"], ["show"], ["show", "--json"], ["tail"], ["doctor"]),
        *(["compare", "--all"], ["compare", "--json"]),
        *(
            ["report"],
            ["report", "--json"],
            ["report", "--view", "sweep"],
            ["report", "--html", "out/a.html"],
        ),
        *(["export", "--to", "csv", "--out", "out/a"], ["export", "--to", "run-folder", "--out", "out/b"]),
    ],
    ids=" ".join,
)
def test_no_command_prints_or_writes_a_secret_of_another_tools_settings(
    command, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    token, password = "hf_" + "aBcDeFgHiJ" * 3 + "kLm7", "correct-horse-staple"
    for number in range(2):
        run = tmp_path / "mlruns" / "0" / f"{number:032x}"
        for folder in ("params", "metrics", "tags"):
            (run / folder).mkdir(parents=True)
        (run / "meta.yaml").write_text(
            f"run_id: a{run.name}\nexperiment_id: '0'\nrun_name: run {number} {token}\nstatus: 3\n"
        )
        for name, value in (("hub", f"{token}{number}"), ("db_password", password), ("lr", f"0.{number}1")):
            (run / "params" / name).write_text(value)
        (run / "tags" / "note").write_text(f"used {token}")
        (run / "metrics" / "loss").write_text("1700000000000 1.5 0\n1700000001000 0.5 1\n")
    (tmp_path / "out").mkdir()
    place = tmp_path / "mlruns" / ("0/" + "0" * 32 if command[0] in ("tail", "doctor") else "")

    assert main([command[0], str(place), *command[1:]]) in (0, 1)

    printed = "".join(capsys.readouterr())
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    written = "".join(map(str, files)) + "".join(path.read_text("utf-8", "replace") for path in files)
    assert printed or written
    assert token not in printed + written
    assert password not in printed + written
