"""`telemetry copy` to a shared folder or a bucket and back: whole run folders, and again only what changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tests.fleet.engines import ROOT
from tests.fleet.s3_server import BUCKET
from tests.fleet.shipped_runs import append, log_run, make_run, write
from tests.lengths import in_make_faults
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.fleet.run_folders import MAX_BYTES
from toolkit.telemetry.runfolder.labels import Labels, write_labels
from toolkit.telemetry.runfolder.manifest import Heartbeat, read_manifest, write_manifest
from toolkit.telemetry.runs.sources.local_store import LocalStore

AN_HOUR_S = 3600


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


def copied(*arguments):
    """Return the answer of the command."""
    assert main(["copy", *map(str, arguments)]) == 0


def counts(capsys, *arguments):
    capsys.readouterr()
    copied(*arguments, "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["failed"] == 0
    return found["runs"], found["unchanged"], found["files"]


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("control.json", ".copy")
    }


def long_ago(folder):
    """Have all files of a folder changed an hour ago: what changed just now is copied once more."""
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - AN_HOUR_S,) * 2)


def test_runs_of_a_node_are_the_same_on_a_page_over_a_shared_folder(logs, place, tmp_path, capsys):
    folder = log_run(logs, "logged")
    append(folder, range(5), rank=2)
    write_labels(folder, Labels(notes="kept"))
    make_run(logs, "second")
    (folder / "control.json").write_text("{}")
    (folder / ".hidden").write_text("x")
    os.symlink("/etc/passwd", folder / "samples.png")
    (folder / "weights.safetensors").write_bytes(bytes(MAX_BYTES + 1))
    expected = contents(folder)
    for name in (".hidden", "samples.png", "weights.safetensors"):
        del expected[name]
    long_ago(logs)

    assert counts(capsys, logs, "--to", place.as_uri()) == (2, 0, len(expected) + 2)

    assert contents(place / "logged") == expected
    shared, own = LocalStore([place], cache_dir=None), LocalStore([logs], cache_dir=None)
    assert [card.name for card in shared.list_runs().cards] == [card.name for card in own.list_runs().cards]
    assert shared.series("logged", "train_loss") == own.series("logged", "train_loss")
    assert shared.meta("logged").labels.notes == "kept"

    back = tmp_path / "back"
    assert counts(capsys, "logged", "--from", place.as_uri(), "--to", back) == (1, 0, len(expected))
    assert contents(back / "logged") == expected
    assert not (back / "second").exists()
    assert counts(capsys, "--from", place.as_uri(), "--to", back) == (1, 1, 2)


def test_only_what_changed_is_copied_again_also_of_a_live_run(logs, place, tmp_path, capsys):
    live, ended = make_run(logs, "live"), make_run(logs, "ended")
    manifest = read_manifest(live)
    session = replace(manifest.sessions[0], pid=os.getpid(), status="running")
    write_manifest(live, replace(manifest, sessions=(session,)))
    long_ago(logs)
    to, back = ("--to", place.as_uri()), ("--from", place.as_uri(), "--to", tmp_path / "back")
    assert counts(capsys, logs, *to) == (2, 0, 4)
    assert counts(capsys, *back) == (2, 0, 4)
    assert counts(capsys, logs, *to) == counts(capsys, *back) == (0, 2, 0)

    append(live, range(20, 30))

    assert counts(capsys, logs, *to) == counts(capsys, *back) == (1, 1, 1)
    assert contents(tmp_path / "back" / "live") == contents(live)
    assert contents(tmp_path / "back" / "ended") == contents(ended)
    # It may be a minute old, and its process may have ended since: that says nothing of the run.
    for age_s, status in ((100, "running"), (1000, "lost")):
        beat = Heartbeat(time=time.time() - age_s, seq=1)
        write_manifest(live, replace(manifest, sessions=(replace(session, pid=2**22),), heartbeat=beat))
        counts(capsys, logs, *to)
        assert LocalStore([place], cache_dir=None).card("live").status.name == status
        assert LocalStore([logs], cache_dir=None).card("live").status.name == "lost"
    # A change of the same size is seen by its time.
    path = ended / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b"1.0", b"9.0"))
    assert counts(capsys, ended, *to) == (1, 0, 1)
    assert contents(place / "ended") == contents(ended)


def test_another_run_of_the_same_name_is_refused_in_both_directions(logs, place, tmp_path, capsys):
    make_run(logs, "same")
    copied(logs, "--to", place.as_uri())
    before = contents(place)
    other = make_run(tmp_path / "elsewhere", "same", 5)
    mine = contents(other)

    assert main(["copy", str(other), "--to", place.as_uri()]) == 1
    assert "same is not copied: another run has the name same in" in capsys.readouterr().err
    assert main(["copy", "--from", place.as_uri(), "--to", str(other.parent)]) == 1
    assert "same is not copied: another run has the name same in" in capsys.readouterr().err
    assert main(["copy", str(logs), str(other), "--to", place.as_uri()]) == 0
    assert f"{other} is not copied: it has the name of {logs / 'same'}" in capsys.readouterr().err

    assert contents(place) == before
    assert contents(other) == mine


def test_a_copy_that_was_resumed_is_a_run_of_its_own(logs, place, tmp_path, capsys):
    back = tmp_path / "back"
    make_run(logs, "run")
    copied(logs, "--to", place.as_uri())
    copied("--from", place.as_uri(), "--to", back)
    with TelemetryLogger("run", log_dir=back, resume=True) as log:
        log.log_step(21, train_loss=0.5)
    resumed = contents(back / "run")

    assert main(["copy", "--from", place.as_uri(), "--to", str(back)]) == 1

    assert "has a run run that is not a copy" in capsys.readouterr().err
    assert contents(back / "run") == resumed


def test_names_of_a_store_that_lead_elsewhere_are_not_written(s3, tmp_path, monkeypatch, capsys):
    for name, value in s3.keys("admin").items():
        monkeypatch.setenv(name, value)
    with s3.files().open_output_stream(f"{BUCKET}/hostile/good/metrics.jsonl") as stream:
        stream.write(b"{}\n")
    names = ("good/.ssh/authorized_keys", "good/control.json", ".bashrc/x", "bad name/metrics.jsonl")
    for name in names:
        with s3.files().open_output_stream(f"{BUCKET}/hostile/{name}") as stream:
            stream.write(b"x")

    assert main(["copy", "--from", f"s3://{BUCKET}/hostile", "--to", str(tmp_path / "back")]) == 1

    assert contents(tmp_path / "back") == {"good/metrics.jsonl": b"{}\n"}
    assert "it has not the name of a run folder" in capsys.readouterr().err


def test_runs_go_through_a_bucket(s3, logs, tmp_path, monkeypatch, capsys):
    folder = log_run(logs, "on-s3")
    write(folder, b"not json\n")
    long_ago(logs)
    for name, value in s3.keys("admin").items():
        monkeypatch.setenv(name, value)
    bucket, back = f"s3://{BUCKET}/runs", tmp_path / "back"

    count = len(contents(folder))
    assert counts(capsys, logs, "--to", bucket) == (1, 0, count)
    assert counts(capsys, logs, "--to", bucket) == (0, 1, 0)
    assert counts(capsys, "--from", bucket, "--to", back) == (1, 0, count)

    assert contents(back / "on-s3") == contents(folder)
    append(folder, range(3))
    assert counts(capsys, logs, "--to", bucket) == counts(capsys, "--from", bucket, "--to", back) == (1, 0, 1)
    assert contents(back / "on-s3") == contents(folder)
    assert main(["copy", "other", "--from", bucket, "--to", str(back)]) == 2
    assert "has no run other" in capsys.readouterr().err


def test_bad_input_is_one_sentence(logs, tmp_path, monkeypatch, capsys):
    make_run(logs, "run")
    for options, said in (
        (("--to", (tmp_path / "missing").as_uri()), "is missing; make or mount it"),
        (("--to", "parquet://x"), "is not a place for files"),
        (("--to", "clickhouse://127.0.0.1:1"), "`telemetry ship --once` brings runs to an engine"),
        (("--from", "somewhere"), "is not a place for files"),
        ((), "which engine? "),
        (("--to", str(tmp_path)), f"as a shared folder: --to {tmp_path.as_uri()}"),
    ):
        assert main(["copy", str(logs), *options]) == 2, options
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for command in (
        ["copy", str(logs), "--to", "s3://bucket"],
        ["ship", str(logs), "--to", "clickhouse://127.0.0.1:1", "--objects", "s3://bucket"],
    ):
        assert main(command) == 2
        assert f"needs pyarrow: {install_extra('fleet')}" in capsys.readouterr().err


def test_a_folder_without_runs_is_said_to_have_none(tmp_path, place, capsys):
    (tmp_path / "empty").mkdir()

    for end, of_it in ((str(tmp_path / "empty"), str(tmp_path / "empty")), (place.as_uri(), place.as_uri())):
        ends = ["--from", end, "--to", str(tmp_path)] if "://" in end else [end, "--to", place.as_uri()]

        assert main(["copy", *ends]) == 1

        said = capsys.readouterr()
        assert said.err == f"there is no run in {of_it}\n"
        assert said.out.startswith("0 runs copied")


@in_make_faults
def test_killed_at_any_time_a_copy_has_whole_files_and_is_completed(logs, place):
    folders = [make_run(logs, f"run-{number}", 4000) for number in range(30)]
    command = [sys.executable, "-m", "toolkit.telemetry.cli", "copy", str(logs), "--to", place.as_uri()]
    for pause in (0.2, 0.4, 0.6, 0.8, 1.0, 1.2):
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        time.sleep(pause)  # where it is killed is left to chance
        child.kill()
        child.wait()
        for path in place.glob("*/[a-z]*"):
            assert path.read_bytes() == (logs / path.relative_to(place)).read_bytes()
    copied(logs, "--to", place.as_uri())
    for folder in folders:
        assert contents(folder).items() <= contents(place / folder.name).items()
