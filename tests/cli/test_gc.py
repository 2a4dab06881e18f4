"""`telemetry gc`: lists what can be deleted, deletes it with --yes, and leaves the rest alone."""

from __future__ import annotations

import json
import time

import pytest

from tests.cli.runs import write_run, write_table
from tests.exchange.commands import telemetry
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.agents.runs import Runs
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.journal.head import Owner
from toolkit.telemetry.runfolder.journal.journal import Journal
from toolkit.telemetry.runfolder.trash import list_trash


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    """A folder for journals of its own: other tests have theirs in shared memory."""
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setattr("toolkit.telemetry.cli.leftovers.shared_memory_folders", lambda: [folder])
    return folder


@pytest.fixture
def logs(tmp_path, monkeypatch):
    """Folders of runs with one leftover of each kind."""
    place = tmp_path / "logs"
    write_run(place, "kept", [1.0])
    write_table(place / "other_tool" / "metrics.csv", [1.0])
    gone = write_run(place, "gone", [1.0])
    trash = place / ".trash" / f"{int((time.time() - 86_400) * 1000)}-0123abcd"
    trash.mkdir(parents=True)
    gone.rename(trash / "gone")
    (place / ".trash" / "not-ours").mkdir()
    (place / "kept" / ".run.json.0123456789abcdef.tmp").write_text("{")
    (place / "kept" / ".mine").write_text("")
    TelemetryLogger("no-steps", log_dir=place, system=False).close()
    cache = tmp_path / "ai-toolkit-telemetry"
    cache.mkdir()
    for ending in ("arrow", "findings"):
        (cache / f"{'0' * 32}.{ending}").write_bytes(b"x" * 1000)
    (cache / "mine.txt").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return place


def tree(place):
    return sorted(str(path) for path in place.parent.rglob("*"))


def gc(capsys, *arguments):
    """Return the JSON that the command prints, and the path of each kind."""
    found = telemetry(capsys, "gc", *map(str, arguments))
    return found, {item["kind"]: item["path"] for item in found["found"]}


def test_everything_is_listed_and_nothing_is_deleted(logs, capsys):
    before = tree(logs)
    found, kinds = gc(capsys, logs)

    assert found["deleted"] is False
    assert set(found) == {"found", "deleted", "bytes", "failed"}
    assert kinds == {
        "trash": str(next((logs / ".trash").glob("*-0123abcd"))),
        "half-written file": str(logs / "kept" / ".run.json.0123456789abcdef.tmp"),
        "cache": str(logs.parent / "ai-toolkit-telemetry"),
    }
    assert main(["gc", str(logs)]) == 0
    assert "Nothing was deleted" in capsys.readouterr().out
    assert tree(logs) == before


def test_with_yes_that_is_deleted_and_nothing_else(logs, capsys):
    before = tree(logs)
    assert main(["gc", str(logs), "--yes", "--empty-runs"]) == 0

    assert "deleted: " in capsys.readouterr().out
    left = tree(logs)
    assert [path for path in left if path not in before and f"{logs}/.trash/" not in path] == []
    lost = [path.removeprefix(str(logs.parent)) for path in before if path not in left]
    assert {path.split("/")[2] for path in lost} <= {
        ".trash",
        "kept",
        "no-steps",
        *(f"{'0' * 32}.{ending}" for ending in ("arrow", "findings")),
    }
    for kept in (
        "kept/metrics.jsonl",
        "kept/.mine",
        ".trash/not-ours",
        "other_tool/metrics.csv",
    ):
        assert (logs / kept).exists(), kept
    assert not (logs / "no-steps").exists()
    assert (logs.parent / "ai-toolkit-telemetry" / "mine.txt").exists()
    assert [run.name for run in list_trash(logs)] == ["no-steps"]
    assert main(["gc", str(logs), "--yes"]) == 0
    assert capsys.readouterr().out.startswith("kind")
    assert main(["gc", str(logs)]) == 0
    assert capsys.readouterr().out == "nothing to delete\n"


def test_what_is_younger_is_left(logs, capsys):
    assert set(gc(capsys, logs, "--older-than", "2h")[1]) == {"trash"}
    assert set(gc(capsys, logs, "--older-than", "2d", "--keep-cache")[1]) == set()
    with pytest.raises(SystemExit):
        main(["gc", str(logs), "--older-than", "soon"])


def test_no_value_of_a_step_that_a_resume_did_again_is_the_best_anywhere(tmp_path, capsys):
    """The first session reached 0.01 at step 9; the second one began again at step 6."""
    for first, accuracies in ((1, [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99]), (6, [0.65, 0.5])):
        with TelemetryLogger("again", log_dir=tmp_path, log_every=1, system=False, resume=first > 1) as log:
            for step, accuracy in enumerate(accuracies, first):
                others = {"val_loss": 1 - accuracy} if step != 7 else {}
                log.log_step(step, train_loss=1 - accuracy, accuracy=accuracy, **others)
    write_run(tmp_path, "once", [0.34])
    capsys.readouterr()

    def asked(*arguments):
        return telemetry(capsys, *arguments)

    names = ("best:accuracy", "best:val_loss", "val_loss")
    columns = [part for name in names for part in ("--columns", name)]
    listed = asked("ls", str(tmp_path), "--sort", "best:accuracy", "--reverse", *columns)["runs"]
    found = [[run["name"], *(run[name] for name in names)] for run in listed]
    assert found == [
        ["again", 0.65, pytest.approx(0.35), pytest.approx(0.35)],
        ["once", pytest.approx(0.66), None, None],
    ]
    assert [run["name"] for run in asked("ls", str(tmp_path), "--filter", "best:accuracy>0.66")["runs"]] == []
    rows = {
        row["name"]: row for row in asked("compare", *(str(tmp_path / run[0]) for run in found))["metrics"]
    }
    assert rows["accuracy"]["best"] == [0.65, pytest.approx(0.66)]
    assert rows["val_loss"]["last"] == [pytest.approx(0.35), None]
    known = Runs([tmp_path])
    best = known.best(known.card("again"), "accuracy")
    assert best is not None
    assert best[:3] == (0.65, 2, 6)


def test_a_run_that_is_written_now_is_left_alone(tmp_path, capsys):
    log = TelemetryLogger("now", log_dir=tmp_path, system=False)
    try:
        (log.run_folder / ".run.json.0123456789abcdef.tmp").write_text("{")
        assert gc(capsys, tmp_path, "--yes", "--empty-runs", "--keep-cache")[1] == {}
        assert (log.run_folder / ".run.json.0123456789abcdef.tmp").exists()
    finally:
        log.close()


def test_journals_of_dead_runs_go_if_nothing_is_lost_or_it_is_allowed(tmp_path, memory, capsys):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "metrics.jsonl").write_text("")
    paths = {}
    for number, (name, folder) in enumerate((("empty", "there"), ("needed", "there"), ("orphan", "gone"))):
        owner = Owner(run_id=name, session=number + 1, started=1.7e9)
        journal = Journal.create([memory], tmp_path / folder / "metrics.jsonl", owner)
        if name != "empty":
            journal.append(encode({"event": "step", "time": 1.7e9, "seq": 0, "session": number + 1}))
        journal.close(remove=False)
        paths[name] = journal.path
    live = Journal.create(
        [memory], tmp_path / "gone" / "metrics.jsonl", Owner(run_id="l", session=9, started=1.0)
    )

    found, _ = gc(capsys, tmp_path, "--yes", "--keep-cache")
    assert [item["path"] for item in found["found"]] == [str(paths["empty"])]
    assert not paths["empty"].exists()
    found, _ = gc(capsys, tmp_path, "--yes", "--keep-cache", "--orphans")
    assert [item["path"] for item in found["found"]] == [str(paths["orphan"])]
    assert paths["needed"].exists()
    assert live.path.exists()
    live.close(remove=True)


def test_runs_go_to_the_trash_by_name_and_by_age_with_the_bytes_said_first(tmp_path, capsys):
    old, new = write_run(tmp_path, "old", [1.0]), write_run(tmp_path, "new", [1.0])
    text = (old / "run.json").read_bytes()
    manifest = json.loads(text)
    for place in (manifest["heartbeat"], manifest["sessions"][0]):
        place.update({name: 1.7e9 for name in ("time", "started", "ended") if name in place})
    (old / "run.json").write_text(json.dumps(manifest))
    live = TelemetryLogger("live", log_dir=tmp_path, system=False)

    assert main(["gc", str(tmp_path), "--older-than", "90d", "--keep-cache"]) == 0
    assert "1 runs are older than that too, " in capsys.readouterr().out
    assert main(["gc", str(tmp_path), "--runs"]) == 2
    found, kinds = gc(capsys, tmp_path, "--older-than", "90d", "--runs", "--keep-cache", "--yes")
    assert kinds == {"old run": str(old)}
    assert found["bytes"] > 1000

    capsys.readouterr()
    assert main(["rm", str(new)]) == 0
    assert "kB in all. Nothing was deleted" in capsys.readouterr().out
    assert new.exists()
    for path, reason in ((tmp_path, "is no run of ours"), (live.run_folder, "is being written now")):
        assert main(["rm", str(path), "--yes"]) == 2
        assert reason in capsys.readouterr().err
    assert main(["rm", str(new), "--yes"]) == 0
    assert {run.name for run in list_trash(tmp_path)} == {"old", "new"}
    live.close()
